"""Primus experiments on Megatron-Bridge: a recipe by name, a model of Hugging Face's, and settings over both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from forescale.errors import ReaderError, shown
from forescale.frameworks.adapters import PLACES, lora_words
from forescale.frameworks.bridge.peft import RANK, USUAL
from forescale.frameworks.megatron.arguments import known_keys
from forescale.frameworks.megatron.reader import read_settings
from forescale.frameworks.reading import Options, Reading, unknown_of
from forescale.frameworks.settings import Settings
from forescale.spec.model import MoeFfn
from forescale.spec.workload import Trainable

BRIDGE: Final = "megatron_bridge"
OWN: Final = frozenset((
    "recipe", "flavor", "hf_path", "dataset", "dataset_name", "dataset_type", "mock", "data_paths", "peft", "peft_dim",
    "peft_alpha", "precision_config", "comm_overlap_config", "packed_sequence", "packed_train_data_path",
    "packed_val_data_path", "packed_metadata_path", "pretrained_checkpoint", "finetune_lr", "lr", "stage", "skip_save",
    "wandb_project", "wandb_entity", "wandb_exp_name", "pipeline_dtype", "check_for_nan_in_loss", "clip_grad", "seed",
    "valid_data_path", "train_data_path", "test_data_path",
))  # fmt: skip
"""Keys of recipes and of Primus's own that Megatron-LM does not have (primus/backends/megatron_bridge @fd1eeabb)."""
CONTAINER: Final = ("model", "peft")
"""Tables of a ConfigContainer that may stand beside modules: they go over what a recipe makes."""
PRECISIONS: Final = {"bf16_mixed": "bf16", "fp16_mixed": "fp16"}


def read_bridge(
    words: Mapping[str, Any], lines: Mapping[str, int], primus: frozenset[str], path: Path, options: Options
) -> Reading:
    """Return what a module of Megatron-Bridge says; `primus` are keys that all modules may have.

    Raises
    ------
    ReaderError
        If the recipe alone knows the model.
    """
    known = known_keys() | OWN | primus
    unknown = unknown_of(words, known, path, lines, strict=options.strict)
    settings = Settings({key: value for key, value in words.items() if key in known}, str(path), lines=lines)
    named = settings.get("hf_path")
    if not named or options.model_of is None:
        problem = (
            f"its model is made by the recipe {settings.get('recipe')} of Megatron-Bridge, which is not read; "
            "name a model of Hugging Face's as hf_path"
        )
        raise ReaderError(path, problem)
    model = options.model_of(str(named))
    settings.lay(settings.choice("precision_config", "bf16_mixed", PRECISIONS), value=True)
    if "use_distributed_optimizer" not in settings:
        settings.lay("use_distributed_optimizer", value=True)
    experts = next((layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn)), None)
    settings.lay("num_experts", experts.num_experts if experts else None)
    settings.note(f"what the recipe {settings.get('flavor')} sets beside the file is Python and not read")
    found = read_settings(
        settings,
        name=model.name,
        options=options,
        model=model,
        unknown=unknown,
        form="primus",
        framework="megatron-bridge",
    )
    return _adapted(found, settings)


def container_words(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what tables beside modules say of the model and of the adapters' rank."""
    tables = {name: content.get(name) or {} for name in CONTAINER}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise ReaderError(path, f"{name} must be a table, got {shown(table)}")
    return {**tables["model"], **({"peft_dim": tables["peft"]["dim"]} if "dim" in tables["peft"] else {})}


def _adapted(found: Reading, settings: Settings) -> Reading:
    """Return a reading with the adapters that `peft` asks for: Megatron-Bridge's LoRA as it is without arguments."""
    kind = str(settings.get("peft") or "none").lower()
    if kind == "none" or found.workload is None:
        return found
    if kind != "lora":
        settings.refuse(f"{settings.spell('peft')} {kind} cannot be expressed; lora and none can")
    targets = tuple(PLACES[name][0] for name in USUAL["LoRA"])
    adapters = Trainable(**lora_words(settings.count("peft_dim", RANK), targets, experts="shared"))
    used = (*found.used, "peft")
    return replace(
        found,
        workload=replace(found.workload, trainable=adapters),
        used=used,
        ignored=tuple(key for key in found.ignored if key not in ("peft", "peft_dim")),
    )

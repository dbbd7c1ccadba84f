"""Megatron-LM behind other trainers' keys: `megatron sft` of ms-swift, and LLaMA-Factory's Megatron back ends."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

from msgspec.structs import replace

from forescale.frameworks.megatron.reader import read_settings
from forescale.frameworks.reading import DEVICES, Options, ParsedFile, packaged
from forescale.frameworks.settings import Settings
from forescale.frameworks.trainers.run import MICRO, STEPS, Training
from forescale.frameworks.trainers.training import model_of
from forescale.frameworks.trainers.tuning import trainable_of

HALLMARKS: Final = (
    *("pipeline_model_parallel_size", "tensor_model_parallel_size", "expert_model_parallel_size"),
    "recompute_granularity",
)
NAMES: Final = {"max_length": "seq_length", "cutoff_len": "seq_length", MICRO: "micro_batch_size"}
DEFAULTS: Final = {
    "micro_batch_size": 1,
    "bf16": True,
    "use_distributed_optimizer": True,
    "recompute_granularity": "selective",
    "transformer_impl": "transformer_engine",
    "expert_tensor_parallel_size": 1,
}
"""What these trainers set (ms-swift, megatron/arguments/megatron_args.py); others leave recomputation off."""


LENGTH: Final = 2048
MOE_EXAMPLE: Final = "--model qwen3-30b-a3b"
"""The model of an example that has experts."""


def is_megatron(content: Mapping[str, Any]) -> bool:
    """Return whether a trainer's keys are those of its Megatron back end."""
    batch = {"micro_batch_size", "global_batch_size"} <= content.keys()
    return batch + sum(key in content for key in HALLMARKS) > ("dist_config" in content)


def flags_of(content: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys that are Megatron-LM's flags, if the trainer's back end is Megatron-LM."""
    known = {key for key, _ in packaged("megatron", "flags")["flags"].values()}
    return frozenset(known & content.keys()) if is_megatron(content) else frozenset()


RANKS: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def read_megatron(run: Training, content: Mapping[str, Any], options: Options) -> ParsedFile:
    """Return what Megatron-LM trains with the keys that are its flags."""
    run.settings.set("load", content.get("load") or run.settings.get("load"))  # a folder that names the model
    model, devices = model_of(run, options), options.num_devices or run.num_devices
    settings = _settings(run, content, options, devices)
    if devices is None:
        run.missing.append(DEVICES._replace(example=f"--devices {_fitting(settings)}"))
    if settings.degree("expert_model_parallel_size") > 1:
        run.missing[:] = [
            fact._replace(example=MOE_EXAMPLE) if fact.part == "model" else fact for fact in run.missing
        ]
    common: dict[str, Any] = {
        "warnings": tuple(run.warnings),
        "missing": tuple(run.missing),
        "num_devices": devices,
    }
    if model is None:
        sizes = {
            "seq_len": settings.size("seq_length"),
            "global_batch_size": settings.size("global_batch_size"),
        }
        return ParsedFile(format=run.form, workload_fields=sizes, **common)
    if model.moe is not None:
        settings.set("num_experts", model.moe.num_experts)
    parsed = read_settings(
        settings,
        name=model.name,
        options=options,
        model=model,
        num_devices=devices,
        form=run.form,
        based=True,
    )
    fields = {key: value for key, value in parsed.workload_fields.items() if key != "images"}
    parts = trainable_of(run, model)
    return replace(
        parsed,
        workload_fields={**fields, **({"trainable": parts} if parts else {})},
        notes=(*run.settings.notes, *parsed.notes),
        phase=run.settings.phase,
        **common,
    )


def _fitting(settings: Settings) -> int:
    """Return a number of devices as an example, at most 8 if the degrees allow, that the batch and experts divide."""
    inner, pp = prod(settings.degree(key) for key in RANKS), settings.degree("pipeline_model_parallel_size")
    batches = max(1, settings.size("global_batch_size") // settings.size("micro_batch_size"))
    experts = settings.degree("expert_model_parallel_size")
    known = [dp for dp in range(1, batches + 1) if not batches % dp and not dp * inner // pp % experts]
    few = [dp for dp in known if dp * inner <= 8]
    return inner * (max(few) if few else known[0] if known else max(1, 8 // inner))


def _settings(run: Training, content: Mapping[str, Any], options: Options, devices: int | None) -> Settings:
    """Return the settings by Megatron-LM's keys, with what these trainers set where they are silent."""
    known = flags_of(content) | frozenset(NAMES.values())
    named = {NAMES.get(key, key): value for key, value in content.items()}
    named |= {"seq_length": content["packing_length"]} if content.get("packing_length") else {}
    usual = {key: value for key, value in DEFAULTS.items() if run.form == "swift" or key not in HALLMARKS}
    values = {**usual, **{key: value for key, value in named.items() if key in known}}
    if values.get("recompute_granularity") == "full":
        values = {"recompute_method": "uniform", "recompute_num_layers": 1, **values}
    if "seq_length" not in values:
        values["seq_length"] = options.over.get("seq_len", LENGTH)
        run.settings.note(f"the length is not given: {LENGTH:,} tokens; --seq-len sets another")
    values["max_position_embeddings"] = values["seq_length"]
    settings = Settings(values, run.settings.where)
    if "global_batch_size" not in settings:
        steps = Settings(content, run.settings.where).size(STEPS, 1)
        dp = max(1, (devices or 1) // prod(settings.degree(key) for key in RANKS))
        batch = 16 if run.form == "swift" else settings.size("micro_batch_size") * steps * dp
        settings.set("global_batch_size", batch)
    return settings

"""Megatron-DeepSpeed: what DeepSpeed's engine and its configuration set besides Megatron-LM's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ForescaleError, differs
from forescale.files import parse_json
from forescale.frameworks.deepspeed.reader import read_config
from forescale.frameworks.megatron.forks import RULES
from forescale.frameworks.reading import Options, ParsedFile
from forescale.frameworks.settings import Settings
from forescale.limits import whole_of
from forescale.units import counted

INTERVAL: Final = "2"
"""--expert-interval where a command does not give it (arguments.py)."""
FIELDS: Final = ("zero", "offload", "reshard", "kernels")
"""Fields of a layout that DeepSpeed's configuration sets."""
SAME: Final = (
    ("train_micro_batch_size_per_gpu", "micro_batch_size"),
    ("train_batch_size", "global_batch_size"),
)
"""Sizes that both a configuration and flags hold."""
CURRICULA: Final = ("curriculum_learning", "data_efficiency", "progressive_layer_drop")
"""Tables of a configuration that change the data during a run."""


RENAMED: Final = {
    "batch_size": "micro_batch_size",
    "model_parallel_size": "tensor_model_parallel_size",
    "warmup": "lr_warmup_fraction",
}
"""Flags of the first releases by their present names; a rank's batch was not accumulated."""


def lay_engine(settings: Settings) -> None:
    """Set what the fork takes where a command does not say it: recompute, experts, stages and feed-forwards."""
    if settings.flag("checkpoint_activations"):
        settings.set("checkpoint_activations", None)
        settings.set("recompute_granularity", "full")
        settings.set("recompute_method", "uniform")
        settings.set("recompute_num_layers", settings.count("recompute_num_layers") or 1)
    for once, now in RENAMED.items():
        value = settings.get(once)
        if value is not None and now not in settings:
            settings.set(now, value)
            settings.set(once, None)
    if settings.flag("swiglu") and "ffn_hidden_size" not in settings:
        settings.set("ffn_hidden_size", 4 * settings.size("hidden_size"))
    settings.set("allow_padding_num_layers", value=True)
    _lay_experts(settings)


def lay_recompute(settings: Settings) -> None:
    """Set the layers of a unit of full recompute to 1, as earlier releases do where a command does not say."""
    keys = ("recompute_granularity", "recompute_method", "recompute_num_layers")
    granularity, method, layers = map(settings.raw, keys)
    if granularity == "full" and method and layers is None:
        settings.set("recompute_num_layers", 1)
        settings.note(f"{settings.spell('recompute_num_layers')} is not given; earlier releases take 1")


def _lay_experts(settings: Settings) -> None:
    """Set the experts, whole on each tensor-parallel rank: one number, or one for each layer that has them (PR-MoE)."""
    counts = [whole_of(word) or 1 for word in settings.words("num_experts")]
    if not counts or max(counts) == 1:
        settings.set("num_experts", None)
        settings.set("expert_model_parallel_size", None)
        return
    ep, several = settings.degree("expert_model_parallel_size"), [count for count in counts if count > 1]
    if any(count % ep for count in several):
        names = settings.spell("expert_model_parallel_size"), settings.spell("num_experts")
        settings.refuse(wording.not_a_factor(names[0], ep, sorted(set(several)), names[1]))
    settings.set("num_experts", min(several))
    usual = {
        "moe_router_topk": 1,
        "moe_expert_capacity_factor": None if settings.written("moe_expert_capacity_factor") else 1.0,
        "expert_tensor_parallel_size": 1,
        "moe_grouped_gemm": False,
    }
    if "moe_layer_freq" not in settings:
        usual |= RULES["expert interval"]({"num_layers": settings.size("num_layers")}, INTERVAL)
    for key, value in usual.items():
        if key not in settings:
            settings.set(key, value)
    if len(counts) > 1:
        routed = settings.pattern("moe_layer_freq", settings.size("num_layers"))
        layers = sum(routed) if isinstance(routed, tuple) else 0
        if len(counts) != layers:
            given, allowed = counted(len(counts), "number"), f"{counted(layers, 'layer')} with experts"
            settings.refuse_key(wording.wrong_count, "num_experts", given, "the model", allowed)
        settings.set("layer_experts", counts)


def parse_config(text: str | None, where: str) -> Mapping[str, Any] | None:
    """Return DeepSpeed's configuration; None if it is not there or holds words that the script replaces."""
    if text is None or re.search(r":\s*[A-Z]\w*_\w+\s*[,}\n]", text):
        return None
    try:
        content = parse_json(re.sub(r",(\s*[}\]])", r"\1", text), Path(where))
    except ForescaleError:
        return None
    return content if isinstance(content, dict) else None


def read_engine(settings: Settings, config: Mapping[str, Any] | None, options: Options) -> Mapping[str, Any]:
    """Return the fields of the layout that DeepSpeed sets, and set the ZeRO stage.

    Raises
    ------
    ReaderError
        If configuration and flags differ.
    """
    flag = settings.count("zero_stage")
    if config is None:
        stage = 1 if flag is None else flag
        origin = settings.spell("zero_stage") if flag is not None else "the default of --zero-stage"
        settings.note(f"the configuration of DeepSpeed is not in the script: ZeRO stage {stage} is {origin}")
        settings.set("zero_stage", stage)
        return {}
    _check_sizes(settings, config)
    path, plain = Path(settings.where), replace(options, layout=False, strict=False, num_devices=None)
    local = {
        key: value for key, value in config.items() if key not in CURRICULA and not key.startswith("train_")
    }
    parsed = read_config(local, path, plain)
    if any(key in config for key in CURRICULA):
        settings.note("a curriculum is ignored: steps are projected at full length")
    stage = int(parsed.layout_fields.get("zero", 0))
    if flag is not None and flag != stage:
        settings.note(
            f"ZeRO stage {stage} is that of DeepSpeed's configuration; --zero-stage {flag} has no effect"
        )
    if not stage and settings.flag("bf16"):
        stage = 1
        settings.note(
            "ZeRO stage 0 with bf16: DeepSpeed's BF16_Optimizer shards optimizer states as stage 1 does"
        )
        parsed = replace(parsed, layout_fields={**parsed.layout_fields, "zero": stage})
    settings.set("zero_stage", stage)
    _check_types(settings, config)
    return {name: value for name, value in parsed.layout_fields.items() if name in FIELDS}


def with_engine(parsed: ParsedFile, fields: Mapping[str, Any]) -> ParsedFile:
    """Return what a file says with fields of the layout that DeepSpeed sets, single kernels among the others."""
    kernels = {**parsed.layout_fields.get("kernels", {}), **fields.get("kernels", {})}
    return replace(parsed, layout_fields={**parsed.layout_fields, **fields, "kernels": kernels})


def _check_sizes(settings: Settings, config: Mapping[str, Any]) -> None:
    """Check the sizes of batches: the fork passes its global batch size to the engine (training.py)."""
    for theirs, key in SAME:
        value, count = config.get(theirs), settings.count(key)
        if not isinstance(value, int) or not count or value == count:
            continue
        name = f"{theirs} of DeepSpeed's configuration"
        if key == "micro_batch_size":
            settings.refuse(differs(name, value, settings.spell(key), count))
        settings.note(f"{name} is {value}; the fork sets it to {settings.spell(key)} {count}")


def _check_types(settings: Settings, config: Mapping[str, Any]) -> None:
    """Check the type of weights, which flags give as well."""
    for kind in ("fp16", "bf16"):
        table = config.get(kind)
        enabled = table.get("enabled") if isinstance(table, dict) else None
        if enabled is True and not settings.flag(kind):
            other = "bf16" if settings.flag("bf16") else "fp16" if settings.flag("fp16") else "fp32"
            settings.refuse(
                differs("the type of the flags", other, f"{kind} of DeepSpeed's configuration", kind)
            )

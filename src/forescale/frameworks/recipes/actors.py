"""The update of a policy by NeMo RL and verl: batches of sampled answers, packed by tokens, on what trains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale import wording
from forescale.frameworks.megatron.engine import with_engine
from forescale.frameworks.megatron.model import MICRO_BATCH
from forescale.frameworks.reading import SAMPLING, Options, ParsedFile
from forescale.frameworks.settings import Settings
from forescale.frameworks.trainers.facts import IMAGES, without_facts
from forescale.units import counted

Values = Mapping[str, Any]
PHASE: Final = f"{SAMPLING} and passes of reference models are not"
SAMPLES: Final = ("grpo", "ppo", "distillation")
"""Tables of NeMo RL whose programs sample."""
PAIRS: Final = ("dpo", "rm")
"""Tables of NeMo RL whose examples are two sequences."""
DEGREES: Final = (
    *("tp", "cp", "pp", "tensor_model_parallel_size"),
    *("context_parallel_size", "pipeline_model_parallel_size"),
)
SIZES: Final = ("micro_batch_size", "global_batch_size", "seq_len")


def nemo_rl(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set the devices that train, the tokens of a micro-batch, pairs, adapters and the types of FSDP2."""
    tables = {key.partition(".")[0] for key in values}
    if settings.flag("uses_dtensor") and settings.flag("uses_megatron"):
        both = [settings.spell(key) for key in ("uses_dtensor", "uses_megatron")]
        settings.refuse(wording.conflicts(both, fix="set one of them to false"))
    for table in SAMPLES:
        if table in tables:
            settings.phase = f"{table}: {PHASE}"
    if not settings.flag("colocated", default=True):
        several = settings.count("num_nodes", 1) > 1
        key, rollout = ("num_nodes", "rollout_nodes") if several else ("devices_per_node", "rollout_devices")
        settings.set(key, settings.count(key, 0) - settings.count(rollout, 0))
        settings.note("devices that only sample (generation.colocated.enabled: false) are not counted")
    packs = settings.flag("packing")
    settings.set("bin_tokens", settings.raw("packed_tokens" if packs else "binned_tokens"))
    settings.set("binned", packs or settings.flag("binned"))
    settings.set("packing", None)
    _lay_varied(settings)
    if any(table in tables for table in PAIRS):
        settings.note("each example is two sequences, chosen and rejected")
        settings.set("sequences", 2)
        settings.set("global_batch_size", 2 * settings.size("global_batch_size"))
    _lay_megatron(settings)
    if settings.flag("sp") or settings.degree("ep") > 1:
        settings.set("framework", "torch-fsdp@automodel")  # its DTensor workers are NeMo AutoModel's
    if settings.flag("adapts"):
        _lay_adapters(settings, settings.count("adapter_rank", 8))


def verl(settings: Settings, values: Values, path: Path) -> None:  # noqa: ARG001  (as all rules)
    """Set the answers of a step, their length, the tokens of a micro-batch, adapters and the types of FSDP."""
    if settings.raw("answers") is not None:
        settings.phase = f"{settings.text('estimator')}: {PHASE}"
        answers, prompts = settings.size("answers"), settings.size("prompts")
        batch = settings.size("global_batch_size") * answers
        sampled = prompts * answers * settings.size("agents", 1)
        settings.set("global_batch_size", min(batch, sampled))
        length = settings.size("prompt_len") + settings.size("response_len")
        settings.set("seq_length", length)
        settings.set("seq_len", length)
        if settings.spell("devices_per_node") == "devices_per_node":
            settings.note(f"{settings.raw('devices_per_node')} devices of a node are verl's default")
        if settings.flag("critic", default=settings.text("estimator") == "gae"):
            settings.warnings.append(
                "the weights and states of the critic, and its update, are not in the figures"
            )
        moved = [key for key, value in values.items() if MOVES.search(key) and str(value) == "True"]
        if moved:
            settings.note("param_offload and optimizer_offload move states between phases, not in the update")
    elif "micro_batch_size" not in settings and "micro_batches_of_all" not in settings:
        settings.set("micro_batch_size", 4)  # verl/trainer/config/sft_trainer.yaml
    cp = settings.degree("cp") * settings.degree("context_parallel_size")
    settings.set("bin_tokens", cp * settings.count("bin_tokens", 0))
    settings.set("cp_kind", "ulysses")
    if settings.flag("binned") or settings.flag("unpadded", default=True):
        _lay_varied(settings)
    _lay_megatron(settings)
    if settings.text("computes"):
        settings.set("precision", settings.text("computes"))
    kernels: dict[str, Any] = {"cross_entropy": "fused_linear"} if settings.flag("fused_loss") else {}
    kernels |= {"cross_entropy": "fused_linear", "fused": True} if settings.flag("fused_layers") else {}
    settings.set("kernels", kernels or None)
    if rank := settings.count("adapter_rank", 0):
        _lay_adapters(settings, rank)
    elif settings.flag("freezes_vision"):
        more = {"trainable": {"frozen": ("vision", "projector")}}
        settings.set("more", {**(settings.raw("more") or {}), **more})  # type: ignore[dict-item]


MOVES: Final = re.compile(r"[.]actor[.].*[.](?:param|optimizer|grad)_offload$")
"""Keys that move states of the actor between phases."""


def _lay_varied(settings: Settings) -> None:
    settings.set("more", {"varied_lengths": True})


def _lay_megatron(settings: Settings) -> None:
    """Set recompute, offload and fp8 of Megatron workers, and fp32 gradients of the others."""
    if settings.text("precision", "bf16") == "bf16":
        settings.set("kept_types", {"gradients": "fp32"})
    if settings.flag("checkpoint_activations"):
        settings.set("checkpoint_activations", None)
        settings.set("recompute_granularity", settings.text("granularity", "full"))
    if settings.raw("recompute_granularity") == "full":
        for key, usual in (("recompute_method", "uniform"), ("recompute_num_layers", 1)):
            settings.set(key, settings.raw(key) or usual)
    if settings.flag("optimizer_cpu_offload"):
        settings.set("optimizer_offload_fraction", settings.number("offload_fraction") or 1.0)
    if settings.flag("narrow"):
        settings.set("fp8", settings.text("narrow_format", "hybrid"))
        settings.set("fp8_recipe", settings.text("narrow_recipe", "delayed"))
        settings.set("fp8_param_gather", settings.flag("narrow_param"))


def _lay_adapters(settings: Settings, rank: int) -> None:
    """Set adapters by the keys of both back ends; all products have one where none is named."""
    named = [word for word in settings.words("adapter_targets") if word != "[]"]
    for key in ("lora_rank", "lora_r"):
        settings.set(key, rank)
    settings.set("lora_targets", named or ["all-linear"])
    linear = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    settings.set("lora_target_modules", linear if not named or named == ["all-linear"] else named)
    settings.set("lora_dropout", settings.number("adapter_dropout") or None)


def lay_batches(settings: Settings, options: Options) -> None:
    """Set what of a policy's batches depends on the devices: the sequences of a micro-batch that tokens limit.

    If the tokens are not those of whole sequences, a micro-batch is one sequence of packed answers; every answer is
    projected at its longest.
    """
    if settings.raw("bin_tokens") is None and settings.raw("fsdp_size") is None:
        return
    inner = prod(settings.degree(key) for key in DEGREES)
    stated = settings.count("devices_per_node", 0) * settings.count("num_nodes", 1)
    dp = max(1, (options.num_devices or stated) // inner)
    if (shards := settings.number("fsdp_size") or -1) > 0 and shards < dp:
        settings.set("dp_replicate", dp // int(shards))
    if "micro_batch_size" not in settings and (whole := settings.count("micro_batches_of_all")):
        settings.set("micro_batch_size", max(1, whole // dp))
    if settings.flag("binned") and not any(key in options.over for key in SIZES):
        _lay_bins(settings, dp)


def _lay_bins(settings: Settings, dp: int) -> None:
    pairs = settings.size("sequences", 1)
    length = settings.size("seq_length" if "seq_length" in settings else "seq_len")
    local = -(-settings.size("global_batch_size") // dp)
    tokens = min(settings.size("bin_tokens"), local * length)
    whole = max(1, tokens // length)
    answers = f"answers are projected at their longest, {length:,} tokens"
    if tokens <= length or (tokens % length == 0 and local % whole == 0):
        settings.set("micro_batch_size", max(1, whole // pairs))
        settings.note(f"micro-batches hold up to {tokens:,} tokens: {counted(whole, 'sequence')}; {answers}")
        return
    bins = -(-local * length // tokens)
    for key in ("seq_len", "seq_length"):
        settings.set(key, tokens)
    settings.set("micro_batch_size", 1)
    settings.set("sequences", 1)
    settings.set("global_batch_size", bins * dp)
    settings.set("more", {**(settings.raw("more") or {}), "document_len": length})  # type: ignore[dict-item]
    settings.note(
        f"micro-batches hold up to {tokens:,} tokens, each one sequence of packed answers; {answers}"
    )


def with_policy(parsed: ParsedFile, settings: Settings) -> ParsedFile:
    """Return what a file says with the kernels and lengths of a policy; images and an open micro-batch are missing."""
    if more := settings.raw("more"):
        parsed = replace(parsed, workload_fields={**parsed.workload_fields, **more})  # type: ignore[dict-item]
    if kernels := settings.raw("kernels"):
        parsed = with_engine(parsed, {"kernels": kernels})
    if parsed.model is not None and parsed.model.vision is not None:
        fields = {key: value for key, value in parsed.workload_fields.items() if key != "images"}
        parsed = replace(parsed, workload_fields=fields, missing=(*parsed.missing, IMAGES))
    is_open = settings.raw("answers") is not None and "micro_batch_size" not in settings
    return without_facts(parsed, [MICRO_BATCH]) if is_open else parsed

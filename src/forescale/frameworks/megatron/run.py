"""Megatron's settings as a workload: batch, tokens, optimizer, data types."""

from __future__ import annotations

from typing import Literal, TypeAlias

from forescale.frameworks.megatron.vision import read_images, read_trainable
from forescale.frameworks.settings import Settings
from forescale.frameworks.shell import is_unset
from forescale.spec.strategy import Strategy
from forescale.spec.workload import ComputeType, OptimizerName, Precision, StorageType, Workload

Recipe: TypeAlias = Literal["none", "delayed", "current", "blockwise", "mxfp8"]

OPTIMIZERS: dict[str, OptimizerName] = {
    "adam": "adamw",
    "sgd": "sgd",
    "lion": "lion",
    "muon": "muon",
    "dist_muon": "muon",
    "adaptive_muon": "muon",
}
RECIPES: dict[str, Recipe] = {
    "delayed": "delayed",
    "tensorwise": "current",
    "blockwise": "blockwise",
    "mxfp8": "mxfp8",
}
FP8_FORMATS = {name: name for name in ("e4m3", "hybrid", "True", "true")}
STORAGE: dict[str, StorageType] = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
_WIDTH = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


def read_workload(settings: Settings, strategy: Strategy) -> Workload:
    """Return the workload; the batch must make whole micro-batches on `strategy`."""
    seq_len = settings.size("seq_length")
    step = strategy.dp * strategy.micro_batch_size
    batch = settings.count("global_batch_size")
    if batch is None:
        batch = step
        settings.note(f"global_batch_size is not given; Megatron-LM takes one micro-batch per rank, {step}")
    if not batch or batch % step:
        settings.refuse(
            f"{settings.spell('global_batch_size')} {batch} is no multiple of micro batch "
            f"{strategy.micro_batch_size} x data parallel {strategy.dp} = {step}"
        )
    _check_interleaving(settings, strategy, batch // step)
    optimizer = str(settings.get("optimizer") or "adam")
    if optimizer not in OPTIMIZERS:
        settings.refuse(f"the optimizer {optimizer!r} is not one of {', '.join(OPTIMIZERS)}")
    return Workload(
        seq_len=seq_len,
        global_batch_size=batch,
        tokens=_tokens(settings, seq_len, batch),
        optimizer=OPTIMIZERS[optimizer],
        precision=read_precision(settings),
        trainable=read_trainable(settings),
        images=read_images(settings),
    )


def _check_interleaving(settings: Settings, strategy: Strategy, num_microbatches: int) -> None:
    group = settings.count("microbatch_group_size_per_vp_stage")
    if strategy.vpp == 1:
        return
    if group is None and num_microbatches % strategy.pp:
        settings.refuse(
            f"{num_microbatches} micro-batches are no multiple of pp {strategy.pp}, as virtual stages need"
        )
    if group is not None and group < strategy.pp:
        name = settings.spell("microbatch_group_size_per_vp_stage")
        settings.refuse(f"{name} {group} must be at least pp {strategy.pp}")


def _tokens(settings: Settings, seq_len: int, batch: int) -> float | None:
    samples, iterations = (_steps(settings, key) for key in ("train_samples", "train_iters"))
    if samples:
        return float(samples) * seq_len
    return float(iterations) * batch * seq_len if iterations else None


def _steps(settings: Settings, key: str) -> int | None:
    """Return how long a run is; None where that is a variable that nothing sets, as no step depends on it."""
    value = settings.get(key)
    if isinstance(value, str) and is_unset(value):
        settings.note(f"{settings.spell(key)} is {value}, which nothing sets: the run's length is left open")
        return None
    return settings.count(key)


SHARDING = ("use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2")
"""Keys any of which shards states."""


def read_precision(settings: Settings) -> Precision:
    """Return the data types of compute and states."""
    bf16, fp16 = settings.flag("bf16"), settings.flag("fp16")
    if bf16 and fp16:
        settings.refuse(f"{settings.spell('bf16')} and {settings.spell('fp16')} cannot both be set")
    if settings.flag("fp8_param_gather") and not any(settings.flag(key) for key in SHARDING):
        needed = "--use-distributed-optimizer, --use-megatron-fsdp or --use-torch-fsdp2"
        settings.refuse(f"{settings.spell('fp8_param_gather')} needs {needed}, as in Megatron-LM")
    base: StorageType = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    compute, recipe = _compute(settings, base)
    return Precision(
        compute=compute,
        recipe=recipe,
        parameters="fp8" if compute in ("fp8", "mxfp8") and settings.flag("fp8_param_gather") else base,
        gradients=_gradients(settings, base),
        master=_master(settings, base),
        moments=_moments(settings),
        activations=base,
    )


def _compute(settings: Settings, base: StorageType) -> tuple[ComputeType, Recipe]:
    fp4, fp8 = settings.get("fp4"), settings.get("fp8")
    if fp8:
        settings.choice("fp8", "hybrid", FP8_FORMATS)
    named = str(settings.get("fp8_recipe") or "delayed")
    if fp4 and fp8:
        settings.refuse(f"{settings.spell('fp4')} and {settings.spell('fp8')} cannot both be set")
    if fp4:
        return "nvfp4", "none"
    if not fp8:
        return base, "none"
    if named not in RECIPES:
        settings.refuse(f"the fp8 recipe {named!r} is not one of {', '.join(RECIPES)}")
    return ("mxfp8" if named == "mxfp8" else "fp8"), RECIPES[named]


def _gradients(settings: Settings, base: StorageType) -> StorageType:
    """Return the type that gradients are accumulated and reduced in: fp32 with bf16 unless told otherwise."""
    in_fp32 = settings.flag("accumulate_allreduce_grads_in_fp32")
    in_bf16 = settings.flag("grad_reduce_in_bf16")
    main = _main(settings, "main_grads_dtype")
    if main != "fp32":
        return main
    if base == "bf16":
        return "bf16" if in_bf16 else "fp32"
    return "fp32" if in_fp32 else base


def _master(settings: Settings, base: StorageType) -> StorageType | Literal["none"]:
    main = _main(settings, "main_params_dtype")
    return "none" if base == "fp32" else main


def _moments(settings: Settings) -> StorageType:
    first, second = _main(settings, "exp_avg_dtype"), _main(settings, "exp_avg_sq_dtype")
    if first != second:
        settings.note(f"the moments are kept in {first} and {second}; both are taken as the wider")
    return max(first, second, key=lambda kind: _WIDTH[kind])


def _main(settings: Settings, key: str) -> StorageType:
    """Return a type that counts only with the precision-aware optimizer."""
    kind = STORAGE[settings.choice(key, "fp32", {name: name for name in STORAGE})]
    return kind if settings.flag("use_precision_aware_optimizer") else "fp32"

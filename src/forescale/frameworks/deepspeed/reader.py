"""DeepSpeed's JSON configuration: batch, ZeRO stage, offload and types; the model is in another file.

"auto", which a trainer fills in, counts as not given where the trainer's settings are not there; a 16-bit type that is
"auto" is then taken as enabled.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from difflib import get_close_matches
from math import lcm
from pathlib import Path
from typing import Any, ClassVar, Final

from forescale import wording
from forescale.errors import ReaderError, UnknownKeyError
from forescale.files import parse_json, read_text
from forescale.frameworks.detect import Signed
from forescale.frameworks.reading import Options, ParsedFile, explicit_fields, flat, packaged, unknown_of
from forescale.frameworks.settings import Settings
from forescale.positions import located
from forescale.spec.kinds import framework_names
from forescale.spec.layout import Kernels, Layout, Offload, Overlap
from forescale.spec.optimizers import OPTIMIZERS, OptimizerName
from forescale.syntax import parse_mapping
from forescale.units import counted

_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
LEFT = ("software", "kernels", "recompute", "flash_attention", "allocator", "graphs", "dispatcher")
"""What the configuration says nothing of."""
ZERO, EXPERTS = "zero_optimization", "expert_parallel"
MODEL_RANKS = (
    *("pipeline.stages", "sequence_parallel_size"),
    *("tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size"),
)
"""Keys of the degrees that data parallelism is beside."""
BUCKET = f"{ZERO}.reduce_bucket_size"
NEAR: Final = 0.8
"""How alike an unknown key is to a known one that is meant, which is refused."""
FULLY_SHARDED = 3
"""The stage that shards parameters, too."""
TYPES = {
    "fp32": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
}
OPTIMIZER_NAMES: Mapping[str, OptimizerName] = {
    theirs.lower(): ours for theirs, ours in framework_names(OPTIMIZERS.values(), "deepspeed").items()
}


_COMMENTS = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|#[^\n]*')
_LAST_COMMAS = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])')


def parse_loosely(text: str, where: object) -> object:
    """Return the content of DeepSpeed's JSON, which it reads as Hjson: comments and commas after the last item pass."""
    try:
        return parse_json(text, where)
    except ReaderError:
        plain = _COMMENTS.sub(r"\1", text)
        with suppress(ReaderError):
            return parse_json(_LAST_COMMAS.sub(r"\1", plain), where)
        raise


class DeepSpeedReader(Signed):
    """The JSON configuration of DeepSpeed: a layout without a model."""

    name: Final = "deepspeed"
    title: Final = "DeepSpeed configuration in JSON (beside a model)"
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the configuration at `path` says of layout and batch."""
        return read_config(parse_mapping(read_text(path), path, parse_loosely), path, options)


def read_config(
    content: Mapping[str, Any], path: Path, options: Options, outer: Mapping[str, Any] | None = None
) -> ParsedFile:
    """Return what a configuration says; `outer` are the settings of a trainer that fills in what is "auto"."""
    with located(path):
        config, unknown = _settings(content, path, outer or {}, strict=options.strict)
        layout = _strategy(config, options.num_devices)
        return ParsedFile(
            format=DeepSpeedReader.name,
            framework="megatron-deepspeed" if "pipeline.stages" in config else "deepspeed-zero",
            layout_fields=_layout_fields(config, layout),
            workload_fields=_workload(config, layout, options),
            num_devices=options.num_devices,
            **config.accounted(unknown),
        )


def _settings(
    content: Mapping[str, Any], path: Path, outer: Mapping[str, Any], *, strict: bool
) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings of one file by dotted key, and the keys that DeepSpeed does not have."""
    table = packaged("deepspeed")
    read, lost = table["read"], table["not_expressed"]
    tops = tuple(dict.fromkeys(key.split(".")[0] for key in (*read, *lost, *table["ignored"])))
    unknown = unknown_of(content, tops, path, {}, strict=strict)
    near = {key: get_close_matches(key, tops, 1, NEAR) for key in unknown}
    misspelt = [key for key, names in near.items() if names and names[0] not in table["ignored"]]
    unknown_of(misspelt, tops, path, {}, strict=True)
    for section, keys in table["sections"].items():
        inside = content.get(section)
        if not isinstance(inside, dict | None):
            raise ReaderError(path, wording.wrong_type(section, inside, "a table"))
        wrong = [key for key in inside or () if key not in keys]
        misspelt = wrong if strict else [key for key in wrong if get_close_matches(key, keys, 1, NEAR)]
        if misspelt:
            raise UnknownKeyError(misspelt[0], f"{path}, {section}", keys)
        unknown = (*unknown, *(f"{section}.{key}" for key in wrong))
    values = dict(flat({key: value for key, value in content.items() if key in tops}))
    auto = [key for key, value in values.items() if value == "auto"]
    settings = Settings(values | {key: outer.get(key) for key in auto}, str(path))
    open_ended = [key for key in auto if key in read and key not in outer]
    _assume_types(settings, open_ended)
    for key in open_ended:
        if not any(key == f"{kind}.enabled" for kind in HALF):
            settings.note(f"{key} is auto: not given")
    for key, what in lost.items():
        if any(name == key or name.startswith(f"{key}.") for name, value in values.items() if value):
            settings.note(f"not expressed: {key} ({what})")
    return settings, unknown


def _strategy(config: Settings, num_devices: int | None) -> Layout:
    zero = config.count(f"{ZERO}.stage", 0)
    if zero > FULLY_SHARDED:
        config.refuse(wording.not_one_of(f"{ZERO}.stage", zero, ("0", "1", "2", "3")))
    pp, cp = config.size("pipeline.stages", 1), config.size("sequence_parallel_size", 1)
    tp = config.size("tensor_parallel.autotp_size", config.size("tensor_parallel.tp.tp_size", 1))
    dp = _data_parallel(config, num_devices, tp * pp * cp)
    group = config.size(f"{ZERO}.mics_shard_size", dp)
    if dp % group and num_devices is None:
        dp = group
    if dp % group:
        config.refuse(wording.not_a_factor(f"{ZERO}.mics_shard_size", group, dp))
    hpz = config.size(f"{ZERO}.zero_hpz_partition_size", 1)
    if num_devices is None and group == dp and dp % hpz:
        dp = group = lcm(dp, hpz)
    return Layout(
        tp=tp,
        sp=False,
        cp=cp,
        cp_kind="ulysses",
        pp=pp,
        dp_replicate=dp // group,
        dp_shard=group,
        zero=zero,
        micro_batch_size=_micro_batch(config, None if num_devices is None else dp),
        ep=_experts(config),
        overlap=Overlap(grad_reduce=config.flag(f"{ZERO}.overlap_comm", default=zero == FULLY_SHARDED)),
        kernels=Kernels(bucket_elements=_bucket(config)),
        offload=_offload(config, zero),
        reshard=hpz if hpz > 1 and zero == FULLY_SHARDED else "default",
    )


def _batch(config: Settings) -> list[int | None]:
    """Return the whole batch, the micro-batch and the accumulated steps, each as far as it is given."""
    return [config.size(key) if key in config else None for key in _BATCH]


def _data_parallel(config: Settings, num_devices: int | None, inner: int) -> int:
    """Return data parallel, from the devices or from the three batch sizes, which must agree."""
    whole, micro, steps = _batch(config)
    if num_devices is not None:
        if num_devices % inner:
            message = " x ".join(f"{key} {config.size(key)}" for key in MODEL_RANKS if key in config)
            config.refuse(wording.not_a_factor("the ranks of a model", message, num_devices))
        dp = num_devices // inner
        if whole and micro and steps and whole != micro * steps * dp:
            other = f"{micro} x {steps} x {counted(dp, 'data-parallel rank')}"
            config.refuse(wording.differs("train_batch_size", whole, other, micro * steps * dp))
        return dp
    if whole and micro:
        return max(1, whole // (micro * (steps or 1)))
    return 1


def _micro_batch(config: Settings, dp: int | None) -> int:
    """Return the micro-batch; where the file leaves it out, it follows from the whole batch, as in DeepSpeed."""
    key = _BATCH[1]
    whole, micro, steps = _batch(config)
    ranks = (dp or 1) * (steps or 1)
    if micro is None and whole and dp is not None and not config.written(key) and whole % ranks == 0:
        micro = whole // ranks
        over = f"gradient_accumulation_steps {steps or 1} x {counted(dp, 'data-parallel rank')}"
        config.note(f"{key} is not given: {micro}, from train_batch_size {whole} / ({over})")
    return micro or 1


def _experts(config: Settings) -> int:
    """Return the ranks that DeepSpeed itself puts experts on (AutoEP)."""
    if not config.flag(f"{EXPERTS}.enabled"):
        return 1
    etp = config.size(f"{EXPERTS}.expert_tensor_parallel_size", 1)
    if etp > 1:
        allowed = "1, as DeepSpeed asks"
        config.refuse(wording.out_of_range(f"{EXPERTS}.expert_tensor_parallel_size", etp, allowed))
    return config.size(f"{EXPERTS}.autoep_size", 1)


def _bucket(config: Settings) -> float:
    """Return the elements of a reduction bucket; 0 where they are left to DeepSpeed."""
    size = config.number(BUCKET) or 0.0
    if not 0 <= size < 1e15:
        config.refuse(wording.out_of_range(BUCKET, size, "a number of elements"))
    return size


def _layout_fields(config: Settings, layout: Layout) -> dict[str, Any]:
    """Return the explicit fields of the layout."""
    names = ["bucket_elements"] if config.get(BUCKET) is not None else []
    return explicit_fields(layout, left=LEFT, tables={"overlap": ("grad_reduce",), "kernels": names})


OFFLOADED = {"optimizer": "cpu_offload", "param": "cpu_offload_params"}
"""What can be offloaded, and the older key for it."""


def _place(config: Settings, part: str, old: str) -> str:
    """Return where a part of the states lies (DeepSpeed, runtime/zero/offload_config.py)."""
    key = f"{ZERO}.offload_{part}"
    if key in config:
        config.refuse(wording.wrong_type(key, config.get(key), 'a table, such as {"device": "cpu"}'))
    usual = "cpu" if config.flag(f"{ZERO}.{old}") else "none"
    return config.one_of(f"{key}.device", usual, ("none", "cpu", "nvme"))


def _offload(config: Settings, zero: int) -> Offload:
    where = {part: _place(config, part, old) for part, old in OFFLOADED.items()}
    share = config.number(f"{ZERO}.offload_optimizer.ratio")
    if "nvme" in where.values():
        config.note("not expressed: offload to NVMe; projected as offload to the host's memory")
    on_host = {part: device in ("cpu", "nvme") for part, device in where.items()}
    if on_host["param"] and zero < FULLY_SHARDED:
        config.note(f"{ZERO}.offload_param has no effect at stage {zero}, only at stage 3")
        on_host["param"] = False
    whole = 1.0 if share is None else share
    if not 0 <= whole <= 1:
        config.refuse(wording.out_of_range(f"{ZERO}.offload_optimizer.ratio", whole, "from 0 to 1"))
    inputs = config.flag("activation_checkpointing.cpu_checkpointing")
    return Offload(
        optimizer=whole if on_host["optimizer"] else 0.0,
        parameters=on_host["param"],
        states=on_host["optimizer"] or not on_host["param"],
        modules=("decoder_layer_input",) if inputs else (),
    )


HALF: Final = ("bf16", "fp16")


def _assume_types(config: Settings, auto: Collection[str]) -> None:
    """Take a 16-bit type that is left to a trainer which is not here as the one that it trains in, bf16 before fp16."""
    named = [kind for kind in HALF if f"{kind}.enabled" in auto]
    if named and not any(config.flag(f"{kind}.enabled") for kind in HALF):
        config.set(f"{named[0]}.enabled", value=True)
        config.note(
            f"{named[0]}.enabled is auto: taken as true, as a trainer that trains in {named[0]} sets it; "
            "--precision takes another type"
        )


def _types(config: Settings) -> dict[str, str]:
    """Return the types of weights, gradients and the master copy."""
    kept = "data_types.grad_accum_dtype" in config and config.choice("data_types.grad_accum_dtype", "", TYPES)
    if config.flag("fp16.enabled") and config.flag("bf16.enabled"):
        config.refuse(wording.conflicts(["fp16.enabled", "bf16.enabled"]))
    half = "fp16" if config.flag("fp16.enabled") else "fp32"
    compute = "bf16" if config.flag("bf16.enabled") else half
    gradients = kept or compute
    if compute == "fp32":
        return {
            "compute": "tf32",
            "parameters": "fp32",
            "gradients": "fp32",
            "master": "none",
            "activations": "fp32",
        }
    return {"compute": compute, "parameters": compute, "gradients": gradients, "activations": compute}


def _workload(config: Settings, layout: Layout, options: Options) -> dict[str, Any]:
    """Return what the file says of the workload; the sequence's length is not in it, nor a batch of unknown devices."""
    whole, micro, steps = _batch(config)
    values: dict[str, Any] = {"precision": _types(config)}
    if whole is None and micro and steps and (options.num_devices or not options.layout):
        whole = micro * steps * layout.dp
    if whole is not None:
        values["global_batch_size"] = whole
    named = config.get("optimizer.type")
    if isinstance(named, str):
        if named.lower() not in OPTIMIZER_NAMES:
            config.note(f"optimizer.type {named}: states taken as AdamW's")
        values["optimizer"] = OPTIMIZER_NAMES.get(named.lower(), "adamw")
    return values

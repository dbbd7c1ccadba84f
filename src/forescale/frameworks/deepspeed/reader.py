"""DeepSpeed's JSON configuration: batch, ZeRO stage, offload and types; the model is in another file.

"auto", which Hugging Face's trainer fills in, counts as not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args

from forescale.errors import ReaderError, SpecError, UnknownKeyError, shown
from forescale.files import parse_json, read_text
from forescale.frameworks.reading import Options, Reading, flat, packaged, words_of
from forescale.limits import COUNT, within
from forescale.spec.strategy import Kernels, Offload, Overlap, Strategy
from forescale.spec.workload import OptimizerName
from forescale.syntax import key_lines, parse_mapping
from forescale.units import counted

_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
LEFT = ("software", "kernels", "recompute", "flash_attention", "allocator", "graphs", "dispatcher")
"""What the configuration says nothing of."""
ZERO, EXPERTS = "zero_optimization", "expert_parallel"
BUCKET = f"{ZERO}.reduce_bucket_size"
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
OPTIMIZERS: Mapping[str, OptimizerName] = MappingProxyType(
    {"adam": "adamw", "fusedadam": "adamw", "deepspeedcpuadam": "adamw", "muon": "muon", "lion": "lion"}
)


class DeepSpeedReader:
    """The JSON configuration of DeepSpeed: a layout without a model."""

    name: Final = "deepspeed"
    title: Final = "DeepSpeed configuration in JSON (beside a model)"

    def recognises(self, text: str) -> bool:
        """Whether `text` is JSON with a key that only DeepSpeed has."""
        own = ("zero_optimization", *_BATCH[:2])
        return text.lstrip().startswith("{") and any(f'"{key}"' in text for key in own)

    def read(self, path: Path, options: Options) -> Reading:
        """Return what the configuration at `path` says of layout and batch."""
        return read_config(parse_mapping(read_text(path), path, parse_json), path, options)


def read_config(
    content: Mapping[str, Any], path: Path, options: Options, outer: Mapping[str, Any] | None = None
) -> Reading:
    """Return what a configuration says; `outer` are the settings of a trainer that fills in what is "auto"."""
    config = _Config(content, path, outer or {}, strict=options.strict)
    strategy = _strategy(config, options.num_devices)
    return Reading(
        format=DeepSpeedReader.name,
        framework="megatron-deepspeed" if "pipeline.stages" in config.given else "deepspeed-zero",
        strategy=strategy,
        told=_told(config, strategy),
        workload_values=_workload(config, strategy),
        num_devices=options.num_devices,
        used=tuple(config.used),
        ignored=tuple(key for key in config.given if key not in config.used),
        unknown=tuple(config.unknown),
        notes=tuple(dict.fromkeys(config.notes)),
    )


class _Config:
    """The settings of one file by dotted key, and which of them were read."""

    def __init__(
        self, content: Mapping[str, Any], path: Path, outer: Mapping[str, Any], *, strict: bool
    ) -> None:
        self.path, self.outer, table = path, outer, packaged("deepspeed")
        known = {*table["read"], *table["not_expressed"], *table["ignored"]}
        tops = tuple(dict.fromkeys(key.split(".")[0] for key in known))
        self.unknown = [key for key in content if key not in tops]
        if self.unknown and strict:
            raise UnknownKeyError(self.unknown[0], self.place(self.unknown[0]), tops)
        self.given = dict(flat({key: value for key, value in content.items() if key in tops}))
        for section, keys in table["sections"].items():
            inside = content.get(section)
            if section in content and not isinstance(inside, dict | None):
                raise ReaderError(path, f"{section} must be a table, got {shown(inside)}")
            wrong = [key for key in inside if key not in keys] if isinstance(inside, dict) else []
            if wrong and strict:
                raise UnknownKeyError(wrong[0], f"{self.place(f'{section}.{wrong[0]}')}, {section}", keys)
            self.unknown += [f"{section}.{key}" for key in wrong]
        self.used: dict[str, None] = {}
        self.notes: list[str] = []
        for key, what in table["not_expressed"].items():
            if any(name == key or name.startswith(f"{key}.") for name, value in self.given.items() if value):
                self.notes.append(f"not expressed: {key} ({what})")

    def place(self, key: str) -> str:
        """Return the file, and the line that a key stands on."""
        found = key_lines(read_text(self.path)).get(key) if self.path.is_file() else None
        return str(self.path) if found is None else f"{self.path}, line {found}"

    def get(self, key: str) -> object:
        """Return a setting; None where it is not given, or "auto" and no trainer fills it in."""
        if key not in self.given:
            return None
        self.used[key] = None
        value = self.given[key]
        if value == "auto":
            if key not in self.outer:
                self.notes.append(f"{key} is auto: not given")
            return self.outer.get(key)
        return value

    def count(self, key: str) -> int | None:
        """Return a whole number of at least 1."""
        value = self.get(key)
        if value is None:
            return None
        try:
            return int(within(value, COUNT, key, whole=True))
        except SpecError as error:
            raise ReaderError(self.path, str(error)) from error

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a switch."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise ReaderError(self.path, f"{key} must be true or false, got {shown(value)}")
        return default if value is None else value


def _strategy(config: _Config, num_devices: int | None) -> Strategy:
    stage = config.get(f"{ZERO}.stage")
    if stage is not None and (type(stage) is not int or stage not in (0, 1, 2, 3)):
        raise ReaderError(config.path, f"{ZERO}.stage must be 0, 1, 2 or 3, got {shown(stage)}")
    zero = int(stage or 0) if isinstance(stage, int) else 0
    pp, cp = config.count("pipeline.stages") or 1, config.count("sequence_parallel_size") or 1
    tp = config.count("tensor_parallel.autotp_size") or config.count("tensor_parallel.tp.tp_size") or 1
    dp = _data_parallel(config, num_devices, tp * pp * cp)
    group = config.count(f"{ZERO}.mics_shard_size") or dp
    if dp % group:
        raise ReaderError(
            config.path, f"{ZERO}.mics_shard_size {group} does not divide {counted(dp, 'data-parallel rank')}"
        )
    hpz = config.count(f"{ZERO}.zero_hpz_partition_size") or 1
    return Strategy(
        tp=tp,
        sp=False,
        cp=cp,
        cp_kind="ulysses",
        pp=pp,
        dp_replicate=dp // group,
        dp_shard=group,
        zero=zero,
        micro_batch_size=config.count("train_micro_batch_size_per_gpu") or 1,
        ep=_experts(config),
        overlap=Overlap(grad_reduce=config.flag(f"{ZERO}.overlap_comm", default=zero == FULLY_SHARDED)),
        kernels=Kernels(bucket_elements=_bucket(config)),
        offload=_offload(config, zero),
        reshard=hpz if hpz > 1 and zero == FULLY_SHARDED else "default",
    )


def _data_parallel(config: _Config, num_devices: int | None, inner: int) -> int:
    """Return data parallel, from the devices or from the three batch sizes, which must agree."""
    whole, micro, steps = (config.count(key) for key in _BATCH)
    if num_devices is not None:
        if num_devices % inner:
            raise ReaderError(
                config.path,
                f"the number of devices, {num_devices}, is no multiple of {inner} ranks of a model",
            )
        dp = num_devices // inner
        if whole and micro and steps and whole != micro * steps * dp:
            problem = (
                f"train_batch_size {whole} is not {micro} x {steps} x {counted(dp, 'data-parallel rank')}"
            )
            raise ReaderError(config.path, problem)
        return dp
    if whole and micro:
        return max(1, whole // (micro * (steps or 1)))
    return 1


def _experts(config: _Config) -> int:
    """Return the ranks that DeepSpeed itself puts experts on (AutoEP)."""
    if not config.flag(f"{EXPERTS}.enabled"):
        return 1
    etp = config.count(f"{EXPERTS}.expert_tensor_parallel_size") or 1
    if etp > 1:
        raise ReaderError(
            config.place(f"{EXPERTS}.expert_tensor_parallel_size"),
            f"{EXPERTS}.expert_tensor_parallel_size must be 1, as DeepSpeed asks; got {etp}",
        )
    return config.count(f"{EXPERTS}.autoep_size") or 1


def _bucket(config: _Config) -> float:
    """Return the elements of a reduction bucket; 0 where they are left to DeepSpeed."""
    size = config.get(BUCKET)
    if size is None:
        return 0.0
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < 1e15:
        raise ReaderError(config.path, f"{BUCKET} must be a number of elements, got {shown(size)}")
    return float(size)


def _told(config: _Config, strategy: Strategy) -> dict[str, Any]:
    """Return what the configuration says."""
    said = ["bucket_elements"] if config.get(BUCKET) is not None else []
    words = words_of(strategy, left=LEFT, overlap=("grad_reduce",))
    return {**words, "kernels": words_of(strategy, kernels=said)["kernels"]}


def _offload(config: _Config, zero: int) -> Offload:
    where = {part: config.get(f"{ZERO}.offload_{part}.device") for part in ("optimizer", "param")}
    share = config.get(f"{ZERO}.offload_optimizer.ratio")
    if "nvme" in where.values():
        config.notes.append("not expressed: offload to NVMe; projected as offload to the host's memory")
    on_host = {part: device in ("cpu", "nvme") for part, device in where.items()}
    if on_host["param"] and zero < FULLY_SHARDED:
        raise ReaderError(config.path, f"{ZERO}.offload_param needs stage 3; it is {zero}")
    if share is not None and not (isinstance(share, int | float) and 0 <= share <= 1):
        raise ReaderError(
            config.path, f"{ZERO}.offload_optimizer.ratio must be from 0 to 1, got {shown(share)}"
        )
    whole = 1.0 if not isinstance(share, int | float) else float(share)
    inputs = config.flag("activation_checkpointing.cpu_checkpointing")
    return Offload(
        optimizer=whole if on_host["optimizer"] else 0.0,
        parameters=on_host["param"],
        modules=("decoder_layer_input",) if inputs else (),
    )


def _types(config: _Config) -> dict[str, str]:
    """Return the types of weights, gradients and the master copy."""
    kept = config.get("data_types.grad_accum_dtype")
    if kept is not None and (not isinstance(kept, str) or kept not in TYPES):
        raise ReaderError(
            config.path, f"data_types.grad_accum_dtype {shown(kept)} is none of {', '.join(TYPES)}"
        )
    half = "fp16" if config.flag("fp16.enabled") else "fp32"
    compute = "bf16" if config.flag("bf16.enabled") else half
    gradients = TYPES[kept] if isinstance(kept, str) else compute
    if compute == "fp32":
        return {
            "compute": "tf32",
            "parameters": "fp32",
            "gradients": "fp32",
            "master": "none",
            "activations": "fp32",
        }
    return {"compute": compute, "parameters": compute, "gradients": gradients, "activations": compute}


def _workload(config: _Config, strategy: Strategy) -> dict[str, Any]:
    """Return what the file says of the workload; the sequence's length is not in it."""
    whole, micro, steps = (config.count(key) for key in _BATCH)
    values: dict[str, Any] = {"precision": _types(config)}
    if whole is None and micro and steps:
        whole = micro * steps * strategy.dp
    if whole is not None:
        values["global_batch_size"] = whole
    named = config.get("optimizer.type")
    if isinstance(named, str):
        plain = named.lower()
        if plain not in get_args(OptimizerName) and plain not in OPTIMIZERS:
            config.notes.append(f"optimizer.type {named}: states taken as AdamW's")
        values["optimizer"] = OPTIMIZERS.get(plain, plain if plain in get_args(OptimizerName) else "adamw")
    return values

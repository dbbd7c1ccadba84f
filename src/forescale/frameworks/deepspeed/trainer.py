"""Hugging Face's launchers of DeepSpeed and FSDP: arguments of Trainer, launch configurations of Accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError, UnknownKeyError
from forescale.files import is_file, read_text
from forescale.frameworks.deepspeed.reader import HALF, LEFT, NEAR, parse_loosely, read_config
from forescale.frameworks.detect import Signed
from forescale.frameworks.reading import Options, ParsedFile, explicit_fields, packaged
from forescale.frameworks.settings import Settings
from forescale.positions import key_lines
from forescale.spec.context import CONTEXT_KINDS, ContextKind
from forescale.spec.kinds import framework_names
from forescale.spec.layout import Layout, Offload, Recompute
from forescale.syntax import deep_merge, parse_mapping, parse_yaml

SHARDING: Final = {
    "FULL_SHARD": (3, False),
    "SHARD_GRAD_OP": (2, False),
    "NO_SHARD": (0, False),
    "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (2, True),
}
"""fsdp_sharding_strategy by our stage, and whether nodes hold whole states."""
TABLES: Final[Mapping[str, list[str]]] = packaged("deepspeed", "accelerate")["tables"]
"""Keys of Accelerate's launch files, and of the tables in them by their names."""
SHARDED_GRADIENTS: Final = 2
"""The stage from which gradients are sharded."""
DEGREES: Final = "parallelism_config_"
CP_KINDS: Final[dict[str, ContextKind]] = framework_names(CONTEXT_KINDS.values(), "accelerate")


class AccelerateReader(Signed):
    """Launch configurations of Accelerate in YAML, with FSDP or DeepSpeed: a layout without a model."""

    name: Final = "accelerate"
    title: Final = "Accelerate configuration in YAML (FSDP or DeepSpeed, beside a model)"
    classifies: ClassVar[bool] = True

    def read(
        self, path: Path, options: Options, words: Mapping[str, Any] = MappingProxyType({})
    ) -> ParsedFile:
        """Return what the configuration at `path` says of layout and devices; `words` of a command come first."""
        text = read_text(path)
        lines = key_lines(text, path.suffix)
        notes = list[str]()
        content = parse_mapping(text, path, partial(parse_yaml, repeated=notes))
        parsed = self.read_content(deep_merge(dict(content), words), lines, path, options)
        return replace(parsed, notes=(*notes, *parsed.notes))

    def read_content(
        self, content: Mapping[str, Any], lines: Mapping[str, int], path: Path, options: Options
    ) -> ParsedFile:
        """Return what the keys of a configuration say, which stand at `lines` of `path`."""
        settings, unknown = _accelerate(content, lines, path, options)
        _check_kind(settings)
        count, machines = settings.count("num_processes"), settings.size("num_machines", 1)
        if count and count % machines:
            whole, item = map(settings.spell, ("num_processes", "num_machines"))
            settings.refuse(wording.not_divisible(whole, count, machines, item))
        if settings.flag("use_cpu"):
            settings.note(
                f"not expressed: {settings.spell('use_cpu')} (training on CPUs, not on the cluster's devices)"
            )
        devices = options.num_devices or count
        if count and options.num_devices is None:
            settings.note_devices(count, "num_processes")
        if options.num_devices is not None and count not in (None, options.num_devices):
            settings.note(
                f"{settings.spell('num_processes')} {count} gives way to {options.num_devices} devices"
            )
        if _kind(settings) == "DEEPSPEED":
            return _accelerated(settings, path, replace(options, num_devices=devices), unknown)
        return _sharded(settings, devices, unknown)


def _kind(settings: Settings) -> str:
    """Return what distributes the training, as Accelerate's DistributedType has it."""
    kind = settings.text("distributed_type", "NO").upper()
    if kind not in ("NO", "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM") and not kind.startswith("MULTI_"):
        allowed = "NO, MULTI_GPU (or another MULTI_), DEEPSPEED, FSDP, XLA, MEGATRON_LM"
        settings.refuse_key(wording.not_one_of, "distributed_type", kind, allowed)
    return kind


def _check_kind(settings: Settings) -> None:
    """Refuse Megatron-LM's layouts, which are not read; note tables that count under another kind than the file's."""
    kind = _kind(settings)
    if kind == "MEGATRON_LM":
        fix = "give the layout as options (--tp, --pp), or use FSDP, DEEPSPEED or MULTI_GPU"
        settings.refuse_key(wording.not_expressed, "distributed_type", "MEGATRON_LM", fix)
    for table, item in KINDS.items():
        value = next((key for key in TABLES[table] if key in settings), None)
        if kind != item and value is not None:
            settings.note(
                f"{table}, such as {settings.spell(value)}, counts under distributed_type {item} alone; it is {kind}"
            )


KINDS: Final = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}
"""Tables of launch files by the kind that they count under."""


def _accelerate(
    content: Mapping[str, Any], lines: Mapping[str, int], path: Path, options: Options
) -> tuple[Settings, tuple[str, ...]]:
    """Return the keys with those of their tables beside them, and the unknown ones."""
    values: dict[str, object] = {}
    places: dict[str, int] = {}
    unknown = []
    for table, keys in TABLES.items():
        inside = content.get(table) if table else content
        if table and inside is not None and not isinstance(inside, Mapping):
            raise ReaderError(path, wording.wrong_type(table, inside, "a table"))
        for written, value in (inside or {}).items():
            line = lines.get(f"{table}.{written}" if table else written, 1)
            key = (
                f"fsdp_{written}" if table == "fsdp_config" and "fsdp" not in written else written
            )  # as Accelerate
            if key in keys:
                if key not in TABLES:
                    is_kind = key == "fsdp_sharding_strategy" and isinstance(value, str)
                    values[key], places[key] = value.upper() if is_kind else value, line
            elif options.strict or get_close_matches(key, keys, 1, NEAR):
                raise UnknownKeyError(key, f"{path}, line {line}" + (f", {table}" if table else ""), keys)
            else:
                unknown.append(key)
    return Settings(values, str(path), lines=places), tuple(unknown)


def _compute(settings: Settings) -> dict[str, Any]:
    types = {"no": "tf32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
    return {"compute": settings.choice("mixed_precision", "no", types)}


def _mixed(settings: Settings) -> dict[str, Any]:
    """Return what Accelerate fills in for "auto" (utils/dataclasses.py, set_mixed_precision); nothing if not said."""
    if "mixed_precision" not in settings:
        return {}
    kind = settings.one_of("mixed_precision", "no", ("no", *HALF))
    return {f"{item}.enabled": item == kind for item in HALF}


def _accelerated(settings: Settings, path: Path, options: Options, unknown: tuple[str, ...]) -> ParsedFile:
    """Return what DeepSpeed's part says: a file of its own, or a few keys of it."""
    file = settings.get("deepspeed_config_file")
    if isinstance(file, str):
        places = (folder / name for name in (file, Path(file).name) for folder in path.parents[:7])
        place = next(filter(is_file, places), path.parent)
        if place == path.parent:
            key = settings.spell("deepspeed_config_file")
            settings.refuse(wording.not_found(f"file {file} ({key})", "put it next to this one"))
        content: Mapping[str, Any] = parse_mapping(read_text(place), place, parse_loosely)
    else:
        place = path
        zero: dict[str, Any] = {"stage": settings.count("zero_stage", 2)}
        for part in ("optimizer", "param"):
            device = settings.get(f"offload_{part}_device")
            if device not in (None, "none"):
                zero[f"offload_{part}"] = {"device": device}
        content = {"zero_optimization": zero}
        kind = settings.one_of("mixed_precision", "no", ("no", *HALF))
        if kind != "no":
            content = {**content, kind: {"enabled": True}}
        if "gradient_accumulation_steps" in settings:
            content = {**content, "gradient_accumulation_steps": settings.get("gradient_accumulation_steps")}
    inner = read_config(content, place, options, _mixed(settings))
    local = isinstance(file, str)
    return replace(
        inner,
        format=AccelerateReader.name,
        used=(*settings.used(), *(inner.used if local else ())),
        ignored=(*settings.unread(), *(inner.ignored if local else ())),
        unknown=(*unknown, *inner.unknown),
        notes=(*settings.notes, *inner.notes),
    )


def _sharded(settings: Settings, devices: int | None, unknown: tuple[str, ...]) -> ParsedFile:
    """Return what FSDP's part says; degrees of parallelism_config must make up the processes."""
    zero, hybrid = _stage(settings)
    degree = _degrees(settings)
    total, value = prod(degree.values()), any(key in settings for key in TABLES["parallelism_config"])
    devices = devices or total
    if value and total != devices:
        partner = "the number of devices"
        settings.refuse(
            wording.differs("the number of processes of parallelism_config", total, partner, devices)
        )
    cp = degree["cp"] * degree["sp"]
    dp, full = devices // (degree["tp"] * cp), settings.flag("fsdp_activation_checkpointing")
    replicas = degree["dp_replicate"] if value else settings.size("num_machines", 1) if hybrid else 1
    if dp % replicas:
        terms = "the number of data-parallel processes"
        settings.refuse(wording.not_a_factor("the number of replicas", replicas, dp, terms))
    layout = Layout(
        tp=degree["tp"],
        sp=False,
        cp=cp,
        cp_kind="ulysses"
        if degree["sp"] > 1
        else settings.choice(f"{DEGREES}cp_comm_strategy", "allgather", CP_KINDS),
        dp_replicate=replicas if zero else dp,
        dp_shard=dp // replicas if zero else 1,
        zero=zero,
        recompute=Recompute(granularity="full" if full else "none"),
        offload=Offload(parameters=settings.flag("fsdp_offload_params")),
    )
    left = (*(name for name in LEFT if name != "recompute"), "overlap", "micro_batch_size")
    fields = explicit_fields(layout, left=left)
    if kernels := _fsdp_kernels(settings, zero, full=full):
        fields["kernels"] = kernels
    return ParsedFile(
        format=AccelerateReader.name,
        framework="torch-fsdp",
        layout_fields=fields,
        workload_fields={"precision": _compute(settings)},
        num_devices=devices,
        **settings.accounted(unknown),
    )


def _fsdp_kernels(settings: Settings, zero: int, *, full: bool) -> dict[str, Any]:
    """Return the kernels of FSDP that differ from the defaults: what it keeps of frozen layers and gathers at once."""
    kernels: dict[str, Any] = {}
    if full or settings.count("fsdp_version", 1) == 2:  # accelerate's own checkpoints do not reenter
        kernels["keeps_layer_inputs"] = False
    if zero >= SHARDED_GRADIENTS and _wraps_nothing(settings):
        kernels["fsdp_unit"] = "model"
    return kernels


def _wraps_nothing(settings: Settings) -> bool:
    """Whether FSDP takes the model as one unit, as Accelerate does where no policy is given."""
    policies = ("NO_WRAP", "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP")
    key = "fsdp_auto_wrap_policy"
    policy = settings.text(key, policies[0]).upper()
    if policy not in policies:
        settings.refuse_key(wording.not_one_of, key, policy, policies)
    if key not in settings:
        settings.note(f"{key} is not given: FSDP gathers the whole model at once, as NO_WRAP does")
    return policy == policies[0]


def _degrees(settings: Settings) -> dict[str, int]:
    """Return the degrees of parallelism_config, which refuses some together (parallelism_config.py)."""
    names = ("tp", "cp", "sp", "dp_replicate", "dp_shard")
    degree = {name: settings.size(f"{DEGREES}{name}_size", 1) for name in names}
    if degree["cp"] > 1 < degree["sp"]:
        key = [f"parallelism_config: cp_size {degree['cp']}", f"sp_size {degree['sp']}"]
        settings.refuse(wording.conflicts(key, fix="set one of them to 1"))
    if degree["tp"] * degree["cp"] > 1 and degree["dp_replicate"] > 1 == degree["dp_shard"]:
        settings.refuse(
            wording.required_with(
                "dp_shard_size above 1",
                f"tp_size {degree['tp']}, cp_size {degree['cp']} and dp_replicate_size {degree['dp_replicate']}",
            )
        )
    return degree


def _stage(settings: Settings) -> tuple[int, bool]:
    """Return the stage, and whether nodes hold whole states; of FSDP 2 it is whether parameters are sharded again."""
    if _kind(settings) != "FSDP":
        return 0, False
    version = settings.count("fsdp_version", 1, least=1)
    if version > 2:
        settings.refuse_key(wording.not_one_of, "fsdp_version", version, ("1", "2"))
    if version == 2:
        return (3, False) if settings.flag("fsdp_reshard_after_forward", default=True) else (2, False)
    numbers = {str(number): kind for number, kind in enumerate(SHARDING.values(), start=1)}
    key = "fsdp_sharding_strategy" if "fsdp_sharding_strategy" in settings else "fsdp_reshard_after_forward"
    return settings.choice(key, "FULL_SHARD", SHARDING | numbers)

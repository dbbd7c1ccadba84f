"""Megatron-LM's command line as specifications."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ForescaleError, MissingError, ReaderError, UnknownKeyError
from forescale.files import parse_json, read_text
from forescale.frameworks.detect import Signed
from forescale.frameworks.megatron.arguments import (
    ALLOCATOR,
    CommandLine,
    known_flags,
    parse_arguments,
    yaml_keys,
)
from forescale.frameworks.megatron.ask import DECIDING, ask, open_facts
from forescale.frameworks.megatron.engine import (
    lay_engine,
    lay_recompute,
    parse_config,
    read_engine,
    with_engine,
)
from forescale.frameworks.megatron.forks import DEEPSPEED, misspelt
from forescale.frameworks.megatron.laws import ParsedConfig, check_settings
from forescale.frameworks.megatron.layout import KERNELS, check_param_gather, left_fields, read_strategy
from forescale.frameworks.megatron.model import (
    MICRO_BATCH,
    describes_model,
    lacking_sizes,
    open_sizes,
    read_model,
)
from forescale.frameworks.megatron.run import has_tower, lay_program, read_workload
from forescale.frameworks.reading import DEVICES, Options, ParsedFile, explicit_fields, unknown_of
from forescale.frameworks.settings import Settings, errors_of
from forescale.frameworks.shell.near import near
from forescale.positions import keys_of_yaml
from forescale.spec.model import Model
from forescale.struct import asdict
from forescale.syntax import parse_mapping, parse_yaml
from forescale.units import counted

ARGUMENTS = "MODEL_ARGS"
"""Key under which Megatron-LM's own test cases keep their table of flags."""
OVER = {
    "tp": "tensor_model_parallel_size",
    "sp": "sequence_parallel",
    "cp": "context_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "seq_len": "seq_length",
}
"""Words of a plan that stand for a setting of their own."""
DASHED = "tensor-model-parallel-size"
"""Flag by which a table is known whose flags have no dashes before them."""
SIZES = (*OVER.values(), "num_layers", "hidden_size", "num_attention_heads")
"""Keys that a projection needs or goes by."""
SHAPES = ("num_layers", "hidden_size", "num_attention_heads", "num_experts", "hybrid_layer_pattern")
"""Keys of the shape of a model."""
_SECTIONS = ("language_model", "model_parallel")
"""Tables of --yaml-cfg; its other keys stand beside them."""
_NESTED = re.compile(rf"^(?:{'|'.join(_SECTIONS)}):", re.MULTILINE)


class MegatronReader(Signed):
    """Launch scripts and argument lists of Megatron-LM, its --yaml-cfg, and tables of its flags in JSON or YAML."""

    name: Final = "megatron"
    title: Final = "Megatron-LM command line, launch script, --yaml-cfg or table of flags"
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the file at `path` says."""
        text = read_text(path)
        if path.suffix in (".yaml", ".yml") and _NESTED.search(text):
            settings, unknown = _nested(text, path, strict=options.strict)
            return read_settings(settings, name=path.stem, options=options, unknown=unknown)
        notes = list[str]()
        table, beside_it = (
            _table(text, path, notes) if path.suffix in (".json", ".yaml", ".yml") else (None, {})
        )
        parsed = read_arguments(
            text if table is None else table,
            where=str(path),
            name=path.stem,
            options=options,
            read_neighbour=near(path),
            case=beside_it,
        )
        return replace(parsed, notes=(*notes, *parsed.notes))


def read_arguments(
    arguments: str | Sequence[str] | Mapping[str, Any],
    *,
    where: str = "the arguments",
    name: str = "megatron",
    options: Options | None = None,
    read_neighbour: Callable[[str], str | None] = lambda _: None,
    case: Mapping[str, Any] | None = None,
) -> ParsedFile:
    """Return what a Megatron-LM command line says.

    Parameters
    ----------
    arguments
        Shell text, a list of words, or a table of flags such as {"--num-layers": 12, "--bf16": True}.
    where
        Its origin, for messages.
    name
        Name of the resulting model.
    options
        What the command line does not say: devices, vocabulary, shell variables.
    read_neighbour
        The text of a script that it runs, by its name.
    case
        What stands beside the table in a file of Megatron-LM's tests.

    Raises
    ------
    UnknownKeyError
        If a flag does not exist (unless `options.strict` is off).
    ReaderError
        If something is missing, or cannot run or be expressed.
    """
    explicit = options or Options()
    line = parse_arguments(
        arguments,
        where=where,
        variables=explicit.variables,
        strict=explicit.strict,
        read_neighbour=read_neighbour,
        passed=explicit.arguments,
    )
    if line.table is not None:
        return _of_yaml(line, where, name, explicit)
    settings = line.settings
    settings.override(explicit.over, OVER)
    ask(settings, line, explicit)
    sharded: Mapping[str, Any] = {}
    if line.fork is not None:
        lay_recompute(settings)
    if line.fork is not None and line.fork.name in OLD:
        lay_engine(settings)
    if line.fork is not None and line.fork.name == DEEPSPEED:
        sharded = read_engine(settings, parse_config(line.config, where), explicit)
    settings.warnings += line.warnings
    _note_devices(settings, line, explicit)
    lay_program(line.settings)
    if case:
        _lay_case(line.settings, case)
    if "create_attention_mask_in_dataloader" not in line.settings and not has_tower(line.settings):
        line.settings.set("create_attention_mask_in_dataloader", value=True)
    parsed = read_settings(
        line.settings,
        name=name,
        num_devices=explicit.num_devices or line.num_devices,
        options=explicit,
        unknown=line.unknown,
        framework=line.framework,
    )
    return _asked(with_engine(parsed, sharded) if sharded else parsed, line, explicit)


def _asked(parsed: ParsedFile, line: CommandLine, options: Options) -> ParsedFile:
    """Return what is parsed, with the number of devices missing where a launcher leaves it open."""
    is_open = line.launched and parsed.num_devices is None and options.layout
    if not is_open or parsed.strategy is None:
        return parsed
    example = f"--devices {parsed.strategy.num_devices}"
    return replace(parsed, missing=(*parsed.missing, DEVICES._replace(example=example, reason=LAUNCHED)))


LAUNCHED: Final = "the launcher's options leave it open"


def _note_devices(settings: Settings, line: CommandLine, options: Options) -> None:
    """Note where the number of devices is from; refuse options that contradict each other."""
    conflict = None if line.devices is None else line.devices.conflict
    if options.num_devices is not None or not options.layout:
        return
    if conflict is not None:
        names = ("the launcher's option", conflict[0], "the scheduler's", conflict[1])
        settings.refuse(wording.differs(*names, "give --devices N"))
    if line.num_devices is not None:
        settings.note(f"{counted(line.num_devices, 'device')}, from {' x '.join(line.places)}")


def _of_yaml(line: CommandLine, where: str, name: str, options: Options) -> ParsedFile:
    """Return what the table of --yaml-cfg says, on the devices of the command that names it."""
    settings, unknown = _nested(str(line.table), Path(where), strict=options.strict)
    settings.override(options.over, OVER)
    _note_devices(settings, line, options)
    devices = options.num_devices or line.num_devices
    return read_settings(settings, name=name, num_devices=devices, options=options, unknown=unknown)


def read_settings(
    settings: Settings,
    *,
    name: str,
    options: Options,
    model: Model | None = None,
    num_devices: int | None = None,
    unknown: Sequence[str] = (),
    form: str = "megatron",
    framework: str = "megatron-core",
    schedule: str | None = None,
    based: bool = False,
) -> ParsedFile:
    """Return what Megatron's settings say, wherever they were written.

    `model` stands where they do not describe it, `num_devices` where the caller does not say;
    `based` says that they change others which are not here, so what they leave out need not be the default.
    """
    num_devices, layout = num_devices or options.num_devices, options.layout
    overridden = settings.override(options.over, OVER)
    _refuse_incomplete(settings, options, known=model is not None, based=based)
    try:
        with errors_of(settings.where):
            other = _given_model(settings, options, based=based)
            if other is not None and not settings.count("num_experts"):
                experts = max(getattr(kind.ffn, "num_experts", 0) for kind in other.layer_kinds)
                settings.set("num_experts", experts or None)
            model = model or other or read_model(settings, name=name, options=options)
            devices = num_devices if layout else None
            if not based:
                check_param_gather(settings)
            strategy = read_strategy(settings, num_layers=model.num_layers, num_devices=devices)
            if num_devices is None and layout:
                settings.note_fewest(strategy.num_devices)
            workload = read_workload(settings, strategy)
            if layout and not based:
                parsed_config = ParsedConfig(model=model, layout=strategy, workload=workload)
                check_settings(settings, parsed_config, overridden, framework)
            _note_idle(settings, based=based)
    except ForescaleError:
        raise
    except (TypeError, ValueError) as error:
        raise ReaderError(settings.where, wording.cannot_parse("configuration", str(error))) from error
    return ParsedFile(
        format=form,
        model=model,
        framework=framework,
        layout_fields=explicit_fields(
            strategy,
            left=left_fields(settings, strategy),
            schedule=schedule,
            tables={"kernels": KERNELS},
        ),
        workload_fields=asdict(workload),
        num_devices=num_devices,
        **settings.accounted(unknown),
    )


def _given_model(settings: Settings, options: Options, *, based: bool) -> Model | None:
    """Return --model where settings describe none, or not all of one; what they say of it gives way."""
    lacking = lacking_sizes(settings)
    if options.model is None or (describes_model(settings) and not lacking):
        return None
    if based and (sizes := [key for key in SHAPES if settings.get(key)]):
        named = ", ".join(map(settings.spell, sizes))
        settings.warnings.append(f"{named} of the file give way to --model, as it lacks {lacking[0]}")
    return options.model


OLD: Final = (DEEPSPEED, "megatron-lm-2022")
"""Forks that take flags which Megatron-LM no longer has."""
AWARE = "use_precision_aware_optimizer"
GOES_WITH = {
    "fp8_recipe": ("fp8", "delayed"),
    "optimizer_offload_fraction": ("optimizer_cpu_offload", "0 0.0 1 1.0"),
    "data_parallel_sharding_strategy": ("use_megatron_fsdp", "no_shard"),
    "offload_modules": ("fine_grained_activation_offloading", ""),
    "cross_entropy_fusion_impl": ("cross_entropy_loss_fusion", "native"),
    "main_grads_dtype": (AWARE, "fp32 float32"),
    "main_params_dtype": (AWARE, "fp32 float32"),
    "exp_avg_dtype": (AWARE, "fp32 float32"),
    "exp_avg_sq_dtype": (AWARE, "fp32 float32"),
}
"""Flags that count only beside another, and how what they are without it is written (Megatron-LM d98e8a64dd,
transformer_config.py and optimizer_config.py, where it stops at types that are not fp32)."""


def _note_idle(settings: Settings, *, based: bool) -> None:
    """Say which flags change nothing, as what they go with is not set; refuse those that Megatron-LM stops at then."""
    for key, (other, usual) in GOES_WITH.items():
        if str(settings.get(key)) in ("None", "False", "", "[]", *usual.split()) or settings.get(other):
            continue
        spell, needed = settings.spell(key), settings.spell(other)
        if other != AWARE:
            settings.note(f"{spell} changes nothing without {needed}")
            continue
        if not based or settings.get(AWARE) is not None:
            settings.refuse(wording.required_with(needed, f"{spell} of another type than fp32"))
        settings.note(f"{spell} is taken as fp32: {needed} is not set here, and Megatron-LM stops without")


GONE = {
    "batch_size": "micro_batch_size",
    "model_parallel_size": "tensor_model_parallel_size",
    "warmup": "lr_warmup_fraction",
    "checkpoint_activations": "recompute_granularity",
}
"""Flags that Megatron-LM stops at, and what says it today (arguments.py, validate_args)."""


def _refuse_incomplete(settings: Settings, options: Options, *, known: bool, based: bool) -> None:
    """Refuse flags that are gone, and settings without a length, with all that they lack.

    A model that is `known` is not asked for, nor what settings that are `based` on others leave out.
    """
    for key, today in GONE.items():
        if settings.get(key) not in (None, False):
            settings.refuse_key(wording.removed, key, f"use {settings.spell(today)}")
    facts = open_facts(settings, {}, "", DECIDING)
    no_length = "seq_length" not in settings and "decoder_seq_length" not in settings
    if options.layout and (no_length or not (known or based)):
        facts += open_sizes(settings, options)
        if "micro_batch_size" not in settings and not based:
            facts.append(MICRO_BATCH)
    if facts:
        raise MissingError.of(settings.where, facts)


def _nested(text: str, path: Path, *, strict: bool) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings of --yaml-cfg by the keys that flags set, and the keys that Megatron-LM does not have."""
    content = parse_mapping(text, path, parse_yaml)
    inside = {section: content.pop(section, None) or {} for section in _SECTIONS}
    for section, table in inside.items():
        if not isinstance(table, dict):
            raise ReaderError(path, wording.wrong_type(section, table, "a table"))
    values: dict[str, Any] = {}
    for table in (*inside.values(), content):
        for key, value in table.items():
            if values.setdefault(key, value) != value:
                raise ReaderError(path, wording.given_twice(key, values[key], value))
    lines = {key.rpartition(".")[2]: line for key, line in keys_of_yaml(text)}
    known = (*yaml_keys(), *_SECTIONS)
    unknown = unknown_of(values, known, path, lines, strict=strict)
    unknown_of([key for key in unknown if misspelt(key, known)], known, path, lines, strict=True)
    local = {yaml_keys()[key]: key for key in values if key in yaml_keys()}
    result = {key: values[name] for key, name in local.items()}
    activation = Settings(values, str(path)).text("activation_func", "gelu")
    if activation not in _ACTIVATIONS:
        raise ReaderError(path, wording.not_one_of("activation_func", activation, _ACTIVATIONS))
    result |= {key: activation == name for name, key in _ACTIVATIONS.items() if key}
    result["group_query_attention"] = values.get("num_query_groups") is not None
    settings = Settings(result, str(path), local, {key: lines[name] for key, name in local.items()})
    settings.warnings += (
        [f"not known, may change memory or step time: {', '.join(unknown)}"] if unknown else []
    )
    return settings, unknown


_ACTIVATIONS = {"swiglu": "swiglu", "squaredrelu": "squared_relu", "gelu": ""}
"""What activation_func of --yaml-cfg means by flag (yaml_arguments.py)."""


CASE = (
    *("ENV_VARS", "TEST_TYPE", "LAUNCHER", "METRICS", "MODE", "BEFORE_SCRIPT", "AFTER_SCRIPT"),
    *("MODEL_ENV_VARS", "BASE_MODEL_ARGS", "THROUGHPUT_TEST_PARAMS", "TEST_EVALUATION"),
)
"""Keys beside MODEL_ARGS (Megatron-LM, tests/functional_tests/test_cases)."""


def _table(text: str, path: Path, repeated: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the table of flags of a JSON or YAML file, alone or under MODEL_ARGS, and what stands beside that."""
    loaded = parse_json(text, path) if path.suffix == ".json" else parse_yaml(text, path, repeated)
    case = loaded if isinstance(loaded, dict) and ARGUMENTS in loaded else {}
    inside = case.get(ARGUMENTS, loaded)
    if isinstance(loaded, dict) and DASHED in loaded:
        inside = _dashed(loaded, repeated)
    if not isinstance(inside, dict) or not all(str(key).startswith("--") for key in inside):
        allowed = f"a table of flags (--num-layers: 12), alone or under {ARGUMENTS}"
        raise ReaderError(path, wording.wrong_format(allowed))
    for key in map(str, case):
        if key.startswith("--"):
            raise ReaderError(path, f"{key} stands beside {ARGUMENTS}; flags stand under it")
        if key not in (ARGUMENTS, *CASE) and not key.startswith(f"{ARGUMENTS}_"):
            raise UnknownKeyError(key, str(path), CASE)
    return inside, {key: value for key, value in case.items() if key != ARGUMENTS}


def _dashed(table: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return the flags of a table that spells them without dashes before them, as launchers of platforms do.

    `${seq-length}` is the value of another one. Flags that are false or have no value are left out.
    """
    flags = {key for key in table if "-" in key or f"--{key}" in known_flags()}
    others = [key for key in table if key not in flags]
    if others:
        notes.append(f"keys of the launcher are not read: {', '.join(others)}")
    inner = {key: _REFERENCE.fullmatch(str(table[key])) for key in flags}
    values = {
        key: table.get(named[1]) if (named := inner[key]) else table[key] for key in table if key in flags
    }
    return {f"--{key}": value for key, value in values.items() if value not in (None, False, "", [])}


_REFERENCE = re.compile(r"\$\{([\w-]+)\}")


def _lay_case(settings: Settings, case: Mapping[str, Any]) -> None:
    """Lay what a test's environment changes over its flags, and note what else is not read of it."""
    environment = case.get("ENV_VARS")
    for name in ALLOCATOR:
        if isinstance(environment, Mapping) and environment.get(name):
            settings.set(ALLOCATOR[0], str(environment[name]))
    if others := [key for key in case if key.startswith(f"{ARGUMENTS}_")]:
        settings.note(f"{ARGUMENTS} is read; {', '.join(others)} beside it are not")
    if case.get("MODE") == "inference":
        settings.refuse(wording.wrong_format("a configuration that trains", "its MODE is inference"))

"""Primus experiments: YAML whose settings, in its backend's own keys, come from a module, a model preset and overrides.

Presets named by `model` and `config` are looked for beside the file, in the folders that the caller names,
and in the `primus/configs` of the repository that the file lies in. `extends` (or `bases`) names files
relative to the one it stands in. `${NAME:default}` takes the caller's value, else the default. The command line passes
on the environment's PRIMUS_* variables; nothing else reads the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError, UnknownKeyError
from forescale.files import is_file, read_text
from forescale.frameworks.adapters import PLACES, lora_words, targets_of
from forescale.frameworks.bridge.reader import RANK, USUAL
from forescale.frameworks.detect import Signed
from forescale.frameworks.maxtext.reader import MaxTextValues, read_given
from forescale.frameworks.megatron.arguments import known_flags, known_keys
from forescale.frameworks.megatron.model import read_model
from forescale.frameworks.megatron.reader import read_settings
from forescale.frameworks.primus.stacks import is_stack, stack_words, with_loss
from forescale.frameworks.reading import Options, ParsedFile, packaged, unknown_of
from forescale.frameworks.settings import Settings, errors_of, known_settings
from forescale.frameworks.torchtitan.reader import read_sections
from forescale.limits import DEVICES, within
from forescale.positions import keys_of_yaml
from forescale.schedule.library import family
from forescale.spec.model import MoeFfn
from forescale.spec.workload import LoraTarget, Trainable
from forescale.struct import asdict
from forescale.syntax import deep_merge, parse_mapping, parse_yaml
from forescale.units import counted

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
    values: Mapping[str, Any], lines: Mapping[str, int], primus: frozenset[str], path: Path, options: Options
) -> ParsedFile:
    """Return what a module of Megatron-Bridge says; `primus` are keys that all modules may have.

    Raises
    ------
    ReaderError
        If the recipe alone knows the model.
    """
    known = known_keys() | OWN | primus
    settings, unknown = known_settings(values, known, path, lines, strict=options.strict)
    named = settings.get("hf_path")
    if not named or options.model_of is None:
        what = f"a model made by the recipe {settings.get('recipe')} of Megatron-Bridge"
        settings.refuse(wording.not_expressed(what, "", "name a model of Hugging Face's as hf_path"))
    model = options.model_of(str(named))
    settings.set(settings.choice("precision_config", "bf16_mixed", PRECISIONS), value=True)
    if "use_distributed_optimizer" not in settings:
        settings.set("use_distributed_optimizer", value=True)
    experts = next((layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn)), None)
    settings.set("num_experts", experts.num_experts if experts else None)
    settings.note(f"what the recipe {settings.get('flavor')} sets beside the file is Python and not read")
    result = read_settings(
        settings,
        name=model.name,
        options=options,
        model=model,
        unknown=unknown,
        form="primus",
        framework="megatron-bridge@latest",
    )
    return _adapted(result, settings)


def container_words(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what tables beside modules say of the model and of the adapters' rank."""
    tables = {name: content.get(name) or {} for name in CONTAINER}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise ReaderError(path, wording.wrong_type(name, table, "a table"))
    return {**tables["model"], **({"peft_dim": tables["peft"]["dim"]} if "dim" in tables["peft"] else {})}


def _adapted(parsed_file: ParsedFile, settings: Settings) -> ParsedFile:
    """Return a reading with the adapters that `peft` asks for: Megatron-Bridge's LoRA as it is without arguments."""
    kind = settings.text("peft", "none").lower()
    if kind == "none":
        return parsed_file
    if kind != "lora":
        settings.refuse_key(wording.not_expressed, "peft", kind, "lora and none are")
    adapters = _lora(settings.count("peft_dim", RANK), tuple(PLACES[name][0] for name in USUAL["LoRA"]))
    used = (*parsed_file.used, "peft")
    return replace(
        parsed_file,
        workload_fields={**parsed_file.workload_fields, "trainable": adapters},
        used=used,
        ignored=tuple(key for key in parsed_file.ignored if key not in ("peft", "peft_dim")),
    )


def _lora(rank: int, targets: tuple[LoraTarget, ...], *, dropout: bool = False) -> dict[str, Any]:
    """Return adapters of Megatron-Bridge's LoRA, which Primus copies, as the words of a workload."""
    return asdict(Trainable(**lora_words(rank, targets, dropout=float(dropout), experts="shared")))


_TOP = ("work_group", "user_name", "exp_name", "workspace", "platform", "env", "modules", "extends", "bases")
_MODULE = ("framework", "config", "model", "overrides", "name", "trainer_class")
_PLACEHOLDER = re.compile(r"\$\{([^:{}]+)(?::([^}]*))?\}")
_MODULES_LINE = re.compile(r"^modules:", re.MULTILINE)
_FLAT_LINE = re.compile(r"^(?:num_layers\s*:|hidden_size\s*:|extends\s*:|bases\s*:)", re.MULTILINE)
MEGATRON = "megatron"
LORA: Final = "lora"
"""Table of adapters among the overrides."""
BACKENDS = (MEGATRON, "torchtitan", "maxtext", BRIDGE)
"""Frameworks of modules that can be read."""
PRIVATE = ("trainable", "sink_level", "file_sink_level", "stderr_sink_level", "mock_data")
"""Keys of modules that are Primus's own and change no figure."""
FLAVOR_FIELDS = ("model.n_layers",)
"""What Primus lets a file change of torchtitan's flavors (backends/torchtitan/patches/model_override_patches.py)."""
SCHEDULES: Mapping[str, str] = {
    "1f1b": "1f1b",
    "1f1b-interleaved": "interleaved-1f1b",
    "zero-bubble": "zb-h1",
    "zero-bubble-heuristic": "zb-unlimited",
    "zbv-formatted": "zbv",
    "v-half": "v-half",
    "v-min": "v-min",
}
"""Primus's `pp_algorithm` by our schedule's name (Primus-pipeline documentation)."""


class PrimusReader(Signed):
    """Experiments of Primus, and model presets for its Megatron backend."""

    name: Final = "primus"
    title: Final = "Primus experiment or model preset in YAML (Megatron, Bridge, torchtitan or MaxText)"

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the experiment or preset at `path` says; a preset alone has a model only."""
        content = _resolved(path, options.variables, ())
        if "modules" not in content:
            return _read_preset(content, path, options)
        container = CONTAINER if BRIDGE in str(content["modules"]) else ()
        outside = [
            key for key in content if key not in (*_TOP, *container) and (key in known_keys() or key == LORA)
        ]
        known = (*_TOP, *container, *outside)
        unknown_of(content, known, path, dict(keys_of_yaml(read_text(path))), strict=True)
        with errors_of(path):
            module = _module(content["modules"], path)
        if (backend := str(module["framework"])) != MEGATRON:
            merged = _merged(module, path, options) | container_words(content, path)
            return _read_backend(backend, merged, path, options)
        merged = _merged(module, path, options)
        adapters = merged.pop(LORA, None)
        if stacked := is_stack(merged):
            merged |= stack_words(merged, path)
        settings, unknown = _settings(merged, path, strict=options.strict)
        schedule = _schedule(settings)
        reading = read_settings(
            settings,
            name=_name(module, path),
            options=options,
            unknown=unknown,
            form=self.name,
            framework="primus@megatron",
            schedule=schedule,
        )
        _check_chunks(schedule, reading, path)
        if stacked:
            reading = with_loss(reading, merged)
        if outside:
            text = f"ignored, as Primus ignores it: {', '.join(outside)} (outside modules)"
            reading = replace(reading, notes=(*reading.notes, text))
        return reading if adapters is None else _with_adapters(reading, adapters, path)


def _with_adapters(reading: ParsedFile, adapters: object, path: Path) -> ParsedFile:
    """Return a reading with the adapters of a table `lora` (primus/backends/megatron/peft/lora.py)."""
    if not isinstance(adapters, Mapping):
        raise ReaderError(path, wording.wrong_type(LORA, adapters, "a table"))
    if not adapters.get("enabled"):
        return reading

    def refuse(violation: str) -> NoReturn:
        raise ReaderError(path, violation)

    modules = adapters.get("target_modules") or USUAL["LoRA"]
    if not isinstance(modules, list):
        raise ReaderError(path, wording.wrong_type(f"{LORA}.target_modules", modules, "a list"))
    rank = int(within(adapters.get("dim", RANK), DEVICES, f"{path}: {LORA}.dim", whole=True))
    trainable = _lora(rank, targets_of(modules, refuse), dropout=bool(adapters.get("dropout")))
    return replace(
        reading,
        workload_fields={**reading.workload_fields, "trainable": trainable},
        used=(*reading.used, LORA),
    )


def _read_backend(backend: str, merged: Mapping[str, Any], path: Path, options: Options) -> ParsedFile:
    """Return what a module of torchtitan, MaxText or Megatron-Bridge says, whose keys are these frameworks' own."""
    parts = {key: value for key, value in merged.items() if key not in PRIVATE}
    turbo = parts.pop("primus_turbo", None)
    if isinstance(training := parts.get("training"), Mapping):
        parts["training"] = {key: value for key, value in training.items() if key not in PRIVATE}
    at = re.compile(r"^modules\.\w+\.overrides\.")
    lines = {at.sub("", key): line for key, line in keys_of_yaml(read_text(path))}
    if backend == BRIDGE:
        return read_bridge(parts, lines, _primus_keys(), path, options)
    if backend == "torchtitan":
        sections = read_sections(parts, lines, path, options, more=FLAVOR_FIELDS)
    else:
        sections = read_given(MaxTextValues(parts), path, options)
    local = "not expressed: primus_turbo (Primus's own kernels of attention and products)"
    return replace(sections, format=PrimusReader.name, notes=(*sections.notes, *[local] * bool(turbo)))


def _read_preset(content: Mapping[str, Any], path: Path, options: Options) -> ParsedFile:
    words = stack_words(content, path) if is_stack(content) else {}
    settings, unknown = _settings({**content, **words}, path, strict=options.strict)
    model = read_model(settings, name=path.stem, options=options)
    return ParsedFile(
        format=PrimusReader.name,
        model=model,
        **settings.accounted(unknown),
    )


def _module(modules: object, path: Path) -> dict[str, Any]:
    """Return the one module that trains."""
    if not isinstance(modules, dict) or not modules:
        raise wording.wrong_type("modules", ..., "a table of modules, such as pre_trainer")
    result = [module for module in modules.values() if isinstance(module, dict) and "framework" in module]
    trains = [module for module in result if module["framework"] in BACKENDS]
    if len(trains) != 1:
        frameworks = ", ".join(sorted({str(module["framework"]) for module in result})) or "none"
        requested = ", ".join(BACKENDS)
        value = f"{len(trains)} modules ({frameworks})"
        raise wording.wrong_count("it", value, "Primus", f"one module of {requested}")
    for key in trains[0]:
        if key not in _MODULE:
            raise UnknownKeyError(str(key), f"{path}, modules", _MODULE)
    if (trainer := trains[0].get("trainer_class")) is not None:
        raise wording.not_expressed("trainer_class", f"{trainer}, which trains no language model,")
    return dict(trains[0])


def _merged(module: Mapping[str, Any], path: Path, options: Options) -> dict[str, Any]:
    """Return the module's settings, then the model's over them, then the overrides."""
    merged: dict[str, Any] = {}
    for key, folder in (("config", "modules"), ("model", "models")):
        if module.get(key) is not None:
            place = f"{folder}/{module['framework']}"
            merged = deep_merge(merged, _preset(str(module[key]), place, path, options))
    overrides = module.get("overrides") or {}
    if not isinstance(overrides, Mapping):
        raise ReaderError(path, wording.wrong_type("overrides", overrides, "a table"))
    return deep_merge(merged, overrides)


def _preset(name: str, folder: str, path: Path, options: Options) -> dict[str, Any]:
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    places = list(_places(folder, path, options.folders))
    for place in places:
        if is_file(place / file):
            return _resolved(place / file, options.variables, ())
    kind, _, backend = folder.partition("/")
    if backend == MEGATRON and (base := _base_presets()[kind].get(file.stem)) is not None:
        return dict(base)
    preset = f"preset {name!r} next to it or in a primus/configs/{folder} above it"
    raise ReaderError(path, wording.not_found(preset, "give its folder with --primus-presets-dir FOLDER"))


@cache
def _base_presets() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return the presets that all others start from, by folder and name: they need not be there."""
    data = packaged("primus", "presets")
    return {folder: data[folder] for folder in ("models", "modules")}


def _places(folder: str, path: Path, folders: tuple[Path, ...]) -> Iterator[Path]:
    yield path.parent
    for value in folders:
        yield value
        yield value / folder
    for above in path.absolute().parents:
        yield above / "primus" / "configs" / folder


def _resolved(path: Path, variables: Mapping[str, str], seen: tuple[Path, ...]) -> dict[str, Any]:
    """Return a file's content over that of the files it extends, placeholders replaced."""
    here = path.absolute()
    if here in seen:
        chain = " -> ".join(item.name for item in (*seen, here))
        raise ReaderError(path, wording.circular("extends", chain))
    hint = f"; {seen[-1].name} extends it" if seen else ""
    content = parse_mapping(read_text(path, hint=hint), path, parse_yaml)
    content = _without_placeholders(content, variables, path)
    merged: dict[str, Any] = {}
    for key in ("extends", "bases"):
        names = content.pop(key, None) or []
        for name in [names] if isinstance(names, str) else names:
            merged = deep_merge(merged, _resolved(path.parent / str(name), variables, (*seen, here)))
    return deep_merge(merged, content)


def _without_placeholders(value: Any, variables: Mapping[str, str], path: Path) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _without_placeholders(part, variables, path) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_placeholders(part, variables, path) for part in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    def found(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name in variables:
            return str(variables[name])
        if default is None:
            unset = wording.unset_variable("the placeholder", match[0], f"--var {name}=VALUE")
            raise ReaderError(path, unset)
        return default

    replaced = _PLACEHOLDER.sub(found, value)
    return parse_yaml(replaced, path) if _PLACEHOLDER.fullmatch(value) else replaced


@cache
def _primus_keys() -> frozenset[str]:
    return frozenset(packaged("primus")["keys"])


def _settings(values: Mapping[str, Any], path: Path, *, strict: bool) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings by Megatron's keys; a key spelled like a flag (no_x) is turned into its key."""
    result: dict[str, object] = {}
    spelling: dict[str, str] = {}
    unknown = []
    for name, value in values.items():
        flag = known_flags().get("--" + str(name).replace("_", "-"))
        if name in known_keys() or name in _primus_keys():
            result[name] = value
        elif flag is not None:
            key, kind = flag
            spelling[key] = name
            result[key] = not value if kind == "false" and isinstance(value, bool) else value
        else:
            unknown.append(str(name))
    lines = {key.rpartition(".")[2]: line for key, line in keys_of_yaml(read_text(path))} if unknown else {}
    unknown_of(unknown, known_keys() | _primus_keys(), path, lines, strict=strict)
    result.pop("img_h", None)  # Megatron-LM's default, which Primus's presets write out for any model
    return Settings(result, str(path), spelling), tuple(unknown)


def _schedule(settings: Settings) -> str | None:
    """Return the pipeline schedule that Primus is told to run, by our name."""
    if settings.flag("patch_primus_pipeline"):
        algorithm = settings.text("pp_algorithm", "1f1b-interleaved")
        schedule = settings.choice("pp_algorithm", "1f1b-interleaved", SCHEDULES)
        _read_offload(settings, algorithm, schedule)
        return _heuristic(settings) if algorithm == "zero-bubble-heuristic" else schedule
    if settings.flag("patch_zero_bubble") and settings.flag("enable_zero_bubble"):
        if settings.flag("zero_bubble_v_schedule"):
            return settings.choice("zero_bubble_v_schedule_mem_setup", "half", V_SCHEDULES)
        pending = "zero_bubble_max_pending_backward"
        return "zb-1p" if settings.get(pending) in (None, "auto") else _within(settings, pending)
    return None


def _heuristic(settings: Settings) -> str:
    """Return the heuristic of zero bubbles under its limit of micro-batches; costs only order its passes."""
    spells = [settings.spell(key) for key in COSTS if settings.get(key) is not None]
    if spells:
        settings.note(f"not expressed: {', '.join(spells)} (passes are ordered as if all took as long)")
    return "zb-unlimited" if settings.get("pp_max_mem") is None else _within(settings, "pp_max_mem")


def _within(settings: Settings, key: str) -> str:
    """Return the schedule that holds the most micro-batches within a limit of p, 2p or more."""
    pp, limit = settings.degree("pipeline_model_parallel_size"), settings.size(key)
    if limit not in (pp, 2 * pp):
        settings.note(
            f"{settings.spell(key)} {limit} is taken as {pp if limit < 2 * pp else 2 * pp} micro-batches a rank"
        )
    return "zb-1p" if limit < 2 * pp else "zb-2p"


def _read_offload(settings: Settings, algorithm: str, schedule: str) -> None:
    """Say Primus's offload as Megatron's of single modules: attention of Primus-Turbo's kernels, under V schedules."""
    if not settings.flag("offload"):
        return
    if schedule not in V_SCHEDULES.values():
        other = settings.spell("offload")
        settings.refuse(wording.required_with("zbv-formatted, v-half and v-min", other, algorithm))
    turbo = settings.flag("enable_primus_turbo") and settings.flag("use_turbo_attention")
    if turbo and any("attn" in name for name in settings.words("offload_ops")):
        settings.set("fine_grained_activation_offloading", value=True)
        settings.set("offload_modules", ["core_attn"])
    else:
        settings.note(
            f"{settings.spell('offload')} moves nothing: it takes attn of offload_ops, under use_turbo_attention"
        )


COSTS = ("pp_cost_f", "pp_cost_b", "pp_cost_w")
"""What the heuristic of zero bubbles orders passes by; Primus's defaults are equal, as ours are."""


def _check_chunks(schedule: str | None, reading: ParsedFile, path: Path) -> None:
    """Refuse a schedule with a number of virtual stages that Primus does not run it with."""
    fixed_vpp = None if schedule is None else family(schedule).fixed_vpp
    vpp = reading.strategy.vpp if reading.strategy is not None else fixed_vpp
    if fixed_vpp is not None and vpp != fixed_vpp:
        allowed = f"{counted(fixed_vpp, 'virtual stage')} per rank"
        raise ReaderError(path, wording.wrong_type(f"the schedule {schedule!r}", vpp, allowed))


V_SCHEDULES: Mapping[str, str] = {"half": "v-half", "min": "v-min", "zb": "zbv"}


def _name(module: Mapping[str, Any], path: Path) -> str:
    preset = module.get("model")
    return path.stem if preset is None else re.sub(r"\.ya?ml$", "", Path(str(preset)).name)

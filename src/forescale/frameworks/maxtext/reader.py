"""MaxText's configurations: a YAML file over its base.yml, a model by name, and `key=value` overrides over both.

They are laid over each other as MaxText does (configs/pyconfig.py): base.yml, the file with those it is based on, the
model's own file, overrides; of the model's keys an override may change none unless override_model_config says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from msgspec import field
from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError, UnknownNameError, shown
from forescale.files import is_file, read_text
from forescale.frameworks.detect import Signed
from forescale.frameworks.maxtext.command import base_values, known_keys, parse_command, presets
from forescale.frameworks.maxtext.layout import WORDS, Mesh, read_mesh, read_strategy, read_workload, told
from forescale.frameworks.maxtext.model import read_model, same
from forescale.frameworks.megatron.forks import misspelt
from forescale.frameworks.reading import Options, ParsedFile, unknown_of
from forescale.frameworks.settings import Settings, errors_of
from forescale.positions import keys_of_yaml
from forescale.spec.model import Model
from forescale.struct import Struct
from forescale.syntax import parse_mapping, parse_yaml

_OWN_LINE = re.compile(
    r"^(?:base_config|base_emb_dim|decoder_block|(?:ici|dcn)_\w+_parallelism|per_device_batch_size)\s*:", re.M
)
BASE_CONFIG, BASE = "base_config", "base.yml"
DEFAULT = "default"
"""The model's name that stands for base.yml's own."""
OVER: Mapping[str, str] = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
"""Axes that degrees of a plan go over, inside a slice."""
STUDENT: Final = "student_overrides"
"""What a distillation says of the model that is trained, over all else."""
ENCODERS: Final = "encoders of images and sound"


class MaxTextValues(Struct, frozen=True):
    """What was written: keys of files, overrides over them, and where each stands."""

    values: Mapping[str, Any]
    base: Mapping[str, Any] = field(default_factory=dict)
    """What the file's own base.yml says, where there is one."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class MaxTextReader(Signed):
    """The YAML configuration of MaxText, or a command line that starts it."""

    name: Final = "maxtext"
    title: Final = "MaxText configuration in YAML, or its command line"
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the file at `path` says; `options.variables` with MaxText's names go over it."""
        text = read_text(path)
        if _OWN_LINE.search(text) is None and path.suffix not in (".yml", ".yaml"):
            return _read_command(text, path, options)
        content = parse_mapping(text, path, parse_yaml)
        lines = dict(keys_of_yaml(text))
        if path.name == BASE:
            return read_given(MaxTextValues({}, base=content, lines=lines), path, options)
        base, above = _based_on(content, path, options, (path.absolute(),))
        return read_given(MaxTextValues({**above, **content}, base=base, lines=lines), path, options)


def _read_command(text: str, path: Path, options: Options) -> ParsedFile:
    """Return what the first start of MaxText in a script says: its file, and overrides over it."""
    command = parse_command(text, options.variables, path)
    overrides = {key: value_of(value, path) for key, value in command.overrides.items()}
    # that file lies as far from the script as its last folders say
    base, above = _based_on(
        {BASE_CONFIG: _below(command.config, path, options)}, path, options, (path.absolute(),)
    )
    return read_given(
        MaxTextValues(above, base=base, overrides=overrides, notes=command.notes), path, options
    )


def _below(config: str, path: Path, options: Options) -> str:
    """Return the longest end of a path that is a file in a folder that a file's base may lie in."""
    parts = Path(config).parts
    ends = ["/".join(parts[at:]) for at in range(len(parts))]
    places = (path.parent, *options.folders, *path.absolute().parents)
    return next((end for end in ends if any(is_file(place / end) for place in places)), parts[-1])


def read_given(config: MaxTextValues, path: Path, options: Options) -> ParsedFile:
    """Return what keys and overrides say, those among `options.variables` included."""
    overrides = {
        **config.overrides,
        **_student(config, path),
        **{key: value_of(options.variables[key], path) for key in options.variables if key in known_keys()},
    }
    unknown = _unknown({**config.values, **overrides}, config.lines, path, strict=options.strict)
    settings, model_keys = _settings(config, overrides, unknown, path)
    axes = settings.override(options.over, {word: f"ici_{axis}_parallelism" for word, axis in OVER.items()})
    for key in axes:
        settings.set(key.replace("ici_", "dcn_", 1), 1)
    settings.override(options.over, {"seq_len": "max_target_length"})
    written = {key for key in (*config.values, *overrides) if key not in unknown}
    with errors_of(path):
        model = _model(settings, path, options, model_keys)
        mesh = read_mesh(settings, options)
        layout = read_strategy(settings, mesh, model)
        workload = read_workload(settings, mesh, model)
        parts = told(settings, layout)
    _note_devices(settings, mesh, options)
    used = tuple(key for key in settings.used() if key in written)
    return ParsedFile(
        format=MaxTextReader.name,
        model=model,
        framework=MaxTextReader.name,
        layout_fields=parts,
        workload_fields=workload,
        num_devices=layout.num_devices if options.layout and mesh.stated else options.num_devices,
        used=used,
        ignored=tuple(sorted(written.difference(used))),
        unknown=unknown,
        notes=tuple(settings.notes),
        warnings=((f"not known, may change memory or step time: {', '.join(unknown)}",) if unknown else ()),
    )


def _note_devices(settings: Settings, mesh: Mesh, options: Options) -> None:
    """Note what the number of devices follows from, where the file states it."""
    if options.layout and mesh.stated and options.num_devices is None:
        topology = [key for key in ("compile_topology", "compile_topology_num_slices") if key in settings]
        settings.note_devices(mesh.num_devices, *(topology or mesh.split))


def _student(config: MaxTextValues, path: Path) -> Mapping[str, Any]:
    """Return what a distillation says of the model that it trains."""
    result = config.values.get(STUDENT) or {}
    if not isinstance(result, Mapping):
        raise ReaderError(path, wording.wrong_type(STUDENT, result, "a table"))
    return result


def value_of(text: str, where: object) -> Any:  # noqa: ANN401 (YAML)
    """Return the value of an override: YAML, or text that is none."""
    try:
        return parse_yaml(text, where) if text else ""
    except ReaderError:
        return text


def _based_on(
    content: Mapping[str, Any], path: Path, options: Options, seen: Sequence[Path]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the base.yml below a file says, if it is there, and the files between the two."""
    named = content.get(BASE_CONFIG)
    if named is None:
        return {}, {}
    if not isinstance(named, str):
        allowed = f"the name of a file, such as {BASE}"
        raise ReaderError(path, wording.wrong_type("its base_config", named, allowed))
    places = (path.parent, *options.folders, *path.absolute().parents)
    result = next((place / named for place in places if is_file(place / named)), None)
    if result is None and Path(named).name == BASE:
        return {}, {}
    if result is None:
        key = f"base_config {named!r}"
        raise ReaderError(path, wording.not_found(key, "put it next to this file or in a folder above it"))
    if result.absolute() in seen:
        raise ReaderError(path, wording.circular("base_config", named))
    above = parse_mapping(read_text(result), result, parse_yaml)
    if result.name == BASE:
        return above, {}
    base, between = _based_on(above, result, options, (*seen, result.absolute()))
    return base, {**between, **above}


def _unknown(
    values: Mapping[str, Any], lines: Mapping[str, int], path: Path, *, strict: bool
) -> tuple[str, ...]:
    """Return the keys that MaxText does not have; those of a table such as lora count as `lora.NAME`."""
    known = {*known_keys(), BASE_CONFIG}
    unknown = unknown_of(_names(values), known, path, lines, strict=strict)
    wrong = [key for key in unknown if misspelt(key, known)]
    unknown_of(wrong, known, path, lines, strict=True)
    return unknown


def _names(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        inside = isinstance(value, dict) and f"{key}.{next(iter(value), '')}" in known_keys()
        yield from (f"{key}.{name}" for name in value) if inside else (str(key),)


def _settings(
    config: MaxTextValues, overrides: Mapping[str, Any], unknown: Sequence[str], path: Path
) -> tuple[Settings, Mapping[str, Any]]:
    """Return all keys laid over each other, and those of the model's own file."""
    requested = {**config.base, **config.values, **overrides}
    name = str(requested.get("model_name") or DEFAULT).replace("-Instruct", "")
    keys = _keys_of(name, path) if name != DEFAULT else {}
    lines = {key: line for key, line in config.lines.items() if key not in overrides}
    base = {key: value for key, value in config.base.items() if key in base_values()}
    merged = {**base_values(), **base, **config.values, **keys, **overrides}
    values = {key: None if value == "None" else value for key, value in merged.items() if key not in unknown}
    settings = Settings(values, str(path), lines=lines)
    for note in config.notes:
        settings.note(note)
    for key, value in keys.items():
        if key in overrides and overrides[key] != value and not settings.flag("override_model_config"):
            fix = "MaxText takes it with override_model_config=true"
            other = f"that of model_name {name}"
            settings.refuse_key(wording.differs, key, overrides[key], other, value, fix)
        if key in config.values and key not in overrides and config.values[key] != value:
            settings.note(
                f"{settings.spell(key)} {config.values[key]} is overruled by model_name {name}, as in MaxText: "
                f"{shown(value)}"
            )
    for key, what in WORDS["not_expressed"].items():
        if {**config.values, **overrides}.get(key):
            settings.note(f"not expressed: {settings.spell(key)} ({what})")
    return settings, keys


MODELS: Final = ("models", "configs/models", "MaxText/configs/models", "src/maxtext/configs/models")
"""Where copies of MaxText keep files of models."""


def _keys_of(name: str, path: Path) -> Mapping[str, Any]:
    """Return the keys of a model of MaxText, or of a copy of it that the file at `path` lies in."""
    if name in presets():
        return cast("Mapping[str, Any]", presets()[name]["keys"])
    folders = (path.parent, *path.absolute().parents[1:5])
    places = (folder / models / f"{name}.yml" for folder in folders for models in MODELS)
    file = next(filter(is_file, places), None) if re.fullmatch(r"[\w.-]+", name) else None
    if file is None:
        raise UnknownNameError("MaxText model_name", name, presets())
    return parse_mapping(read_text(file), file, parse_yaml)


def _model(settings: Settings, path: Path, options: Options, values: Mapping[str, Any]) -> Model:
    """Return the model: that of the catalogue where the name means one and nothing was changed, or with its tower."""
    name = str(settings.get("model_name") or DEFAULT).replace("-Instruct", "")
    built = read_model(settings, name if values else path.stem)
    known = presets().get(name, {}).get("catalogue")
    twin = options.model_of(known) if known and options.model_of is not None else None
    model = twin.text if twin is not None and same(twin, built) else built
    if twin is not None and model is built and same(twin.shape, built.shape):
        model = replace(twin.text, layers=built.layers, norm_eps=built.norm_eps)
    if not settings.flag("use_multimodal"):
        return model
    if twin is None or twin.vision is None:
        return replace(model, left_out=", ".join(filter(None, (model.left_out, ENCODERS))))
    settings.note("use_multimodal: one image of each sequence is taken; --images says otherwise")
    return replace(model, vision=twin.vision)

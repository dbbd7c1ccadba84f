"""Read torchtitan's Python job configurations (0.3), and sections of torchtitan 0.2 inside Primus experiments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError, UnknownNameError
from forescale.files import is_file
from forescale.frameworks.detect import Signed
from forescale.frameworks.huggingface import load_huggingface, read_huggingface
from forescale.frameworks.python.values import Call
from forescale.frameworks.reading import Options, ParsedFile, flat
from forescale.frameworks.settings import Settings, errors_of, known_settings
from forescale.frameworks.torchtitan.job import read_job
from forescale.frameworks.torchtitan.keys import (
    check_language,
    flavors,
    job_settings,
    keys,
    model_of_sizes,
    read_adapters,
)
from forescale.frameworks.torchtitan.layout import read_layout
from forescale.spec.model import Model

_JOB = re.compile(r"^def \w+\(.*\)\s*->\s*[\w.]*Config\s*:", re.MULTILINE)


def read_sections(
    content: Mapping[str, Any],
    lines: Mapping[str, int],
    path: Path,
    options: Options,
    more: Sequence[str] = (),
) -> ParsedFile:
    """Return what the sections of a job of torchtitan 0.2 contain, as a module of Primus writes them.

    Parameters
    ----------
    content
        Keys by section.
    lines
        Line of each dotted key.
    path
        The file, for messages.
    options
        What the caller knows.
    more
        Keys that Primus accepts in addition to torchtitan's.
    """
    known = [*(f"{section}.{key}" for section, names in keys()["sections"].items() for key in names), *more]
    values = {key: value for key, value in flat(content) if value != {} or key in known}
    strict = options.strict and not values.get("job.custom_config_module")  # the module adds keys
    settings, unknown = known_settings(values, known, path, lines, strict=strict)
    if "model.name" not in values and "model.flavor" not in values:
        raise ReaderError(path, wording.incomplete("[model] with name and flavor"))
    check_language(values.get("model.name"), f"{path}, line {lines.get('model.name', 1)}")
    for key in unknown if options.strict else ():
        settings.note(f"not expressed: {key} (line {lines.get(key, 1)}) of a configuration module")
    unknown = () if options.strict else unknown
    return _reading("torchtitan", settings, options, None, unknown=unknown, python=False)


class TorchtitanJobReader(Signed):
    """Python files with torchtitan's job configurations, 0.3 and later."""

    name: Final = "torchtitan"
    title: Final = "torchtitan job configuration in Python (0.3)"

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what a job configuration at `path` says: the one that the variable `config` names, or the only one."""
        job = read_job(path, options)
        settings, unknown, sizes = job_settings(job, path, strict=options.strict)
        return _reading(self.name, settings, options, sizes, unknown=unknown, python=True)


def _reading(
    form: str,
    settings: Settings,
    options: Options,
    sizes: Call | None,
    *,
    unknown: tuple[str, ...],
    python: bool,
) -> ParsedFile:
    with errors_of(settings.where):
        model = (
            _model(settings, options) if sizes is None else model_of_sizes(sizes, Path(settings.where).stem)
        )
        layout = read_layout(settings, model, options.num_devices if options.layout else None, python=python)
    if options.num_devices is None and options.layout:
        settings.note_fewest(layout.strategy.num_devices)
    _read_optimizer(settings, layout.workload)
    if adapters := read_adapters(settings, model):
        layout.workload["trainable"] = adapters
    notes = [*_not_expressed(settings), *settings.notes]
    release = "0.3" if python else "0.2"
    return ParsedFile(
        format=form,
        model=model,
        framework=f"torchtitan@{release}" + ("" if layout.compiled else "-eager"),
        layout_fields=layout.fields,
        workload_fields=layout.workload,
        num_devices=options.num_devices,
        used=settings.used(),
        ignored=settings.unread(),
        unknown=unknown,
        notes=tuple(dict.fromkeys(notes)),
    )


def _model(settings: Settings, options: Options) -> Model:
    """Return the model that name and flavor mean; torchtitan trains no multi-token prediction unless told."""
    name, flavor = settings.text("model.name", "llama3"), settings.get("model.flavor")
    if flavor is None:
        settings.note("model.flavor is not given; torchtitan takes debugmodel")
        flavor = "debugmodel"
    known = flavors()
    local = known["aliases"].get(name, name)
    if local not in known["flavors"]:
        raise UnknownNameError(f"model.name in {settings.where}", name, known["flavors"])
    if not isinstance(flavor, str) or not flavor:
        there = ", ".join(known["flavors"][local])
        settings.refuse_key(wording.not_one_of, "model.flavor", flavor, there)
    if flavor not in known["flavors"][local]:
        raise UnknownNameError(f"flavor of {name} in {settings.where}", flavor, known["flavors"][local])
    sees = local in known["images"] or flavor in known["images"]
    if sees:
        settings.note(f"{name} {flavor}: one image of each sequence is taken; --images says otherwise")
    elif name in known["beside"]:
        settings.note(f"{name} {flavor}: {known['beside'][name]}")
    means = known["flavors"][local][flavor]
    if isinstance(means, dict):
        model = read_huggingface(means, name=f"{local}-{flavor}", where=f"torchtitan {local} {flavor}").model
    else:
        model = _named(settings, options, means and means[0])
    model = model if sees else model.text
    layers = model.layers[: settings.size("model.n_layers", model.num_layers)]
    return replace(model, layers=layers, num_mtp_layers=settings.count("model.num_mtp_layers", 0))


def _named(settings: Settings, options: Options, means: str | None) -> Model:
    """Return a catalogue model, or the one that the transformers backend loads by name or folder."""
    key = "hf_transformers.model"
    named = means or settings.get(key)
    if not isinstance(named, str) or not named:
        settings.refuse(f"{key} must name the Hugging Face model that is trained")
    folder = Path(settings.where).parent / named
    if means is None and is_file(folder / "config.json"):
        return load_huggingface(folder).model
    if options.model_of is None:
        settings.refuse(f"the model {named} is only named; it is read where a catalogue of models is given")
    return options.model_of(named)


def _read_optimizer(settings: Settings, workload: dict[str, Any]) -> None:
    named = str(settings.get("optimizer.name") or settings.get("optimizer") or "AdamW").lower()
    if "muon" in named:
        workload["optimizer"] = "muon"
    elif "adam" not in named and "optimizerscontainer" not in named:
        settings.note(f"optimizer {named}: states taken as AdamW's")


USUAL: Final = frozenset(("output", "lm_head", "router.gate", "moe.router.gate"))
"""Modules that lists of exceptions name as a rule; the projection leaves them out, too."""


def _is_usual(value: object) -> bool:
    return value in (False, "", "default") or (
        isinstance(value, list) and all(isinstance(item, str) and item in USUAL for item in value)
    )


def _not_expressed(settings: Settings) -> Iterator[str]:
    """Yield what is given and changes memory or time, but cannot be said."""
    narrowed = "model.converters" in settings and settings.get("model.converters") != []
    for key, what in keys()["not_expressed"].items():
        if key.startswith("quantize.") and not narrowed:
            continue
        if key in settings and not _is_usual(settings.get(key)):
            yield f"not expressed: {settings.spell(key)} ({what})"

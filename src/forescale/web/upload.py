"""A framework's file as fields of the form: read as the command line does, in a folder of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import decompressobj

from msgspec.structs import replace

from forescale.catalogue.clusters import is_cluster_name
from forescale.catalogue.models import load_model, model_names, vocabulary_of
from forescale.diagnose import Diagnosis, diagnose, measured_of, with_settings
from forescale.errors import ForescaleError, too_large, wrong_type
from forescale.frameworks.huggingface import read_huggingface
from forescale.frameworks.huggingface.writer import config_of, same_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options
from forescale.io.document import is_document
from forescale.io.line import told_words
from forescale.io.merge import partial_question
from forescale.io.named import named_model
from forescale.io.question import build_question, is_plan, read_question
from forescale.logs import format_of
from forescale.presets import project_as
from forescale.profiles import begins_trace
from forescale.question import Question
from forescale.spec.model import Model
from forescale.web.asked import FIELDS, LONGEST_VALUE, OWN, ROOTS, leaves

MOST_CHARACTERS = 256 * 1024
"""Of a file."""
SIZES = ("seq_len", "global_batch_size")
"""Fields of the form that stay as they are where a file does not say them."""
SAMPLE = 64 * 1024
"""Bytes in which a log is recognised."""
MOST_UNPACKED = 64 * 2**20
"""Bytes of a packed trace that are read."""
NAMED = 8
"""Keys without effect that are named."""


def uploaded(name: str, text: str, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that a file fills, and notes on how it was understood.

    The file stands alone: what it names beside itself is not there. What it does not say, such as the cluster, is as
    in the `form`; words that change nothing there are left out.

    Raises
    ------
    ForescaleError
        If no reader knows it, or it cannot be understood; messages name it as it was called.
    """
    if len(text) > MOST_CHARACTERS:
        raise too_large("the file", f"{len(text):,} characters", MOST_CHARACTERS).at(name)
    plain = re.sub(r"[^\w.-]", "_", Path(name).name)[-80:].lstrip(".") or "file"
    options = Options(vocabulary_of=vocabulary_of, model_of=load_model, strict=False)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "script" / "above" / plain  # what a script names is looked for in folders above
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8", newline="")
        try:
            if is_plan(file):
                return _of_plan(file)
            reading = read_file(file, options)
            open_ended = reading.num_devices is None
            devices = form.get("devices", "")
            if open_ended and devices.isdecimal() and len(devices) < 9:
                reading = read_file(file, replace(options, num_devices=int(devices)))
        except ForescaleError as error:
            raise error.worded(str(error).replace(f"{file.parent}/", "").replace(folder, plain)) from None
        finally:  # rmtree opens folders by their bare names, which a worker's guard refuses
            file.unlink()
            file.parent.rmdir()
            file.parent.parent.rmdir()
    notes = [*reading.warnings, *filter(None, [reading.phase]), *reading.notes]
    if reading.ignored:
        more = ", …" if len(reading.ignored) > NAMED else ""
        notes.append(f"without effect here: {', '.join(reading.ignored[:NAMED])}{more}")
    sections = ("framework", "strategy", "workload", *(() if open_ended else ("devices",)))
    parsed = partial_question(reading).values
    values = {name: parsed[name] for name in sections if name in parsed}
    fields = dict(form_fields(_needed(values, reading.model, form)))
    if reading.model is not None:
        fields |= model_fields(reading.model)
    return {
        "format": reading.format,
        "fields": fields,
        "notes": [note.replace(f"{file.parent}/", "") for note in notes],
    }


def _of_plan(file: Path) -> dict[str, Any]:
    """Return the fields that a plan fills, or what a command printed with --json; of a search its first layout."""
    question = read_question(file)
    sections = told_words(question)
    notes = []
    if not isinstance(sections["cluster"], str):
        notes.append("the cluster of the file is not in the catalogue; the form keeps its own")
    names = ("framework", "preset", "strategy", "workload", "precision", "devices")
    values = {name: sections[name] for name in names if name in sections}
    if not notes:
        values["cluster"] = sections["cluster"]
    fields = {**dict(form_fields(values)), **model_fields(question.model)}
    sizes = {name: str(getattr(question.workload, name)) for name in SIZES}
    kind = "answer" if is_document(file) else "plan"
    return {"format": kind, "fields": {"framework": "", "preset": "", **fields, **sizes}, "notes": notes}


def measured_text(name: str, data: bytes) -> str | None:
    """Return the text of a log or a profiler trace, unpacked where it is; None for a file of another kind."""
    if data.startswith(b"\x1f\x8b"):
        data = decompressobj(wbits=31).decompress(data, MOST_UNPACKED)
    lines = data[:SAMPLE].decode(errors="replace").splitlines()
    is_measured = name.endswith((".log", ".out", ".err")) or begins_trace(data) or format_of(lines)
    return as_text(data) if is_measured else None


def as_text(data: bytes) -> str:
    """Return the text of a file; raises if it is binary."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise wrong_type("the file", "binary", "text in UTF-8") from None


def measured(name: str, text: str, question: Question) -> Diagnosis:
    """Return how the run of a log or trace differs from the question.

    Raises
    ------
    ForescaleError
        If nothing in it states the time of a step.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / ("trace.json" if text[:1] == "{" else "run.log")
        file.write_text(text, encoding="utf-8")
        try:
            result = diagnose(question, measured_of([str(file)], project_as(question)), project_as)
            return with_settings(result, question, {})
        except ForescaleError as error:
            raise error.worded(str(error).replace(str(file), name)) from None
        finally:
            file.unlink()


def _needed(values: dict[str, Any], model: Model | None, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the words of a file that change anything beside the form; all, where they ask nothing yet."""
    named = model is None and form.get("model") in model_names()
    if not is_cluster_name(form.get("cluster")) or not (model or named):
        return values
    sizes = {name: int(form[name]) for name in SIZES if form.get(name, "").isdecimal()}
    question = {
        "devices": int(form["devices"]) if form.get("devices", "").isdecimal() else None,
        "strategy": {},
        **values,
        "cluster": form["cluster"],
        "model": form["model"] if model is None else model,
        "workload": {**sizes, **values.get("workload", {})},
    }
    try:
        sections = told_words(build_question(question, where="the file"))
    except ForescaleError:
        return values
    message = {*values, *(("precision",) if "workload" in values else ())}
    return {**values, **{name: sections.get(name, {}) for name in ROOTS if name in message}}


def form_fields(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return what a plan says as fields of the form; what has none is a line of `set`."""
    names = {item.path: item.name for item in FIELDS if item.path}
    for path, name in names.items():
        if path[0] in ROOTS and path[0] in values and path[-1] not in SIZES:
            yield name, ""
    sets = []
    flat = {path: value for path, value in leaves(values) if value is not None}
    if precision := {path: value for path, value in flat.items() if path[:2] == ("workload", "precision")}:
        flat = {path: value for path, value in flat.items() if path not in precision}
        flat |= {path[1:]: value for path, value in precision.items()}
    for path, value in flat.items():
        if path in names:
            whole = isinstance(value, float) and value.is_integer()
            yield names[path], str(int(value)) if whole else str(value)
        elif path[0] in ROOTS:
            sets.append(f"{'.'.join(path)}={json.dumps(value)}")
    yield "set", "\n".join(sets)


def model_fields(model: Model) -> dict[str, str]:
    """Return a model by its name, or as the config.json of one that is the same, or field by field."""
    name = named_model(model)
    if name is not None:
        return {"model": name, "config": ""}
    try:
        config: Mapping[str, Any] = config_of(model)
        same = same_model(read_huggingface(config, name=model.name, where="config").model, model)
    except ForescaleError:
        same = False
    text = json.dumps({"name": model.name, **config} if same else asdict(model))
    if len(text) > LONGEST_VALUE:
        allowed = f"{LONGEST_VALUE:,} characters of a link"
        raise too_large(f"the model {model.name}", "a longer address", allowed)
    return {"model": OWN, "config": text}

"""Documents that commands print with --json, read back: a layout of theirs, and the question that it answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from forescale import wording
from forescale.errors import ReaderError, refuse_misspelt
from forescale.files import exists, is_file, parse_json, place_of, read_text
from forescale.limits import whole_of
from forescale.positions import says_lines

ROWS = ("best", "front", "points", "fixes")
"""Keys of documents that hold layouts: searches, fronts, targets, changes."""
PROJECTION = "forescale.projection/1"
TABLES = {
    "cluster": ("name", "device", "num_devices"),
    "workload": (),
    "strategy": (),
    "memory": ("stages",),
}
"""Tables of a projection that are read again, with what they must have."""


PLAN = "a TOML or YAML file (.toml, .yaml)"
"""What people write a plan in, for messages."""


def is_written(path: str | Path) -> bool:
    """Say whether a file has the ending of a plan that people write."""
    return Path(path).suffix.lower() in (".toml", ".yaml", ".yml")


def toml_file(path: object) -> Path:
    """Return the file that a plan is written to.

    Raises
    ------
    SpecError
        If its name does not end as plans in TOML do, and so would not be read as one.
    """
    if not isinstance(path, str | Path) or Path(path).suffix.lower() != ".toml":
        raise wording.wrong_suffix("a plan", path, (".toml",))
    return Path(path)


def numbered(text: str | Path) -> tuple[Path, int | None]:
    """Split FILE#N into a path and the place of a layout in it, from 1 on."""
    name, mark, number = str(text).rpartition("#")
    if mark and whole_of(number) is not None and not exists(Path(text)):
        return place_of(name), whole_of(number)
    return place_of(text), None


@says_lines
def is_document(text: str | Path) -> bool:
    """Say whether a text names a layout in what a command printed, and not a model's own JSON file."""
    path, place = numbered(text)
    if not is_file(path):
        return place is not None and path.suffix.lower() == ".json"
    from forescale.frameworks.traces import FAMILY

    schema = _schema_of(path) if path.suffix.lower() == ".json" else ""
    startswith = schema.startswith("forescale.") and not schema.startswith(FAMILY)
    if place is not None and not startswith:
        raise ReaderError(
            path,
            wording.wrong_format(
                "a document with layouts by number",
                f"#{place} needs the JSON that a command printed with --json",
            ),
        )
    return startswith


class _Headed(msgspec.Struct):
    """What is read of a file to say whose it is."""

    schema: Any = ""


def _schema_of(path: Path) -> str:
    text = read_text(path)
    try:
        return str(msgspec.json.decode(text, type=_Headed).schema)
    except (msgspec.DecodeError, RecursionError):
        parse_json(text, path, infinite=True)  # raises unless it is JSON without a schema
        return ""


def read_layout(text: str | Path) -> dict[str, Any]:
    """Return the projection that FILE#N is, or FILE: of several layouts the first.

    Raises
    ------
    ReaderError
        If the file cannot be read, or has no such layout.
    """
    return _layout(*numbered(text))[1]


def read_asked(text: str | Path) -> dict[str, Any]:
    """Return the question of a layout in a document, as the sections of a plan file.

    Raises
    ------
    ReaderError
        As `read_layout`, or if the document does not say what was asked.
    """
    path, place = numbered(text)
    document, layout = _layout(path, place)
    question = document.get("question")
    if not isinstance(question, Mapping) or layout.get("schema") != PROJECTION:
        raise ReaderError(path, wording.incomplete("question", fix="print it again with --json"))
    kept = {
        name: value for name, value in question.items() if name not in ("space", "objective", "precision")
    }
    kept |= {"devices": layout["cluster"]["num_devices"], "workload": layout["workload"]}
    return {**kept, "strategy": layout["strategy"]}


@says_lines
def _layout(path: Path, place: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a document, and the projection at a place in it."""
    document = parse_json(read_text(path), path)
    if isinstance(document, dict):
        refuse_misspelt(document, ("schema", "question", *ROWS), str(path))
    result = [
        document[key] for key in ROWS if isinstance(document, dict) and isinstance(document.get(key), list)
    ]
    if not result:
        if place is not None:
            raise ReaderError(path, wording.wrong_format(f"a search, so it has no layout #{place}"))
        return document, _spelt(document, path)
    rows, place = result[0], 1 if place is None else place
    if not 1 <= place <= len(rows):
        raise ReaderError(
            path, wording.out_of_range("the number of the layout", place, f"from #1 to #{len(rows)}")
        )
    row = rows[place - 1]
    inside = [row[key] for key in ("best", "projection") if isinstance(row, dict) and key in row]
    if (layout := inside[0] if inside else row) is None:
        raise ReaderError(path, wording.no_layout(f"fits at #{place}"))
    return document, _spelt(layout, path)


def _spelt(layout: Any, path: Path) -> Any:  # noqa: ANN401 (JSON)
    """Return a projection whose keys are none that are misspelt."""
    from forescale.projection.result import KEYS

    if isinstance(layout, dict) and layout.get("schema") == PROJECTION:
        refuse_misspelt(layout, KEYS, str(path))
        for name, known in TABLES.items():
            table = layout.get(name)
            if name not in layout:
                raise ReaderError(
                    path, wording.wrong_format(f"a complete {PROJECTION} document", f"it has no {name}")
                )
            if not isinstance(table, dict):
                raise ReaderError(path, wording.wrong_type(name, table, "a table"))
            refuse_misspelt(table, known, f"{path}, {name}")
            if missing := [key for key in known if key not in table]:
                raise ReaderError(path, wording.incomplete(missing[0], name))
        stages = layout["memory"]["stages"]
        listed = isinstance(stages, list) and all(isinstance(stage, dict) for stage in stages)
        if not stages or not listed or not all("num_layers" in stage for stage in stages):
            allowed = "a list of every pipeline stage with its num_layers"
            raise ReaderError(path, wording.wrong_type("memory.stages", ..., allowed))
    return layout

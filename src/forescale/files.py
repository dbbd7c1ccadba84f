"""What files hold, read in one place: text, JSON and tables, with limits of size, depth and numbers.

Everything that people hand in comes through here, so that a file which is missing, binary, endless or nested too
deeply gives the same one-line error everywhere.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from forescale import wording
from forescale.errors import ForescaleError, Location, ReaderError, SpecError, nearest, shown
from forescale.limits import TINY
from forescale.struct import Struct

PACKAGE = Path(__file__).parent
CATALOGUE = PACKAGE / "catalogue"
"""Folder of the data files."""
TEXT_BYTES = 64 * 2**20
"""Largest file that is read."""
DEPTH = 64
"""Tables and lists inside each other."""
FLAGS = {
    "": None,
    **dict.fromkeys(("y", "yes", "true", "1"), True),
    **dict.fromkeys(("n", "no", "false", "0"), False),
}
"""What cells say of yes and no."""
INTEGER = 2**63
"""Whole numbers stay below."""


def place_of(text: str | Path) -> Path:
    """Return the path that `text` is; ~ is the home folder, where there is one of that name."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 (pathlib raises for an unknown user)


def exists(path: Path) -> bool:
    """Return whether there is a file or a folder; False for names that no file can have, which pathlib raises for."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """Return whether there is a file; False as of `exists`."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Return whether there is a folder; False as of `exists`."""
    return os.path.isdir(path)  # noqa: PTH112


def file_of(value: object, function: str) -> Path:
    """Return the file that a function of Python is given by its name.

    Raises
    ------
    SpecError
        If it is not a name.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise wording.wrong_type(function, value, "the name of a file")
    return Path(value)


def read_text(path: str | Path, *, hint: str = "", most: int = TEXT_BYTES) -> str:
    """Return the text of `path`, line ends as newlines and without a byte-order mark; of a notebook its Python.

    Parameters
    ----------
    path
        A file of at most `most` bytes.
    hint
        Added to the message if there is no such file.

    Raises
    ------
    ReaderError
        If there is no such file, or it is a folder, empty, too large, or no UTF-8.
    """
    text = _decoded(read_bytes(path, hint=hint, most=most), path)
    if not str(path).endswith(".ipynb"):
        return text
    from forescale.notebook import code_of_notebook

    return code_of_notebook(text)


def read_bytes(path: str | Path, *, hint: str = "", most: int = TEXT_BYTES) -> bytes:
    """Return the content of `path`; it raises as `read_text` does."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError as error:
        raise ReaderError(path, wording.not_found("file", hint)) from error
    except OSError as error:
        raise ReaderError(path, wording.cannot_read(error.strerror)) from error
    except ValueError as error:  # a NUL in the name
        raise ReaderError(repr(str(path)), wording.wrong_format("a file name")) from error
    if len(content) > most:
        raise ReaderError(path, wording.too_large("it", "", f"{most / 2**20:g} MiB for such a file"))
    return content


def _decoded(content: bytes, path: object) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ReaderError(path, wording.cannot_read("UTF-16", "save it as UTF-8"))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ReaderError(path, wording.cannot_read(f"line {line} is not UTF-8")) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ReaderError(path, wording.cannot_read(f"a zero byte in line {line}"))
    if not text.strip():
        raise ReaderError(path, wording.empty())
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: str, where: object, *, infinite: bool = False) -> Any:  # noqa: ANN401 (JSON)
    """Return the content of a JSON text; a key given twice is refused, and numbers are finite unless `infinite`."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            twice = _repeated(key for key, _ in pairs)
            raise ReaderError(where, wording.given_twice(f"the key {shown(twice)}"))
        return result

    try:
        content = json.loads(text, object_pairs_hook=table)
    except json.JSONDecodeError as error:
        value = re.match(r"[\w$<]\S{0,40}", text[error.pos :])
        result = f": {value[0].rstrip(',')}" if value else ""
        raise ReaderError(
            where,
            wording.cannot_parse("JSON", f"{error.msg} at line {error.lineno}, column {error.colno}{result}"),
        ) from error
    except RecursionError as error:
        raise ReaderError(where, _too_deep()) from error
    except ReaderError:
        raise
    except ValueError as error:  # more digits than Python reads
        allowed = f"{len(str(INTEGER)) - 1}"
        raise ReaderError(where, wording.too_large("a number", "thousands of digits", allowed)) from error
    check_plain(content, where, infinite=infinite)
    return content


def _repeated(names: Iterable[str]) -> str | None:
    """Return the first name that is the same as one before it; None where all differ."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def check_plain(content: object, where: object, *, infinite: bool = False) -> None:
    """Refuse content that is nested deeper than `DEPTH`, has keys that are no text, or numbers beyond all use."""
    level: list[tuple[str, Any]] = [("a list", content)]
    depth = 0
    while level:
        if depth > DEPTH:
            raise ReaderError(where, _too_deep())
        inside: list[tuple[str, Any]] = []
        for name, value in level:
            if isinstance(value, dict):
                for key in value:
                    _check_key(key, where)
                inside += value.items()
            elif isinstance(value, list):
                inside += [(name, item) for item in value]
        for key, item in inside:
            _check_item(item, where, key, infinite=infinite)
        level, depth = [pair for pair in inside if isinstance(pair[1], dict | list)], depth + 1


def _too_deep() -> str:
    return f"its tables and lists lie more than {DEPTH} deep inside each other"


def _check_key(key: object, where: object) -> None:
    if not isinstance(key, str):
        raise ReaderError(where, wording.wrong_type("a key", key, "text", "write it in quotes"))


def _check_item(value: object, where: object, key: str, *, infinite: bool) -> None:
    if not isinstance(value, str | int | float | dict | list | None):
        raise ReaderError(where, wording.wrong_type(key, value, "no date", "write it in quotes"))
    if isinstance(value, float) and not (infinite or math.isfinite(value)):
        raise ReaderError(where, wording.wrong_type(f"{shown(key)}", value, "a number"))
    if isinstance(value, int) and not -INTEGER < value < INTEGER:
        allowed = f"{len(str(INTEGER)) - 1} digits"
        raise ReaderError(where, wording.too_large(key, f"the value {shown(value)}", allowed))


def _plainly(text: str) -> str:
    """Return how to write a number whose thousands are parted, or whose point is a comma."""
    if re.fullmatch(r"\d{1,3}([, ]\d{3})+(\.\d+)?", text, re.ASCII):
        return f"write {re.sub('[, ]', '', text)}"
    return f"write {text.replace(',', '.')}" if re.fullmatch(r"\d+,\d+", text, re.ASCII) else ""


class Row(Struct, frozen=True, kw_only=True):
    """One row of a table as written: `line` is its line in the file, `cells` its text by column."""

    path: str
    line: int
    cells: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's identifier."""
        return self.text("id")

    def text(self, column: str) -> str:
        """Return the stripped text of `column`, empty if the row or the table lacks it."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """Return `column` as a number, or None if it is empty.

        Raises
        ------
        ReaderError
            If the cell holds something else.
        """
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or abs(value) >= INTEGER * 1e6 or "_" in text:
            raise self.refused(column, wording.wrong_type(column, text, "a number", _plainly(text)))
        if 0.0 < abs(value) < TINY:
            raise self.refused(column, wording.out_of_range(column, value, f"0 or at least {TINY:g} in size"))
        return value

    def integer(self, column: str) -> int | None:
        """Return `column` as a whole number, or None if it is empty; errors as `number`."""
        value = self.number(column)
        if value is None:
            return None
        if value != int(value):
            raise self.refused(column, wording.wrong_type(column, value, "a whole number"))
        return int(value)

    def flag(self, column: str) -> bool | None:
        """Return `column` as yes (y) or no (n), or None if it is empty; errors as `number`."""
        text = self.text(column).lower()
        if text not in FLAGS:
            raise self.refused(column, wording.not_one_of(column, text, "y or n"))
        return FLAGS[text]

    def refused(self, column: str, violation: str | ForescaleError) -> ReaderError:
        """Return the error that says what is wrong with a cell."""
        error = ReaderError(self.path, SpecError(violation).at(f"line {self.line}, column {column}"))
        error.location = Location(self.path, self.line, column)
        return error


class Table(Struct, frozen=True, kw_only=True):
    """The rows of a CSV file of any kind, and its columns."""

    path: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def need(self, columns: tuple[str, ...], what: str) -> None:
        """Refuse a table that lacks one of `columns`; `what` it should be."""
        missing = [name for name in columns if name not in self.columns]
        if missing:
            close = nearest(missing[0], self.columns)
            lacks = f"it lacks the column {', '.join(missing)}{_separated(self.columns)}"
            allowed = f"a {what}"
            raise ReaderError(self.path, wording.wrong_format(allowed, lacks, wording.did_you_mean(close)))

    def know(self, columns: tuple[str, ...]) -> None:
        """Refuse a table with columns besides the known ones."""
        for name in self.columns:
            if name not in columns:
                close = nearest(name, columns)
                hint = f"; did you mean {' or '.join(close)}?" if close else ""
                fix = hint.removeprefix("; ")
                raise ReaderError(self.path, wording.unknown_key(name, "the table", columns, fix))


def read_table(path: str | Path) -> Table:
    """Return the rows of a CSV file, whatever its columns; empty lines are passed over.

    Raises
    ------
    ReaderError
        If the file cannot be read, names a column twice, or has a row with fewer or more cells than columns.
    """
    import csv

    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    values: list[tuple[int, list[str]]] = []
    try:
        values.extend((reader.line_num, cells) for cells in reader if cells)
    except csv.Error as error:
        raise ReaderError(path, wording.cannot_parse("CSV", f"line {reader.line_num}: {error}")) from error
    columns = tuple(name.strip() for name in values[0][1]) if values else ()
    if (twice := _repeated(columns)) is not None:
        raise ReaderError(path, wording.given_twice(f"the key {shown(twice)}"))
    for line, cells in values:
        if len(cells) != len(columns):
            violation = f"line {line} has {len(cells)} cells, not as many as the {len(columns)} columns"
            raise ReaderError(path, violation + _separated(columns))
    rows = tuple(
        Row(path=str(path), line=line, cells=dict(zip(columns, cells, strict=True)))
        for line, cells in values[1:]
    )
    return Table(path=str(path), columns=columns, rows=rows)


def _separated(columns: tuple[str, ...]) -> str:
    """Return a hint where one cell holds what looks like a whole header."""
    marks = {";": "semicolons", "\t": "tabs", "|": "bars"}
    names = [name for mark, name in marks.items() if len(columns) == 1 and mark in columns[0]]
    return f" (its columns are separated by {names[0]}, and must be by commas)" if names else ""


@cache
def shipped(path: str) -> Any:  # noqa: ANN401  (JSON)
    """Return one JSON document of the package, such as `sweep/columns`; whoever reads it leaves it as it is."""
    return json.loads((PACKAGE / f"{path}.json").read_text("utf-8"))


def packaged(name: str) -> Any:  # noqa: ANN401  (JSON)
    """Return one JSON document of the catalogue, such as `calibrations/memory/overhead`."""
    return shipped(f"catalogue/{name}")


def packaged_names(folder: str) -> tuple[str, ...]:
    """Return the names of the JSON documents in one folder of the catalogue, in order."""
    names = (item.name for item in (CATALOGUE / folder).iterdir())
    return tuple(name.removesuffix(".json") for name in sorted(names) if name.endswith(".json"))

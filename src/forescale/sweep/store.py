"""Finished points on disk: each is kept as soon as it is known, and the table is written from them.

A folder holds `sweep.json` (what is asked), `points.jsonl` (finished points, a line each that ends with its checksum)
and at the end `results.parquet` or `results.csv`. The table depends on the rows only, not on when, where or in which
order they were found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from forescale.atomic_write import replacing, write_text, writing
from forescale.checksum import CHECKSUM, checksum
from forescale.errors import ForescaleError, cannot_write, corrupted, file_exists, needing, wrong_format
from forescale.report.document import write_csv, write_parquet
from forescale.sweep.columns import Row, TableColumn
from forescale.sweep.definition import Sweep

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]


def made(folder: Path) -> None:
    """Make a folder unless it is there.

    Raises
    ------
    ForescaleError
        If that cannot be.
    """
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise cannot_write(folder, "it is a file, not a folder")
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Keep other sweeps of this machine out of a folder meanwhile, however this process ends.

    Raises
    ------
    ForescaleError
        If another process works in it.
    """
    if folder is None or fcntl is None:
        yield
        return
    made(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                fix = "wait for it, or give another folder"
                raise cannot_write(folder, "another process works in it", fix) from error
        yield
    finally:
        os.close(descriptor)


Format: TypeAlias = Literal["parquet", "csv"]
SCHEMA = "forescale.sweep_folder/1"
DEFINITION, POINTS, RESULTS = "sweep.json", "points.jsonl", "results"
OWN = (POINTS, f"{RESULTS}.parquet", f"{RESULTS}.csv", "report.html", "plots")
"""What a sweep writes beside its definition."""


class Store:
    """Keeps the rows of finished points in a folder; without one they last as long as the run."""

    def __init__(self, folder: Path | None, columns: tuple[TableColumn, ...], kind: Format) -> None:
        self._lines = None if folder is None else folder / POINTS
        self._table = None if folder is None else folder / f"{RESULTS}.{kind}"
        self._columns = columns
        if self._lines is not None:
            _drop_torn_line(self._lines)

    def done(self) -> dict[int, Row]:
        """Return the rows kept so far by index."""
        if self._lines is None or not self._lines.exists():
            return {}
        try:
            lines = self._lines.read_text(encoding="utf-8").splitlines()
        except ValueError as error:
            raise _damaged(str(self._lines), error) from error
        rows = [_checked(line, f"line {place} of {self._lines}") for place, line in enumerate(lines, start=1)]
        return {row["index"]: row for row in rows}

    def keep(self, row: Row) -> None:
        """Append one line and see that it reaches the disk."""
        if self._lines is None:
            return
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, CHECKSUM: checksum(row)}, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write(self, rows: Sequence[Row]) -> Path | None:
        """Write the whole table, rows by ascending index, and return where."""
        if self._table is None:
            return None
        if self._table.suffix == ".csv":
            write_csv(rows, self._table)
        else:
            write_parquet(rows, self._table, kinds={column.name: column.kind for column in self._columns})
        return self._table


def _drop_torn_line(lines: Path) -> None:
    """Cut off a last line that was being written when the process was killed."""
    content = lines.read_bytes() if lines.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with replacing(lines) as place:
            place.write_bytes(whole)


def open_store(
    sweep: Sweep,
    fingerprint: str,
    columns: tuple[TableColumn, ...],
    *,
    folder: Path | None,
    kind: Format = "parquet",
    restart: bool = False,
) -> Store:
    """Return where the points of `sweep` are kept: in `folder`, or nowhere.

    Raises
    ------
    ForescaleError
        If the folder holds points of another sweep or cannot be written, or pyarrow is missing.
    """
    if folder is None:
        return Store(None, columns, kind)
    if kind == "parquet":
        with needing("sweep", "Parquet files", "pyarrow", "or keep the table as CSV with --format csv"):
            import pyarrow  # noqa: F401
    made(folder)
    with writing(folder):
        _claim(sweep, fingerprint, folder, restart=restart)
        return Store(folder, columns, kind)


def _checked(line: str, where: str) -> Row:
    """Return the point of a line that ends with its checksum."""
    try:
        row: Row = json.loads(line)
        message = row.pop(CHECKSUM, None)
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(where, error) from error
    if message != checksum(row):
        raise _damaged(where, "its checksum is another")
    return row


def _damaged(where: str, reason: object) -> ForescaleError:
    first = (str(reason).strip().splitlines() or [type(reason).__name__])[0].rstrip(".")
    return ForescaleError(
        f"{where} is damaged ({first}); delete it and it is asked again, or all points with --restart"
    )


def _claim(sweep: Sweep, fingerprint: str, folder: Path, *, restart: bool) -> None:
    """Note in `folder` what is asked, or see that it is what was asked before."""
    note = folder / DEFINITION
    before = _noted(note, restart=restart)
    if restart and before is not None:
        (folder / POINTS).unlink(missing_ok=True)
    question = {
        "schema": SCHEMA,
        "fingerprint": fingerprint,
        "num_points": sweep.axes.num_points,
        "definition": json.loads(json.dumps(sweep.content, default=str)),
    }
    if restart or before is None:
        write_text(note, json.dumps(question, indent=1, ensure_ascii=False) + "\n")
        return
    if before.get("fingerprint") == fingerprint:
        return
    key = f"{folder} with points of another sweep than {sweep.where} ({_difference(before, question)})"
    raise file_exists(key, "take another folder, or discard what is there with --restart")


def _noted(note: Path, *, restart: bool) -> dict[str, Any] | None:
    """Return what a folder says was asked in it: None if it is new, nothing if that is lost and not needed.

    Raises
    ------
    ForescaleError
        If what is there is not of a sweep.
    """
    if not note.exists():
        strange = next((name for name in OWN if (note.parent / name).exists()), None)
        if strange is None:
            return None
        fix = "take another folder"
        raise wrong_format("of a sweep", f"{DEFINITION} is not there", fix).at(note.parent / strange)
    try:
        result = json.loads(note.read_text(encoding="utf-8"))
    except ValueError as error:
        if restart:
            return {}
        fix = "take another folder, or discard what is there with --restart"
        raise corrupted(note, str(error), fix) from error
    if isinstance(result, dict) and result.get("schema") == SCHEMA:
        return result
    raise wrong_format("of a sweep", f"its schema is not {SCHEMA}", "take another folder").at(note)


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what changed, in words."""
    old, new = dict(_leaves(before.get("definition", {}))), dict(_leaves(now["definition"]))
    for key in [*new, *old]:
        if old.get(key) != new.get(key):
            return f"{key} was {_said(old.get(key))} and is {_said(new.get(key))}"
    return "the file is the same, but a specification it names or the version of forescale is not"


def _said(value: object) -> str:
    return "not given" if value is None else json.dumps(value, ensure_ascii=False)


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, value

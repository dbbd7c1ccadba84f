"""Finished points on disk: each is kept as soon as it is known, and the table is written from them.

A folder holds `sweep.json` (what is asked), `points/` (finished points, in files that appear whole or not at
all) and at the end `results.parquet` or `results.csv`. The table depends on the rows only, not on when, where or
in which order they were found.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from forescale.errors import ForescaleError
from forescale.escaping import csv_text
from forescale.sweep.columns import Column, Row
from forescale.sweep.definition import Sweep
from forescale.written import replacing, write_text, writing

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
            msg = f"cannot write to {folder}: it is a file, not a folder"
            raise ForescaleError(msg)
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
                msg = f"another process works in {folder}; wait for it, or take another folder"
                raise ForescaleError(msg) from error
        yield
    finally:
        os.close(descriptor)


Format: TypeAlias = Literal["parquet", "csv"]
SCHEMA = "forescale.sweep_folder/1"
DEFINITION, POINTS, RESULTS = "sweep.json", "points", "results"
OWN = (POINTS, f"{RESULTS}.parquet", f"{RESULTS}.csv", "report.html", "plots")
"""What a sweep writes beside its definition."""
LINES = "points.jsonl"
TORN = (".point*.part", ".batch-*.part")
"""Files that a process was writing when it was killed."""
KEPT = ("point-*.parquet", "batch-*.parquet", LINES, *TORN)
"""Files of finished points: nothing else is ever deleted."""
CHECKSUM = "checksum"
MERGE_AT = 256
"""Files of single points that are merged into one."""


class Store(Protocol):
    """Keeps rows as they come."""

    def done(self) -> dict[int, Row]:
        """Return the rows kept so far by index."""

    def keep(self, row: Row) -> None:
        """Keep one row for good."""

    def write(self, rows: Iterable[Row]) -> Path | None:
        """Write the whole table, rows by ascending index, and return where."""


class Memory:
    """Keeps nothing beyond the run."""

    def done(self) -> dict[int, Row]:
        """Return nothing."""
        return {}

    def keep(self, row: Row) -> None:
        """Leave the row to the caller."""

    def write(self, rows: Iterable[Row]) -> Path | None:
        """Write nothing."""


class ParquetFolder:
    """One small Parquet file per point, merged now and then."""

    def __init__(self, folder: Path, columns: tuple[Column, ...]) -> None:
        self._points, self._table, self._columns = folder / POINTS, folder / f"{RESULTS}.parquet", columns
        self._points.mkdir(parents=True, exist_ok=True)
        _discard(self._points, TORN)
        self._loose = len(list(self._points.glob("point-*.parquet")))

    def done(self) -> dict[int, Row]:
        """Return the rows kept so far by index; a point that is there twice counts once."""
        found: dict[int, Row] = {}
        for file in sorted(self._points.glob("*.parquet")):
            found.update((row["index"], row) for row in _read_points(file).to_pylist())
        return found

    def keep(self, row: Row) -> None:
        """Write one row to a file of its own."""
        _write_points(_table([row], self._columns), self._points / f"point-{row['index']:08d}.parquet")
        self._loose += 1
        if self._loose >= MERGE_AT:
            self._merge()

    def write(self, rows: Iterable[Row]) -> Path:
        """Write the table."""
        write_parquet(list(rows), self._columns, self._table)
        return self._table

    def _merge(self) -> None:
        """Put single points into one file; until they are gone their rows are there twice, which is harmless."""
        import pyarrow as pa

        files = sorted(self._points.glob("point-*.parquet"))
        whole = pa.concat_tables([_read_points(file) for file in files])
        first = files[0].stem.removeprefix("point-")
        _write_points(whole, self._points / f"batch-{first}-{len(files)}.parquet")
        for file in files:
            file.unlink()
        self._loose = 0


class CsvFolder:
    """One line of JSON per point and a table in CSV: for machines without pyarrow."""

    def __init__(self, folder: Path, columns: tuple[Column, ...]) -> None:
        self._lines, self._table, self._columns = (
            folder / POINTS / LINES,
            folder / f"{RESULTS}.csv",
            columns,
        )
        self._lines.parent.mkdir(parents=True, exist_ok=True)
        if self._lines.exists():
            self._drop_torn_line()

    def done(self) -> dict[int, Row]:
        """Return the rows kept so far by index."""
        if not self._lines.exists():
            return {}
        try:
            rows = [_checked(line) for line in self._lines.read_text(encoding="utf-8").splitlines()]
        except (ValueError, TypeError, AttributeError) as error:
            raise _damaged(self._lines, error) from error
        return {row["index"]: row for row in rows}

    def keep(self, row: Row) -> None:
        """Append one line and see that it reaches the disk."""
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, CHECKSUM: _checksum([row])}, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write(self, rows: Iterable[Row]) -> Path:
        """Write the table."""
        write_text(self._table, csv_text(rows, [column.name for column in self._columns]))
        return self._table

    def _drop_torn_line(self) -> None:
        """Cut off a last line that was being written when the process was killed."""
        content = self._lines.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with replacing(self._lines) as place:
                place.write_bytes(whole)


def open_store(
    sweep: Sweep,
    fingerprint: str,
    columns: tuple[Column, ...],
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
        return Memory()
    if kind == "parquet":
        need_pyarrow()
    made(folder)
    with writing(folder):
        _claim(sweep, fingerprint, folder, kind, restart=restart)
        return ParquetFolder(folder, columns) if kind == "parquet" else CsvFolder(folder, columns)


def need_pyarrow() -> None:
    """Raise unless Parquet files can be written."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        msg = (
            "Parquet files need pyarrow; install it with pip install 'forescale[sweep]', "
            "or keep the table as CSV with --format csv"
        )
        raise ForescaleError(msg) from error


def write_parquet(rows: list[Row], columns: tuple[Column, ...], path: Path) -> None:
    """Write rows as Parquet; equal rows make equal files, byte for byte."""
    _write_table(_table(rows, columns), path)


def _table(rows: list[Row], columns: tuple[Column, ...]) -> Any:  # noqa: ANN401 (of a module that is not always there)
    import pyarrow as pa

    kinds = {"whole": pa.int64(), "number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}
    return pa.Table.from_pylist(rows, schema=pa.schema([(each.name, kinds[each.kind]) for each in columns]))


def _write_table(table: Any, path: Path, *, noted: bool = False) -> None:  # noqa: ANN401
    """Write a table, with what its schema has `noted` or the same bytes for the same rows everywhere."""
    import pyarrow.parquet as pq

    with replacing(path) as place:
        pq.write_table(table, place, compression="zstd", store_schema=noted)


def _write_points(table: Any, path: Path) -> None:  # noqa: ANN401
    """Write finished points with their checksum."""
    checksum = {CHECKSUM: _checksum(table.to_pylist())}
    _write_table(table.replace_schema_metadata(checksum), path, noted=True)


def _read_points(file: Path) -> Any:  # noqa: ANN401
    """Return the table of finished points that a file holds, as they were written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file, partitioning=None)
        rows, noted = table.to_pylist(), table.schema.metadata or {}
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise _damaged(file, error) from error
    if noted.get(CHECKSUM.encode()) != _checksum(rows).encode():
        raise _damaged(file, "its checksum is another")
    return table.replace_schema_metadata(None)


def _checked(line: str) -> Row:
    """Return the point of a line that ends with its checksum."""
    row: Row = json.loads(line)
    if row.pop(CHECKSUM, None) != _checksum([row]):
        msg = "the checksum of a line is another"
        raise ValueError(msg)
    return row


def _checksum(rows: list[Row]) -> str:
    """Return a digest of points."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def _damaged(file: Path, reason: object) -> ForescaleError:
    first = (str(reason).strip().splitlines() or [type(reason).__name__])[0].rstrip(".")
    return ForescaleError(
        f"{file} is damaged ({first}); delete it and its points are asked again, or all of them with --restart"
    )


def _claim(sweep: Sweep, fingerprint: str, folder: Path, kind: Format, *, restart: bool) -> None:
    """Note in `folder` what is asked, or see that it is what was asked before."""
    note = folder / DEFINITION
    before = _noted(note, restart=restart)
    if restart and before is not None:
        _discard(folder / POINTS, KEPT)
    asked = {
        "schema": SCHEMA,
        "fingerprint": fingerprint,
        "num_points": sweep.axes.num_points,
        "format": kind,
        "definition": json.loads(json.dumps(sweep.content, default=str)),
    }
    if restart or before is None:
        write_text(note, json.dumps(asked, indent=1, ensure_ascii=False) + "\n")
        return
    if before.get("fingerprint") == fingerprint and before.get("format") == kind:
        return
    msg = (
        f"{folder} holds points of another sweep than {sweep.where}: {_difference(before, asked)}; "
        "take another folder, or discard what is there with --restart"
    )
    raise ForescaleError(msg)


def _discard(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        for file in folder.glob(name):
            file.unlink(missing_ok=True)


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
        msg = f"{note.parent / strange} is not of a sweep ({DEFINITION} is not there); take another folder"
        raise ForescaleError(msg)
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except ValueError as error:
        if restart:
            return {}
        msg = f"{note} is damaged ({error}); take another folder, or discard what is there with --restart"
        raise ForescaleError(msg) from error
    if isinstance(found, dict) and found.get("schema") == SCHEMA:
        return found
    msg = f"{note} is not of a sweep (its schema is not {SCHEMA}); take another folder"
    raise ForescaleError(msg)


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what changed, in words."""
    if before.get("fingerprint") == now["fingerprint"]:
        return f"it keeps {before.get('format')}, not {now['format']}"
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

"""A corpus of measured runs: a CSV file, one run a row; its columns, and what their cells may hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from scripts.rows.tables import table

from forescale.errors import ReaderError, SpecError
from forescale.files import Row, Table, read_table
from forescale.limits import AMOUNT, COUNT, DEVICES, EXTENT, LAYERS, Interval, within
from forescale.struct import Struct

Notes: TypeAlias = list[str]
"""What was assumed, approximated or taken from the catalogue of a row."""
REQUIRED_COLUMNS: tuple[str, ...] = ("id", "model", "hardware", "n_gpus")
NOTES = ("notes", "comment", "remark")
"""Columns whose names start so hold free text."""
_OPTIONAL = Interval(ge=0, le=EXTENT.le)
_TRUE, _FALSE = frozenset({"y", "yes", "true", "1"}), frozenset({"n", "no", "false", "0"})


class Column(Struct, frozen=True):
    """What the cells of a column hold."""

    meaning: str
    holds: str = "text"
    """Text, a flag (y or n), or one of `NUMBERS`."""

    @property
    def flag(self) -> bool:
        """Whether it is y or n."""
        return self.holds == "flag"

    @property
    def numbers(self) -> Interval | None:
        """Numbers that they may be; None is text."""
        return NUMBERS.get(self.holds)

    @property
    def whole(self) -> bool:
        """Whether numbers are whole."""
        return self.holds not in ("amount", "percent")


NUMBERS: Mapping[str, Interval] = {
    "layers": LAYERS, "extent": EXTENT, "optional": _OPTIONAL, "devices": DEVICES, "count": COUNT, "amount": AMOUNT,
    "percent": Interval(gt=0, le=100),
}  # fmt: skip
COLUMNS: Mapping[str, Column] = MappingProxyType(
    {name: Column(**row) for name, row in table("columns").items()}
)


def read_corpus(path: str | Path) -> Table:
    """Return the runs in the CSV file at `path`.

    Raises
    ------
    ReaderError
        If the file cannot be read, lacks a required column or has an unknown one, repeats an id, has a row with
        fewer or more cells than there are columns, or a cell that its column cannot hold.
    """
    table = read_table(path)
    table.need(REQUIRED_COLUMNS, "table of runs")
    table.know((*COLUMNS, *(name for name in table.columns if name.startswith(NOTES))))
    _check_ids(path, table.rows)
    for row in table.rows:
        check_cells(row, COLUMNS)
    return table


def check_cells(row: Row, columns: Mapping[str, Column]) -> None:
    """Refuse a cell that its column cannot hold."""
    for name, column in columns.items():
        if column.flag and (text := row.text(name).lower()) not in (*_TRUE, *_FALSE, ""):
            raise row.refused(name, f"must be y or n, got {text!r}")
        if column.numbers is not None and (value := row.number(name)) is not None:
            try:
                within(value, column.numbers, "it", whole=column.whole)
            except SpecError as error:
                raise row.refused(name, str(error)) from error


def _check_ids(path: str | Path, rows: tuple[Row, ...]) -> None:
    if not rows:
        raise ReaderError(path, "has no runs below its header")
    seen: dict[str, int] = {}
    for row in rows:
        if not row.id:
            raise ReaderError(path, f"line {row.line} has no id")
        if row.id in seen:
            raise ReaderError(path, f"line {row.line} repeats the id {row.id!r} of line {seen[row.id]}")
        seen[row.id] = row.line

"""The columns of a sweep's table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from forescale.files import shipped
from forescale.projection.result import TIME_PARTS
from forescale.struct import Struct

Row: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["whole", "number", "text", "flag"]
VARIED = "vary."
"""Columns of what is varied start with this: factors as numbers, everything else as it was set."""
COMMUNICATION = tuple(part for part in TIME_PARTS if part.endswith("_comm"))


class TableColumn(Struct, frozen=True, kw_only=True):
    """One column and the kind of its values; any value but `index` and `status` may be missing."""

    name: str
    kind: Kind = "number"
    title: str = ""
    """What people call it, where that is not its name with spaces."""
    best: Literal["least", "most", ""] = ""
    """Which value is better, where points may be compared by it."""


def _fixed() -> Iterator[TableColumn]:
    """Yield the columns of every table after those of the point itself: `columns.json`, and parts of the step."""
    for section, rows in shipped("sweep/columns").items():
        yield from (TableColumn(name=name, **row) for name, row in rows.items())
        if section == "projected":
            yield from (TableColumn(name=f"{part}_s") for part in TIME_PARTS)


FIXED = {column.name: column for column in _fixed()}
METRICS = {name: column.best for name, column in FIXED.items() if column.best}
"""What points may be compared by, and which is better."""

"""Distinct rows of integer columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.graph.layout import Degrees
from forescale.search.space import Columns, Rows

SPARSE = 8
"""Numbers per value beyond which sorting the values is faster than counting through the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Distinct rows of some columns, and where each candidate's row stands."""

    columns: Columns
    where: Rows

    def __len__(self) -> int:
        """Return the number of distinct rows."""
        return len(next(iter(self.columns.values())))


def distinct(columns: Columns, names: tuple[str, ...]) -> Table:
    """Return the distinct rows of the named columns, in ascending order."""
    key = np.zeros(len(columns[names[0]]), dtype=np.int64)
    for name in names:
        size, code = _codes(columns[name])
        key = _codes(key * size + code)[1]
    first = first_rows(key)
    return Table(columns={name: columns[name][first] for name in names}, where=key)


def _codes(values: Rows) -> tuple[int, Rows]:
    """Return how many distinct non-negative values there are, and the rank of each among them."""
    largest = int(values.max(initial=0))
    if largest > SPARSE * len(values):
        found, where = np.unique(values, return_inverse=True)
        return len(found), where
    present = np.zeros(largest + 1, dtype=bool)
    present[values] = True
    rank = np.cumsum(present) - 1
    return int(rank[-1]) + 1, rank[values]


def first_rows(where: Rows) -> Rows:
    """Return the first row of every code 0, 1, 2, ... in `where`."""
    first = np.empty(int(where.max(initial=-1)) + 1, dtype=np.int64)
    first[where[::-1]] = np.arange(len(where))[::-1]
    return first


def as_degrees(columns: Columns) -> Degrees:
    """Return columns as degrees; a degree that is not among them is 1."""
    one = np.ones(len(next(iter(columns.values()))))
    return Degrees(
        **{
            name: columns[name].astype(float) if name in columns else one
            for name in Degrees.__dataclass_fields__
        }
    )

"""Distinct combinations of small integers, so that what depends on few of them is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forescale.presets.subramanian2024.space import Columns, Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Which candidates share a value: `code` of each candidate, `first` candidate of each code."""

    code: Integers
    first: Integers


def factor(columns: Columns, names: Sequence[str]) -> Factor:
    """Return the distinct combinations of the named columns of non-negative integers."""
    size, code = _ranks(columns[names[0]])
    for name in names[1:]:
        more, rank = _ranks(columns[name])
        size, code = _ranks(code * more + rank)
    first = np.empty(size, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    return Factor(code=code, first=first)


def _ranks(values: Integers) -> tuple[int, Integers]:
    """Return how many distinct values there are, and the rank of each among them."""
    present = np.zeros(int(values.max()) + 1, dtype=bool)
    present[values] = True
    ranks = np.cumsum(present) - 1
    return int(ranks[-1]) + 1, ranks[values]

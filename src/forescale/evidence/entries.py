"""What every fit to kernels and collectives reports, and how it is checked on rows that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from forescale.cost.calibration import Residual
from forescale.evidence.fit import Move
from forescale.evidence.kernel_fit import residual
from forescale.numeric import Array

T = TypeVar("T")
FEWEST = 3
"""Rows that a fit needs; what fewer say is reported and left."""
FOLDS = 5
"""Parts of one file of which each is predicted from the others."""
LEAST_MOVE = 1e-3
"""Share of its range that a parameter must move to be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFit:
    """One entry of a calibration, before and after."""

    path: str
    """Part, device or link, section and key: "kernels.h100-sxm.gemm.bf16"."""
    rows: int
    before: Residual
    """Errors ln(predicted / measured) of what was known before."""
    after: Residual
    held_out: Residual | None
    """The same of rows left out of the fit; None where there are too few."""
    moves: tuple[Move, ...]


def held_out(
    rows: Sequence[T],
    source: Callable[[T], str],
    errors: Callable[[Sequence[T], Sequence[T]], Array],
) -> Residual | None:
    """Return the errors of rows that a fit to the others makes: file by file, or by fifths of one file.

    `errors` takes the rows to fit and the rows to predict.
    """
    files = sorted({source(row) for row in rows})
    if len(files) > 1:
        parts = [[row for row in rows if source(row) == name] for name in files]
        name = "each file predicted from the others"
    elif len(rows) >= FOLDS * 2:
        parts = [list(rows[start::FOLDS]) for start in range(FOLDS)]
        name = "each fifth of the rows predicted from the others"
    else:
        return None
    found = [errors([row for other in parts if other is not part for row in other], part) for part in parts]
    return residual(np.concatenate(found), source=name)


def interval_of(own: Residual, unseen: Residual | None) -> Residual:
    """Return the spread that an interval is made of: unseen rows, or else more than that of the fitted ones."""
    if unseen is not None:
        return unseen
    return own.widened()


def moves_of(
    path: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
    ranges: Mapping[str, float] | None = None,
) -> tuple[Move, ...]:
    """Return what moved, the furthest first: in shares of its range, or else of its larger value."""
    found = []
    for name, value in before.items():
        most = max(abs(value), abs(after[name])) if ranges is None else ranges[name]
        share = abs(after[name] - value) / most if most else 0.0
        if share > LEAST_MOVE:
            found.append((share, Move(path=f"{path}.{name}", before=value, after=after[name])))
    return tuple(move for _, move in sorted(found, key=lambda each: -each[0]))

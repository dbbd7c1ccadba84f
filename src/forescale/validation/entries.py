"""What every fit reports, and how fits to kernels and collectives are checked on rows that they have not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from forescale.cost.calibration import Fit, Residual
from forescale.numeric import Array
from forescale.struct import Struct

T = TypeVar("T")
F = TypeVar("F")
FEWEST = 3
"""Rows that a fit needs; what fewer say is reported and left."""
FOLDS = 5
"""Parts of one file of which each is predicted from the others."""
LEAST_MOVE = 1e-3
"""Share of its range that a parameter must move to be named."""


class Move(Struct, frozen=True, kw_only=True):
    """One parameter before and after a fit."""

    path: str
    before: float
    after: float


class Left(Struct, frozen=True, kw_only=True):
    """Rows that were not used, and why."""

    path: str
    """Entry of the calibration that they would have moved, or their names."""
    rows: int
    reason: str


class EntryFit(Struct, frozen=True, kw_only=True):
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


class CheckedFit(Struct, Generic[F], frozen=True, kw_only=True):
    """What was fitted, and its errors ln(predicted / measured)."""

    fitted: F
    before: Residual
    """Of what was known."""
    after: Residual
    held_out: Residual | None
    """Of rows left out of the fit; None where there are too few."""
    files: str
    """Where the rows are from."""

    def record(self, device: str) -> Fit:
        """Return the record of the fit; its interval is that of unseen rows, or wider than that of the fitted ones."""
        after, unseen = self.after, self.held_out
        return fit_record(
            source=self.files,
            in_sample=after,
            held_out=() if unseen is None else (unseen,),
            interval=unseen or after.widened(),
            machines=(device,),
        )

    def entry(self, path: str, moves: tuple[Move, ...]) -> EntryFit:
        """Return the entry `path` of a calibration, before and after."""
        return EntryFit(
            path=path,
            rows=self.after.rows,
            before=self.before,
            after=self.after,
            held_out=self.held_out,
            moves=moves,
        )


def fit_and_check(
    rows: Sequence[T],
    known: F,
    fitted_to: Callable[[Sequence[T]], F],
    errors: Callable[[Sequence[T], F], Array],
    file_of: Callable[[T], str],
) -> CheckedFit[F]:
    """Return a fit to all rows with its errors, and those of fits to some rows on the others.

    Rows are left out file by file, or by fifths of one file.
    """
    fitted = fitted_to(rows)
    files = sorted({file_of(row) for row in rows})
    before, after = (residual(errors(rows, item), source="rows of the fit") for item in (known, fitted))
    parts, name = [[row for row in rows if file_of(row) == file] for file in files], "each file"
    if len(files) == 1:
        count = FOLDS if len(rows) >= FOLDS * 2 else 0
        parts, name = [list(rows[start::FOLDS]) for start in range(count)], "each fifth of the rows"
    unseen = [
        errors(part, fitted_to([row for other in parts if other is not part for row in other]))
        for part in parts
    ]
    source = f"{name} predicted from the others"
    held_out = residual(np.concatenate(unseen), source=source) if unseen else None
    return CheckedFit(fitted=fitted, before=before, after=after, held_out=held_out, files=", ".join(files))


def residual(logs: Array, *, source: str) -> Residual:
    """Return the spread of ln(predicted / measured)."""
    p10, median, p90 = (_round(value) for value in np.quantile(logs, (0.1, 0.5, 0.9)))
    return Residual(
        rows=int(logs.size),
        median_abs=_round(np.median(np.abs(logs))),
        bias=median,
        p10=p10,
        p90=p90,
        source=source,
    )


def fit_record(
    *,
    source: str,
    in_sample: Residual,
    held_out: Sequence[Residual] = (),
    interval: Residual | None = None,
    machines: Sequence[str] = (),
) -> Fit:
    """Return the record of a fit whose interval comes from `interval`, or else from the fitted rows."""
    spread = interval or in_sample
    return Fit(
        kind="fitted",
        source=source,
        in_sample=in_sample,
        held_out=tuple(held_out),
        low=_round(min(np.exp(-spread.p90), 1.0)),
        high=_round(max(np.exp(-spread.p10), 1.0)),
        machines=tuple(machines),
    )


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)


def moves_of(
    path: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
    ranges: Mapping[str, float] | None = None,
) -> tuple[Move, ...]:
    """Return what moved, the furthest first: in shares of its range, or else of its larger value."""
    result = []
    for name, value in before.items():
        most = max(abs(value), abs(after[name])) if ranges is None else ranges[name]
        share = abs(after[name] - value) / most if most else 0.0
        if share > LEAST_MOVE:
            result.append((share, Move(path=f"{path}.{name}", before=value, after=after[name])))
    return tuple(move for _, move in sorted(result, key=lambda item: -item[0]))

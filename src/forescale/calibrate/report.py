"""What a fit says: errors by group, what moved, and the run calibration as data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from forescale.calibrate.dataset import CORE_WEIGHT, OTHER_WEIGHT, Run
from forescale.calibrate.parameters import Parameter, value_at
from forescale.cost.run_calibration import RunCalibration, Spread
from forescale.numeric import Array

FEWEST = 8
"""Runs from which a group has an interval of its own."""
DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One parameter before and after a fit."""

    path: str
    before: float
    after: float


def moves(before: RunCalibration, after: RunCalibration, parameters: Sequence[Parameter]) -> list[Move]:
    """Return how the parameters moved, the largest relative change first."""
    found = [
        Move(
            path=item.path,
            before=value_at(before, item.path),
            after=value_at(after, item.path),
        )
        for item in parameters
    ]
    return sorted(found, key=lambda move: -abs(float(np.log(move.after / move.before))))


def spread_of(errors: Array, weights: Array | None = None) -> Spread:
    """Return the spread of ln(measured / predicted), weighted where weights are given."""
    weights = np.ones(len(errors)) if weights is None else weights
    low, middle, high = quantiles(errors, weights, (0.1, 0.5, 0.9))
    return Spread(
        rows=len(errors),
        median_abs=round(quantiles(np.abs(errors), weights, (0.5,))[0], DIGITS),
        bias=round(middle, DIGITS),
        p10=round(low, DIGITS),
        p90=round(high, DIGITS),
    )


def quantiles(values: Array, weights: Array, shares: Sequence[float]) -> list[float]:
    """Return weighted quantiles, each value in the middle of its weight."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - 0.5 * weights[order]
    found = np.interp(np.array(shares) * np.sum(weights), below, values[order])
    return [float(value) for value in found]


def spreads(runs: Sequence[Run], errors: Array) -> dict[str, Spread]:
    """Return the spread of every group that is large enough, and of "all"; core rows count most."""
    weights = np.array([CORE_WEIGHT if run.case.core else OTHER_WEIGHT for run in runs])
    groups: dict[str, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        groups[run.group].append(index)
    groups["all"] = list(range(len(runs)))
    found = {}
    for name, members in sorted(groups.items()):
        if len(members) >= FEWEST or name == "all":
            found[name] = spread_of(errors[members], weights[members])
    return found


def published(
    calibration: RunCalibration,
    runs: Sequence[Run],
    *,
    name: str,
    date: str,
    source: str,
    in_sample: Array,
    held_out: Array,
) -> RunCalibration:
    """Return the calibration with its residuals: ln(measured / predicted), seen and unseen."""
    return replace(
        calibration,
        name=name,
        date=date,
        source=source,
        in_sample=spreads(runs, in_sample),
        held_out=spreads(runs, held_out),
    )


def content_of(calibration: RunCalibration) -> dict[str, Any]:
    """Return the JSON object that `run_calibration_of` reads back, to four digits."""
    content: dict[str, Any] = rounded(asdict(calibration))
    return content


def rounded(item: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return numbers in tables within tables to four digits."""
    if isinstance(item, Mapping):
        return {key: rounded(value) for key, value in item.items()}
    return float(f"{item:.{DIGITS}g}") if isinstance(item, float) else item

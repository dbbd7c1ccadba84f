"""How far predictions are from measurements: relative errors, percentiles, rank correlation, regret."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forescale.numeric import Array
from forescale.struct import Struct


class ErrorSummary(Struct, frozen=True, kw_only=True):
    """Relative errors of one group of rows; all but `count` are fractions, None where the group is empty."""

    count: int
    median_abs: float | None = None
    p90_abs: float | None = None
    mean_abs: float | None = None
    bias: float | None = None
    """Mean of the signed errors: above zero the projection is too slow (or too large)."""
    worst: float | None = None
    """The signed error of largest magnitude."""


def relative_error(predicted: float, measured: float) -> float:
    """Return predicted / measured − 1."""
    return predicted / measured - 1.0


def summarise(errors: Sequence[float]) -> ErrorSummary:
    """Return the summary of signed relative `errors`; the 90th percentile is interpolated linearly."""
    if not errors:
        return ErrorSummary(count=0)
    signed = np.asarray(errors, dtype=np.float64)
    size = np.abs(signed)
    return ErrorSummary(
        count=len(signed),
        median_abs=float(np.median(size)),
        p90_abs=float(np.percentile(size, 90)),
        mean_abs=float(np.mean(size)),
        bias=float(np.mean(signed)),
        worst=float(signed[int(np.argmax(size))]),
    )


def coverage(measured: Sequence[float], low: Sequence[float], high: Sequence[float]) -> float | None:
    """Return the share of `measured` that lies between `low` and `high`, or None if there is none."""
    if not measured:
        return None
    values = np.asarray(measured, dtype=np.float64)
    inside = (np.asarray(low, dtype=np.float64) <= values) & (values <= np.asarray(high, dtype=np.float64))
    return float(np.mean(inside))


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties given their mean rank.

    None if `right`, the measured side, does not vary; 0 if only `left` does not vary, because such a
    prediction tells nothing about the order.
    """
    x, y = _centred_ranks(left), _centred_ranks(right)
    if not np.any(y):
        return None
    if not np.any(x):
        return 0.0
    return float(np.dot(x, y) / np.sqrt(np.dot(x, x) * np.dot(y, y)))


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return how much slower the choice is than the best: measured(argmin predicted) / min measured − 1.

    Among layouts that are predicted equally fast the mean of their measured times counts.
    """
    guess, truth = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    picked = truth[guess == guess.min()]
    return float(np.mean(picked) / truth.min() - 1.0)


def _centred_ranks(values: Sequence[float]) -> Array:
    numbers = np.asarray(values, dtype=np.float64)
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2.0
    ranks: Array = np.asarray(mean_rank[inverse], dtype=np.float64)
    centred: Array = ranks - np.mean(ranks)
    return centred

"""Whether a time that was measured in several steps is longer than one that was expected in several.

What disturbs a step only adds time to it, so the lower quartile over steps stands for the work itself. No distribution
is assumed: both sets are ordered together, as in the precedence test (Nelson 1963, "Tables for a precedence life
test").
"""

from __future__ import annotations

from functools import cache
from math import ceil, comb
from typing import TypeAlias

QUARTILE = 0.25
ERROR = 0.025
"""Probability at which two sets of steps that do not differ are taken to differ."""
Samples: TypeAlias = tuple[float, ...]


def usual(samples: Samples) -> float:
    """Return the lower quartile of the steps in which anything took time, by their share of all steps."""
    times = [value for value in samples if value > 0.0]
    return sorted(times)[_place(len(times)) - 1] * len(times) / len(samples) if times else 0.0


def excess(measured: Samples, expected: Samples) -> float:
    """Return by how much the lower quartile of what was measured is above what the expected steps reach by scatter.

    Where there are too few steps to say so, they are expected to reach as far again as the slowest is above the usual.
    """
    ordered, place = sorted(expected), _limit(len(expected), len(measured))
    limit = ordered[place - 1] if place else 2.0 * ordered[-1] - ordered[_place(len(expected)) - 1]
    return sorted(measured)[_place(len(measured)) - 1] - limit


def _place(number: int) -> int:
    return ceil(QUARTILE * number)


@cache
def _limit(expected: int, measured: int) -> int:
    """Return the place of the expected step that the measured quartile passes by chance in few cases; 0: none."""
    total = comb(expected + measured, measured)
    for place in range(1, expected + 1):
        chance = sum(
            comb(place - 1 + below, below) * comb(expected - place + measured - below, measured - below)
            for below in range(_place(measured))
        )
        if chance <= ERROR * total:
            return place
    return 0

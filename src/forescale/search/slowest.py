"""The other end of a ranking: the slowest layouts that still fit."""

from __future__ import annotations

import numpy as np

from forescale.errors import InfeasibleError
from forescale.projection.result import Projection
from forescale.search.landscape import Asked, explore
from forescale.search.scenarios import scenarios
from forescale.spec.strategy import Strategy


def slowest_of(asked: Asked, count: int) -> tuple[Projection, ...]:
    """Return the `count` slowest layouts that fit, of all scenarios, slowest first; all layouts are scored."""
    found: list[tuple[float, Asked, Strategy]] = []
    for each in scenarios(asked):
        try:
            landscape = explore(each)
        except InfeasibleError:
            continue
        step = np.where(landscape.fits, landscape.scores.step_time, -np.inf).reshape(-1)
        order = np.argsort(-step, kind="stable")[: min(count, landscape.num_feasible)]
        for index in order.tolist():
            layout = landscape.candidates.strategy(*divmod(index, landscape.candidates.num_rows))
            found.append((float(step[index]), each, layout))
    found.sort(key=lambda one: -one[0])
    return tuple(each.project(layout) for _, each, layout in found[:count])

"""The other end of a ranking: the slowest layouts that still fit."""

from __future__ import annotations

import numpy as np

from forescale.project import project
from forescale.projection.result import Projection
from forescale.search.landscape import Asked, explore


def slowest_of(asked: Asked, count: int) -> tuple[Projection, ...]:
    """Return the `count` slowest layouts that fit, slowest first; all layouts are scored."""
    landscape = explore(asked)
    step = np.where(landscape.fits, landscape.scores.step_time, -np.inf).reshape(-1)
    order = np.argsort(-step, kind="stable")[: min(count, landscape.num_feasible)]
    return tuple(
        project(
            asked.model,
            asked.cluster,
            landscape.candidates.strategy(*divmod(index, landscape.candidates.num_rows)),
            asked.workload,
        )
        for index in order.tolist()
    )

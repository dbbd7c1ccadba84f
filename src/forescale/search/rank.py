"""`search`: the best layouts of a space, exactly."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forescale.cost.select import Costs
from forescale.project import project
from forescale.search.evaluate import Scores
from forescale.search.landscape import Asked, explore
from forescale.search.result import Relaxation, SearchResult
from forescale.search.space import Candidates, Space
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.units import format_bytes

Objective: TypeAlias = Literal["step_time", "peak_memory"]
RELAXED_MEMORY = (1.1, 1.5, 2.0)
"""Multiples of the memory limit at which a search says what the best layout would gain."""


def search(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    space: Space | None = None,
    objective: Objective = "step_time",
    top: int = 10,
    max_memory: float | None = None,
    fixed: Mapping[str, int | bool] | None = None,
    costs: Costs | None = None,
) -> SearchResult:
    """Rank every legal layout.

    Parameters
    ----------
    max_memory
        Bytes per device that a layout may need at its peak; the device's capacity by default.
    fixed
        Dimensions held at one value, such as {"tp": 8}.
    costs
        Cost models that price every layout.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits; its rows say which constraint refused how many.
    """
    started = time.perf_counter()
    asked = Asked(
        model=model,
        cluster=cluster,
        workload=workload,
        space=(space or Space()).fixed(fixed or {}),
        max_memory=max_memory,
        costs=costs or Costs(),
    )
    landscape = explore(asked, slack=max(RELAXED_MEMORY))
    candidates, scores, fits = landscape.candidates, landscape.scores, landscape.fits
    ranked = _best(scores, candidates, fits, objective, top)
    best = tuple(
        project(model, cluster, candidates.strategy(*index), workload, costs=costs) for index in ranked
    )
    return SearchResult(
        best=best,
        objective=objective,
        num_legal=len(candidates),
        num_feasible=landscape.num_feasible,
        elapsed_s=time.perf_counter() - started,
        refused={name: count for name, count in candidates.refused.items() if count},
        relaxations=_relaxations(scores, fits, asked.memory_limit),
        asked=asked,
    )


def _best(
    scores: Scores, candidates: Candidates, fits: NDArray[np.bool_], objective: Objective, top: int
) -> list[tuple[int, int]]:
    """Return (variant, row) of the best; ties by the other objective, then by the order of the space.

    Of axis orders that make no difference to a layout's time and memory the first stands for all.
    """
    values = (scores.step_time, scores.peak) if objective == "step_time" else (scores.peak, scores.step_time)
    first, second = (value.reshape(-1) for value in values)
    feasible = np.flatnonzero(fits)
    most = top * len({variant.axis_order for variant in candidates.variants})
    if len(feasible) > most:
        bound = np.partition(first[feasible], most - 1)[most - 1]
        feasible = feasible[first[feasible] <= bound]
    order = np.lexsort((feasible, second[feasible], first[feasible]))
    ranked: dict[object, tuple[int, int]] = {}
    for index in feasible[order].tolist():
        variant, row = divmod(index, fits.shape[1])
        unplaced = replace(candidates.variants[variant], axis_order=())
        ranked.setdefault((row, unplaced, first[index], second[index]), (variant, row))
        if len(ranked) == top:
            break
    return list(ranked.values())


def _relaxations(scores: Scores, fits: NDArray[np.bool_], limit: float) -> tuple[Relaxation, ...]:
    """Return what more memory would buy, at the steps where the best step time improves."""
    best = float(scores.step_time[fits].min())
    found: list[Relaxation] = []
    for factor in RELAXED_MEMORY:
        fastest = float(scores.step_time[scores.peak <= limit * factor].min())
        if fastest < (found[-1].step_time_s if found else best):
            change = f"with {format_bytes(limit * (factor - 1.0))} more per device"
            gain = 1.0 - fastest / best
            found.append(Relaxation(constraint="memory", change=change, step_time_s=fastest, gain=gain))
    return tuple(found)

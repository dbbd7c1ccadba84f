"""`search`: the best layouts of a space, exactly."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forescale.errors import InfeasibleError
from forescale.numeric import Array
from forescale.project import project
from forescale.search.evaluate import Scores, score
from forescale.search.result import Relaxation, SearchResult
from forescale.search.space import Candidates, Space, enumerate_layouts
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.units import format_bytes

Objective: TypeAlias = Literal["step_time", "peak_memory"]


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
) -> SearchResult:
    """Rank every legal layout.

    Parameters
    ----------
    max_memory
        Bytes per device that a layout may need at its peak; the device's capacity by default.
    fixed
        Dimensions held at one value, such as {"tp": 8}.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits; its rows say which constraint refused how many.
    """
    started = time.perf_counter()
    space = (space or Space()).fixed(fixed or {})
    candidates = enumerate_layouts(model, cluster, workload, space)
    if len(candidates) == 0:
        rows = [(name, count) for name, count in candidates.refused.items() if count]
        msg = f"no legal layout of {model.name} on {cluster.num_devices} devices of {cluster.name}"
        raise InfeasibleError(msg, rows)
    scores = score(model, cluster, workload, candidates)
    limit = cluster.device.hbm_bytes if max_memory is None else min(max_memory, cluster.device.hbm_bytes)
    fits = scores.peak <= limit
    if not fits.any():
        raise InfeasibleError(_nothing_fits(model, cluster, candidates, scores, limit), [("memory", len(candidates))])
    ranked = _best(scores, fits, objective, top)
    best = tuple(project(model, cluster, candidates.strategy(int(index)), workload) for index in ranked)
    return SearchResult(
        best=best,
        objective=objective,
        num_legal=len(candidates),
        num_feasible=int(fits.sum()),
        elapsed_s=time.perf_counter() - started,
        refused={name: count for name, count in candidates.refused.items() if count},
        relaxations=_relaxations(scores, fits, limit),
    )


def _best(scores: Scores, fits: NDArray[np.bool_], objective: Objective, top: int) -> NDArray[np.int64]:
    """Return the best candidates; ties by the other objective, then by the order of the space."""
    feasible = np.flatnonzero(fits)
    first, second = (scores.step_time, scores.peak) if objective == "step_time" else (scores.peak, scores.step_time)
    if len(feasible) > top:
        bound = np.partition(first[feasible], top - 1)[top - 1]
        feasible = feasible[first[feasible] <= bound]
    order = np.lexsort((feasible, second[feasible], first[feasible]))
    return feasible[order[:top]]


def _relaxations(scores: Scores, fits: NDArray[np.bool_], limit: float) -> tuple[Relaxation, ...]:
    """Return what more memory would buy, at the steps where the best step time improves."""
    best = float(scores.step_time[fits].min())
    found: list[Relaxation] = []
    for factor in (1.1, 1.5, 2.0, np.inf):
        within: Array = scores.step_time[scores.peak <= limit * factor]
        fastest = float(within.min())
        if fastest < (found[-1].step_time_s if found else best):
            change = "without a memory limit" if factor == np.inf else f"with {format_bytes(limit * (factor - 1))} more per device"
            found.append(Relaxation(constraint="memory", change=change, step_time_s=fastest, gain=1.0 - fastest / best))
    return tuple(found)


def _nothing_fits(model: Model, cluster: Cluster, candidates: Candidates, scores: Scores, limit: float) -> str:
    smallest = int(np.argmin(scores.peak))
    needed = float(scores.peak[smallest])
    strategy = candidates.strategy(smallest)
    shape = f"tp={strategy.tp} cp={strategy.cp} pp={strategy.pp} dp={strategy.dp} zero={strategy.zero}"
    return (
        f"none of the {len(candidates):,} legal layouts of {model.name} fits {format_bytes(limit)} on {cluster.num_devices} devices "
        f"of {cluster.name}; the smallest ({shape}) needs {format_bytes(needed)}: about {int(np.ceil(cluster.num_devices * needed / limit))} devices"
    )

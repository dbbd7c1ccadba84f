"""Every legal layout with its step time and peak memory: what rankings and fronts are read from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forescale.cost.select import Costs
from forescale.errors import InfeasibleError
from forescale.search.evaluate import Question, Scores, score
from forescale.search.space import Candidates, Space, enumerate_layouts
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a search was asked."""

    model: Model
    cluster: Cluster
    workload: Workload
    space: Space
    costs: Costs = field(default_factory=Costs)
    max_memory: float | None = None
    """Bytes per device that a layout may need at its peak; None is the device's capacity."""

    @property
    def memory_limit(self) -> float:
        """Bytes that a layout may need: never more than the device has."""
        capacity = self.cluster.device.hbm_bytes
        return capacity if self.max_memory is None else min(self.max_memory, capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """Legal layouts, at least one of which fits, and their scores."""

    candidates: Candidates
    scores: Scores
    fits: NDArray[np.bool_]
    """Which layouts need no more than the limit (variants, rows)."""

    @property
    def num_feasible(self) -> int:
        """Number of layouts that fit."""
        return int(self.fits.sum())


def explore(asked: Asked, *, slack: float = 1.0) -> Landscape:
    """Score every legal layout whose states need no more than `slack` times the memory limit.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits; its rows say which constraint refused how many.
    """
    model, cluster, workload = asked.model, asked.cluster, asked.workload
    candidates = enumerate_layouts(model, cluster, workload, asked.space)
    num_legal = len(candidates)
    if num_legal == 0:
        rows = [(name, count) for name, count in candidates.refused.items() if count]
        msg = f"no legal layout of {model.name} on {cluster.num_devices} devices of {cluster.name}"
        raise InfeasibleError(msg, rows)
    software = asked.space.base.software
    question = Question(model=model, cluster=cluster, workload=workload, software=software, costs=asked.costs)
    limit = asked.memory_limit
    scores = score(question, candidates, memory_limit=limit * slack)
    fits = scores.peak <= limit
    if not fits.any():
        raise InfeasibleError(_nothing_fits(question, candidates, limit), [("memory", num_legal)])
    return Landscape(candidates=candidates, scores=scores, fits=fits)


def _nothing_fits(question: Question, candidates: Candidates, limit: float) -> str:
    """Return the sentence for a model that fits nowhere: the smallest layout, and the devices it would need."""
    scores = score(question, candidates)
    smallest = int(np.argmin(scores.peak))
    needed = float(scores.peak.reshape(-1)[smallest])
    strategy = candidates.strategy(*divmod(smallest, candidates.num_rows))
    model, cluster = question.model, question.cluster
    shape = f"tp={strategy.tp} cp={strategy.cp} pp={strategy.pp} dp={strategy.dp} zero={strategy.zero}"
    return (
        f"none of the {len(candidates):,} legal layouts of {model.name} fits {format_bytes(limit)} on "
        f"{cluster.num_devices} devices of {cluster.name}; the smallest ({shape}) needs {format_bytes(needed)}: "
        f"try about {int(np.ceil(cluster.num_devices * needed / limit))} devices"
    )

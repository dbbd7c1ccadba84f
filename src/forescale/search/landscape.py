"""Every legal layout with its step time and peak memory: what rankings and fronts are read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from forescale.cost.select import Costs
from forescale.errors import InfeasibleError
from forescale.project import project
from forescale.projection.result import Projection
from forescale.search.bounded import SMALLEST, Bounded
from forescale.search.cells import Cells, enumerate_cells, enumerate_layouts
from forescale.search.evaluate import Scores, score
from forescale.search.question import Question
from forescale.search.space import Candidates
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.space import Space
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload
from forescale.units import counted, format_bytes


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
    safe: bool = False
    """Whether a layout must fit at the upper end of its range."""

    @property
    def question(self) -> Question:
        """What all its layouts share."""
        return Question(
            model=self.model,
            cluster=self.cluster,
            workload=self.workload,
            software=self.space.base.software,
            costs=self.costs,
            safe=self.safe,
        )

    def project(self, layout: Strategy) -> Projection:
        """Return what the question says of one layout: with its cost models, as everything is ranked."""
        return project(self.model, self.cluster, layout, self.workload, costs=self.costs)

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


def explore(asked: Asked) -> Landscape:
    """Score every legal layout whose states do not exceed the memory limit.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits; its rows say which constraint refused how many.
    """
    model, cluster, workload = asked.model, asked.cluster, asked.workload
    candidates = enumerate_layouts(model, cluster, workload, asked.space)
    num_legal = len(candidates)
    if num_legal == 0:
        raise nothing_legal(asked, candidates.refused)
    question, limit = asked.question, asked.memory_limit
    scores = score(question, candidates, memory_limit=limit)
    fits = scores.peak <= limit
    if not fits.any():
        cells = enumerate_cells(model, cluster, workload, asked.space)
        raise InfeasibleError(nothing_fits([smallest(question, cells)], limit), [("memory", num_legal)])
    return Landscape(candidates=candidates, scores=scores, fits=fits)


def nothing_legal(asked: Asked, refused: dict[str, int]) -> InfeasibleError:
    """Return the error for a space without a legal layout: what refused how many."""
    rows = [(name, count) for name, count in refused.items() if count]
    cluster = asked.cluster
    msg = (
        f"no legal layout of {asked.model.name} on {counted(cluster.num_devices, 'device')} of {cluster.name}"
    )
    return InfeasibleError(msg, rows)


def smallest(question: Question, cells: Cells, most: float = np.inf) -> Bounded:
    """Return the search for the smallest layout that needs at `most` as much memory, done."""
    run = Bounded(question, cells, replace(SMALLEST, memory_limit=most))
    run.run()
    return run


def nothing_fits(runs: Sequence[Bounded], limit: float) -> str:
    """Return the sentence for a model that fits nowhere: the smallest layout of all searches, and what it needs."""
    run = min((each for each in runs if each.num_legal), key=lambda each: each.incumbents.peak[0])
    found, num_legal = run.incumbents, sum(each.num_legal for each in runs)
    needed = float(found.peak[0])
    strategy = replace(run.cells.whole, columns=found.rows).strategy(int(found.variant[0]), 0)
    model, cluster = run.question.model, run.question.cluster
    shape = f"tp={strategy.tp} cp={strategy.cp} pp={strategy.pp} dp={strategy.dp} zero={strategy.zero}"
    return (
        f"none of the {counted(num_legal, 'legal layout')} of {model.name} fits {format_bytes(limit)} on "
        f"{counted(cluster.num_devices, 'device')} of {cluster.name}; the smallest ({shape}) needs "
        f"{format_bytes(needed)}"
    )

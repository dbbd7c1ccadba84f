"""What every layout has to be evaluated for: Pareto fronts, and the slowest layouts that fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forescale.errors import InfeasibleError, SpecError
from forescale.numeric import Array
from forescale.project import project
from forescale.projection.pictures import days_and_money, memory_and_time
from forescale.projection.result import Projection
from forescale.question import Question, question_of
from forescale.results import Result
from forescale.search.evaluate import Scores, score
from forescale.search.layouts import Candidates, Rows
from forescale.search.scenarios import nothing_fits, nothing_legal, scenarios, smallest, step_of_all
from forescale.search.tree import enumerate_cells, enumerate_layouts
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.view.page import Chart

SCHEMA = "forescale.pareto/1"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ParetoResult(Result):
    """Layouts none of which is beaten in every objective, fastest first."""

    front: tuple[Projection, ...]
    objectives: tuple[str, ...]
    num_legal: int
    num_feasible: int
    elapsed_s: float

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per layout of the front, fastest first."""
        return [
            {"rank": place, "num_devices": one.cluster.num_devices, **one.rows()[0]}
            for place, one in enumerate(self.front, start=1)
        ]

    def pictures(self) -> Sequence[Chart]:
        """Return memory against step time, and days against money where tokens and a price are known."""
        note = "layouts none of which is beaten"
        return (memory_and_time(self.front, note=note), *days_and_money(self.front, note=note))

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.pareto/1` document."""
        return {
            "schema": SCHEMA,
            "objectives": list(self.objectives),
            "num_legal": self.num_legal,
            "num_feasible": self.num_feasible,
            "elapsed_s": self.elapsed_s,
            "front": [projection.to_json() for projection in self.front],
        }


def pareto_search(
    question: Question | Model,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    *,
    device_counts: Sequence[int] | None = None,
    **parts: Any,  # noqa: ANN401 (fields of a question)
) -> ParetoResult:
    """Return the Pareto front of all layouts that fit: exact, every layout is scored.

    It takes a question, or the parts of one, as `search` does.

    Parameters
    ----------
    device_counts
        Sizes of the cluster to choose from: the number of devices then is a third objective. By default the
        cluster as it is, over step time and peak memory.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits, at any size.
    """
    started = time.perf_counter()
    question = question_of(question, cluster, workload, **parts)
    counts = tuple(sorted({question.cluster.num_devices} if device_counts is None else set(device_counts)))
    if not counts or counts[0] < 1:
        msg = f"numbers of devices must be whole numbers of 1 or more, got {list(counts)}"
        raise SpecError(msg)
    question.cluster.check_sizes(counts)
    asked = [(each, count) for each in scenarios(question) for count in counts]
    found = [_scored_at(each, count, alone=len(asked) == 1) for each, count in asked]
    scored = [each for each in found if each is not None]
    points = [point for each in scored for point in each.front()]
    if not points:
        shown = ", ".join(str(count) for count in counts)
        msg = f"no layout of {question.model.name} fits on {shown} devices of {question.cluster.name}"
        raise InfeasibleError(msg)
    objectives = ("step_time", "peak_memory", "devices")[: 2 if device_counts is None else 3]
    columns = np.array([point[:3] for point in points]).T[: len(objectives)]
    best = [points[index][3] for index in pareto_front(*columns)]
    return ParetoResult(
        front=tuple(map(project, best)),
        objectives=objectives,
        num_legal=sum(len(each.candidates) for each in scored),
        num_feasible=sum(each.num_feasible for each in scored),
        elapsed_s=time.perf_counter() - started,
    )


def pareto_front(*columns: Array) -> Rows:
    """Return the rows that no other row dominates, in lexicographic order of the columns.

    A row dominates another that is nowhere below it; of equal rows the first stands for all. Two columns take
    one sort and a running minimum; more are peeled: the smallest row left always stands, and takes away what it
    dominates.
    """
    order = np.lexsort(tuple(reversed(columns)))
    if len(columns) == 2:
        second = columns[1][order]
        below = np.minimum.accumulate(np.concatenate(([np.inf], second[:-1])))
        return np.asarray(order[second < below], dtype=np.int64)
    values, left, front = np.stack(columns), order, []
    while len(left):
        front.append(left[0])
        left = left[(values[:, left] < values[:, left[:1]]).any(axis=0)]
    return np.array(front, dtype=np.int64)


def _scored_at(question: Question, num_devices: int, *, alone: bool) -> Scored | None:
    """Return the layouts of one size of the cluster; None where nothing fits, unless it is the only one."""
    try:
        return score_all(replace(question, cluster=question.cluster.sized(num_devices)))
    except InfeasibleError:
        if alone:
            raise
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Legal layouts of a question, at least one of which fits, and their scores."""

    question: Question
    candidates: Candidates
    scores: Scores
    fits: NDArray[np.bool_]
    """Which layouts need no more than the limit (variants, rows)."""

    @property
    def num_feasible(self) -> int:
        """Number of layouts that fit."""
        return int(self.fits.sum())

    def layout(self, index: int) -> Question:
        """Return one layout by its place among all (variants, rows)."""
        strategy = self.candidates.strategy(*divmod(index, self.fits.shape[1]))
        return self.question.over_sites(self.question.site.of(strategy))

    def front(self) -> list[tuple[float, float, int, Question]]:
        """Return step time, peak, devices and layout of those that fit and that no other beats in the first two."""
        fitting = np.flatnonzero(self.fits)
        times, peaks = (values.reshape(-1)[fitting] for values in (self.scores.step_time, self.scores.peak))
        asked, devices = self.question, self.question.cluster.num_devices
        return [
            (step_of_all(asked, times[at]), peaks[at], devices, self.layout(int(fitting[at])))
            for at in pareto_front(times, peaks)
        ]


def score_all(question: Question) -> Scored:
    """Score every legal layout whose states do not exceed the memory limit.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits; its rows say which constraint refused how many.
    """
    site = question.site
    model, cluster, workload = site.model, site.cluster, site.workload
    candidates = enumerate_layouts(model, cluster, workload, question.space)
    num_legal = len(candidates)
    if num_legal == 0:
        raise nothing_legal(question, candidates.refused)
    limit = question.memory_limit
    scores = score(site, candidates, memory_limit=limit)
    fits = scores.peak <= limit
    if not fits.any():
        cells = enumerate_cells(model, cluster, workload, question.space)
        raise InfeasibleError(nothing_fits([smallest(site, cells)], limit), [("memory", num_legal)])
    return Scored(question=question, candidates=candidates, scores=scores, fits=fits)


def slowest_of(question: Question, count: int) -> tuple[Projection, ...]:
    """Return the `count` slowest layouts that fit, of all scenarios, slowest first; all layouts are scored."""
    found: list[tuple[float, Question]] = []
    for each in scenarios(question):
        try:
            scored = score_all(each)
        except InfeasibleError:
            continue
        step = np.where(scored.fits, scored.scores.step_time, -np.inf).reshape(-1)
        order = np.argsort(-step, kind="stable")[: min(count, scored.num_feasible)]
        found += [(float(step[index]), scored.layout(index)) for index in order.tolist()]
    found.sort(key=lambda one: -one[0])
    return tuple(project(layout) for _, layout in found[:count])

"""`search`: the best layouts of a space, exactly."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.errors import InfeasibleError, no_effect, out_of_range
from forescale.numeric import Array
from forescale.presets import scores_of
from forescale.project import project
from forescale.projection.result import Projection, days_and_money, memory_and_time
from forescale.question import Question, question_of
from forescale.results import Result
from forescale.search.claim import Held, claim, held_fixed, margin
from forescale.search.evaluate import Scores, score
from forescale.search.incumbent import Goal
from forescale.search.layouts import Candidates, Rows
from forescale.search.relax import Relaxation, memory_limits, more_memory, relaxations
from forescale.search.scenarios import (
    Ranking,
    fastest,
    nothing_fits,
    nothing_legal,
    scenarios,
    smallest,
    step_of_all,
    timed,
)
from forescale.search.solve import Watch
from forescale.search.tree import enumerate_cells, enumerate_layouts
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.struct import Struct, attributes
from forescale.units import GIB, counted
from forescale.view.bars import Bar, BarChart
from forescale.workers import ALONE, Workers, available_cores

if TYPE_CHECKING:
    from forescale.view.page import Chart

FRONT_SCHEMA = "forescale.pareto/1"


DRAWN = 4_096
"""Layouts that a picture of all has at most."""


class ParetoResult(Result, Struct, frozen=True, kw_only=True):
    """Layouts none of which is beaten in every objective, fastest first."""

    front: tuple[Projection, ...]
    objectives: tuple[str, ...]
    num_legal: int
    num_feasible: int
    elapsed_s: float
    sample: tuple[tuple[float, float], ...] = ()
    """GiB and seconds of layouts that fit: all, or equally spaced ones of them."""

    @property
    def headline(self) -> str:
        """How many layouts the front has, the fastest and the smallest."""
        ends = dict.fromkeys(one.headline for one in (self.front[0], self.front[-1])) if self.front else ()
        return "; ".join((f"Pareto front of {counted(len(self.front), 'layout')}", *ends))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per layout of the front, fastest first."""
        return [
            {"rank": place, "num_devices": one.cluster.num_devices, **one.rows()[0]}
            for place, one in enumerate(self.front, start=1)
        ]

    def pictures(self) -> Sequence[Chart]:
        """Return memory against step time, and days against money where tokens and a price are known."""
        note = "layouts none of which is beaten"
        points = memory_and_time(self.front, note=note, others=self.sample)
        return (points, *days_and_money(self.front, note=note))

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.pareto/1` document."""
        return {
            "schema": FRONT_SCHEMA,
            **attributes(self, "objectives", "num_legal", "num_feasible", "elapsed_s", "front"),
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
        raise out_of_range("numbers of devices", list(counts), "whole numbers of 1 or more")
    question.cluster.check_sizes(counts)
    request = [(scenario, count) for scenario in scenarios(question) for count in counts]
    fronts = [_front_at(item, count, alone=len(request) == 1) for item, count in request]
    scored = [item for item in fronts if item is not None]
    points = [point for item in scored for point in item.points]
    if not points:
        shown = ", ".join(str(count) for count in counts)
        msg = f"no layout of {question.model.name} fits on {shown} devices of {question.cluster.name}"
        raise InfeasibleError(msg)
    objectives = ("step_time", "peak_memory", "devices")[: 2 if device_counts is None else 3]
    columns = np.array([point[:3] for point in points]).T[: len(objectives)]
    best = [points[index][3] for index in pareto_front(*columns)]
    return ParetoResult(
        front=tuple(projected() for projected in best),
        objectives=objectives,
        num_legal=sum(item.num_legal for item in scored),
        num_feasible=sum(item.num_feasible for item in scored),
        elapsed_s=time.perf_counter() - started,
        sample=tuple(place for item in scored for place in item.sample),
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


def _front_at(question: Question, num_devices: int, *, alone: bool) -> Front | None:
    """Return the front of one size of the cluster; None where nothing fits, unless it is the only one."""
    sized = replace(question, cluster=question.cluster.sized(num_devices))
    try:
        if question.preset == "default":
            return score_all(sized).front()
        scores = scores_of(sized)
        pair = (scores.step_time, scores.peak)
        return Front.from_scores(sized, pair, scores.project, num_legal=scores.num_legal)
    except InfeasibleError:
        if alone:
            raise
        return None


class Front(Struct, frozen=True, kw_only=True):
    """The layouts of one size of the cluster that no other beats in step time and peak."""

    points: tuple[tuple[float, float, int, Callable[[], Projection]], ...]
    """Step time, peak, devices, and what projects the layout."""
    num_legal: int
    num_feasible: int
    sample: tuple[tuple[float, float], ...]

    @classmethod
    def from_scores(
        cls,
        question: Question,
        scores: tuple[Array, Array],
        projected: Callable[[int], Projection],
        *,
        num_legal: int,
    ) -> Front:
        """Keep the front of layouts that fit, given their step times and peaks."""
        times, peaks = scores
        devices = question.cluster.num_devices
        points = (
            (step_of_all(question, times[at]), peaks[at], devices, partial(projected, int(at)))
            for at in pareto_front(times, peaks)
        )
        some = slice(None, None, -(-len(times) // DRAWN))
        steps = [step_of_all(question, step) for step in times[some].tolist()]
        return cls(
            points=tuple(points),
            num_legal=num_legal,
            num_feasible=len(times),
            sample=tuple(zip((peaks[some] / GIB).tolist(), steps, strict=True)),
        )


class Scored(Struct, frozen=True, kw_only=True):
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
        layout = self.candidates.strategy(*divmod(index, self.fits.shape[1]))
        return self.question.over_sites(self.question.site.with_layout(layout))

    def front(self) -> Front:
        """Return the layouts that fit and that no other beats in step time and peak."""
        fitting = np.flatnonzero(self.fits)
        times, peaks = (values.reshape(-1)[fitting] for values in (self.scores.step_time, self.scores.peak))
        return Front.from_scores(
            self.question,
            (times, peaks),
            lambda at: project(self.layout(int(fitting[at]))),
            num_legal=len(self.candidates),
        )


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
        raise nothing_fits([smallest(site, cells)], limit, num_legal)
    return Scored(question=question, candidates=candidates, scores=scores, fits=fits)


def slowest_of(question: Question, count: int) -> tuple[Projection, ...]:
    """Return the `count` slowest layouts that fit, of all scenarios, slowest first; all layouts are scored."""
    if question.preset != "default":
        scores = scores_of(question)
        slowest = np.argsort(-scores.step_time, kind="stable")[:count]
        return tuple(scores.project(index) for index in slowest.tolist())
    values: list[tuple[float, Question]] = []
    for scenario in scenarios(question):
        try:
            scored = score_all(scenario)
        except InfeasibleError:
            continue
        step = np.where(scored.fits, scored.scores.step_time, -np.inf).reshape(-1)
        order = np.argsort(-step, kind="stable")[: min(count, scored.num_feasible)]
        values += [(float(step[index]), scored.layout(index)) for index in order.tolist()]
    values.sort(key=lambda one: -one[0])
    return tuple(project(layout) for _, layout in values[:count])


SCHEMA = "forescale.search/1"
FIGURES = (
    "objective", "num_legal", "num_feasible", "num_feasible_is_exact", "num_evaluated", "num_over_memory", "num_beaten",
    "gap", "elapsed_s", "host_memory_bytes", "refused",
)  # fmt: skip
"""What a document says as the result does."""


def search(
    question: Question | Model,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    *,
    top: int = 10,
    all_variants: bool = False,
    surest: bool = False,
    gains: bool = True,
    relax: bool = False,
    time_limit: float | None = None,
    watch: Watch | None = None,
    checkpoint: Path | None = None,
    jobs: int | None = 1,
    max_host_memory: float | None = None,
    **parts: Any,  # noqa: ANN401 (fields of a question)
) -> SearchResult:
    """Rank every legal layout; what is proven to be no better than the best is not evaluated.

    It takes a question, or the parts of one by the names of its fields: `space`, `objective`, `costs` and so on.

    Parameters
    ----------
    top
        Layouts that are ranked.
    all_variants
        Whether layouts that differ only in how states are sharded, ranks placed, layers recomputed and the like are
        ranked each by itself; else the best of them stands for all, and `SearchResult.variants` counts the others.
    surest
        Whether to look also for the fastest layout that fits with margin, where the best are no such.
    gains
        Whether to find also the best under more memory.
    relax
        Whether to search also with each constraint relaxed by itself, and say what the best would gain.
    time_limit
        Seconds after which the search stops with the best so far; `SearchResult.gap` says what is proven of it.
    watch
        Is told how far the search is, step by step; False stops it as a time limit does.
    checkpoint
        File that keeps what is settled, written every second; a search of the same question goes on from it and
        ends with the same result.
    jobs
        Processes; None is one per core. Nothing but the time that a search takes depends on it.
    max_host_memory
        Memory of this machine that the search may take [byte]: it evaluates less at once, in fewer processes.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits; its rows say which constraint refused how many. Also if none was
        found in time.
    SpecError
        If the preset of the question defines no search, or it takes no `relax` or `checkpoint`; if the search takes
        more memory than it may.
    """
    started = time.perf_counter()
    question = question_of(question, cluster, workload, **parts)
    if question.preset != "default":
        if relax or checkpoint is not None:
            raise no_effect(["relax", "checkpoint"], f"preset {question.preset} ranks by its own search")
        return _by_preset(question, top=top, all_variants=all_variants, started=started)
    goal = Goal(
        objective=question.objective,
        top=top,
        memory_limit=question.site.memory_limit,
        relaxed=memory_limits(question.site.memory_limit) if gains else (question.site.memory_limit,),
        folds=not all_variants,
    )
    with Workers(jobs or available_cores()) as workers:
        watch = partial(workers.decide, timed(watch, time_limit, started))
        limit = np.inf if max_host_memory is None else max_host_memory
        ranking = Ranking(goal=goal, watch=watch, started=started, workers=workers, host_limit=limit)
        ranking.search(scenarios(question.site), checkpoint)
        ranking.check(question.site)
        return _result(question, ranking, surest=surest, relax=relax)


def _result(question: Question, ranking: Ranking, *, surest: bool, relax: bool) -> SearchResult:
    """Return the best layouts of a finished search."""
    goal, solvers, ranked = ranking.goal, ranking.solvers, ranking.best()
    workers = ranking.workers if ranking.workers.started else ALONE
    projects = [partial(project, question.over_sites(item.with_layout(one))) for item, one, _ in ranked]
    best = tuple(workers.share(projects))
    looks = surest and goal.by_time and _with_margin(ranking, best) is None
    ends: list[Callable[[], Any]] = [ranking.surest] if looks else []
    ends += [partial(held_fixed, question, best[0].strategy)] if workers.started else []
    known = workers.share(ends)
    steps = ranking.fastest()
    gains = more_memory([step_of_all(question, step) for step in steps], goal.relaxed, every=relax)
    if relax:
        more = relaxations(question, steps[0], ranking.refused, ranking.watch)
        gains = tuple(sorted((*gains, *more), key=lambda item: -item.gain))
    return SearchResult(
        best=best,
        variants=tuple(count - 1 for *_, count in ranked),
        surest=_surest(question, ranking, best, known[0] if looks else None)
        if surest and goal.by_time
        else None,
        objective=question.objective,
        num_legal=ranking.num_legal,
        num_feasible=ranking.num_feasible,
        num_evaluated=sum(solver.counts.evaluated for solver in solvers),
        num_over_memory=sum(solver.counts.over_memory for solver in solvers),
        num_beaten=sum(solver.counts.beaten for solver in solvers) + ranking.beyond,
        gap=ranking.progress.gap,
        elapsed_s=time.perf_counter() - ranking.started,
        refused=ranking.refused,
        relaxations=gains,
        question=question,
        host_memory_bytes=ranking.host_memory,
        known_held=known[-1] if workers.started else None,
    )


def _by_preset(question: Question, *, top: int, all_variants: bool, started: float) -> SearchResult:
    """Return the best layouts of a preset's own search, all of which it evaluates."""
    scores = scores_of(question)
    values = scores.step_time if question.objective == "step_time" else scores.peak
    order = np.argsort(values, kind="stable")
    if scores.group is not None and not all_variants:
        order = order[np.sort(np.unique(scores.group[order], return_index=True)[1])]
    best = tuple(scores.project(index) for index in order[:top].tolist())
    fitting = len(scores.step_time)
    return SearchResult(
        best=best,
        variants=(0,) * len(best),
        surest=None,
        objective=question.objective,
        num_legal=scores.num_legal,
        num_feasible=fitting,
        num_evaluated=scores.num_legal,
        num_over_memory=0,
        num_beaten=0,
        gap=0.0,
        elapsed_s=time.perf_counter() - started,
        refused=dict(scores.refused),
        relaxations=(),
        question=question,
    )


def _with_margin(ranking: Ranking, best: Sequence[Projection]) -> Projection | None:
    """Return the first of the best that fits with margin, unless what another stands for may be faster."""
    sure = next((item for item in best if item.memory.verdict == "FITS"), None)
    return sure if sure is not None and (sure is best[0] or not ranking.goal.folds) else None


def _surest(
    question: Question,
    ranking: Ranking,
    best: Sequence[Projection],
    known: tuple[Question, Layout] | None,
) -> Projection | None:
    """Return the fastest layout that fits with margin: of those that the best stand for too, or else of all.

    One is `known` if it is at least as fast as the last of the best.
    """
    if (sure := _with_margin(ranking, best)) is not None:
        return sure
    if known is not None:
        scenario, layout = known
        return project(question.over_sites(scenario.with_layout(layout)))
    result = fastest(
        replace(question, safe=True), watch=ranking.watch, like=ranking, host_limit=ranking.host_limit
    )
    if not result.done or result.question is None or result.strategy is None:
        return None
    return project(result.question.with_layout(result.strategy))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SearchResult(Result):
    """Layouts ranked by an objective, best first."""

    best: tuple[Projection, ...]
    variants: tuple[int, ...]
    """Others that each of `best` stands for: as good as the last of `best`, with the same tp, cp, ep, etp, pp, vpp and
    micro-batch."""
    surest: Projection | None
    """The fastest layout that fits even at the upper end of its range; None if there is none, the search for it was
    stopped, or nobody asked."""
    objective: str
    num_legal: int
    num_feasible: int
    """Layouts that fit, of those that were evaluated: there are at least so many."""
    num_evaluated: int
    num_over_memory: int
    """Layouts proven, without evaluating them, to need more memory than twice the limit."""
    num_beaten: int
    """Layouts proven, without evaluating them, to be no better than the best."""
    gap: float
    """Fraction by which the best found may exceed the best there is; 0 if the search was not stopped."""
    elapsed_s: float
    refused: dict[str, int]
    """Layouts that each constraint refused."""
    relaxations: tuple[Relaxation, ...]
    question: Question = field(repr=False, compare=False)
    price_per_device_hour: float | None = None
    """What `run_cost` counts with, in any currency."""
    host_memory_bytes: float | None = field(default=None, compare=False)
    """Memory of this machine that one process of the search takes, estimated; None of a preset's own search."""
    known_held: tuple[Held, ...] | None = field(default=None, repr=False, compare=False)
    """`held_fixed` where it was evaluated with the search."""

    @property
    def held_fixed(self) -> tuple[Held, ...]:
        """Dimensions that were held fixed although another value may be faster, evaluated for the best layout."""
        if self.known_held is not None:
            return self.known_held
        return held_fixed(self.question, self.best[0].strategy if self.best else None)

    @property
    def num_feasible_is_exact(self) -> bool:
        """Say whether no more layouts fit: only where all were evaluated, or proven not to."""
        return self.num_evaluated + self.num_over_memory == self.num_legal

    @property
    def claim(self) -> str:
        """What is proven of the first of `best`."""
        held, verdict = held_fixed(self.question), self.best[0].memory.verdict
        return claim(self.objective, num_legal=self.num_legal, gap=self.gap, held=held, verdict=verdict)

    @property
    def margin_cost(self) -> float | None:
        """Fraction by which the step of `surest` is longer than the first's; None if the first fits with margin."""
        if self.surest is None or self.best[0].memory.verdict == "FITS":
            return None
        return self.surest.step_time_s / self.best[0].step_time_s - 1.0

    @property
    def margin(self) -> str | None:
        """Which layout fits with margin and what it costs, in a sentence; None if the first fits with margin."""
        if self.surest is None or self.margin_cost is None:
            return None
        return margin(self.best, self.surest, self.margin_cost)

    @property
    def headline(self) -> str:
        """The best layout, and what is proven of it."""
        return f"{self.best[0].headline}. {self.claim}."

    def __repr__(self) -> str:
        """Return the class with its essentials, and below what is proven."""
        return f"{Result.__repr__(self)}\n{self.claim}"

    @property
    def binding(self) -> Relaxation | None:
        """What would gain most of all that was relaxed; None if nothing would gain."""
        most = max(self.relaxations, key=lambda item: item.gain, default=None)
        return most if most is not None and most.gain > 0.0 else None

    def run_cost(self, one: Projection) -> float | None:
        """Return what the devices of a layout cost for the whole run; None where tokens or price are not known."""
        return one.run_cost(self.price_per_device_hour)

    def pareto(self) -> ParetoResult:
        """Return the Pareto front of the same question over step time and peak memory: all layouts are scored."""
        return pareto_search(self.question)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per layout: its rank and strategy, then what was projected."""
        ranked = enumerate(zip(self.best, self.variants, strict=True), start=1)
        return [{"rank": place, "variants": count, **one.rows()[0]} for place, (one, count) in ranked]

    def pictures(self) -> Sequence[Chart]:
        """Return memory against step time, the parts of every step, and days against money where they are known."""
        bars = tuple(Bar(label=f"{place}", values=one.time_s) for place, one in enumerate(self.best, start=1))
        return (
            memory_and_time(self.best, note="of the best layouts"),
            BarChart(title="Time of a step", note="of the best layouts", axis="rank", unit="s", bars=bars),
            *days_and_money(self.best, note="of the best layouts", price=self.price_per_device_hour),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.search/1` document."""
        return {
            "schema": SCHEMA,
            **attributes(self, "claim", "held_fixed", *FIGURES, "relaxations"),
            "binding": None if self.binding is None else self.binding.constraint,
            **attributes(self, "surest", "margin_cost", "price_per_device_hour"),
            "run_costs": [self.run_cost(projection) for projection in self.best],
            "best": [
                {**one.to_json(), "variants": count}
                for one, count in zip(self.best, self.variants, strict=True)
            ],
        }

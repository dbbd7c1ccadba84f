"""`search`: the best layouts of a space, exactly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from forescale.errors import SpecError
from forescale.project import project
from forescale.projection.pictures import days_and_money, memory_and_time
from forescale.projection.result import Projection
from forescale.question import Question, question_of
from forescale.results import Result
from forescale.search.incumbent import Goal
from forescale.search.pareto import ParetoResult, pareto_search
from forescale.search.relax import Relaxation, memory_limits, more_memory, relaxations
from forescale.search.scenarios import Ranking, fastest, scenarios, step_of_all, timed
from forescale.search.solve import Watch
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.view.bars import Bar, BarChart
from forescale.view.page import Chart

SCHEMA = "forescale.search/1"
FIGURES = (
    "objective", "num_legal", "num_feasible", "num_feasible_is_exact", "num_evaluated", "num_over_memory", "num_beaten",
    "gap", "elapsed_s", "refused",
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
    relax: bool = False,
    time_limit: float | None = None,
    watch: Watch | None = None,
    checkpoint: Path | None = None,
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
        Whether to look also for the fastest layout that fits for sure, where the best are no such.
    relax
        Whether to search also with each constraint relaxed by itself, and say what the best would gain.
    time_limit
        Seconds after which the search stops with the best so far; `SearchResult.gap` says what is proven of it.
    watch
        Is told how far the search is, step by step; False stops it as a time limit does.
    checkpoint
        File that keeps what is settled, written every second; a search of the same question goes on from it and
        ends with the same result.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits; its rows say which constraint refused how many. Also if none was
        found in time.
    SpecError
        If the question asks for a preset: only our own engine is searched.
    """
    started = time.perf_counter()
    question = question_of(question, cluster, workload, **parts)
    if question.preset != "default":
        msg = f"search ranks by our own engine, not as {question.preset} answers"
        raise SpecError(msg)
    asked, question = question, question.site
    limits = memory_limits(question.memory_limit)
    goal = Goal(
        objective=question.objective, top=top, memory_limit=limits[0], relaxed=limits, folds=not all_variants
    )
    watch = timed(watch, time_limit, started)
    ranking = Ranking(goal=goal, watch=watch, started=started)
    ranking.search(scenarios(question), checkpoint)
    ranking.check(question)
    solvers = ranking.solvers
    ranked = ranking.best()
    best = tuple(project(asked.over_sites(each.of(one))) for each, one, _ in ranked)
    steps = ranking.fastest()
    gains = more_memory([step_of_all(asked, each) for each in steps], limits, every=relax)
    if relax:
        more = relaxations(asked, steps[0], ranking.refused, watch)
        gains = tuple(sorted((*gains, *more), key=lambda item: -item.gain))
    return SearchResult(
        best=best,
        variants=tuple(count - 1 for *_, count in ranked),
        surest=_surest(asked, ranking, best, watch) if surest and goal.by_time else None,
        objective=question.objective,
        num_legal=sum(each.num_legal for each in solvers),
        num_feasible=sum(each.incumbent.num_feasible for each in solvers),
        num_evaluated=sum(each.counts.evaluated for each in solvers),
        num_over_memory=sum(each.counts.over_memory for each in solvers),
        num_beaten=sum(each.counts.beaten for each in solvers),
        gap=ranking.progress.gap,
        elapsed_s=time.perf_counter() - started,
        refused=ranking.refused,
        relaxations=gains,
        question=asked,
    )


def _surest(
    question: Question, ranking: Ranking, best: Sequence[Projection], watch: Watch
) -> Projection | None:
    """Return the fastest layout that fits for sure: of those that the best stand for too, or else of all."""
    sure = next((each for each in best if each.memory.verdict == "FITS"), None)
    if sure is not None and (sure is best[0] or not ranking.goal.folds):
        return sure
    if (known := ranking.surest()) is not None:
        scenario, strategy = known
        return project(question.over_sites(scenario.of(strategy)))
    found = fastest(replace(question, safe=True), watch=watch, like=ranking)
    if found.question is None or found.strategy is None:
        return None
    return project(found.question.of(found.strategy))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SearchResult(Result):
    """Layouts ranked by an objective, best first."""

    best: tuple[Projection, ...]
    variants: tuple[int, ...]
    """Others that each of `best` stands for: as good as the last of `best`, with the same tp, cp, ep, etp, pp, vpp and
    micro-batch."""
    surest: Projection | None
    """The fastest layout that fits even at the upper end of its range; None if there is none, or nobody asked."""
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

    @property
    def num_feasible_is_exact(self) -> bool:
        """Say whether no more layouts fit: only where all were evaluated, or proven not to."""
        return self.num_evaluated + self.num_over_memory == self.num_legal

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
            **{name: getattr(self, name) for name in FIGURES},
            "relaxations": [asdict(item) for item in self.relaxations],
            "binding": None if self.binding is None else self.binding.constraint,
            "surest": None if self.surest is None else self.surest.to_json(),
            "price_per_device_hour": self.price_per_device_hour,
            "run_costs": [self.run_cost(projection) for projection in self.best],
            "best": [
                {**one.to_json(), "variants": count}
                for one, count in zip(self.best, self.variants, strict=True)
            ],
        }

"""`search`: the best layouts of a space, exactly."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from forescale.cost.select import Costs
from forescale.errors import InfeasibleError
from forescale.project import project
from forescale.search.bounded import Bounded, Progress, Watch
from forescale.search.cells import Cells, enumerate_cells
from forescale.search.checkpoint import Checkpoint
from forescale.search.evaluate import Question
from forescale.search.incumbents import Incumbents, Objective, Wanted
from forescale.search.landscape import Asked, nothing_fits, nothing_legal
from forescale.search.result import Relaxation, SearchResult
from forescale.search.space import Space
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload
from forescale.units import format_bytes, format_seconds

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
    time_limit: float | None = None,
    watch: Watch | None = None,
    checkpoint: Path | None = None,
) -> SearchResult:
    """Rank every legal layout; what is proven to be no better than the best is not evaluated.

    Parameters
    ----------
    max_memory
        Bytes per device that a layout may need at its peak; the device's capacity by default.
    fixed
        Dimensions held at one value, such as {"tp": 8}.
    costs
        Cost models that price every layout.
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
    cells = enumerate_cells(model, cluster, workload, asked.space)
    question, limits = asked.question, tuple(asked.memory_limit * factor for factor in (1.0, *RELAXED_MEMORY))
    wanted = Wanted(objective=objective, top=top, memory_limit=limits[0], relaxed=limits)
    timed = _timed(watch, time_limit, started)
    run = Bounded(question, cells, wanted)
    if run.num_legal == 0:
        raise nothing_legal(asked, cells.whole.refused)
    progress = _run(run, timed, None if checkpoint is None else Checkpoint.of(checkpoint, asked, wanted))
    strategies = _best(cells, run.incumbents)
    if not strategies and run.done:
        raise InfeasibleError(nothing_fits(question, cells, limits[0]), [("memory", run.num_legal)])
    if not strategies:
        msg = f"no layout that fits was found within {format_seconds(progress.elapsed_s)}; give it more time"
        raise InfeasibleError(msg)
    fastest = run.incumbents.fastest if objective == "step_time" else _fastest(question, cells, wanted, timed)
    return SearchResult(
        best=tuple(project(model, cluster, strategy, workload, costs=costs) for strategy in strategies),
        objective=objective,
        num_legal=run.num_legal,
        num_feasible=run.incumbents.num_feasible,
        num_evaluated=run.counts.evaluated,
        num_over_memory=run.counts.over_memory,
        num_beaten=run.counts.beaten,
        gap=progress.gap,
        elapsed_s=time.perf_counter() - started,
        refused={name: count for name, count in cells.whole.refused.items() if count},
        relaxations=_relaxations(tuple(fastest), limits),
        asked=asked,
    )


def _run(run: Bounded, watch: Watch, checkpoint: Checkpoint | None) -> Progress:
    """Run a search, from its checkpoint on where there is one."""
    if checkpoint is None:
        return run.run(watch)
    checkpoint.restore(run)

    def tell(progress: Progress) -> bool:
        if checkpoint.due():
            checkpoint.save(run)
        return watch(progress)

    progress = run.run(tell)
    checkpoint.save(run)
    return progress


def _timed(watch: Watch | None, time_limit: float | None, started: float) -> Watch:
    def tell(progress: Progress) -> bool:
        in_time = time_limit is None or time.perf_counter() - started < time_limit
        return in_time and (watch is None or watch(progress))

    return tell


def _best(cells: Cells, found: Incumbents) -> list[Strategy]:
    """Return the best layouts found, in order."""
    layouts = replace(cells.whole, columns=found.rows)
    return [layouts.strategy(int(found.variant[index]), index) for index in found.best()]


def _fastest(question: Question, cells: Cells, wanted: Wanted, watch: Watch) -> tuple[float, ...]:
    """Return the shortest step under each limit of memory, where something else was ranked."""
    run = Bounded(question, cells, replace(wanted, objective="step_time", top=1))
    run.run(watch)
    return tuple(run.incumbents.fastest)


def _relaxations(fastest: tuple[float, ...], limits: tuple[float, ...]) -> tuple[Relaxation, ...]:
    """Return what more memory would buy, at the steps where the best step time improves."""
    best = fastest[0]
    if best == float("inf"):
        return ()
    found: list[Relaxation] = []
    for limit, step_time in zip(limits[1:], fastest[1:], strict=True):
        if step_time < (found[-1].step_time_s if found else best):
            change = f"with {format_bytes(limit - limits[0])} more per device"
            gain = 1.0 - step_time / best
            found.append(
                Relaxation(constraint="memory", change=change, step_time_s=float(step_time), gain=float(gain))
            )
    return tuple(found)

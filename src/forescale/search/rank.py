"""`search`: the best layouts of a space, exactly."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from forescale.cost.select import Costs
from forescale.errors import InfeasibleError
from forescale.project import project
from forescale.search.bounded import Bounded, Progress, Watch
from forescale.search.cells import Cells, enumerate_cells
from forescale.search.checkpoint import Checkpoint
from forescale.search.incumbents import Incumbents, Objective, Wanted
from forescale.search.landscape import Asked, nothing_fits, nothing_legal
from forescale.search.question import Question
from forescale.search.result import Relaxation, SearchResult
from forescale.search.scenarios import scenarios
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
    limits = tuple(asked.memory_limit * factor for factor in (1.0, *RELAXED_MEMORY))
    wanted = Wanted(objective=objective, top=top, memory_limit=limits[0], relaxed=limits)
    settled = _Settled(wanted=wanted, watch=_timed(watch, time_limit, started))
    for each in scenarios(asked):
        settled.add(each, checkpoint)
    settled.check(asked)
    counts = [run.counts for run in settled.runs]
    return SearchResult(
        best=tuple(project(model, cluster, one, each.workload, costs=costs) for each, one in settled.best()),
        objective=objective,
        num_legal=sum(run.num_legal for run in settled.runs),
        num_feasible=sum(run.incumbents.num_feasible for run in settled.runs),
        num_evaluated=sum(each.evaluated for each in counts),
        num_over_memory=sum(each.over_memory for each in counts),
        num_beaten=sum(each.beaten for each in counts),
        gap=settled.progress.gap,
        elapsed_s=time.perf_counter() - started,
        refused=settled.refused,
        relaxations=_relaxations(settled.fastest(), limits),
        asked=settled.asked[0],
    )


@dataclass(slots=True, kw_only=True)
class _Settled:
    """The searches of all scenarios so far; each begins with the best of those before it."""

    wanted: Wanted
    watch: Watch
    asked: list[Asked] = field(default_factory=list)
    runs: list[Bounded] = field(default_factory=list)
    ends: list[Progress] = field(default_factory=list)

    def add(self, asked: Asked, checkpoint: Path | None) -> None:
        """Search one scenario."""
        cells = enumerate_cells(asked.model, asked.cluster, asked.workload, asked.space)
        run = Bounded(asked.question, cells, self.wanted)
        for before in self.runs:
            run.incumbents.fastest = np.minimum(run.incumbents.fastest, before.incumbents.fastest)
        values = sorted(value for value, *_ in self._ranked())
        if len(values) >= self.wanted.top:
            run.incumbents.bar = values[self.wanted.top - 1]
        if checkpoint is not None and self.runs:
            checkpoint = checkpoint.with_name(f"{checkpoint.name}.{len(self.runs)}")
        kept = None if checkpoint is None else Checkpoint.of(checkpoint, asked, self.wanted)
        self.asked.append(asked)
        self.ends.append(_run(run, self.watch, kept))
        self.runs.append(run)

    def _ranked(self) -> list[tuple[float, float, int, int]]:
        """Return the best of every scenario: objective, the other one, scenario and place among its best."""
        found = []
        for nth, run in enumerate(self.runs):
            pair = run.incumbents.step_time, run.incumbents.peak
            first, second = pair if self.wanted.objective == "step_time" else pair[::-1]
            best = run.incumbents.best()
            found += [(float(first[i]), float(second[i]), nth, place) for place, i in enumerate(best)]
        return sorted(found)[: self.wanted.top]

    def best(self) -> list[tuple[Asked, Strategy]]:
        """Return the best layouts of all, each with its question."""
        layouts = [_best(run.cells, run.incumbents) for run in self.runs]
        return [(self.asked[nth], layouts[nth][place]) for _, _, nth, place in self._ranked()]

    def fastest(self) -> tuple[float, ...]:
        """Return the shortest step under each limit of memory."""
        by_time = self.wanted.objective == "step_time"
        found = [
            run.incumbents.fastest if by_time else _fastest(run.question, run.cells, self.wanted, self.watch)
            for run in self.runs
        ]
        return tuple(np.min(np.array(found), axis=0).tolist())

    @property
    def progress(self) -> Progress:
        """How far all of them came."""
        best, bound = (min(getattr(end, name) for end in self.ends) for name in ("best", "bound"))
        return replace(self.ends[-1], best=best, bound=bound)

    @property
    def refused(self) -> dict[str, int]:
        """Rows that each constraint refused."""
        found: dict[str, int] = {}
        for run in self.runs:
            for name, count in run.cells.whole.refused.items():
                found[name] = found.get(name, 0) + count
        return {name: count for name, count in found.items() if count}

    def check(self, asked: Asked) -> None:
        """Raise if there is nothing to rank."""
        num_legal = sum(run.num_legal for run in self.runs)
        if num_legal == 0:
            raise nothing_legal(asked, self.runs[0].cells.whole.refused)
        if any(len(run.incumbents.step_time) for run in self.runs):
            return
        if all(run.done for run in self.runs):
            first = next(run for run in self.runs if run.num_legal)
            text = nothing_fits(first.question, first.cells, self.wanted.memory_limit)
            raise InfeasibleError(text, [("memory", num_legal)])
        took = format_seconds(self.ends[-1].elapsed_s)
        msg = f"no layout that fits was found within {took}; give it more time"
        raise InfeasibleError(msg)


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

"""Searches of all scenarios of a question, one after the other, and what came of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from forescale.errors import InfeasibleError
from forescale.search.bounded import Bounded, Progress, Watch
from forescale.search.cells import Cells, enumerate_cells
from forescale.search.checkpoint import Checkpoint
from forescale.search.incumbents import Incumbents, Wanted
from forescale.search.landscape import Asked, nothing_fits, nothing_legal, smallest
from forescale.search.question import Question
from forescale.search.scenarios import scenarios
from forescale.spec.strategy import Strategy
from forescale.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The fastest layout of a question that fits, None if there is none or none below a bar."""

    done: bool
    """Whether the search was not stopped."""
    step_time: float = np.inf
    asked: Asked | None = None
    """The scenario that the layout is of."""
    strategy: Strategy | None = None


def fastest(asked: Asked, *, watch: Watch, bar: float = np.inf) -> Fastest:
    """Return the fastest layout that fits and is no slower than `bar` [s]."""
    wanted = Wanted(objective="step_time", top=1, memory_limit=asked.memory_limit)
    questions = scenarios(asked)
    settled = Settled(wanted=wanted, watch=watch, bar=bar, to_come=len(questions))
    for each in questions:
        settled.add(each)
    done = all(run.done or run.hopeless for run in settled.runs)
    if not (found := settled.best()):
        return Fastest(done=done)
    scenario, strategy = found[0]
    return Fastest(done=done, step_time=settled.progress.best, asked=scenario, strategy=strategy)


@dataclass(slots=True, kw_only=True)
class Settled:
    """The searches of all scenarios so far; each begins with the best of those before it."""

    wanted: Wanted
    watch: Watch
    bar: float = np.inf
    """What is worse than this, in the objective, does not matter."""
    to_come: int = 1
    """Scenarios that are not settled yet, that under way included."""
    started: float = field(default_factory=time.perf_counter)
    asked: list[Asked] = field(default_factory=list)
    runs: list[Bounded] = field(default_factory=list)
    kept: list[Checkpoint | None] = field(default_factory=list)
    ends: list[Progress] = field(default_factory=list)

    def add(self, asked: Asked, checkpoint: Path | None = None) -> None:
        """Search one scenario."""
        cells = enumerate_cells(asked.model, asked.cluster, asked.workload, asked.space.whole(asked.model))
        run = Bounded(asked.question, cells, self.wanted)
        for before in self.runs:
            run.incumbents.fastest = np.minimum(run.incumbents.fastest, before.incumbents.fastest)
        values = sorted(value for value, *_ in self._ranked())
        if len(values) >= self.wanted.top:
            run.incumbents.bar = values[self.wanted.top - 1]
        run.incumbents.bar = min(run.incumbents.bar, self.bar)
        if checkpoint is not None and self.runs:
            checkpoint = checkpoint.with_name(f"{checkpoint.name}.{len(self.runs)}")
        kept = None if checkpoint is None else Checkpoint.of(checkpoint, asked, self.wanted)
        self.asked.append(asked)
        self.ends.append(_run(run, self._told, kept))
        self.runs.append(run)
        self.kept.append(kept)
        self.to_come -= 1
        self._go_on()

    def _go_on(self) -> None:
        """Let scenarios in which nothing fits go on once another has a layout that does: more memory may buy more."""
        if not any(run.incumbents.num_feasible for run in self.runs):
            return
        for nth, run in enumerate(self.runs):
            if run.hopeless:
                run.go_on()
                for other in self.runs:
                    run.incumbents.fastest = np.minimum(run.incumbents.fastest, other.incumbents.fastest)
                self.ends[nth] = _run(run, self.watch, self.kept[nth], restored=True)

    def _told(self, progress: Progress) -> bool:
        """Tell the watch how far all scenarios are; those to come are taken to be as large as that under way."""
        every = [*self.ends, progress]
        more = progress.num_legal * (self.to_come - 1)
        whole = replace(
            progress,
            num_legal=sum(each.num_legal for each in every) + more,
            num_evaluated=sum(each.num_evaluated for each in every),
            num_irrelevant=sum(each.num_irrelevant for each in every),
            best=min(each.best for each in every),
            bound=0.0 if self.to_come > 1 else min(each.bound for each in every),
            elapsed_s=time.perf_counter() - self.started,
        )
        return self.watch(whole)

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
        if all(run.done or run.hopeless for run in self.runs):
            found = [run.smallest or smallest(run.question, run.cells) for run in self.runs if run.num_legal]
            text = nothing_fits(found, self.wanted.memory_limit)
            raise InfeasibleError(text, [("memory", num_legal)])
        took = format_seconds(self.ends[-1].elapsed_s)
        msg = f"no layout that fits was found within {took}; give it more time"
        raise InfeasibleError(msg)


def _run(run: Bounded, watch: Watch, checkpoint: Checkpoint | None, *, restored: bool = False) -> Progress:
    """Run a search, from its checkpoint on where there is one."""
    if checkpoint is None:
        return run.run(watch)
    if not restored:
        checkpoint.restore(run)

    def tell(progress: Progress) -> bool:
        if checkpoint.due():
            checkpoint.save(run)
        return watch(progress)

    progress = run.run(tell)
    checkpoint.save(run)
    return progress


def timed(watch: Watch | None, time_limit: float | None, started: float) -> Watch:
    """Return a watch that stops a search after a time, and asks another one."""

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
    if run.hopeless:
        run.go_on()
        run.run(watch)
    return tuple(run.incumbents.fastest)

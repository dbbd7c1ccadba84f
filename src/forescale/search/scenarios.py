"""Scenarios: choices that change the question itself, such as precision and offload, and one search for each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from forescale.errors import InfeasibleError, SpecError
from forescale.search.checkpoint import Checkpoint
from forescale.search.question import Asked, Question
from forescale.search.solve import SMALLEST, Bounded, Incumbents, Progress, Wanted, Watch
from forescale.search.tree import Cells, enumerate_cells
from forescale.spec.space import SCENARIO_NAMES
from forescale.spec.strategy import Overlap, Strategy
from forescale.units import counted, format_bytes, format_seconds


def scenarios(asked: Asked) -> tuple[Asked, ...]:
    """Return the questions of a search, one per combination of what its space leaves open, each once."""
    values = [getattr(asked.space, name) for name in SCENARIO_NAMES]
    found = [_scenario(asked, dict(zip(SCENARIO_NAMES, chosen, strict=True))) for chosen in product(*values)]
    return tuple(
        each
        for index, each in enumerate(found)
        if all(
            (each.workload, each.space.base) != (other.workload, other.space.base) for other in found[:index]
        )
    )


def single(asked: Asked, what: str) -> Asked:
    """Return the one question of a search.

    Raises
    ------
    SpecError
        If there are several; `what` cannot hold them.
    """
    found = scenarios(asked)
    if len(found) > 1:
        names = ", ".join(SCENARIO_NAMES)
        msg = f"{what} takes one value each of {names}; the space has {len(found)} combinations"
        raise SpecError(msg)
    return found[0]


def _scenario(asked: Asked, chosen: Mapping[str, Any]) -> Asked:
    """Return the question with one value of each choice; None is as the question says."""
    workload, base = asked.workload, asked.space.base
    if chosen["precision"] is not None:
        compute, recipe = chosen["precision"]
        workload = replace(workload, precision=replace(workload.precision, compute=compute, recipe=recipe))
    if (kinds := chosen["overlap"]) is not None:
        more = replace(base.overlap, **dict.fromkeys(kinds, True)) if kinds else _nothing()
        base = replace(base, overlap=more)
    if chosen["dispatcher"] is not None:
        base = replace(base, dispatcher=chosen["dispatcher"])
    shares = {"optimizer": chosen["optimizer_offload"], "activation_layers": chosen["activation_offload"]}
    held = {name: value for name, value in shares.items() if value is not None}
    base = replace(base, offload=replace(base.offload, **held))
    return replace(asked, workload=workload, space=replace(asked.space, base=base))


def _nothing() -> Overlap:
    return Overlap(**dict.fromkeys(Overlap.__dataclass_fields__, False))


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

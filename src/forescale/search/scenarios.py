"""Scenarios: choices that change the question itself, such as precision and offload, and one search for each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from forescale.errors import InfeasibleError
from forescale.inputs import with_high_precision_layers
from forescale.numeric import Array
from forescale.question import Question
from forescale.schedule.legality import JOINT
from forescale.search.host_memory import AtOnce
from forescale.search.incumbent import SMALLEST, Goal, Incumbent
from forescale.search.layouts import variants_of
from forescale.search.recorded import by_recording
from forescale.search.scope import Scope
from forescale.search.solve import Progress, Solver, Watch
from forescale.search.tree import Cells, unlisted
from forescale.spec.constraints import picks_keys
from forescale.spec.context import CONTEXT_KINDS
from forescale.spec.layout import Layout
from forescale.spec.proposal import Constraint, Proposal, violated
from forescale.spec.vision_constraints import VISION_CONSTRAINTS
from forescale.spec.workload import Workload
from forescale.struct import Struct
from forescale.time.outer import step_of_sites
from forescale.units import counted, format_bytes, format_seconds
from forescale.workers import ALONE, Workers

if TYPE_CHECKING:
    from forescale.search.checkpoint import Checkpoint

SCENARIO_NAMES = ("precision", "optimizer_offload", "activation_offload")
"""What changes the question of a search; each combination is a search of its own."""


def scenarios(question: Question) -> tuple[Question, ...]:
    """Return the questions of a search, one per combination of what its space leaves open, each once.

    Where a framework has other types for states that are not sharded, their layouts are a question of their own.
    """
    values = [getattr(question.space, name) for name in SCENARIO_NAMES]
    selected = (dict(zip(SCENARIO_NAMES, item, strict=True)) for item in product(*values))
    kinds = [
        kind
        for item in selected
        for part in _by_sharding(_scenario(question, item))
        for kind in _by_neighbours(part)
    ]
    kinds = [with_high_precision_layers(by_recording(kind)) for kind in kinds]
    request = [
        (item.workload, item.space.base, item.space.zero, item.space.tp_kind, item.model.traces)
        for item in kinds
    ]
    return tuple(item for index, item in enumerate(kinds) if request[index] not in request[:index])


def _scenario(question: Question, values: Mapping[str, Any]) -> Question:
    """Return the question with one value of each choice; None is as the question says."""
    workload, base = question.workload, question.space.base
    if values["precision"] is not None:
        compute, recipe = values["precision"]
        base, workload = _retyped(question, {"compute": compute, "recipe": recipe})
    shares = {"optimizer": values["optimizer_offload"], "activation_layers": values["activation_offload"]}
    kept = {name: value for name, value in shares.items() if value is not None}
    base = replace(base, offload=replace(base.offload, **kept))
    space = replace(question.space, base=base)
    if not question.model.is_moe:
        space = replace(space, dispatcher=(None,))
    return replace(question, strategy=None, workload=workload, space=space)


def _retyped(question: Question, types: Mapping[str, Any]) -> tuple[Layout, Workload]:
    """Return what is not searched, and the workload, under other types of compute: as the framework has them."""
    base, workload = question.space.base, question.workload
    if question.framework is None:
        return base, replace(workload, precision=replace(workload.precision, **types))
    values = {name: value for name, value in types.items() if value != "none"}
    of = (base, workload, question.model, question.cluster)
    return question.framework.retyped(of, values, sharded=True)


def _by_sharding(question: Question) -> tuple[Question, ...]:
    """Return the question of layouts whose states are sharded and that of the others, or one where both are alike."""
    space, workload = question.space, question.workload
    if question.framework is None or 0 not in space.zero:
        return (question,)
    types = {"compute": workload.precision.compute, "recipe": workload.precision.recipe}
    of = (space.base, workload, question.model, question.cluster)
    base, whole = question.framework.retyped(of, types, sharded=False)
    if (base, whole) == (space.base, workload):
        return (question,)
    sharded = tuple(level for level in space.zero if level)
    unsharded = replace(question, workload=whole, space=replace(space, base=base, zero=(0,)))
    return (*([question.with_space(zero=sharded)] if sharded else []), unsharded)


SPLIT_TENSORS = Constraint(
    name="kinds of tensor parallelism that differ",
    holds=lambda q: q.degrees.tp * q.degrees.cp > 1,
    message=lambda _: (
        "tp × cp must be at least 2: with 1 all kinds of tensor parallelism are the same layout"
    ),
)


def _by_neighbours(question: Question) -> tuple[Question, ...]:
    """Return a question for each kind of tensor parallelism, where neighbours that share weights tell them apart.

    A layout without tensor parallelism belongs to the kind `1d` alone, so that it is counted once.
    """
    space = question.space
    if len(space.tp_kind) == 1 or 3 not in space.zero or not isinstance(space.base.reshard, int):
        return (question,)
    return tuple(
        question.with_space(
            tp_kind=(kind,), rules=space.rules if kind == "1d" else (*space.rules, SPLIT_TENSORS)
        )
        for kind in space.tp_kind
    )


def step_of_all(question: Question, step_time: float) -> float:
    """Return the step of a question's layout whose step on one site by itself is `step_time` [s]."""
    return step_of_sites(question.model, question.cluster, question.workload, step_time)


def nothing_legal(question: Question, refused: dict[str, int]) -> InfeasibleError:
    """Return the error for a space without a legal layout: what refused how many."""
    cluster = question.cluster
    counts = Counter(refused)
    counts.update(unlisted(question.model, cluster, question.workload, question.space))
    rows = [(name, count) for name, count in counts.items() if count]
    msg = f"no legal layout of {question.model.name} on {counted(cluster.num_devices, 'device')} of {cluster.name}"
    space = question.space
    gathered = any(CONTEXT_KINDS[kind].gathers for kind in space.cp_kind)
    if picks_keys(question.model) and not gathered and 1 not in (space.cp or (1,)):
        msg += f": cp_kind of what reads picked keys is all_gather, not {' or '.join(space.cp_kind)}"
    one = Proposal(model=question.model, cluster=cluster, workload=question.workload, degrees=space.base)
    several = [
        replace(one, degrees=replace(space.base, recompute=item.recompute, **item.choices))
        for item in variants_of(space, question.model, cluster)
    ]
    broken = [(item, violated(item, (*VISION_CONSTRAINTS, *JOINT))) for item in several]
    if all(rules for _, rules in broken):
        msg += f": {broken[0][1][0].message(broken[0][0])}"
    if question.framework and any(rule.name in counts for rule in space.rules):
        msg += f"; --framework none searches without the limits of {question.framework.name}"
    return InfeasibleError(msg, rows)


def smallest(question: Question, cells: Cells, most: float = np.inf) -> Solver:
    """Return the search for the smallest layout that needs at `most` as much memory, done."""
    solver = Solver(question, cells, replace(SMALLEST, memory_limit=most))
    solver.run()
    return solver


def nothing_fits(solvers: Sequence[Solver], limit: float, num_legal: int) -> InfeasibleError:
    """Return the error for a model that fits nowhere: the smallest layout of all searches, and what it needs."""
    least = min((solver for solver in solvers if solver.num_legal), key=lambda item: item.incumbent.least)
    layout = least.layout(0)
    model, cluster = least.question.model, least.question.cluster
    shape = f"tp={layout.tp} cp={layout.cp} pp={layout.pp} dp={layout.dp} zero={layout.zero}"
    error = InfeasibleError(
        f"none of the {counted(num_legal, 'legal layout')} of {model.name} fits {format_bytes(limit)} on "
        f"{counted(cluster.num_devices, 'device')} of {cluster.name}; the smallest ({shape}) needs "
        f"{format_bytes(least.incumbent.least)}",
        [("memory", num_legal)],
    )
    error.smallest, error.smallest_bytes = least.question.with_layout(layout), least.incumbent.least
    return error


class Fastest(Struct, frozen=True, kw_only=True):
    """The fastest layout of a question that fits, None if there is none or none below a cutoff."""

    done: bool
    """Whether the search was not stopped."""
    step_time: float = np.inf
    question: Question | None = None
    """The scenario that the layout is of."""
    strategy: Layout | None = None


def fastest(
    question: Question,
    *,
    watch: Watch,
    cutoff: float = np.inf,
    like: Ranking | None = None,
    host_limit: float = np.inf,
) -> Fastest:
    """Return the fastest layout that fits and whose step, of one site by itself, is no slower than `cutoff` [s].

    `like` is a ranking by time of the same question, but for what counts as fitting: its first bounds hold here too.
    """
    ranking = by_time(question, watch=watch, cutoff=cutoff, like=like, host_limit=host_limit)
    if not (result := ranking.best()):
        return Fastest(done=ranking.done)
    scenario, layout, _ = result[0]
    best = question.over_sites(scenario.with_layout(layout))
    return Fastest(done=ranking.done, step_time=ranking.progress.best, question=best, strategy=best.strategy)


def by_time(
    question: Question,
    *,
    watch: Watch,
    cutoff: float = np.inf,
    like: Ranking | None = None,
    host_limit: float = np.inf,
) -> Ranking:
    """Return the search for the fastest layout that fits, done; the rest is as for `fastest`."""
    goal = Goal(objective="step_time", top=1, memory_limit=question.memory_limit)
    runs = () if like is None else tuple(sorted(like.runs, key=lambda run: run.nth))
    ranking = Ranking(goal=goal, watch=watch, cutoff=cutoff, like=runs, host_limit=host_limit)
    ranking.search(scenarios(question.site))
    return ranking


@dataclass(slots=True, kw_only=True)
class Run:
    """The search of one scenario."""

    question: Question
    solver: Solver
    checkpoint: Checkpoint | None
    progress: Progress | None = None
    """How far it came when it last stopped; None while it runs for the first time."""
    nth: int = 0
    """Which of the scenarios it is."""
    sampled: float = np.inf
    """The best of a sample, beyond which its rows were left out; infinite where none was."""

    def go(self, watch: Watch) -> None:
        """Search until all is settled or the watch says no, from the checkpoint on where there is one."""
        kept = self.checkpoint
        if kept is None:
            self.progress = self.solver.run(watch)
            return
        if self.progress is None:
            kept.restore(self.solver)

        def tell(progress: Progress) -> bool:
            if kept.due():
                kept.save(self.solver)
            return watch(progress)

        self.progress = self.solver.run(tell)
        kept.save(self.solver)


@dataclass(slots=True, kw_only=True)
class Ranking:
    """The best layouts over all scenarios so far; each search begins with the best of those before it."""

    goal: Goal
    watch: Watch
    cutoff: float = np.inf
    """What is worse than this, in the objective, does not matter."""
    started: float = field(default_factory=time.perf_counter)
    runs: list[Run] = field(default_factory=list)
    like: tuple[Run, ...] = ()
    """Searches of the same scenarios whose first bounds hold for these as well."""
    to_come: int = 0
    """Scenarios that are not settled yet, that under way included."""
    checkpoint: Path | None = None
    beyond: int = 0
    """Layouts of rows that were beyond the cutoff of a sample."""
    host_limit: float = np.inf
    """Memory of this machine that the search may take [byte]."""
    host_memory: float = 0.0
    """What one process of it takes, estimated [byte]."""
    sampled: Incumbent = field(init=False)
    """What samples of the scenarios say of the best."""
    workers: Workers = ALONE

    def __post_init__(self) -> None:
        """Start without a sample."""
        self.sampled = Incumbent(goal=self.goal, variants=())

    def search(self, questions: Sequence[Question], checkpoint: Path | None = None) -> None:
        """Search scenarios one after the other, the most promising first: what it finds prunes the others."""
        self.checkpoint, self.to_come = checkpoint, len(questions)
        runs = [self._run(question, nth) for nth, question in enumerate(questions)]
        self.runs = [run for run in runs if run is not None]
        self.to_come = len(self.runs)
        for run in sorted(self.runs, key=lambda run: (run.sampled, run.solver.progress().bound)):
            run.solver.incumbent.learn(self._known(run.solver), cutoff=self._cutoff)
            run.go(self._told)
            self.to_come -= 1
            self._go_on()

    @property
    def _cutoff(self) -> float:
        every = [self.sampled, *(solver.incumbent for solver in self.solvers)]
        return min(self._worst, self.cutoff, *(item.cutoff for item in every))

    def _run(self, question: Question, nth: int) -> Run | None:
        """Return the search of one scenario, which has a checkpoint of its own; None where all are beyond a cutoff."""
        like = self.like[nth] if self.like else None
        if like is not None and like.sampled == np.inf:
            solver = like.solver.again(question, self.goal)
            return Run(question=question, solver=solver, checkpoint=None, nth=nth)
        space, limited = question.space.whole(question.model), self.host_limit < np.inf
        scope = Scope.from_question(question, space, self.workers, shares_blocks=not limited)
        scope, at_once = self._limited(scope)
        cutoff, sampled = self.cutoff, np.inf
        if cutoff < np.inf:
            scope = scope.closer(question, cutoff)
        elif self.goal.by_time and scope.is_large:
            scope, sampled = self._sample(question, scope, at_once)
            cutoff = self.sampled.widest_cutoff
        cells, kept = scope.within(cutoff), None
        if len(cells) == 0 and self.cutoff < np.inf:
            return None
        scope, at_once = self._limited(scope, cells)
        solver = Solver(question, cells, self.goal, scope.work, scope.workers, at_once)
        self.beyond += scope.num_layouts - solver.num_legal
        if (path := self.checkpoint) is not None:
            from forescale.search.checkpoint import Checkpoint

            path = path.with_name(f"{path.name}.{nth}") if nth else path
            kept = Checkpoint.from_question(path, question, self.goal, self.workers)
        return Run(question=question, solver=solver, checkpoint=kept, nth=nth, sampled=sampled)

    def _limited(self, scope: Scope, cells: Cells | None = None) -> tuple[Scope, AtOnce]:
        """Return a scope, and how much to evaluate at once, such that its search stays below the limit of memory."""
        memory = scope.host_memory(cells)
        if cells is not None:
            memory.check(self.host_limit)
        at_once, jobs = memory.within(self.host_limit, scope.workers.jobs)
        if jobs < scope.workers.jobs:
            self.workers.end()
            scope = replace(scope, workers=ALONE)
        self.host_memory = max(self.host_memory, memory.needed(at_once))
        return scope, at_once

    def _sample(self, question: Question, scope: Scope, at_once: AtOnce) -> tuple[Scope, float]:
        """Return the rows of a scenario with closer bounds, and the best of a sample of it; infinite of none.

        The sample ends with as many layouts as wanted; its best one has neighbours that are about as good. One
        scenario that has as many tells the others what does not matter.
        """

        def goes_on(progress: Progress) -> bool:
            return self._told(progress) or self.checkpoint is not None  # which needs the same sample again

        least = self.sampled.widest_cutoff
        if least == np.inf:
            scope = scope.bounded(question)
            solver = Solver(question, scope.sample(), self.goal, scope.work, scope.workers, at_once)
            solver.run(lambda progress: goes_on(progress) and solver.incumbent.cutoff == np.inf)
            if (least := solver.incumbent.least) < np.inf:
                cells = scope.neighbours(solver.layout(0))
                near = Solver(question, cells, self.goal, scope.work, scope.workers, at_once)
                near.incumbent.learn(solver.incumbent.fastest, cutoff=solver.incumbent.cutoff)
                near.run(lambda progress: goes_on(progress) and near.counts.evaluated == 0, lists=1)
                self.sampled.learn(near.incumbent.fastest, cutoff=near.incumbent.cutoff)
                least = min(least, near.incumbent.least)
        cutoff = self.sampled.widest_cutoff
        return scope.closer(question, cutoff) if cutoff < np.inf else scope, least

    def _known(self, solver: Solver) -> Array:
        """Return the shortest step under each relaxed limit of memory that `solver` or any other knows."""
        every = [self.sampled, solver.incumbent, *(item.incumbent for item in self.solvers)]
        return np.asarray(np.min([item.fastest for item in every], axis=0))

    def _go_on(self) -> None:
        """Let scenarios in which nothing fits go on once another has a layout that does: more memory may buy more."""
        if any(solver.incumbent.num_feasible for solver in self.solvers):
            for run in self.runs:
                if run.solver.infeasible:
                    run.solver.go_on(self._known(run.solver))
                    run.go(self.watch)

    def _told(self, progress: Progress) -> bool:
        """Tell the watch how far all scenarios are; those to come are taken to be as large as that under way."""
        every = [*self._ends, progress]
        more = progress.num_legal * (self.to_come - 1)
        whole = replace(
            progress,
            num_legal=sum(item.num_legal for item in every) + more + self.beyond,
            num_evaluated=sum(item.num_evaluated for item in every),
            num_pruned=sum(item.num_pruned for item in every) + self.beyond,
            best=min(item.best for item in every),
            bound=0.0 if self.to_come > 1 else min(item.bound for item in every),
            elapsed_s=time.perf_counter() - self.started,
        )
        return self.watch(whole)

    @property
    def solvers(self) -> list[Solver]:
        """The search of each scenario."""
        return [run.solver for run in self.runs]

    @property
    def num_legal(self) -> int:
        """Legal layouts of all scenarios."""
        return sum(solver.num_legal for solver in self.solvers) + self.beyond

    @property
    def num_feasible(self) -> int:
        """Evaluated layouts of all scenarios that fit."""
        return sum(solver.incumbent.num_feasible for solver in self.solvers)

    @property
    def done(self) -> bool:
        """Whether no search was stopped."""
        return all(solver.done or solver.infeasible for solver in self.solvers)

    @property
    def _ends(self) -> list[Progress]:
        return [run.progress for run in self.runs if run.progress is not None]

    def _ranked(self) -> list[tuple[float, int, int, int]]:
        """Return the best of all scenarios: objective, scenario, place in it and how many layouts it stands for."""
        if not self.runs:
            return []
        kept = [solver.incumbent for solver in self.solvers]
        sizes = [len(item.value) for item in kept]
        nth, place = (
            np.repeat(np.arange(len(kept)), sizes),
            np.concatenate([np.arange(size) for size in sizes]),
        )
        value, other = (np.concatenate([getattr(item, name) for item in kept]) for name in ("value", "other"))
        order = np.lexsort((place, nth, other, value))
        first, count = self.goal.best(value[order], np.concatenate([item.shapes for item in kept])[order])
        rows = order[first]
        columns = (value[rows], nth[rows], place[rows], count)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    @property
    def _worst(self) -> float:
        """The objective of the last of the best, up to which every layout is known; infinite without as many."""
        ranked = self._ranked()
        return ranked[-1][0] if len(ranked) == self.goal.top else np.inf

    def best(self) -> list[tuple[Question, Layout, int]]:
        """Return the best layouts of all, each with its question and how many layouts it stands for."""
        return [
            (self.runs[nth].question, self.solvers[nth].layout(place), count)
            for _, nth, place, count in self._ranked()
        ]

    def surest(self) -> tuple[Question, Layout] | None:
        """Return the fastest layout that fits with margin, if it is at least as fast as the last of the best."""
        values: list[tuple[float, float, int, int]] = []
        for nth, solver in enumerate(self.solvers):
            scores = solver.scored(replace(solver.question, safe=True))
            sure = (scores.peak <= self.goal.memory_limit) & (scores.step_time <= self._worst)
            columns = (scores.step_time, scores.peak, np.arange(len(sure)))
            rows = zip(*(column[sure].tolist() for column in columns), strict=True)
            values += [(step_time, peak, nth, place) for step_time, peak, place in rows]
        if not values:
            return None
        *_, nth, place = min(values)
        return self.runs[nth].question, self.solvers[nth].layout(place)

    def fastest(self) -> tuple[float, ...]:
        """Return the shortest step under each limit of memory."""
        result = self if self.goal.by_time else self._by_time()
        return tuple(np.min([solver.incumbent.fastest for solver in result.solvers], axis=0).tolist())

    def _by_time(self) -> Ranking:
        """Return the search of the same scenarios for the fastest layout, done."""
        goal = replace(self.goal, objective="step_time", top=1)
        ranking = Ranking(goal=goal, watch=self.watch, started=self.started, host_limit=self.host_limit)
        ranking.search([run.question for run in self.runs])
        return ranking

    @property
    def progress(self) -> Progress:
        """How far all of them came."""
        ends = self._ends
        best, bound = (min(getattr(end, name) for end in ends) for name in ("best", "bound"))
        return replace(ends[-1], best=best, bound=bound)

    @property
    def refused(self) -> dict[str, int]:
        """Rows that each constraint refused."""
        values: dict[str, int] = {}
        for solver in self.solvers:
            for name, count in solver.cells.whole.refused.items():
                values[name] = values.get(name, 0) + count
        return {name: count for name, count in values.items() if count}

    def check(self, question: Question) -> None:
        """Raise if there is nothing to rank."""
        solvers, num_legal = self.solvers, self.num_legal
        if num_legal == 0:
            raise nothing_legal(question, solvers[0].cells.whole.refused)
        if any(len(solver.incumbent.step_time) for solver in solvers):
            return
        if self.done:
            smallests = [
                solver.smallest or smallest(solver.question, solver.cells)
                for solver in solvers
                if solver.num_legal
            ]
            raise nothing_fits(smallests, self.goal.memory_limit, num_legal)
        took = format_seconds(time.perf_counter() - self.started)
        raise InfeasibleError(f"no layout that fits was found within {took}; give it more time")


def timed(watch: Watch | None, time_limit: float | None, started: float) -> Watch:
    """Return a watch that stops a search after a time, and asks another one."""

    def tell(progress: Progress) -> bool:
        in_time = time_limit is None or time.perf_counter() - started < time_limit
        return in_time and (watch is None or watch(progress))

    return tell

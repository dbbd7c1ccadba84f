"""The best order by constraint programming (OR-tools CP-SAT), with a proof where it ends in time.

Micro-batches are alike, so passes of one kind on one stage may be taken in order of the micro-batch: sorting
the starts of any schedule keeps every wait. The order of any two other passes of a rank is one decision, and
what a rank holds when a forward starts is a sum over the decisions about that forward. Memory is thus a
condition on orders alone, from which the solver learns much faster than from a resource over time. No start
lies beyond what the known schedule leaves for it.
"""

from __future__ import annotations

import importlib.util
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from forescale.errors import ScheduleError, extra_missing
from forescale.schedule.actions import Kind, pack
from forescale.schedule.model import Schedule
from forescale.schedule.optimise.local_search import KINDS, Problem, split_backward
from forescale.schedule.timing import compile_schedule
from forescale.struct import Struct

_MAX_SCALE = 10**7
_GRAINS = 10**6
"""Parts of a micro-batch of a device's full share that memory is counted in."""
Solver: TypeAlias = Any
"""An object of OR-tools, which has no types of its own here."""
Pass: TypeAlias = tuple[Kind, int, int]
"""Kind, stage, micro-batch."""


class ExactResult(Struct, frozen=True, kw_only=True):
    """What the solver found."""

    schedule: Schedule | None
    bound: float
    """No order has a shorter makespan."""
    proven: bool
    """The solver's search is complete."""
    resolution: float
    """How far rounding durations to whole ticks can move a makespan; 0 where they are whole."""


def available() -> bool:
    """Return whether OR-tools is installed."""
    return importlib.util.find_spec("ortools") is not None


def num_decisions(problem: Problem) -> int:
    """Return how many pairs of passes the solver has to put in order, known ones included."""
    chains = [len(KINDS) * len(mine) for mine in problem.stages_of_rank]
    return problem.num_microbatches**2 * sum(count * (count - 1) // 2 for count in chains)


def solve(problem: Problem, *, warm_start: Schedule, time_limit_s: float, num_workers: int) -> ExactResult:
    """Return the solver's best order and bound; `warm_start` is a schedule that fits, with split backwards.

    Raises
    ------
    ScheduleError
        If OR-tools is not installed.
    """
    return _Model(problem, warm_start, _cp_model()).solve(time_limit_s, num_workers)


def _cp_model() -> Solver:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ScheduleError(extra_missing("exact optimisation", "OR-tools", "optimise")) from error
    return cp_model


class _Model:
    """The constraint model: a start per pass, a decision per pair of passes of a rank."""

    def __init__(self, problem: Problem, warm_start: Schedule, cp_model: Solver) -> None:
        self.asked, self.cp_model, self.model = problem, cp_model, cp_model.CpModel()
        self.scale, self.whole = _scale(problem)
        self.problem = problem = _in_ticks(problem, self.scale)
        self.stages, self.units = problem.placement.num_stages, problem.num_microbatches
        self.ticks = {(k, s): round(problem.duration(k, s)) for k in KINDS for s in range(self.stages)}
        self.horizon = round(problem.makespan(warm_start))
        self.start: dict[Pass, Any] = {}
        self.first: dict[tuple[Pass, Pass], Any] = {}
        self._passes()
        self._waits()
        self._ranks()
        self._hint(warm_start)

    def _passes(self) -> None:
        new = self.model
        for kind in KINDS:
            for stage in range(self.stages):
                latest = self.horizon - self.ticks[kind, stage]
                for unit in range(self.units):
                    self.start[kind, stage, unit] = new.new_int_var(0, latest, "")
        lowest = int(np.floor(self.problem.lower_bound() - 1e-6))
        self.makespan = new.new_int_var(lowest, self.horizon, "makespan")
        new.minimize(self.makespan)

    def _after(self, later: Pass, earlier: Pass, gap: int = 0) -> Solver:
        end = self.start[earlier] + self.ticks[earlier[:2]]
        return self.model.add(self.start[later] >= end + gap)

    def _waits(self) -> None:
        home, last = self.problem.placement.rank_of_stage, self.stages - 1
        comm = [round(float(item)) for item in self.problem.comm]
        hop = [comm[s] if home[s] != home[s + 1] else 0 for s in range(last)]
        for stage in range(self.stages):
            for unit in range(self.units):
                if stage:
                    self._after((Kind.F, stage, unit), (Kind.F, stage - 1, unit), hop[stage - 1])
                if stage < last:
                    self._after((Kind.I, stage, unit), (Kind.I, stage + 1, unit), hop[stage])
                else:
                    self._after((Kind.I, stage, unit), (Kind.F, stage, unit))
                self._after((Kind.W, stage, unit), (Kind.I, stage, unit))
                if unit:
                    for kind in KINDS:
                        self._after((kind, stage, unit), (kind, stage, unit - 1))
            end = self.start[Kind.W, stage, self.units - 1] + self.ticks[Kind.W, stage]
            self.model.add(self.makespan >= end)

    def _ranks(self) -> None:
        new = self.model.new_fixed_size_interval_var
        for mine in self.problem.stages_of_rank:
            chains = [(kind, stage) for stage in mine for kind in KINDS]
            passes = [(*chain, unit) for chain in chains for unit in range(self.units)]
            self.model.add_no_overlap([new(self.start[x], self.ticks[x[:2]], "") for x in passes])
            for one, other in combinations(chains, 2):
                self._decide(one, other)
            if self.problem.memory_limit is not None:
                for stage in mine:
                    for unit in range(self.units):
                        self._memory(mine, (Kind.F, stage, unit), self.problem.memory_limit)

    def _decide(self, one: tuple[Kind, int], other: tuple[Kind, int]) -> None:
        """Add the decisions which of two passes is first, for all passes of two chains of one rank."""
        first, units = self.first, range(self.units)
        for x in ((*one, unit) for unit in units):
            for y in ((*other, unit) for unit in units):
                if self._flows(x, y) or self._flows(y, x):
                    first[x, y], first[y, x] = int(self._flows(x, y)), int(self._flows(y, x))
                    continue
                first[x, y] = self.model.new_bool_var("")
                first[y, x] = first[x, y].negated()
                self._after(y, x).only_enforce_if(first[x, y])
                self._after(x, y).only_enforce_if(first[y, x])
        for i in units:  # earlier passes of a chain are before whatever a later one is before
            for j in units[1:]:
                self._implies(first[(*one, i), (*other, j - 1)], first[(*one, i), (*other, j)])
                self._implies(first[(*one, j), (*other, i)], first[(*one, j - 1), (*other, i)])

    def _flows(self, x: Pass, y: Pass) -> bool:
        """Return whether x must come before y: its data reach y, or an earlier micro-batch's do."""
        if x[2] > y[2]:
            return False
        if x[0] == Kind.W:
            return x[:2] == y[:2]
        until = _depth(Kind.I if y[0] == Kind.W else y[0], y[1], self.stages)
        return _depth(*x[:2], self.stages) <= until

    def _implies(self, cause: Solver, effect: Solver) -> None:
        if not isinstance(cause, int) and not isinstance(effect, int):  # what the data decide agrees already
            self.model.add_implication(cause, effect)

    def _memory(self, mine: tuple[int, ...], forward: Pass, limit: float) -> None:
        """Hold the limit when a forward starts: what forwards before it and itself saved, less what is free."""
        total, part = 0, self.problem.weight_part
        for stage in mine:
            saved = float(self.problem.saved[stage]) * _GRAINS
            to_weight, to_input = int(saved * part), int(saved * (1.0 - part))
            changes = ((Kind.F, to_input + to_weight), (Kind.I, -to_input), (Kind.W, -to_weight))
            for kind, change in changes:
                for x in ((kind, stage, unit) for unit in range(self.units)):
                    same = x[:2] == forward[:2]
                    total = total + change * (int(x[2] <= forward[2]) if same else self.first[x, forward])
        if not isinstance(total, int):
            self.model.add(total <= int(np.ceil(limit * _GRAINS)))

    def _hint(self, schedule: Schedule) -> None:
        """Start the search from a schedule."""
        starts = {key: round(value) for key, value in _starts(self.problem, schedule).items()}
        for key, value in starts.items():
            self.model.add_hint(self.start[key], value)
        self.model.add_hint(self.makespan, self.horizon)

    def solve(self, time_limit_s: float, num_workers: int) -> ExactResult:
        """Run the solver."""
        solver = self.cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = time_limit_s
        solver.parameters.num_workers = num_workers
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        result = status in {self.cp_model.OPTIMAL, self.cp_model.FEASIBLE}
        resolution = 0.0 if self.whole else 0.5 * (len(self.start) + len(self.problem.comm)) / self.scale
        return ExactResult(
            schedule=self._schedule(solver) if result else None,
            bound=max(self.asked.lower_bound(), solver.best_objective_bound / self.scale - resolution),
            proven=status == self.cp_model.OPTIMAL,
            resolution=resolution,
        )

    def _schedule(self, solver: Solver) -> Schedule:
        orders = []
        for mine in self.problem.stages_of_rank:
            keys = [(k, s, u) for k in KINDS for s in mine for u in range(self.units)]
            keys.sort(key=lambda key: self._place(key, int(solver.value(self.start[key]))))
            orders.append(tuple(pack(*key) for key in keys))
        return Schedule(
            name="optimised",
            placement=self.problem.placement,
            num_microbatches=self.units,
            orders=tuple(orders),
        )

    def _place(self, key: Pass, start: int) -> tuple[int, int, int, int]:
        """Return what a rank's passes are sorted by; passes without duration follow their data."""
        return start, start + self.ticks[key[:2]], key[2], _depth(*key[:2], self.stages)


def _depth(kind: Kind, stage: int, stages: int) -> int:
    """Return the place of a pass on its micro-batch's way down the stages and back."""
    return {Kind.F: stage, Kind.I: 2 * stages - 1 - stage, Kind.W: 2 * stages}[kind]


def _scale(problem: Problem) -> tuple[float, bool]:
    """Return ticks per unit of time, the coarsest power of ten in which all durations are whole, if any is."""
    values = np.concatenate((problem.forward, problem.input_grad, problem.weight_grad, problem.comm))
    largest = float(values.max(initial=1.0)) or 1.0
    scale = 1.0
    while scale * largest < _MAX_SCALE:
        ticks = values * scale
        if np.all(np.abs(ticks - np.round(ticks)) <= 1e-9 * np.maximum(1.0, ticks)):
            return scale, True
        scale *= 10.0
    return _MAX_SCALE / largest, False


def _in_ticks(problem: Problem, scale: float) -> Problem:
    """Return the problem with all times in whole ticks."""
    return replace(
        problem,
        forward=np.round(problem.forward * scale),
        input_grad=np.round(problem.input_grad * scale),
        weight_grad=np.round(problem.weight_grad * scale),
        comm=np.round(problem.comm * scale),
    )


def _starts(problem: Problem, schedule: Schedule) -> dict[Pass, float]:
    """Return start times by kind, stage and micro-batch, sorted among micro-batches."""
    compiled = compile_schedule(split_backward(schedule))
    laid = compiled.durations(problem.times, problem.links)
    start, _ = compiled.passes(laid, compiled.run(laid))
    flat = compiled.program.flat
    result = {}
    for kind in KINDS:
        for stage in range(problem.placement.num_stages):
            mine = np.sort(start[(flat.kind == kind) & (flat.stage == stage)])
            result.update({(kind, stage, unit): float(when) for unit, when in enumerate(mine)})
    return result

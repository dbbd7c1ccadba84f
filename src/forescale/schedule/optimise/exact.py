"""The best order by constraint programming (OR-tools CP-SAT), with a proof where it ends in time.

Micro-batches are alike, so passes of one kind on one stage may be taken in order of the micro-batch: sorting
the starts of any schedule keeps every wait. Each rank runs one pass at a time; activations are a cumulative
resource from F to I and from F to W.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from forescale.schedule.actions import Kind, pack
from forescale.schedule.compiled import compile_schedule
from forescale.schedule.errors import ScheduleError
from forescale.schedule.model import Schedule
from forescale.schedule.optimise.problem import KINDS, Problem, split_backward

_MAX_SCALE = 10**7
Solver: TypeAlias = Any
"""An object of OR-tools, which has no types of its own here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactResult:
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


def solve(
    problem: Problem, *, warm_start: Schedule | None, time_limit_s: float, num_workers: int
) -> ExactResult:
    """Return the solver's best order and bound.

    Raises
    ------
    ScheduleError
        If OR-tools is not installed.
    """
    model = _Model(problem, _cp_model())
    if warm_start is not None:
        model.hint(warm_start)
    return model.solve(time_limit_s, num_workers)


def _cp_model() -> Solver:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        msg = "exact optimisation needs OR-tools; install it with: pip install 'forescale[optimise]'"
        raise ScheduleError(msg) from error
    return cp_model


class _Model:
    """The constraint model: an interval per pass."""

    def __init__(self, problem: Problem, cp_model: Solver) -> None:
        self.problem, self.cp_model, self.model = problem, cp_model, cp_model.CpModel()
        self.scale, self.whole = _scale(problem)
        self.stages, self.units = problem.placement.num_stages, problem.num_microbatches
        ticks = {k: [self._ticks(problem.duration(k, s)) for s in range(self.stages)] for k in KINDS}
        comm = [self._ticks(float(each)) for each in problem.comm]
        self.ticks, self.comm = ticks, comm
        self.horizon = self.units * sum(sum(row) for row in ticks.values()) + 2 * sum(comm)
        self.start: dict[tuple[Kind, int, int], Any] = {}
        self.interval: dict[tuple[Kind, int, int], Any] = {}
        self._passes()
        self._waits()
        self._ranks()
        self._memory()

    def _ticks(self, value: float) -> int:
        return round(value * self.scale)

    def _passes(self) -> None:
        new = self.model
        for kind in KINDS:
            for stage in range(self.stages):
                for unit in range(self.units):
                    key, length = (kind, stage, unit), self.ticks[kind][stage]
                    self.start[key] = new.new_int_var(0, self.horizon, f"{kind.name}{stage}_{unit}")
                    self.interval[key] = new.new_fixed_size_interval_var(self.start[key], length, "")
        self.makespan = new.new_int_var(0, self.horizon, "makespan")
        new.minimize(self.makespan)

    def _after(self, later: tuple[Kind, int, int], earlier: tuple[Kind, int, int], gap: int = 0) -> None:
        end = self.start[earlier] + self.ticks[earlier[0]][earlier[1]]
        self.model.add(self.start[later] >= end + gap)

    def _waits(self) -> None:
        home, last = self.problem.placement.rank_of_stage, self.stages - 1
        hop = [self.comm[s] if home[s] != home[s + 1] else 0 for s in range(last)]
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
            end = self.start[Kind.W, stage, self.units - 1] + self.ticks[Kind.W][stage]
            self.model.add(self.makespan >= end)

    def _ranks(self) -> None:
        bound = self.problem.lower_bound() * self.scale
        self.model.add(self.makespan >= int(np.floor(bound - 1e-6)))
        for mine in self.problem.stages_of_rank:
            passes = [self.interval[k, s, u] for k in KINDS for s in mine for u in range(self.units)]
            self.model.add_no_overlap(passes)

    def _memory(self) -> None:
        problem = self.problem
        if problem.memory_limit is None:
            return
        grain = 10**6
        for mine in problem.stages_of_rank:
            held, sizes = [], []
            for stage in mine:
                saved = float(problem.saved[stage])
                parts = ((Kind.W, problem.weight_part), (Kind.I, 1.0 - problem.weight_part))
                for kind, part in parts:
                    demand = int(np.floor(saved * part * grain))
                    if demand == 0:
                        continue
                    for unit in range(self.units):
                        held.append(self._life(stage, unit, kind))
                        sizes.append(demand)
            self.model.add_cumulative(held, sizes, int(np.ceil(problem.memory_limit * grain)))

    def _life(self, stage: int, unit: int, until: Kind) -> Solver:
        """Return the interval from F's start to the end of I or W."""
        length = self.model.new_int_var(0, self.horizon, "")
        end = self.start[until, stage, unit] + self.ticks[until][stage]
        return self.model.new_interval_var(self.start[Kind.F, stage, unit], length, end, "")

    def hint(self, schedule: Schedule) -> None:
        """Start the search from a schedule."""
        for key, value in _starts(self.problem, schedule).items():
            self.model.add_hint(self.start[key], self._ticks(value))
        self.model.add_hint(self.makespan, self._ticks(self.problem.makespan(schedule)))

    def solve(self, time_limit_s: float, num_workers: int) -> ExactResult:
        """Run the solver."""
        solver = self.cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = time_limit_s
        solver.parameters.num_workers = num_workers
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        found = status in {self.cp_model.OPTIMAL, self.cp_model.FEASIBLE}
        schedule = self._schedule(solver) if found else None
        resolution = 0.0 if self.whole else 0.5 * (len(self.start) + len(self.comm)) / self.scale
        return ExactResult(
            schedule=schedule,
            bound=max(self.problem.lower_bound(), solver.best_objective_bound / self.scale - resolution),
            proven=status == self.cp_model.OPTIMAL,
            resolution=resolution,
        )

    def _schedule(self, solver: Solver) -> Schedule:
        orders = []
        for mine in self.problem.stages_of_rank:
            keys = [(k, s, u) for k in KINDS for s in mine for u in range(self.units)]
            keys.sort(key=lambda key: (solver.value(self.start[key]), key[0] == Kind.W))
            orders.append(tuple(pack(*key) for key in keys))
        return Schedule(
            name="optimised",
            placement=self.problem.placement,
            num_microbatches=self.units,
            orders=tuple(orders),
        )


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


def _starts(problem: Problem, schedule: Schedule) -> dict[tuple[Kind, int, int], float]:
    """Return start times by kind, stage and micro-batch, sorted among micro-batches."""
    compiled = compile_schedule(split_backward(schedule))
    state, spent = compiled.run(compiled.durations(problem.times, problem.links))
    flat = compiled.program.flat
    cells = compiled.position[compiled.program.node_of_action]
    start = state[cells] - spent.reshape(-1)[cells]
    found = {}
    for kind in KINDS:
        for stage in range(problem.placement.num_stages):
            mine = np.sort(start[(flat.kind == kind) & (flat.stage == stage)])
            found.update({(kind, stage, unit): float(when) for unit, when in enumerate(mine)})
    return found

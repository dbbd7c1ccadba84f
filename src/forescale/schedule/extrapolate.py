"""Makespan for many micro-batches from a few, where the schedule has become periodic.

A max-plus recurrence whose whole window of recent ends has moved on by one constant per period goes on doing
so for ever. The window is checked before anything is extrapolated; if it does not hold, more micro-batches
are simulated, up to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forescale.numeric import Array
from forescale.schedule.actions import Kind
from forescale.schedule.compiled import CompiledSchedule, compile_schedule
from forescale.schedule.family import Family, Request
from forescale.schedule.times import FREE, LinkTimes, StageTimes

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolated:
    """A makespan, and how many micro-batches were simulated for it."""

    makespan: float
    simulated_microbatches: int
    """Equal to the micro-batches asked for where nothing was extrapolated."""


def makespan_of(family: Family, request: Request, times: StageTimes, links: LinkTimes = FREE) -> Extrapolated:
    """Return the makespan of a family's schedule, from fewer micro-batches where it is periodic."""
    asked, period = request.num_microbatches, _period(family, request)
    window = 2 * request.pp + 2 * period
    few = 4 * window
    few += (asked - few) % period
    while few + 2 * period < asked:
        ends = []
        for count in (few, few + period, few + 2 * period):
            compiled = compile_schedule(family.build(replace(request, num_microbatches=count)))
            ends.append(float(compiled.time(times, links).makespan))
        step = _steady_step(compiled, times, links, period, window)
        moves = np.diff(ends)
        if step is not None and np.allclose(moves, step, rtol=_TOLERANCE, atol=_TOLERANCE * ends[-1]):
            periods = (asked - few) // period
            return Extrapolated(makespan=ends[0] + periods * step, simulated_microbatches=few + 2 * period)
        few = 2 * few + (asked - 2 * few) % period
    compiled = compile_schedule(family.build(request))
    return Extrapolated(makespan=float(compiled.time(times, links).makespan), simulated_microbatches=asked)


def _period(family: Family, request: Request) -> int:
    """Return after how many micro-batches a family's order repeats."""
    if family.parameter_copies > 1:
        return request.pp
    return 1 if request.vpp == 1 or family.placement != "loop" else request.group_size or request.pp


def _steady_step(
    compiled: CompiledSchedule, times: StageTimes, links: LinkTimes, period: int, window: int
) -> float | None:
    """Return by how much every end in the middle window moves per period; None if it is not one constant."""
    flat, schedule = compiled.program.flat, compiled.schedule
    state, _ = compiled.run(compiled.durations(times, links))
    end = state[compiled.position[compiled.program.node_of_action]]
    moves: list[Array] = []
    per_replica = schedule.num_microbatches // schedule.placement.num_replicas
    for kinds in ((Kind.F,), (Kind.B, Kind.I)):
        at = np.nonzero(np.isin(flat.kind, kinds))[0]
        table = np.full((len(schedule.placement.rank_of_stage), schedule.num_units), np.nan)
        table[flat.stage[at], flat.unit[at]] = end[at]
        for replica in range(schedule.placement.num_replicas):
            rows = table[replica * schedule.num_stages : (replica + 1) * schedule.num_stages]
            middle = (2 * replica + 1) * per_replica // 2
            low, high = middle - window // 2, middle + window // 2
            shift = period // schedule.placement.num_replicas * schedule.num_splits
            moves.append((rows[:, low + shift : high + shift] - rows[:, low:high]).reshape(-1))
    moved = np.concatenate(moves)
    step = float(np.median(moved))
    scale = max(abs(step), float(end.max()))
    return step if np.all(np.abs(moved - step) <= _TOLERANCE * scale) else None

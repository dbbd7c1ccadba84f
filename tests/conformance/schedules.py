"""Conformance of pipeline schedules: what every schedule of the library, or of anyone else, must pass."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from forescale.numeric import Array
from forescale.schedule.actions import Action, Kind, Overlapped
from forescale.schedule.checker import SEMANTICS, check
from forescale.schedule.messages import lower
from forescale.schedule.model import Schedule, from_actions
from forescale.schedule.times import LinkTimes, StageTimes
from forescale.schedule.timing import compile_schedule

_Output: TypeAlias = tuple[bool, int, int]
"""(forward, stage, micro-batch)."""


def check_schedule(
    schedule: Schedule, *, seed: int = 0, memory_limit: float | None = None, num_candidates: int = 3
) -> None:
    """Fail with an AssertionError where a schedule breaks a rule.

    It must be complete and in order, free of deadlock under all three semantics of messages, within the
    memory limit (micro-batches of a device's full share) if one is given, equal to itself after being
    written and read, timed alike one at a time and in bulk and by a plain event loop, and never faster when
    a duration grows.
    """
    report = check(schedule, lowered=lower(schedule), memory_limit=memory_limit)
    assert report.valid, report.violations[0].message
    assert report.deadlock_free == SEMANTICS
    _written_and_read(schedule)
    random = np.random.default_rng(seed)
    stages = schedule.num_stages
    shape = (stages, num_candidates)
    passes = [random.uniform(0.5, 2.0, shape) for _ in range(3)]
    delay = random.uniform(0.0, 0.3, (max(0, stages - 1), num_candidates))
    compiled = compile_schedule(schedule)
    bulk = compiled.time(_times(passes, slice(None)), LinkTimes(latency=delay))
    for index in range(num_candidates):
        alone = compiled.time(_times(passes, index), LinkTimes(latency=delay[:, index]))
        assert alone.makespan == bulk.last_end[:, index].max(), "one at a time and in bulk must agree exactly"
        assert alone.longest_span == (bulk.last_end - bulk.first_start)[:, index].max()
    plain = reference_makespan(schedule, [pass_[:, 0] for pass_ in passes], delay[:, 0])
    assert np.isclose(plain, bulk.last_end[:, 0].max(), rtol=1e-12), "the event loop disagrees"
    for which in range(3):
        longer = [pass_.copy() for pass_ in passes]
        longer[which][random.integers(stages)] *= 1.5
        grown = compiled.time(_times(longer, slice(None)), LinkTimes(latency=delay))
        assert np.all(grown.last_end.max(axis=0) >= bulk.last_end.max(axis=0)), "a longer pass made it faster"


def _times(passes: list[Array], which: int | slice) -> StageTimes:
    forward, inputs, weights = (pass_[:, which] for pass_ in passes)
    return StageTimes(forward=forward, input_grad=inputs, weight_grad=weights)


def _written_and_read(schedule: Schedule) -> None:
    if schedule.num_splits > 1:
        return
    text = [[str(cell) for cell in rank] for rank in schedule.actions]
    again = from_actions(
        text,
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
        name=schedule.name,
    )
    assert again == schedule, "the schedule changes when it is written and read"


def reference_makespan(schedule: Schedule, passes: list[Array], delay: Array) -> float:
    """Return the makespan by a plain event loop over readable actions; slow, and independent of the compiler.

    `passes` are forward, input gradient and weight gradient by stage (num_stages,), `delay` is that of a
    message over each boundary (num_stages - 1,). Copies to the host take no time here.
    """
    done: dict[_Output, float] = {}
    clock = [0.0] * schedule.num_ranks
    waiting = [list(row) for row in schedule.actions]
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(waiting):
            while row:
                parts = (row[0].forward, row[0].backward) if isinstance(row[0], Overlapped) else (row[0],)
                arrivals = [_arrival(part, rank, schedule, done, delay) for part in parts]
                if None in arrivals:
                    break
                begin = max(clock[rank], *(arrival or 0.0 for arrival in arrivals))
                clock[rank] = begin + sum(_spent(part, passes, schedule) for part in parts)
                for part in parts:
                    if part.kind in (Kind.F, Kind.B, Kind.I):
                        done[part.kind is Kind.F, part.stage, part.microbatch] = clock[rank]
                row.pop(0)
                moved = True
    assert not any(waiting), "the event loop is stuck"
    return max(clock)


def _arrival(
    part: Action, rank: int, schedule: Schedule, done: dict[_Output, float], delay: Array
) -> float | None:
    """Return when an action's input is there; None while it is not."""
    logical = schedule.num_stages
    place = part.stage % logical
    late = 0.0
    if part.kind is Kind.F and place:
        before, late = (True, part.stage - 1, part.microbatch), float(delay[place - 1])
    elif part.kind in (Kind.B, Kind.I) and place < logical - 1:
        before, late = (False, part.stage + 1, part.microbatch), float(delay[place])
    elif part.kind in (Kind.B, Kind.I):
        before = (True, part.stage, part.microbatch)
    else:
        return 0.0
    if before not in done:
        return None
    crosses = schedule.placement.rank_of_stage[before[1]] != rank
    return done[before] + (late if crosses else 0.0)


def _spent(part: Action, passes: list[Array], schedule: Schedule) -> float:
    forward, inputs, weights = (float(pass_[part.stage % schedule.num_stages]) for pass_ in passes)
    whole = {Kind.F: forward, Kind.I: inputs, Kind.W: weights, Kind.B: inputs + weights}.get(part.kind, 0.0)
    return whole / schedule.num_splits

"""The best schedule of the library for a problem: where the optimiser starts, and what it must not lose to."""

from __future__ import annotations

from forescale.schedule.actions import JOINED
from forescale.schedule.errors import ScheduleError
from forescale.schedule.family import Request
from forescale.schedule.library import FAMILIES
from forescale.schedule.model import Schedule
from forescale.schedule.optimise.problem import Problem, split_backward


def candidates(problem: Problem) -> list[tuple[float, Schedule]]:
    """Return (makespan, schedule) of every library schedule that fits the problem, shortest first.

    Families build with the mean durations; backwards are split, which never makes a step longer.
    """
    per_rank = problem.placement.vpp
    request = Request(
        pp=problem.placement.num_ranks,
        num_microbatches=problem.num_microbatches,
        vpp=max(1, round(per_rank)),
        forward=float(problem.forward.mean() * per_rank),
        input_grad=float(problem.input_grad.mean() * per_rank),
        weight_grad=float(problem.weight_grad.mean() * per_rank),
        comm=float(problem.comm.mean()) if problem.comm.size else 0.0,
        memory_limit=problem.memory_limit,
        weight_part=problem.weight_part,
    )
    found = []
    for family in FAMILIES:
        try:
            schedule = family.build(request)
        except ScheduleError:
            continue
        blocks = any(code & JOINED for order in schedule.orders for code in order)
        if blocks or schedule.placement != problem.placement or schedule.num_splits > 1:
            continue
        split = split_backward(schedule)
        if problem.fits(split):
            found.append((problem.makespan(split), split))
    return sorted(found, key=lambda each: each[0])


def one_at_a_time(problem: Problem) -> Schedule:
    """Return the schedule that finishes each micro-batch before the next: it fits any limit that one fits."""
    from forescale.schedule.actions import Kind, pack

    orders = []
    for mine in problem.stages_of_rank:
        row = []
        for unit in range(problem.num_microbatches):
            row += [pack(Kind.F, stage, unit) for stage in mine]
            for stage in reversed(mine):
                row += [pack(Kind.I, stage, unit), pack(Kind.W, stage, unit)]
        orders.append(tuple(row))
    return Schedule(
        name="one-at-a-time",
        placement=problem.placement,
        num_microbatches=problem.num_microbatches,
        orders=tuple(orders),
    )

"""The optimiser: best of the library, then exact search for few passes, local search for many."""

from __future__ import annotations

from forescale.errors import ScheduleError
from forescale.schedule.actions import JOINED, Kind, pack
from forescale.schedule.family import Request
from forescale.schedule.library import families
from forescale.schedule.model import Schedule
from forescale.schedule.optimise import exact, local_search
from forescale.schedule.optimise.local_search import Problem, split_backward
from forescale.struct import Struct

MAX_EXACT_PASSES = 400
"""Passes (of all stages and micro-batches) up to which a proof is asked for, so that the solver must be there."""
MAX_DECISIONS = 150_000
"""Pairs of passes to order up to which the solver, where it is installed, improves on the local search."""
NONE_FITS = "none fits"
"""Stands for the library's best schedule where there is none."""
_TOLERANCE = 1e-9
_MOVES_TIMES_PASSES = 30_000_000


class Optimised(Struct, frozen=True, kw_only=True):
    """The best schedule found, and how good it is known to be."""

    schedule: Schedule
    makespan: float
    bound: float
    """No order of the passes has a shorter makespan."""
    proven: bool
    """The bound is met, or met within the solver's ticks (1e-7 of the longest pass): the schedule is optimal."""
    method: str
    """library, exact or local search: where the schedule comes from."""
    library: str
    """Best library schedule that fits the problem."""
    library_makespan: float


def optimise(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    num_workers: int = 2,
    num_moves: int | None = None,
    seed: int = 0,
    use_exact: bool = True,
) -> Optimised:
    """Return the best schedule found for a problem; never worse than the library's best within its memory.

    Parameters
    ----------
    problem
        Stages, durations, messages, micro-batches and memory limit.
    time_limit_s, num_workers
        Wall time and threads of the exact solver.
    num_moves, seed
        Moves tried by the local search; None is 20,000, fewer for very large pipelines.
    use_exact
        False never calls the solver, so OR-tools is not needed.

    Raises
    ------
    ScheduleError
        If exact search applies and OR-tools is not installed.
    """
    known = candidates(problem)
    if known:
        library_makespan, start = known[0]
        library = start.name
    else:
        start, library = one_at_a_time(problem), NONE_FITS
        library_makespan = problem.makespan(start)
    best, makespan, method = start, library_makespan, "library"
    bound, complete, resolution = problem.lower_bound(), False, 0.0
    passes = 3 * problem.placement.num_stages * problem.num_microbatches
    moves = min(20_000, _MOVES_TIMES_PASSES // passes) if num_moves is None else num_moves
    improve = local_search.improve(problem, best, num_moves=moves, seed=seed)
    if (shorter := problem.makespan(improve)) < makespan * (1.0 - _TOLERANCE):
        best, makespan, method = improve, shorter, "local search"
    few = exact.num_decisions(problem) <= MAX_DECISIONS
    solvable = passes <= MAX_EXACT_PASSES or (few and exact.available())
    if use_exact and solvable and makespan > bound * (1.0 + _TOLERANCE):
        result = exact.solve(problem, warm_start=best, time_limit_s=time_limit_s, num_workers=num_workers)
        bound, complete, resolution = max(bound, result.bound), result.proven, result.resolution
        if result.schedule is not None:
            shorter = problem.makespan(result.schedule)
            if shorter < makespan * (1.0 - _TOLERANCE) and problem.fits(result.schedule):
                best, makespan, method = result.schedule, shorter, "exact"
    return Optimised(
        schedule=best.renamed("optimised"),
        makespan=makespan,
        bound=min(bound, makespan),
        proven=makespan <= bound * (1.0 + _TOLERANCE) or (complete and makespan <= bound + 2.0 * resolution),
        method=method,
        library=library,
        library_makespan=library_makespan,
    )


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
    result = []
    for family in families():
        try:
            schedule = family.build(request)
        except ScheduleError:
            continue
        blocks = any(code & JOINED for order in schedule.orders for code in order)
        if blocks or schedule.placement != problem.placement or schedule.num_splits > 1:
            continue
        split = split_backward(schedule)
        if problem.fits(split):
            result.append((problem.makespan(split), split))
    return sorted(result, key=lambda item: item[0])


def one_at_a_time(problem: Problem) -> Schedule:
    """Return the schedule that finishes each micro-batch before the next: it fits any limit that one fits."""
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

"""The solver against every order there is, on pipelines small enough to try them all."""

from itertools import product

import numpy as np
import pytest

from forescale.schedule import Schedule, ScheduleError
from forescale.schedule.actions import Kind, pack
from forescale.schedule.model import loop, wave
from forescale.schedule.optimise import Problem
from forescale.schedule.optimise.exact import num_decisions, solve
from forescale.schedule.optimise.run import one_at_a_time

pytest.importorskip("ortools")


def problem(placement, m, *, limit, weight_part=1.0, seed=0, whole=True):
    random = np.random.default_rng(seed)
    stages = placement.num_stages
    f, b, w = (random.uniform(1.0, 9.0, stages) for _ in range(3))
    if whole:
        f, b, w = np.round(f), np.round(b), np.round(w)
    return Problem(
        placement=placement, num_microbatches=m, forward=f, input_grad=b, weight_grad=w,
        comm=np.full(stages - 1, 0.5), saved=np.full(stages, 1.0 / placement.vpp),
        memory_limit=limit, weight_part=weight_part,
    )  # fmt: skip


def orders_of_a_rank(mine, m):
    """Return every order of a rank's passes that keeps micro-batches in turn and the waits within the rank."""
    chains = [(kind, stage) for stage in mine for kind in (Kind.F, Kind.I, Kind.W)]

    def grow(done, order):
        if len(order) == m * len(chains):
            yield tuple(order)
        for kind, stage in chains:
            unit = done[kind, stage]
            waits = {
                Kind.F: [(Kind.F, stage - 1)],
                Kind.I: [(Kind.F, stage), (Kind.I, stage + 1)],
                Kind.W: [(Kind.I, stage)],
            }[kind]
            if unit == m or any(done.get(wait, m) <= unit for wait in waits):
                continue
            yield from grow({**done, (kind, stage): unit + 1}, [*order, pack(kind, stage, unit)])

    return list(grow(dict.fromkeys(chains, 0), []))


def shortest(question):
    """Return the least makespan over all orders that run and fit."""
    best = np.inf
    choices = [orders_of_a_rank(mine, question.num_microbatches) for mine in question.stages_of_rank]
    for orders in product(*choices):
        tried = Schedule(
            name="tried",
            placement=question.placement,
            num_microbatches=question.num_microbatches,
            orders=orders,
        )
        if not question.fits(tried):
            continue
        try:
            best = min(best, question.makespan(tried))
        except ScheduleError:  # a circle
            continue
    return best


@pytest.mark.parametrize(
    ("limit", "weight_part"), [(None, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (1.5, 0.25)]
)
@pytest.mark.parametrize("seed", [0])
def test_no_order_is_shorter(limit, weight_part, seed):
    question = problem(loop(2), 3, limit=limit, weight_part=weight_part, seed=seed)
    result = solve(question, warm_start=one_at_a_time(question), time_limit_s=60.0, num_workers=1)
    assert result.proven
    assert question.fits(result.schedule)
    assert question.makespan(result.schedule) == result.bound == pytest.approx(shortest(question))


@pytest.mark.parametrize(("limit", "weight_part"), [(None, 1.0), (1.0, 1.0), (1.0, 0.5), (1.5, 1.0)])
def test_no_order_of_two_stages_on_a_rank_is_shorter(limit, weight_part):
    question = problem(wave(1, 2), 2, limit=limit, weight_part=weight_part)
    result = solve(question, warm_start=one_at_a_time(question), time_limit_s=60.0, num_workers=1)
    assert result.proven
    assert question.makespan(result.schedule) == pytest.approx(shortest(question))


def test_rounded_durations_are_bounded_from_below():
    question = problem(loop(2), 3, limit=2.0, seed=4, whole=False)
    result = solve(question, warm_start=one_at_a_time(question), time_limit_s=60.0, num_workers=1)
    least = shortest(question)
    assert result.bound <= least <= question.makespan(result.schedule) <= least + 2 * result.resolution


@pytest.mark.parametrize("limit", [2.0, 3.0])
def test_v_placement_with_unequal_stages_is_proven(limit):
    question = problem(wave(3, 2), 5, limit=limit, seed=2)
    result = solve(question, warm_start=one_at_a_time(question), time_limit_s=60.0, num_workers=2)
    assert result.proven
    assert question.fits(result.schedule)
    assert question.makespan(result.schedule) == pytest.approx(result.bound)


def test_passes_without_duration_keep_their_order():
    question = Problem(
        placement=wave(2, 2), num_microbatches=2, forward=np.zeros(4), input_grad=np.array([0.0, 1.0, 0.0, 1.0]),
        weight_grad=np.zeros(4), comm=np.zeros(3), saved=np.full(4, 0.5), memory_limit=2.0,
    )  # fmt: skip
    result = solve(question, warm_start=one_at_a_time(question), time_limit_s=60.0, num_workers=1)
    assert result.proven
    assert question.makespan(result.schedule) == result.bound


def test_decisions_count_the_pairs_of_each_rank():
    assert num_decisions(problem(loop(2), 3, limit=None)) == 2 * 3 * 9
    assert num_decisions(problem(wave(2, 2), 3, limit=None)) == 2 * 15 * 9

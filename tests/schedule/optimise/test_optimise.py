"""The optimiser never loses to the library, keeps its limit, and proves small cases."""

import sys

import numpy as np
import pytest
from tests.errors import raises

from forescale.schedule import Request, ScheduleError, check, family, peak_activations
from forescale.schedule.model import bidirectional, loop, wave
from forescale.schedule.optimise import Problem, optimise
from forescale.schedule.optimise.local_search import split_backward
from forescale.schedule.optimise.run import candidates, one_at_a_time


def problem(pp=4, vpp=1, m=8, limit=None, seed=0, comm=5.0, weight_part=1.0):
    random = np.random.default_rng(seed)
    stages = pp * vpp
    return Problem(
        placement=wave(pp, vpp) if vpp == 2 else loop(pp, vpp),
        num_microbatches=m,
        forward=random.integers(50, 80, stages).astype(float),
        input_grad=random.integers(60, 100, stages).astype(float),
        weight_grad=random.integers(30, 60, stages).astype(float),
        comm=np.full(stages - 1, comm),
        saved=np.full(stages, 1.0 / vpp),
        memory_limit=limit,
        weight_part=weight_part,
    )


def is_sound(result, question):
    assert check(result.schedule, memory_limit=question.memory_limit).valid
    assert question.fits(result.schedule)
    assert result.makespan == pytest.approx(question.makespan(result.schedule))
    assert question.lower_bound() <= result.bound * (1 + 1e-9)
    assert result.bound <= result.makespan * (1 + 1e-9)
    assert result.makespan <= result.library_makespan


@pytest.mark.parametrize("limit", [4.0, 6.0, None])
@pytest.mark.parametrize("seed", [0, 1])
def test_small_unequal_pipelines_are_proven(limit, seed):
    pytest.importorskip("ortools")
    question = problem(limit=limit, seed=seed)
    result = optimise(question, time_limit_s=60.0, num_moves=2000)
    is_sound(result, question)
    assert result.proven
    for makespan, schedule in candidates(question):
        assert result.makespan <= makespan
        assert question.fits(schedule)


def test_solver_beats_the_fixed_tables():
    pytest.importorskip("ortools")
    question = problem(pp=2, vpp=2, m=4, limit=2.0, seed=5)
    result = optimise(question, time_limit_s=60.0, num_moves=0)
    is_sound(result, question)
    assert result.proven
    assert result.makespan < result.library_makespan


@pytest.mark.parametrize(("pp", "vpp", "m", "limit"), [(4, 2, 8, 2.0), (4, 2, 8, 3.0), (6, 1, 12, 6.0)])
def test_local_search_alone_needs_no_solver(pp, vpp, m, limit, monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    question = problem(pp, vpp, m, limit)
    result = optimise(question, num_moves=3000, use_exact=False)
    is_sound(result, question)
    again = optimise(question, num_moves=3000, use_exact=False)
    assert again.schedule == result.schedule


def test_local_search_improves_on_a_v_schedule():
    question = problem(4, 2, 8, 3.0)
    result = optimise(question, num_moves=4000, use_exact=False)
    assert result.method == "local search"
    assert result.makespan < 0.97 * result.library_makespan


def test_missing_solver_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with raises(ScheduleError, "extra_missing exact optimisation"):
        optimise(problem(limit=4.0), num_moves=0)


def test_any_limit_that_lets_one_microbatch_through_has_a_schedule():
    question = problem(pp=3, limit=1.0)
    result = optimise(question, num_moves=200, use_exact=False)
    is_sound(result, question)
    assert peak_activations(result.schedule).max() == 1.0
    assert check(one_at_a_time(question)).valid


def test_too_low_a_limit_is_refused():
    with raises(ScheduleError, "out_of_memory one micro-batch"):
        problem(limit=0.5)


def test_wrong_shapes_and_two_copies_are_refused():
    with raises(ScheduleError, "wrong_count comm"):
        Problem(
            placement=loop(4), num_microbatches=2, forward=np.ones(4), input_grad=np.ones(4),
            weight_grad=np.ones(4), comm=np.ones(4), saved=np.ones(4),
        )  # fmt: skip
    with raises(ScheduleError, "unsupported_by the optimiser"):
        Problem(
            placement=bidirectional(4), num_microbatches=2, forward=np.ones(4), input_grad=np.ones(4),
            weight_grad=np.ones(4), comm=np.ones(3), saved=np.ones(4),
        )  # fmt: skip


def test_memory_counts_what_the_input_gradient_frees():
    pytest.importorskip("ortools")
    all_kept = optimise(problem(limit=4.0), num_moves=2000)
    half_freed = optimise(problem(limit=4.0, weight_part=0.5), num_moves=2000)
    assert half_freed.makespan <= all_kept.makespan


def test_splitting_a_backward_never_makes_a_step_longer():
    question = problem()
    whole = family("1f1b").build(Request(pp=4, num_microbatches=8))
    assert question.makespan(split_backward(whole)) <= question.makespan(whole)
    assert check(split_backward(whole)).valid


def test_durations_that_are_no_whole_ticks_are_proven_too():
    pytest.importorskip("ortools")
    random = np.random.default_rng(5)
    f, b, w = (random.uniform(0.5, 2.0, 4) for _ in range(3))
    question = Problem(
        placement=loop(4), num_microbatches=8, forward=f, input_grad=b, weight_grad=w,
        comm=random.uniform(0.0, 0.1, 3), saved=np.ones(4), memory_limit=4.0,
    )  # fmt: skip
    result = optimise(question, time_limit_s=60.0, num_moves=2000)
    is_sound(result, question)
    assert result.proven
    assert result.bound == pytest.approx(result.makespan, rel=1e-4)


def small(*, placement, limit=None, comm=0.0):
    """One micro-batch whose passes take 1 each."""
    stages = placement.num_stages
    ones = np.ones(stages)
    return Problem(
        placement=placement,
        num_microbatches=1,
        forward=ones,
        input_grad=ones,
        weight_grad=ones,
        comm=np.full(stages - 1, comm),
        saved=ones / placement.vpp,
        memory_limit=limit,
    )


def test_no_order_beats_a_micro_batch_s_way_there_and_back():
    """Forwards and input gradients of two ranks, two messages of 2 and the first rank's weight gradient."""
    question = small(placement=loop(2, 1), comm=2.0)
    assert question.lower_bound() == 2 + 2 + 2 * 2 + 1 == question.makespan(one_at_a_time(question))


def test_a_limit_lets_all_chunks_of_a_micro_batch_through():
    assert small(placement=wave(2, 2), limit=1.0).memory_limit == 1.0
    with raises(ScheduleError, "out_of_memory one micro-batch"):
        small(placement=wave(2, 2), limit=0.75)

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, moe, workload

from forescale.errors import InfeasibleError, SpecError
from forescale.search import search, solve
from forescale.search.question import Question
from forescale.search.relax import memory_limits
from forescale.search.solve import Goal, Solver
from forescale.search.tree import enumerate_cells
from forescale.spec.space import Space
from forescale.units import format_bytes

WORK = workload(global_batch_size=16)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Settle little at a time, so that a search has many steps."""
    for name, value in (
        ("FIRST_NODES", 8),
        ("MOST_NODES", 64),
        ("REFINED_AT_ONCE", 50),
        ("FIRST_LAYOUTS", 20),
    ):
        monkeypatch.setattr(solve, name, value)
    monkeypatch.setattr(solve, "LAYOUTS_AT_ONCE", 400)


def stopping_after(steps):
    """Return what stops a search after some steps, and the list of what it was told."""
    told = []

    def watch(progress):
        told.append(progress)
        return len(told) <= steps

    return watch, told


def facts(result):
    body = result.to_json()
    del body["elapsed_s"]
    return body


def test_progress_settles_everything_and_the_gap_closes():
    watch, told = stopping_after(10**6)
    result = search(moe(4), cluster(8), WORK, watch=watch)
    settled = [each.num_evaluated + each.num_pruned for each in told]
    assert settled == sorted(settled)
    assert settled[-1] == result.num_legal == told[-1].num_legal
    assert [each.best for each in told] == sorted((each.best for each in told), reverse=True)
    assert (told[0].gap, told[-1].gap, result.gap) == (1.0, 0.0, 0.0)
    assert len(told) > 3


@pytest.mark.parametrize("objective", ["step_time", "peak_memory"])
def test_a_stopped_search_says_how_far_the_optimum_may_be(objective):
    def value(result):
        best = result.best[0]
        return best.step_time_s if objective == "step_time" else best.memory.peak_bytes

    optimum = value(search(dense(4), cluster(8), WORK, objective=objective))
    watch, _ = stopping_after(1)
    stopped = search(dense(4), cluster(8), WORK, objective=objective, watch=watch)
    assert stopped.num_evaluated + stopped.num_over_memory + stopped.num_beaten < stopped.num_legal
    assert 0.0 <= stopped.gap <= 1.0
    assert stopped.gap > 0.0 or objective == "peak_memory"  # its bounds may be the very peaks
    assert value(stopped) * (1.0 - stopped.gap) <= optimum <= value(stopped)


def test_no_time_at_all_finds_nothing_and_says_so():
    with pytest.raises(InfeasibleError, match="give it more time"):
        search(dense(4), cluster(8), WORK, time_limit=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_resumed_search_repeats_nothing_and_ends_the_same(tmp_path, steps):
    whole_watch, whole_told = stopping_after(10**6)
    whole = search(moe(4), cluster(8), WORK, watch=whole_watch)
    file = tmp_path / "search.npz"
    first, _ = stopping_after(steps)
    search(moe(4), cluster(8), WORK, watch=first, checkpoint=file)
    second, told = stopping_after(10**6)
    resumed = search(moe(4), cluster(8), WORK, watch=second, checkpoint=file)
    assert facts(resumed) == facts(whole)
    assert told[0].num_evaluated == whole_told[steps].num_evaluated
    assert len(told) == len(whole_told) - steps
    again, told = stopping_after(10**6)
    assert facts(search(moe(4), cluster(8), WORK, watch=again, checkpoint=file)) == facts(whole)
    assert len(told) == 1


def test_a_checkpoint_of_another_question_is_refused(tmp_path):
    file = tmp_path / "search.npz"
    search(dense(4), cluster(8), WORK, checkpoint=file)
    with pytest.raises(SpecError, match="another question"):
        search(dense(4), cluster(8), WORK, top=3, checkpoint=file)
    file.write_bytes(b"something else")
    with pytest.raises(SpecError, match="no whole checkpoint"):
        search(dense(4), cluster(8), WORK, checkpoint=file)


SMALL = Space(tp=(1, 2, 4), cp=(1,), vpp=(1,), micro_batch_size=(1, 2))


def test_where_nothing_fits_the_smallest_is_named_and_little_is_evaluated():
    devices = cluster(8, hbm_gb=1.0)
    roomy = cluster(8, hbm_gb=1000.0)
    (best,) = search(dense(4), roomy, WORK, space=SMALL, objective="peak_memory", top=1).best
    with pytest.raises(InfeasibleError) as error:
        search(dense(4), devices, WORK, space=SMALL)
    assert f"needs {format_bytes(best.memory.peak_bytes)}" in str(error.value)
    cells = enumerate_cells(dense(4), devices, WORK, SMALL)
    question = Question(model=dense(4), cluster=devices, workload=WORK)
    limits = memory_limits(devices.device.hbm_bytes)
    run = Solver(question, cells, Goal(objective="step_time", top=1, memory_limit=limits[0], relaxed=limits))
    run.run()
    assert run.infeasible
    assert not run.done


@pytest.mark.parametrize("objective", ["step_time", "peak_memory"])
def test_scenarios_in_which_nothing_fits_still_say_what_more_memory_buys(objective, monkeypatch):
    space = replace(SMALL, optimizer_offload=(None, 1.0))
    every = search(dense(4), cluster(8), WORK, space=SMALL, objective="peak_memory", top=1).best[0]
    devices = cluster(8, hbm_gb=0.95 * every.memory.peak_bytes / 1e9)
    answered = []
    go_on = Solver.go_on
    monkeypatch.setattr(Solver, "go_on", lambda run, known: (answered.append(run), go_on(run, known)))
    quick = search(dense(4), devices, WORK, space=space, objective=objective)
    monkeypatch.setattr(Solver, "_finds_nothing", False)
    plain = search(dense(4), devices, WORK, space=space, objective=objective)
    assert answered
    assert quick.best == plain.best
    assert quick.relaxations == plain.relaxations
    assert quick.relaxations
    assert quick.num_evaluated + quick.num_over_memory + quick.num_beaten == quick.num_legal

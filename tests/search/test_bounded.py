from __future__ import annotations

import pytest
from tests.small import cluster, dense, moe, workload

from forescale.errors import InfeasibleError, SpecError
from forescale.search import bounded, search

WORK = workload(global_batch_size=16)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Settle little at a time, so that a search has many steps."""
    for name, value in (
        ("FIRST_CELLS", 8),
        ("MOST_CELLS", 64),
        ("REFINED_AT_ONCE", 50),
        ("FIRST_LAYOUTS", 20),
    ):
        monkeypatch.setattr(bounded, name, value)
    monkeypatch.setattr(bounded, "LAYOUTS_AT_ONCE", 400)


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
    settled = [each.num_evaluated + each.num_irrelevant for each in told]
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
    assert 0.0 < stopped.gap <= 1.0
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
    with pytest.raises(SpecError, match="no checkpoint"):
        search(dense(4), cluster(8), WORK, checkpoint=file)

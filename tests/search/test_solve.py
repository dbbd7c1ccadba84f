from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe, workload

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.cost.select import Costs
from forescale.errors import InfeasibleError, SpecError
from forescale.question import Question
from forescale.search import bounds, node_queue, ranks, scope, search, solve, tree
from forescale.search.evaluate import score
from forescale.search.incumbent import Goal, Incumbent
from forescale.search.layouts import in_parts
from forescale.search.node_queue import NodeQueue
from forescale.search.open_nodes import OpenNodes
from forescale.search.relax import memory_limits
from forescale.search.solve import Progress, Solver
from forescale.search.tree import enumerate_cells, enumerate_layouts
from forescale.spec import Recompute
from forescale.spec.space import Space
from forescale.units import format_bytes
from forescale.workers import Workers

WORK = workload(global_batch_size=16)


SMALL_STEPS = {
    "FIRST_NODES": 8,
    "MOST_NODES": 64,
    "REFINED_AT_ONCE": 50,
    "FIRST_LAYOUTS": 20,
    "LAYOUTS_AT_ONCE": 400,
    "DIVE_NODES": 8,
    "DIVE_LAYOUTS": 20,
    "MANY_OPENED": 4,
    "MANY_PLACED": 4,
}
"""Settle little at a time, so that a search has many steps."""
STEPPED = Question(model=moe(4), cluster=cluster(8), workload=WORK, space=Space(cp=(1,)))
"""Is searched in some eight of them."""


def settle(patch, **many):
    """Let a search settle so much at a time."""
    for name, value in many.items():
        for module in (solve, node_queue):
            if hasattr(module, name):
                patch.setattr(module, name, value)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    settle(monkeypatch, **SMALL_STEPS)


@pytest.fixture(scope="module")
def whole():
    """A search in many steps, and what was told of each."""
    watch, explicit = stopping_after(10**6)
    with pytest.MonkeyPatch.context() as patch:
        settle(patch, **SMALL_STEPS)
        return search(STEPPED, watch=watch), explicit


def stopping_after(steps):
    """Return what stops a search after some steps, and the list of what it was told."""
    explicit = []

    def watch(progress):
        explicit.append(progress)
        return len(explicit) <= steps

    return watch, explicit


def facts(result):
    body = result.to_json()
    del body["elapsed_s"]
    return body


def test_progress_settles_everything_and_the_gap_closes(whole):
    result, explicit = whole
    settled = [item.num_evaluated + item.num_pruned for item in explicit]
    assert settled == sorted(settled)
    assert settled[-1] == result.num_legal == explicit[-1].num_legal
    assert [item.best for item in explicit] == sorted((item.best for item in explicit), reverse=True)
    assert (explicit[0].gap, explicit[-1].gap, result.gap) == (1.0, 0.0, 0.0)
    assert len(explicit) > 3


@pytest.mark.parametrize("objective", ["step_time", "peak_memory"])
def test_a_stopped_search_says_how_far_the_optimum_may_be(monkeypatch, objective):
    monkeypatch.setattr(solve, "FIRST_SMALLEST", 4)  # else the first settle all

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
def test_a_resumed_search_repeats_nothing_and_ends_the_same(tmp_path, whole, steps):
    result, whole_told = whole
    file = tmp_path / "search.npz"
    first, _ = stopping_after(steps)
    search(STEPPED, watch=first, checkpoint=file)
    second, explicit = stopping_after(10**6)
    resumed = search(STEPPED, watch=second, checkpoint=file)
    assert facts(resumed) == facts(result)
    assert steps + 1 < len(whole_told)  # it was stopped before its end
    assert explicit[0].num_evaluated == whole_told[steps].num_evaluated
    assert len(explicit) == len(whole_told) - steps
    again, explicit = stopping_after(10**6)
    assert facts(search(STEPPED, watch=again, checkpoint=file)) == facts(result)
    assert len(explicit) == 1


def test_results_and_counts_are_the_same_for_any_number_of_processes(monkeypatch):
    """Everything that can be shared is, however small."""
    for module, name, value in (
        (scope, "SAMPLED_FROM", 0),
        (scope, "SHARED_FROM", 0),
        (tree, "GROUPS_AT_ONCE", 3),
        (tree, "SHARED_FROM", 0),
        (solve, "PREPARED_FROM", 0),
        (ranks, "SHARED_FROM", 0),
        (bounds, "SHARED_FROM", 0),
        (solve, "SHARED_FROM", 0),
    ):
        monkeypatch.setattr(module, name, value)
    started = []
    start = Workers._start
    monkeypatch.setattr(Workers, "_start", lambda self: started.append(self.jobs) or start(self))
    question = replace(STEPPED, space=Space(vpp=(1,), micro_batch_size=(1, 2)))
    alone = search(question, top=3)
    assert started == []
    for jobs in (2, 4):
        result = search(question, top=3, jobs=jobs)
        assert facts(result) == facts(alone)
        assert result.held_fixed == alone.held_fixed
    assert started == [2, 4]  # once each
    assert alone.num_evaluated + alone.num_over_memory + alone.num_beaten == alone.num_legal


def test_a_small_search_starts_no_process(monkeypatch):
    monkeypatch.setattr(Workers, "_start", None)
    assert facts(search(STEPPED, jobs=4)) == facts(search(STEPPED))


def test_several_processes_stop_and_go_on_as_one_does(monkeypatch, tmp_path):
    for module in (scope, tree, ranks, bounds, solve):
        monkeypatch.setattr(module, "SHARED_FROM", 0)
    file = tmp_path / "search.npz"
    stop, _ = stopping_after(2)
    stopped = search(STEPPED, watch=stop, checkpoint=file, jobs=2)
    assert stopped.gap > 0.0
    watch, told = stopping_after(10**6)
    assert facts(search(STEPPED, watch=watch, checkpoint=file, jobs=2)) == facts(search(STEPPED))
    assert told[0].num_evaluated > 0


DEGREES = {"tp": (1, 2, 2, 4, 1, 2), "cp": (1, 1, 1, 1, 1, 2), "micro_batch_size": (1, 1, 2, 2, 1, 2)}


def test_the_parts_of_a_step_share_no_blocks():
    columns = {name: np.array(values) for name, values in DEGREES.items()}
    parts = in_parts(columns, np.arange(6), 2)
    assert sorted(np.concatenate(parts).tolist()) == [0, 1, 2, 3, 4, 5]
    assert [part.tolist() for part in parts] == [[1, 3, 5], [0, 2, 4]]
    assert [part.tolist() for part in in_parts(columns, np.array([2, 4]), 2)] == [[0, 1]]
    assert [part.tolist() for part in in_parts(columns, np.arange(6), 1)] == [[0, 1, 2, 3, 4, 5]]


def test_lists_that_are_settled_side_by_side_are_those_of_the_most_promising_nodes():
    nodes, bounds = np.arange(6), np.array([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])
    queue = NodeQueue(nodes, bounds, bounds.__getitem__, alike=lambda selected: selected % 3)
    lists, *_ = queue.pop(10.0, 2)
    assert [some.tolist() for some in lists] == [[1, 4], [2, 5]]
    lists, dropped, _ = queue.pop(5.0, 2)
    assert [some.tolist() for some in lists] == [[0]]
    assert dropped.tolist() == [3]


def test_a_checkpoint_of_another_question_is_refused(tmp_path):
    file = tmp_path / "search.npz"
    search(dense(4), cluster(8), WORK, checkpoint=file)
    with raises(SpecError, "file_exists"):
        search(dense(4), cluster(8), WORK, top=3, checkpoint=file)
    file.write_bytes(b"something else")
    with pytest.raises(SpecError, match="no whole checkpoint"):
        search(dense(4), cluster(8), WORK, checkpoint=file)


FULL = Recompute(granularity="full")
SMALL = Space(tp=(1, 2, 4), cp=(1,), vpp=(1,), micro_batch_size=(1, 2), recompute=(Recompute(), FULL))


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


def progress(best, bound):
    return Progress(num_legal=9, num_evaluated=4, num_pruned=2, best=best, bound=bound, elapsed_s=0.0)


def test_the_gap_is_what_the_best_may_still_lose():
    assert progress(100.0, 75.0).gap == 0.25
    assert progress(100.0, 100.0).gap == progress(100.0, 130.0).gap == 0.0
    assert progress(np.inf, 75.0).gap == 1.0
    assert progress(0.0, 0.0).gap == 0.0


TIME, MEMORY = (Goal(objective=name, top=1, memory_limit=50.0) for name in ("step_time", "peak_memory"))


def test_what_waits_is_bounded_by_its_least():
    """Seconds and bytes of cells 0 to 3."""
    step, peak = np.array([5.0, 3.0, 4.0, 6.0]), np.array([30.0, 60.0, 20.0, 10.0])
    waiting = OpenNodes(variant=np.zeros(4, dtype=int), cell=np.arange(4), step_time=step, peak=peak)
    assert (waiting.least(TIME), waiting.least(MEMORY)) == (3.0, 10.0)
    assert (OpenNodes().least(TIME), len(OpenNodes()), len(waiting)) == (np.inf, 0, 4)
    assert waiting.joined(waiting.some(np.array([2]))).cell.tolist() == [0, 1, 2, 3, 2]
    sizes = np.array([2, 2, 2, 2])
    # The most promising up to so many layouts, one at least; what fits goes first where it is asked.
    for most, fitting, cells in ((4, False, [1, 2]), (4, True, [2, 0]), (5, False, [1, 2]), (1, False, [1])):
        taken, left = waiting.split(TIME, sizes, most, fitting=fitting)
        assert taken.cell.tolist() == cells
        assert sorted([*taken.cell.tolist(), *left.cell.tolist()]) == [0, 1, 2, 3]
    assert waiting.split(MEMORY, sizes, 4, fitting=False)[0].cell.tolist() == [3, 2]


def found(goal, cutoff, fastest=()):
    made = Incumbent(goal=goal, variants=())
    made.cutoff, made.fastest = cutoff, np.array(fastest)
    return made


BOUNDS = np.array([2.0, 4.0, 6.0, 4.0]), np.array([50.0, 51.0, 10.0, 10.0])


def test_what_may_still_be_among_the_best():
    """Seconds up to the cutoff within the limit of memory; ties still matter."""
    assert found(TIME, 4.0).keeps(*BOUNDS).tolist() == [True, False, False, True]
    assert found(MEMORY, 10.0).keeps(*BOUNDS).tolist() == [False, False, True, True]
    assert found(MEMORY, 99.0).keeps(*BOUNDS).tolist() == [True, False, True, True]


def test_what_may_be_the_fastest_within_a_relaxed_limit():
    """Under 60 bytes 5 s were reached: 4 s at 51 bytes would be less. Ties are none."""
    relaxed = replace(TIME, relaxed=(60.0, 70.0))
    assert found(relaxed, 1.0, (5.0, 4.0)).keeps(*BOUNDS).tolist() == [True, True, False, True]
    even = found(replace(TIME, relaxed=(60.0,)), 1.0, (4.0,))
    assert even.keeps(*BOUNDS).tolist() == [True, False, False, False]


def test_what_fits_some_limit():
    tight = replace(TIME, memory_limit=10.0)
    assert tight.may_fit(BOUNDS[1]).tolist() == [False, False, True, True]
    assert replace(tight, relaxed=(20.0, 50.0)).may_fit(BOUNDS[1]).tolist() == [True, False, True, True]


def test_beyond_the_widest_cutoff_nothing_matters():
    assert found(TIME, 4.0).widest_cutoff == 4.0
    assert found(replace(TIME, relaxed=(60.0, 70.0)), 4.0, (5.0, 3.0)).widest_cutoff == 5.0
    assert (found(MEMORY, 40.0).widest_cutoff, found(MEMORY, 60.0).widest_cutoff) == (40.0, 50.0)


@pytest.mark.parametrize("cutoff", [np.inf, 40.0, 12.0])
@pytest.mark.parametrize("refined_at_once", [3, 50])
def test_a_queue_hands_out_every_node_once_in_the_order_of_closer_bounds(
    cutoff, refined_at_once, monkeypatch
):
    """Closer bounds are above the first ones; what is beyond the cutoff by either comes out as beaten."""
    settle(monkeypatch, FIRST_NODES=2, REFINED_AT_ONCE=refined_at_once)
    random = np.random.default_rng(3)
    nodes, bounds = np.arange(40), random.uniform(0.0, 50.0, 40)
    closer = bounds + random.uniform(0.0, 5.0, 40)
    queue = NodeQueue(nodes, bounds, lambda selected: closer[selected])
    assert (len(queue), queue.least) == (40, bounds.min())
    taken, beaten = [], []
    while len(queue):
        least = queue.least
        lists, dropped, of = queue.pop(cutoff)
        selected = np.concatenate([nodes[:0], *lists])
        assert (closer[selected] >= least).all()
        assert (closer[selected] <= cutoff).all()
        assert (of > cutoff).all()
        assert (np.isin(of, bounds) | np.isin(of, closer)).all()
        taken.append(selected)
        beaten.append(dropped)
        assert least <= queue.least
    everything = np.concatenate([*taken, *beaten])
    assert sorted(everything.tolist()) == nodes.tolist()
    assert sorted(np.concatenate(taken).tolist()) == np.flatnonzero(closer <= cutoff).tolist()
    assert queue.least == np.inf


@pytest.mark.parametrize("objective", ["step_time", "peak_memory"])
def test_every_layout_is_evaluated_or_counted_for_its_reason(objective):
    """Too large for every limit, or no better than the best; the best is what evaluating all finds."""
    devices = cluster(8, hbm_gb=3.0)
    cells = enumerate_cells(dense(4), devices, WORK, SMALL)
    question = Question(model=dense(4), cluster=devices, workload=WORK)
    limit = devices.device.hbm_bytes
    run = Solver(question, cells, Goal(objective=objective, top=1, memory_limit=limit))
    last = run.run()
    scores = score(question, enumerate_layouts(dense(4), devices, WORK, SMALL))
    legal, fits = np.isfinite(scores.peak), scores.peak <= limit
    assert run.done
    assert run.counts.evaluated + run.counts.pruned == last.num_legal == np.count_nonzero(legal)
    assert (last.num_evaluated, last.num_pruned) == (run.counts.evaluated, run.counts.pruned)
    assert run.counts.over_memory <= np.count_nonzero(legal & ~fits)
    assert run.counts.evaluated + run.counts.beaten >= np.count_nonzero(fits)
    best = (scores.step_time if objective == "step_time" else scores.peak)[fits].min()
    assert last.best == last.bound == best


@pytest.mark.parametrize("safe", [False, True])
def test_a_search_that_starts_with_a_sample_finds_the_same(monkeypatch, safe):
    few = {"recompute": (Recompute(), Recompute(granularity="full")), "zero": (1,), "cp": (1,), "vpp": (1,)}
    space = Space(schedule=(None, "zb-h1"), tp=(1, 2), **few)
    question = Question(model=moe(4), cluster=cluster(8), workload=WORK, safe=safe, space=space)
    monkeypatch.undo()  # in steps as large as they are
    plain = search(question).to_json()
    monkeypatch.setattr(scope, "SAMPLED_FROM", 0)
    sampled = search(question).to_json()
    assert sampled["best"] == plain["best"]
    assert sampled["surest"] == plain["surest"]
    assert sampled["num_evaluated"] <= plain["num_evaluated"]


def test_without_a_cutoff_each_shape_comes_with_its_best_first():
    goal = Goal(objective="step_time", top=2, memory_limit=10.0, folds=True)
    value, shapes = np.array([1.0, 2.0, 3.0, 4.0, 0.5, 5.0]), np.array([0, 0, 0, 1, 2, 1])
    peak = np.array([9.0, 9.0, 9.0, 9.0, 11.0, 9.0])
    nodes = OpenNodes(variant=shapes, cell=np.arange(6), step_time=value, peak=peak)
    sizes = np.ones(6, dtype=np.int64)
    taken, left = nodes.split(goal, sizes, 3, fitting=True, shapes=shapes)
    assert taken.cell.tolist() == [0, 3, 1]  # of 2 nothing fits
    assert left.cell.tolist() == [2, 4, 5]
    taken, _ = nodes.split(goal, sizes, 3, fitting=True)
    assert taken.cell.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("model", "devices", "seq_len", "batch"),
    [("llama-3.1-70b", 256, 8192, 1024), ("mixtral-8x22b-v0.1", 64, 4096, 256)],
)
def test_a_search_evaluates_few_layouts_under_every_cost_model(monkeypatch, model, devices, seq_len, batch):
    """A few thousand of millions: the first shapes give a cutoff that leaves little more than the best."""
    monkeypatch.undo()
    work = workload(seq_len=seq_len, global_batch_size=batch)
    question = Question(model=load_model(model), cluster=load_cluster("h100-sxm", devices), workload=work)
    for compute in ("auto", "roofline", "tile"):
        result = search(replace(question, costs=Costs(compute=compute)))
        assert result.num_legal > 8e6
        assert result.num_evaluated < 10_000


def test_a_search_begun_again_settles_the_same_layouts_for_another_question():
    question = Question(model=dense(4), cluster=cluster(8), workload=WORK)
    cells = enumerate_cells(question.model, question.cluster, WORK, Space())
    goal = Goal(objective="step_time", top=3, memory_limit=question.memory_limit)
    first = Solver(question, cells, goal)
    first.run()
    safe = replace(question, safe=True)
    again, new = first.again(safe, goal), Solver(safe, cells, goal)
    again.run()
    new.run()
    assert again.done
    assert np.array_equal(again.incumbent.value, new.incumbent.value)
    assert again.counts == new.counts

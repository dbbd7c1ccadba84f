"""Bounds of named schedules against the schedules themselves."""

from __future__ import annotations

import numpy as np
import pytest
from tests.small import cluster, dense, workload

from forescale.question import Question
from forescale.schedule import Request, build_schedule, compile_schedule, families, peak_activations
from forescale.schedule.family import RankShape
from forescale.schedule.times import StageTimes
from forescale.search.evaluate import score
from forescale.search.tree import enumerate_layouts
from forescale.spec import Recompute
from forescale.spec.space import Space
from forescale.time.pipeline import floor_of, least_makespan

SHAPES = [(2, 1), (2, 3), (3, 7), (4, 3), (4, 13), (6, 12)]


def built(family):
    """All schedules of a family in a few shapes."""
    for pp, count in SHAPES:
        for vpp in (1, 2, 3):
            request = Request(pp=pp, vpp=vpp, num_microbatches=count)
            if not family.violation(request):
                yield request, build_schedule(family.name, request, vpp=vpp)


@pytest.mark.parametrize("family", families(), ids=lambda item: item.name)
def test_no_schedule_holds_less_than_its_family_says(family):
    result = 0
    for request, schedule in built(family):
        ranks = np.arange(request.pp, dtype=float)
        least = family.held(RankShape(rank=ranks, pp=request.pp, num_microbatches=request.num_microbatches))
        assert (least <= peak_activations(schedule, weight_part=0.0)).all(), request
        result += 1
    assert result


@pytest.mark.parametrize("family", families(), ids=lambda item: item.name)
def test_stages_lie_where_the_floor_puts_them(family):
    for request, schedule in built(family):
        assert schedule.placement == family.place(request.pp, request.vpp)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "looped-bfs"])
def test_the_floor_of_equal_stages_is_the_makespan(name):
    schedule = build_schedule(name, Request(pp=4, num_microbatches=9), vpp=1)
    makespan = (
        compile_schedule(schedule).time(StageTimes(forward=1.0, input_grad=1.5, weight_grad=0.5)).makespan
    )
    before = np.arange(4.0)
    least = least_makespan(
        fill=before[:, None],
        drain=2.0 * before[:, None],
        work=np.full((4, 1), 27.0),
        urgent=np.full((4, 1), 27.0),
    )
    assert least == [makespan] == [36.0]


def test_a_split_backward_drains_without_its_weight_gradients():
    ranks = np.arange(4.0)[:, None]
    least = least_makespan(
        fill=ranks,
        drain=2.0 * ranks,
        work=np.full((4, 1), 30.0),
        urgent=np.full((4, 1), 26.0),
    )
    assert least == [3.0 + 30.0 - 4.0 + 6.0]


def test_few_shapes_are_simulated_for_the_best():
    """The bound alone discards what a search need not build: most of the shapes of a pipeline."""
    from forescale.search import search
    from forescale.time.pipeline import pipeline_of

    schedules = (None, "gpipe", "looped-bfs", "zb-h1", "interleaved-zb", "zbv")
    space = Space(
        schedule=schedules, tp=(1, 2), cp=(1,), zero=(1,), micro_batch_size=(1, 2), recompute=(Recompute(),)
    )
    model, devices, work = dense(12), cluster(16), workload(global_batch_size=48)
    pipeline_of.cache_clear()
    result = search(model, devices, work, space=space, top=1)
    simulated = pipeline_of.cache_info().misses
    candidates = enumerate_layouts(model, devices, work, space)
    pipeline_of.cache_clear()
    scores = score(Question(model=model, cluster=devices, workload=work), candidates)
    assert result.best[0].step_time_s == scores.step_time[scores.peak <= devices.device.hbm_bytes].min()
    assert simulated < 0.5 * pipeline_of.cache_info().misses


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "layers", "pieces", "apart"),
    [
        ("1f1b", 4, 1, [0, 4, 6], 1, True),  # of the two ranks between the ends the later one starts last
        ("zbv", 2, 2, [0, 2], 1, False),  # down a V and up again to the rank that began
        ("seq1f1b", 4, 1, [0, 0, 0], 3, True),  # a piece of a sequence goes ahead
        ("dualpipe", 2, 1, [0], 1, False),  # micro-batches start at both ends
    ],
)
def test_what_lies_before_ranks(name, pp, vpp, layers, pieces, apart):
    """Of 8 layers; of two shapes with the same stages the second has the same plan."""
    shapes = [(pp, vpp, 8), (pp, vpp, 16)]
    floor, ranks, which = floor_of(dense(8), name, shapes, recompute=[Recompute()] * 2, num_splits=3)
    (before,) = floor.before.counts
    assert before.tolist() == [[layer] for layer in layers]
    assert floor.before.first.tolist() == [[float(layer > 0)] for layer in layers]
    assert not floor.before.last.any()
    assert (floor.in_flight.num_splits, floor.ends_apart) == (pieces, apart)
    assert (which.tolist(), ranks.first.shape[1]) == ([0, 0], 1)
    several = [] if name.endswith("1f1b") else [[8 / pp * (1 + (name == "dualpipe"))]] * len(layers)
    assert [moment.counts[0].tolist() for moment in ranks.memory_events] == (
        [several, several] if several else []
    )

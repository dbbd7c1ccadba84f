from __future__ import annotations

import numpy as np
import pytest
from tests.errors import raises
from tests.small import cluster, dense, moe, workload

from forescale.cost.select import Costs
from forescale.errors import InfeasibleError, SpecError
from forescale.project import project
from forescale.search import pareto_search, search
from forescale.search.rank import score_all, slowest_of
from forescale.search.scenarios import scenarios
from forescale.search.tree import enumerate_layouts
from forescale.spec.space import Space, default_recompute

SMALL = Space(zero=(1, 3), micro_batch_size=(1, 4), cp=(1,))


def dominated(rows, index):
    """By the definition, one pair at a time: another row is nowhere above and somewhere below, or equal and earlier."""
    return any(
        all(a <= b for a, b in zip(other, rows[index], strict=True))
        and (other != rows[index] or place < index)
        for place, other in enumerate(rows)
        if place != index
    )


def by_hand(model, sizes, work, space):
    """Every layout that fits as (step time, peak, devices), projected alone."""
    result = []
    for size in sizes:
        candidates = enumerate_layouts(model, cluster(size), work, space)
        for index, row in zip(*np.nonzero(candidates.legal), strict=True):
            one = project(model, cluster(size), candidates.strategy(index, int(row)), work)
            if one.memory.peak_bytes <= cluster(size).device.hbm_bytes:
                result.append((one.step_time_s, one.memory.peak_bytes, size))
    return result


@pytest.mark.parametrize("model", [dense(), moe()], ids=lambda m: m.name)
def test_the_front_of_a_search_is_that_of_projecting_everything(model):
    space = Space(zero=(1, 3), micro_batch_size=(1, 4), cp=(1,), recompute=default_recompute(model)[:2])
    work = workload(global_batch_size=16)
    rows = [row[:2] for row in by_hand(model, [4], work, space)]
    expected = {row for index, row in enumerate(rows) if not dominated(rows, index)}
    result = search(model, cluster(4), work, space=space, top=3)
    front = result.pareto()
    got = [(one.step_time_s, one.memory.peak_bytes) for one in front.front]
    assert set(got) == expected
    assert got == sorted(got)
    assert front.front[0].strategy == result.best[0].strategy
    assert front.num_legal == result.num_legal
    assert front.num_feasible >= result.num_feasible > 0


def test_devices_are_a_third_objective():
    space = Space(zero=(1,), micro_batch_size=(1,), cp=(1,), axis_order=Space().axis_order[:1])
    work = workload(global_batch_size=16)
    rows = by_hand(dense(), [2, 4, 8], work, space)
    expected = {row for index, row in enumerate(rows) if not dominated(rows, index)}
    front = pareto_search(dense(), cluster(16), work, space=space, device_counts=[8, 4, 2, 4])
    assert {
        (one.step_time_s, one.memory.peak_bytes, one.cluster.num_devices) for one in front.front
    } == expected
    assert front.objectives == ("step_time", "peak_memory", "devices")
    assert {one.strategy.num_devices for one in front.front} == {2, 4, 8}


def test_memory_limit_and_fixed_dimensions_hold():
    whole = pareto_search(dense(), cluster(8), workload(), space=SMALL)
    limit = whole.front[0].memory.peak_bytes * 0.9
    front = pareto_search(dense(), cluster(8), workload(), space=SMALL.fixed({"tp": 2}), max_memory=limit)
    assert all(one.memory.peak_bytes <= limit and one.strategy.tp == 2 for one in front.front)


def test_sizes_where_nothing_fits_are_left_out():
    tight = cluster(8, hbm_gb=3.0)
    front = pareto_search(dense(), tight, workload(), space=SMALL, device_counts=[1, 8])
    assert {one.cluster.num_devices for one in front.front} == {8}
    with pytest.raises(InfeasibleError, match="none of the"):
        pareto_search(dense(), tight, workload(), space=SMALL, device_counts=[1])
    with pytest.raises(InfeasibleError, match="on 1, 2 devices"):
        pareto_search(dense(), cluster(8, hbm_gb=2.0), workload(), space=SMALL, device_counts=[1, 2])


def test_a_count_of_no_devices_is_refused():
    with raises(SpecError, "out_of_range numbers of devices"):
        pareto_search(dense(), cluster(8), workload(), space=SMALL, device_counts=[0, 8])


SPACE = Space(tp=(1, 2), cp=(1,), vpp=(1,), zero=(1,), micro_batch_size=(1,))


def test_they_are_projected_as_they_were_scored():
    slow, long = (
        Costs(clock_hz=0.9e9),
        workload(seq_len=8192),
    )  # short ones wait for the host, whatever the clock
    result = search(dense(4), cluster(8), long, space=SPACE, costs=slow)
    scored = score_all(result.question)
    slowest = slowest_of(result.question, 2)
    assert slowest[0].step_time_s == scored.scores.step_time[scored.fits].max()
    assert {item.costs.device_clock_hz for item in slowest} == {0.9e9}
    assert (
        slowest[0].step_time_s
        > slowest_of(search(dense(4), cluster(8), long, space=SPACE).question, 1)[0].step_time_s
    )


def test_they_are_those_of_all_scenarios():
    space = Space(
        tp=(1, 2),
        cp=(1,),
        vpp=(1,),
        zero=(1,),
        micro_batch_size=(1,),
        precision=(None, ("fp8", "tensorwise")),
    )
    question = search(dense(4), cluster(8), workload(), space=space).question
    found_of_each = [score_all(scenario) for scenario in scenarios(question)]
    every = sorted(
        (step for item in found_of_each for step in item.scores.step_time[item.fits]), reverse=True
    )
    assert [item.step_time_s for item in slowest_of(question, 4)] == pytest.approx(every[:4], rel=0)


def test_a_front_draws_a_sample_of_all_layouts_that_fit():
    """Every point of the front is at the edge of them."""
    result = pareto_search(dense(4), cluster(8), workload())
    assert 0 < len(result.sample) <= min(result.num_feasible, 4096)
    lowest, fastest = (min(values) for values in zip(*result.sample, strict=True))
    assert min(one.step_time_s for one in result.front) <= fastest
    assert min(one.memory.peak_bytes for one in result.front) <= lowest * 2**30 * (1 + 1e-12)
    assert [line.name for line in result.pictures()[0].lines] == ["all that fit", "layouts"]

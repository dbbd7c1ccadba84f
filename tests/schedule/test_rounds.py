"""Timing by rounds gives the bits of the compiled schedule, refuses what is not whole, and takes little memory."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forescale.schedule import (
    LinkTimes,
    Order,
    Request,
    StageTimes,
    compile_schedule,
    families,
    family,
    simulate,
    time_step,
)
from forescale.schedule import simulation as simulation_module
from forescale.schedule.simulation import num_messages, only_passes, time_by_rounds

UNIT = StageTimes(forward=0.5, input_grad=0.5, weight_grad=0.5)
BY_ROUNDS = [
    item.name for item in families() if item.name not in {"seq1f1b", "dualpipe", "dualpipev", "pipeoffload"}
]


@pytest.mark.parametrize("name", BY_ROUNDS)
def test_rounds_and_levels_agree_bit_for_bit(name):
    result = family(name)

    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(pp=st.integers(1, 6), m=st.integers(1, 24), vpp=st.integers(1, 3), seed=st.integers(0, 2**16))
    def run(pp, m, vpp, seed):
        request = Request(pp=pp, num_microbatches=m, vpp=result.fixed_vpp or max(vpp, result.vpp[0]))
        if result.violation(request):
            return
        schedule = result.build(request)
        random = np.random.default_rng(seed)
        stages = schedule.num_stages
        f, b, w = (random.uniform(0.0, 2.0, stages) for _ in range(3))
        late, sent, back = (random.uniform(0.0, 0.5, stages - 1) * random.integers(2) for _ in range(3))
        times = StageTimes(forward=f, input_grad=b, weight_grad=w, recompute=0.1)
        links = LinkTimes(latency=late, transfer=sent, backward_transfer=back)
        compiled = compile_schedule(schedule)
        plain, quick = compiled.time(times, links), time_by_rounds(schedule, times, links)
        assert only_passes(schedule)
        np.testing.assert_array_equal(quick.last_end, plain.last_end)
        np.testing.assert_array_equal(quick.first_start, plain.first_start)
        np.testing.assert_array_equal(quick.busy, plain.busy)
        assert num_messages(schedule) == compiled.num_messages

    run()


@pytest.mark.parametrize("name", ["seq1f1b", "dualpipe", "dualpipev", "pipeoffload"])
def test_pieces_blocks_and_copies_are_left_to_the_compiler(name):
    result = family(name)
    schedule = result.build(Request(pp=4, num_microbatches=8, vpp=result.fixed_vpp or 2))
    assert not only_passes(schedule)
    assert num_messages(schedule) == compile_schedule(schedule).num_messages


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "chimera", "zbv"])
def test_what_is_not_whole_is_refused(name):
    result = family(name)
    schedule = result.build(Request(pp=4, num_microbatches=8, vpp=result.fixed_vpp))
    links = LinkTimes()
    rows = [list(order) for order in schedule.orders]
    broken = [[row * 2 for row in rows]]
    for rank in (0, 2):
        for at in range(len(rows[rank])):
            dropped, doubled, elsewhere = ([*map(list, rows)] for _ in range(3))
            del dropped[rank][at]
            doubled[rank].insert(at, rows[rank][at])
            elsewhere[1].append(elsewhere[rank].pop(at))
            broken += [dropped, doubled, elsewhere]
    for item in broken:
        orders = tuple(tuple(order) for order in item)
        assert time_by_rounds(replace(schedule, orders=orders), UNIT, links) is None


@pytest.mark.parametrize("name", ["interleaved-1f1b", "zb-h1"])
@pytest.mark.parametrize("limit", [None, 5.0])
def test_a_step_in_short_is_the_simulated_one(name, limit, monkeypatch):
    result = family(name)
    schedule = result.build(Request(pp=6, num_microbatches=12, vpp=result.fixed_vpp or 2))
    full = simulate(schedule, UNIT, LinkTimes(transfer=0.1), memory_limit=limit)
    monkeypatch.setattr(simulation_module, "MANY_ACTIONS", 0)
    short = time_step(schedule, UNIT, LinkTimes(transfer=0.1), memory_limit=limit)
    assert type(short) is not type(full)
    assert short.to_json() == full.to_json()
    assert short.report.valid is (limit is None)


@pytest.mark.parametrize(
    ("name", "vpp", "idle", "peak"),
    [  # idle in passes of a full share: (p-1) 3/v, (p-1) tb/2; peaks p + (p-1)/v and p
        ("interleaved-1f1b", 2, 127 * 1.5, 128 + 127 / 2), ("zbv", 2, 127 / 2, 128), ("1f1b", 1, 127 * 3, 128),
    ],
)  # fmt: skip
def test_large_pipelines_take_little_memory(name, vpp, idle, peak):
    request = Request(pp=128, num_microbatches=1024, vpp=vpp)
    tracemalloc.start()
    try:
        schedule = family(name).build(request)
        times = StageTimes(forward=1.0 / vpp, input_grad=1.0 / vpp, weight_grad=1.0 / vpp)
        step = time_step(schedule, times)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert step.makespan == 3 * 1024 + idle
    assert step.peak_activations.max() == peak
    assert most < 60 * schedule.num_actions  # bytes: at 12.6 million actions less than 0.8 GB


def test_an_order_reads_like_a_tuple():
    order = Order(np.array([3, 1, 2]))
    assert order == (3, 1, 2) == tuple(order)
    assert (order[0], order[-1], order[1:], len(order), order.index(2)) == (3, 2, (1, 2), 3, 2)
    assert order == Order(np.array([3, 1, 2]))
    assert order != (3, 1)
    assert hash(order) == hash((3, 1, 2))
    assert order != "312"

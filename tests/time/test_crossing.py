"""Exchanges of experts behind the passes of another micro-batch, worked out by hand and against a simulation."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import toy
from tests.small import moe

from forescale import project as ask_project
from forescale.project import project
from forescale.spec import Layout, Workload
from forescale.spec.layout import Overlap
from forescale.time.crossing import (
    COMBINE,
    DISPATCH,
    crosses,
    crossing_of,
    halves_of,
    passes_of,
    uncrossed_in_groups,
    uncrossed_time,
)

SECONDS = st.floats(0.0, 10.0)
PASS = st.builds(
    lambda *values: dict(zip(("around", "experts", DISPATCH, COMBINE), values, strict=True)), *(SECONDS,) * 4
)


def block(*operators):
    """Operators by name, each with seconds of (forward, input gradient, weight gradient) and those of messages."""
    result = {}
    for name, compute, sent in operators:
        forward, first, second = (({}, {"expert_comm": sent})[bool(sent)] for _ in range(3))
        result[name] = SimpleNamespace(
            operator=SimpleNamespace(name=name),
            forward=(compute[0], forward),
            backward_input=(compute[1], first),
            backward_weight=(compute[2], second if name == "up" else {}),
        )
    return SimpleNamespace(operators=result)


LAYER = block(
    ("attention", (1.0, 2.0, 3.0), 0.0),
    ("moe.count", (0.0, 0.0, 0.0), 0.25),
    (DISPATCH, (0.0, 0.0, 0.0), 7.0),
    ("moe.up", (10.0, 20.0, 30.0), 0.0),
    (COMBINE, (0.0, 0.0, 0.0), 11.0),
    ("shared.up", (0.1, 0.2, 0.3), 0.0),
)


def test_a_pass_is_cut_where_tokens_leave_and_where_they_are_back():
    """Shared experts are computed beside the router; counts of tokens are no exchange."""
    forward, backward = passes_of(LAYER, (LAYER.operators["attention"].operator,))
    assert forward == {"around": 1.1, "experts": 10.0, DISPATCH: 7.0, COMBINE: 11.0}
    assert backward == pytest.approx({"around": 5.5 + 1.0, "experts": 50.0, DISPATCH: 7.0, COMBINE: 11.0})
    assert crosses(LAYER)
    assert not crosses(block(("attention", (1.0, 2.0, 3.0), 0.0)))


def test_an_exchange_that_is_replayed_is_one_of_backward():
    backward = passes_of(LAYER, (LAYER.operators[DISPATCH].operator,))[1]
    assert backward[DISPATCH] == 14.0


def test_each_exchange_hides_behind_one_part_of_the_other_pass():
    """Combine of backward beside attention, both dispatches beside experts, combine of forward beside attention."""
    forward = {"around": 1.0, "experts": 4.0, DISPATCH: 5.0, COMBINE: 9.0}
    backward = {"around": 2.0, "experts": 8.0, DISPATCH: 6.0, COMBINE: 10.0}
    crossing = crossing_of(forward, backward, 0.0)
    assert (crossing.forward, crossing.backward) == (0.0 + (9.0 - 2.0), (10.0 - 1.0) + (6.0 - 4.0))
    assert crossing.hidden == (14.0 - 7.0, 16.0 - 11.0)
    slowed = crossing_of(forward, backward, 0.5)
    assert slowed.forward == 0.5 * 5.0 + 7.0


def two_queues(forward, backward, layers):
    """Return when both queues of so many equal layers are done: entries start in order and wait for each other."""
    compute = exchange = 0.0
    for _ in range(layers):
        for local, sent in (
            (forward["around"], backward[COMBINE]),
            (backward["experts"], forward[DISPATCH]),
            (forward["experts"], backward[DISPATCH]),
            (backward["around"], forward[COMBINE]),
        ):
            start = max(compute, exchange)  # of the entry before it in the other queue, and in its own
            compute, exchange = start + local, start + sent
    return max(compute, exchange)


@given(PASS, PASS)
def test_what_shows_is_what_two_queues_take_beyond_compute(forward, backward):
    crossing = crossing_of(forward, backward, 0.0)
    compute = sum(item[name] for item in (forward, backward) for name in ("around", "experts"))
    assert 3 * (compute + crossing.forward + crossing.backward) == pytest.approx(
        two_queues(forward, backward, 3)
    )


@given(PASS, PASS, st.floats(0.0, 1.0))
def test_no_more_shows_than_is_sent_and_no_less_than_nothing(forward, backward, contention):
    crossing = crossing_of(forward, backward, contention)
    sent = [item[DISPATCH] + item[COMBINE] for item in (forward, backward)]
    assert 0.0 <= crossing.forward <= sent[0] * (1 + 1e-12)
    assert 0.0 <= crossing.backward <= sent[1] * (1 + 1e-12)
    assert crossing.hidden == pytest.approx((sent[0] - crossing.forward, sent[1] - crossing.backward))


def test_halves_of_a_pass_hide_each_other_s_exchanges():
    """Dispatch beside the other half's experts, combine beside its attention, forward and backward by themselves."""
    forward = {"around": 1.0, "experts": 4.0, DISPATCH: 5.0, COMBINE: 9.0}
    backward = {"around": 2.0, "experts": 8.0, DISPATCH: 6.0, COMBINE: 10.0}
    halves = halves_of(forward, backward, 0.0)
    assert (halves.forward, halves.backward) == ((5.0 - 4.0) + (9.0 - 1.0), 0.0 + (10.0 - 2.0))
    assert halves.hidden == (0.0, 0.0)


def exchanged(layout, batch=8, devices=8):
    """Return what shows of a step's exchanges; of a pipeline, how long the step is."""
    work = Workload(seq_len=512, global_batch_size=batch)
    return project(moe(), toy.cluster(devices), layout, work, costs=toy.costs())


def test_halves_hide_exchanges_of_a_single_micro_batch():
    layout = Layout(ep=8, dp_shard=8, graphs="full", micro_batch_size=4)
    crossed = replace(layout, overlap=Overlap(expert=True))
    halved = replace(crossed, kernels=replace(crossed.kernels, halves_cross=True))
    whole, alone, half = (exchanged(item, 32).time_s["expert_comm"] for item in (layout, crossed, halved))
    assert half < alone == pytest.approx(whole)


def test_a_schedule_with_overlapped_blocks_hides_exchanges_in_those_alone():
    """DualPipe fills and drains with passes that run alone."""
    layout = Layout(pp=2, ep=4, dp_shard=4, graphs="full", schedule="dualpipe", micro_batch_size=2)
    crossed = replace(layout, overlap=Overlap(expert=True))
    few, many = (
        exchanged(layout, batch).step_time_s - exchanged(crossed, batch).step_time_s for batch in (64, 128)
    )
    assert 0.0 < few < many - few  # all of further micro-batches cross


def test_the_first_forward_and_the_last_backward_of_a_stage_cross_nothing():
    assert uncrossed_time(hidden=3.0, pp=1.0, microbatches=8.0) == 3.0
    assert uncrossed_time(hidden=3.0, pp=4.0, microbatches=2.0) == 6.0
    # the last of 4 ranks runs 6 of chunk 0 ahead in groups of 6, as 4 of pp: half a micro-batch each
    assert uncrossed_in_groups(hidden=3.0, pp=4.0, microbatches=12.0, vpp=2.0, group=6.0) == 3.0 * 5.0
    assert uncrossed_in_groups(hidden=3.0, pp=4.0, microbatches=12.0, vpp=2.0, group=4.0) == 3.0 * 4.0


def test_more_micro_batches_hide_more_of_their_exchanges():
    """What shows of a step beside m equal micro-batches is what one hides: first forward and last backward."""
    layout = Layout(ep=8, dp_shard=8, graphs="full", overlap=Overlap(expert=True))
    alone, two, three = (exchanged(layout, 8 * count).time_s["expert_comm"] for count in (1, 2, 3))
    assert three - two == pytest.approx(two - alone)
    whole = exchanged(replace(layout, overlap=Overlap())).time_s["expert_comm"]
    assert alone == pytest.approx(whole)  # one micro-batch crosses no other


def test_more_runs_alone_in_longer_groups():
    """Of 4 ranks of 2 chunks (4 + 8) / 2 micro-batches, not 4, hide nothing; all else of a step is the same."""
    layout = Layout(pp=4, vpp=2, ep=2, dp_shard=2, overlap=Overlap(expert=True))
    usual, grouped, longer = (
        exchanged(replace(layout, microbatch_group=group), batch=32) for group in (None, 4, 8)
    )
    hidden = usual.time_s["expert_comm"]
    assert grouped.time_s["expert_comm"] == hidden
    more = longer.time_s["expert_comm"] - hidden
    assert more > 0.0
    assert longer.step_time_s - usual.step_time_s == pytest.approx(more)
    whole = exchanged(replace(layout, microbatch_group=16), batch=32).time_s["expert_comm"]
    assert whole - hidden == pytest.approx(3.0 * more)  # (4 + 16) / 2 - 4 micro-batches


def test_a_graph_of_the_whole_step_leaves_the_host_no_crossing_to_prepare():
    values = {
        "devices": 128, "tp": 2, "pp": 4, "vpp": 14, "ep": 8, "micro_batch_size": 1, "global_batch_size": 256,
        "seq_len": 4096, "precision": "mxfp8", "framework": "megatron-bridge@26.06", "dispatcher": "hybridep",
    }  # fmt: skip
    crossing = {"overlap": {"expert": True}, "recompute": "none", "kernels": {"wide_router": True}}
    captured, launched = (
        ask_project("mixtral-8x22b", "gb200-nvl72", **values, **crossing, graphs=graphs)
        for graphs in ("full", "partial")
    )
    assert captured.time_s["overhead"] < 0.15 * captured.step_time_s
    assert launched.time_s["overhead"] > 0.4 * launched.step_time_s

"""What a run pays besides its kernels: launches, casts, contention, exchange of tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.small import asked, cluster, dense, moe, workload

from forescale.catalogue.clusters import load_cluster
from forescale.cost.calibration import RunFactors
from forescale.graph.layer import layer_block
from forescale.graph.modules import casts
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.inputs import pricing_of
from forescale.project import project
from forescale.spec import Layout, Precision
from forescale.spec.layout import Kernels, Overlap
from forescale.time.overlap import exposed_gather, exposed_reduction, exposed_time, pipelined_time
from forescale.time.pipeline import engine_gap, engine_seconds
from forescale.time.price import launch_gap
from forescale.time.straggler import num_slices, straggler_share
from forescale.time.update import updated_tensors


def seconds(strategy, model=None, **changes):
    return project(model or dense(), cluster(8), strategy, replace(workload(), **changes)).step_time_s


def layout(compute, recipe):
    degrees, choices = split_layout(Layout())
    precision = Precision(compute=compute, recipe=recipe)
    return ShardingRules(degrees=degrees, choices=choices, precision=precision, seq_len=128.0)


def test_the_device_waits_for_launches_that_take_longer_than_kernels():
    assert launch_gap(kernels=10.0, interval=2.0, busy=15.0) == 5.0
    assert launch_gap(kernels=10.0, interval=2.0, busy=25.0) == 0.0
    assert launch_gap(kernels=10.0, interval=2.0, busy=25.0, blocking=True) == 20.0


def test_captured_launches_cost_nothing():
    eager, captured = Layout(dp_shard=8), Layout(dp_shard=8, graphs="full")
    partial = replace(eager, graphs="partial")
    assert seconds(captured) < seconds(partial) < seconds(eager)  # what graphs of layers read is copied
    experts = [replace(item, ep=8) for item in (captured, partial, eager)]
    times = [seconds(item, moe()) for item in experts]
    assert times == sorted(times)
    assert times[0] < times[1]


def test_large_kernels_hide_launches():
    eager = Layout(dp_shard=8, micro_batch_size=8)
    gap = [
        seconds(item, seq_len=16384) - seconds(replace(item, graphs="full"), seq_len=16384)
        for item in (eager,)
    ]
    assert gap[0] == pytest.approx(0.0, abs=2e-3 * seconds(eager, seq_len=16384))


def test_hidden_communication_slows_what_hides_it():
    assert exposed_time(communication=4.0, cover=10.0, contention=0.25) == 1.0
    assert exposed_time(communication=12.0, cover=10.0, contention=0.25) == 3.0
    assert exposed_gather(gather=4.0, cover=10.0, overlapped=True, contention=0.5) == 2.0
    assert exposed_gather(gather=4.0, cover=10.0, overlapped=False, contention=0.5) == 4.0
    assert exposed_reduction(
        reduction=8.0, cover=100.0, buckets=4.0, overlapped=True, contention=0.5
    ) == pytest.approx(5.0)


def test_a_single_bucket_has_nothing_to_hide_behind():
    """Of stages with one layer, or none; of two half is left."""
    shown = [
        exposed_reduction(reduction=8.0, cover=100.0, buckets=layers, overlapped=True)
        for layers in (0.0, 1.0, 2.0)
    ]
    assert shown == [8.0, 8.0, 4.0]


def test_compute_slowed_behind_a_longer_message_costs_nothing():
    """10 s of compute at three quarters of its rate have ended when a message of 14 s has."""
    assert exposed_time(communication=14.0, cover=10.0, contention=0.25) == 4.0
    assert exposed_gather(gather=14.0, cover=10.0, overlapped=True, contention=0.25) == 4.0
    assert exposed_reduction(reduction=14.0, cover=7.0, buckets=4.0, overlapped=True, contention=0.25) == 7.0
    assert pipelined_time(communication=14.0, cover=7.0, chunks=4.0, contention=0.25) == 7.0
    # Longer messages never end sooner, however much they slow.
    ends = [10.0 + exposed_time(communication=x, cover=10.0, contention=0.25) for x in (0, 9, 12, 13, 14, 20)]
    assert ends == sorted(ends)


def test_a_collective_in_chunks_shows_its_last_one():
    assert pipelined_time(communication=4.0, cover=10.0, chunks=4.0) == 1.0
    assert pipelined_time(communication=14.0, cover=10.0, chunks=4.0) == 4.0
    # 2 s of 8 before any work; the other 6 lengthen 20 s of work by a quarter of themselves: it ends after 23.5.
    assert pipelined_time(communication=8.0, cover=20.0, chunks=4.0, contention=0.25) == 3.5


def test_asynchronous_tensor_parallelism_hides_both_ways():
    plain = Layout(tp=2, dp_shard=4, micro_batch_size=8, graphs="full")
    hidden = replace(plain, overlap=Overlap(tensor=True))
    model, place, work = dense(), cluster(8), workload()
    before, after = (project(model, place, item, work).time_s["tensor_comm"] for item in (plain, hidden))
    assert after < 0.8 * before


def test_without_sp_no_collective_runs_in_pieces():
    """What is all-reduced is no input or output that a product could be cut along."""
    plain = Layout(tp=2, dp_shard=4, micro_batch_size=8, graphs="full", sp=False)
    question = replace(plain, overlap=Overlap(tensor=True))
    one, other = (project(dense(), cluster(8), item, workload()) for item in (plain, question))
    assert one.time_s == other.time_s
    assert one.memory.peak_bytes == other.memory.peak_bytes


def test_eight_bits_cost_casts_and_sixteen_do_not():
    assert casts(layout("bf16", "none"), 100.0, "bf16") == ()
    (delayed,) = casts(layout("fp8", "delayed"), 100.0, "fp8")
    (current,) = casts(layout("fp8", "current"), 100.0, "fp8")
    assert (delayed.bytes_moved, current.bytes_moved) == (300.0, 500.0)


def test_only_one_scale_per_tensor_needs_a_transposed_copy():
    copies = {
        recipe: casts(layout(compute, recipe), 100.0, compute)[0].transposed_bytes
        for compute, recipe in (("fp8", "current"), ("fp8", "blockwise"), ("mxfp8", "mxfp8"))
    }
    assert copies == {"current": 100.0, "blockwise": 0.0, "mxfp8": 0.0}


def test_sums_of_input_gradients_show_where_kernels_wait_for_them():
    for sp in (False, True):
        hidden = Layout(tp=4, sp=sp, dp_shard=2, graphs="full")
        waits = replace(hidden, kernels=Kernels(hides_input_sums=False))
        less, more = (
            project(dense(), cluster(8), item, workload()).time_s["tensor_comm"] for item in (hidden, waits)
        )
        assert less < more


def test_products_that_collectives_are_pipelined_with_hide_them_whatever_kernels_wait_for():
    waits = Kernels(hides_input_sums=False)
    plain = Layout(tp=4, dp_shard=2, overlap=Overlap(tensor=True), graphs="full")
    assert seconds(plain) == seconds(replace(plain, kernels=waits))


def test_tokens_that_travel_once_arrive_sooner():
    plain = Layout(dp_shard=8, ep=8, micro_batch_size=4, graphs="full")
    once = replace(plain, dispatcher="deepep")
    model, place, work = moe(), cluster(8), workload()
    before, after = (project(model, place, item, work).time_s["expert_comm"] for item in (plain, once))
    assert after < before


def test_a_rank_takes_the_tensors_of_its_share_of_flat_gradients_one_by_one():
    assert [updated_tensors(zero=float(zero), sharded=12.0, flat_from=3.0) for zero in range(4)] == [
        0.0,
        12.0,
        12.0,
        0.0,
    ]


def test_experts_that_are_tensors_of_their_own_take_longer_to_update():
    entry = Layout(dp_shard=8, ep=1, zero=1, graphs="full")
    one = replace(entry, kernels=Kernels(expert_kernels="one"))
    apart, together = (
        project(moe(), cluster(8), item, workload()).time_s["overhead"] for item in (entry, one)
    )
    assert apart > together > 0.0


def test_launches_that_block_add_to_the_step():
    free, blocking = (
        seconds(Layout(dp_shard=8, kernels=Kernels(blocking_launches=on)), seq_len=8192)
        for on in (False, True)
    )
    assert blocking > 1.01 * free


def test_an_engine_that_runs_ahead_delays_only_a_device_that_has_no_lead():
    assert engine_gap(overhead=3.0, busy=10.0, launches=6.0) == 0.0
    assert engine_gap(overhead=3.0, busy=10.0, launches=8.0) == 1.0
    passes = {"overhead": 3.0, "vpp": 2.0, "busy": 10.0, "launches": 0.0}
    assert engine_seconds(Kernels(), **passes) == 6.0
    assert engine_seconds(Kernels(runs_ahead=True), **passes) == 0.0
    assert engine_seconds(Kernels(runs_ahead=True, blocking_launches=True), **passes) == 6.0


def test_what_prepares_two_chunks_that_cross_delays_only_a_device_that_has_no_lead():
    passes = {"overhead": 3.0, "crossing": 5.0, "vpp": 2.0, "busy": 10.0, "launches": 6.0}
    assert engine_seconds(Kernels(), **passes) == 6.0 + (10.0 - 4.0)
    assert engine_seconds(Kernels(), **{**passes, "busy": 100.0}) == 6.0
    assert engine_seconds(Kernels(runs_ahead=True), **passes) == 16.0 - 4.0
    assert engine_seconds(Kernels(blocking_launches=True), **passes) == 16.0


def test_an_engine_that_runs_ahead_hides_behind_large_kernels():
    waiting, ahead = (
        seconds(Layout(dp_shard=8, kernels=Kernels(runs_ahead=on)), seq_len=16384) for on in (False, True)
    )
    assert ahead < waiting


def test_the_fused_loss_moves_fewer_bytes():
    eager, fused = (
        seconds(Layout(dp_shard=8, kernels=Kernels(cross_entropy=kind)), seq_len=8192)
        for kind in ("vocab_parallel", "fused")
    )
    assert fused < eager


def test_shares_of_a_message_cross_the_network_sooner_than_copies():
    layout = {"tp": 8, "sp": False, "pp": 2, "micro_batch_size": 8}
    copies, shares = (
        project(dense(), cluster(16), Layout(**layout, kernels=Kernels(shares_messages=on)), workload())
        for on in (False, True)
    )
    assert shares.time_s["pipeline_comm"] < copies.time_s["pipeline_comm"]
    with_sp = replace(copies.strategy, sp=True)
    same = replace(with_sp, kernels=Kernels(shares_messages=True))
    times = [project(dense(), cluster(16), item, workload()).step_time_s for item in (with_sp, same)]
    assert times[0] == times[1]


def test_deepep_copies_no_rows_before_it_sends_them():
    strategy = Layout(ep=8, dp_shard=8)
    pieces = {
        name: project(moe(), cluster(8), replace(strategy, dispatcher=name), workload()).time_s["moe"]
        for name in ("all_to_all", "deepep")
    }
    assert pieces["deepep"] < pieces["all_to_all"]


def test_slices_wait_for_the_slowest_of_them():
    one, two, part = (load_cluster("tpu-v5e", devices) for devices in (256, 512, 384))
    assert num_slices(part) == 2
    assert (num_slices(one), num_slices(two), num_slices(load_cluster("h100-sxm", 512))) == (1, 2, 1)
    shares = [straggler_share(RunFactors(slice_straggler=0.03), item) for item in (one, two)]
    assert shares[0] == 0.0
    assert shares[1] == pytest.approx(0.03 * (2.0 * math.log(2.0)) ** 0.5)


def test_a_call_that_launches_many_kernels_costs_less_than_as_many_calls():
    run = RunFactors(kernel_interval_s=1e-4)
    degrees, choices = split_layout(Layout(ep=8, dp_shard=8))
    pricing = pricing_of(
        asked(moe(), cluster(8), Layout(), workload()), degrees, choices, Layout().axis_order, run=run
    )
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=512.0)
    block = layer_block(moe(), moe().layers[-1], layout)
    operators = {operator.name: operator for operator in block.operators}
    calls = {name: float(pricing.kernels(operator, operator.forward)) for name, operator in operators.items()}
    assert calls["moe.up"] == pytest.approx(1.0 + 0.05 * (2 - 1))  # two experts on a device
    assert calls["attention.norm"] == 1.0
    assert calls["attention.gather_query"] == 0.0  # nothing to gather without tensor parallelism

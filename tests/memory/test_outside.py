"""Communicators of a layout: which there are, and that their memory stays apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.small import asked, cluster, dense, moe, workload

from forescale.cost.mesh import Group
from forescale.evaluate import evaluate
from forescale.explain import explain
from forescale.graph.sharding import split_layout
from forescale.inputs import prepare
from forescale.memory.communicators import expert_buffer_bytes, hybrid_buffer_bytes
from forescale.memory.outside import outside_bytes
from forescale.memory.overhead import load_residual
from forescale.memory.peak import highest_peak
from forescale.project import project
from forescale.spec import Layout, MoeFfn
from forescale.spec.layout import Kernels
from forescale.spec.workload import Precision
from forescale.time.anywhere import Anywhere


def nvidia(num_devices):
    made = cluster(num_devices)
    return replace(made, device=replace(made.device, vendor="NVIDIA"))


def names(model, layout, devices):
    node = explain(asked(model, nvidia(devices), layout, workload(global_batch_size=64)), "memory.overhead")
    made = dict(dict(node.inputs)["outside the allocator"].inputs)["communicators"]
    return {name for name, _ in made.inputs}


def run(layout, devices=16, model=None):
    return project(model or dense(), nvidia(devices), layout, workload(global_batch_size=64))


def test_every_group_of_several_ranks_has_one():
    assert names(dense(), Layout(tp=2, pp=2, dp_shard=4), 16) == {"world", "tp", "dp_cp", "pp"}
    experts = names(moe(), Layout(tp=2, ep=4, etp=1, dp_shard=8), 16)
    assert experts == {"world", "tp", "dp_cp", "ep", "expert_dp"}


def test_one_device_needs_none():
    assert run(Layout(), devices=1).memory.stages[0].communicators_bytes == 0.0


def test_they_lie_outside_the_allocator():
    stage = run(Layout(tp=2, dp_shard=8)).memory.stages[0]
    assert stage.communicators_bytes > 0.0
    beside = stage.overhead_bytes - stage.fragmentation_bytes
    assert stage.communicators_bytes < beside
    assert stage.reserved_bytes + beside == pytest.approx(stage.peak_bytes)


def test_bounds_hold_the_expectation():
    memory = run(Layout(tp=2, pp=2, dp_shard=4)).memory
    assert memory.peak_low_bytes < memory.peak_bytes < memory.peak_high_bytes


def test_deepep_makes_no_all_to_all_communicator():
    def outside(dispatcher):
        layout = Layout(ep=8, dp_shard=16, dispatcher=dispatcher)
        return run(layout, model=moe()).memory.stages[0].communicators_bytes

    assert outside("deepep") < outside("all_to_all")


def test_a_layout_that_only_fragmentation_endangers_says_what_helps():
    plain = run(Layout(dp_shard=8, micro_batch_size=8), devices=8).memory
    tight = replace(nvidia(8), device=replace(nvidia(8).device, hbm_bytes=1.2 * plain.peak_bytes))
    work = replace(workload(global_batch_size=64), varied_lengths=True)
    for allocator, verdict, notes in (("segments", "AT RISK", 1), ("expandable_segments", "FITS", 0)):
        layout = Layout(dp_shard=8, micro_batch_size=8, allocator=allocator)
        result = project(dense(), tight, layout, work)
        assert result.memory.verdict == verdict
        assert len([note for note in result.notes if note.topic == "allocator"]) == notes


def test_a_verdict_says_which_end_of_the_interval_fits():
    layout, work = Layout(dp_shard=8, micro_batch_size=8), workload(global_batch_size=64)
    memory = project(dense(), nvidia(8), layout, work).memory
    sizes = {
        "FITS": memory.peak_high_bytes + 1,
        "AT RISK": (memory.peak_low_bytes + memory.peak_high_bytes) / 2,
        "OOM": memory.peak_low_bytes - 1,
    }
    edges = (("AT RISK", memory.peak_low_bytes + 1), ("AT RISK", memory.peak_high_bytes - 1))
    for verdict, size in (*sizes.items(), *edges):
        device = replace(nvidia(8).device, hbm_bytes=size)
        result = project(dense(), replace(nvidia(8), device=device), layout, work).memory
        assert result.verdict == verdict
        assert result.peak_high_bytes == memory.peak_high_bytes


@pytest.mark.parametrize("flat", [False, True])
def test_an_interval_is_of_independent_deviations(flat):
    """Context, communicators, pieces of what is allocated, and formulas by what is reserved with all that finds no room."""
    layout = Layout(dp_shard=8, zero=0, micro_batch_size=4, kernels=Kernels(flat_update=flat))
    work = replace(workload(global_batch_size=64), precision=Precision(gradients="bf16"))
    prepared = prepare(asked(dense(), nvidia(8), layout, work))
    footprint = evaluate(prepared.setting, prepared.inputs)
    memory = project(dense(), nvidia(8), layout, work).memory
    (stage,), overhead, formulas = memory.stages, prepared.setting.overhead, load_residual()
    outside = footprint.outside
    beside = float(outside.context.expected + outside.communicators.expected)
    reserved = stage.peak_bytes - beside
    assert (reserved > stage.allocated_bytes * overhead.fragmentation.expected * 1.01) is flat
    deviations = (
        outside.context.high - outside.context.expected,
        outside.communicators.high - outside.communicators.expected,
        stage.allocated_bytes * (overhead.fragmentation.high - overhead.fragmentation.expected),
        reserved * (formulas.high - formulas.expected),
    )
    expected = stage.peak_bytes + sum(item**2 for item in map(float, deviations)) ** 0.5
    assert memory.peak_high_bytes == pytest.approx(expected, rel=1e-12)
    highest = highest_peak(footprint, overhead, prepared.inputs.stages)
    assert float(np.max(highest)) == pytest.approx(expected, rel=1e-12)


def test_under_pressure_the_allocator_returns_what_no_tensor_is_in():
    """DeepSpeed's flat copy of gradients finds no room; the memory that it leaves behind is given back."""
    kernels = Kernels(flat_update=True)
    layout = Layout(dp_shard=8, zero=0, micro_batch_size=4, kernels=kernels)
    fp16 = Precision(parameters="fp16", gradients="fp16", compute="fp16", activations="fp16")
    work = replace(workload(global_batch_size=64), precision=fp16)
    flat = project(dense(), nvidia(8), layout, work).memory
    plain = project(dense(), nvidia(8), replace(layout, kernels=Kernels()), work).memory
    assert flat.peak_bytes > plain.peak_bytes
    more, more_at_least = (
        getattr(flat, name) - getattr(plain, name) for name in ("peak_bytes", "peak_low_bytes")
    )
    assert more_at_least == pytest.approx(0.0, abs=0.1 * more)


def test_deepep_has_buffers_of_its_own_instead_of_a_communicator():
    layout = Layout(ep=8, dp_shard=16, dispatcher="deepep")
    assert "DeepEP" in names(moe(), layout, 16)
    assert "ep" not in names(moe(), layout, 16)
    size = expert_buffer_bytes(ranks=8.0, hidden_bytes=2.0 * 1024)
    node = explain(asked(moe(), nvidia(16), layout, workload(global_batch_size=64)), "memory.overhead")
    made = dict(dict(dict(node.inputs)["outside the allocator"].inputs)["communicators"].inputs)
    assert made["DeepEP"].value == size


MIB = 2**20


def bounds(layout, devices=16, model=None, *, switches=False):
    """Communicators of one device in MiB: low, expected, high."""
    made = nvidia(devices)
    node = replace(made.tiers[0], in_network_reduction=switches)
    made = replace(made, tiers=(node, *made.tiers[1:]))
    value, work = model or dense(), workload(global_batch_size=64, seq_len=6144 if layout.cp == 6 else 2048)
    prepared = prepare(asked(value, made, layout, work))
    communicators = evaluate(prepared.setting, prepared.inputs).outside.communicators
    return tuple(
        np.asarray(item).item() / MIB
        for item in (communicators.low, communicators.expected, communicators.high)
    )


def ring(size, channels):
    """12 MiB a connection: low, a chain with one neighbour; usual, two; at most 256 MiB more of a communicator."""
    both = channels * 12 * min(size - 1, 2)
    return channels * 12, both, both + 256


def added(*groups):
    return tuple(map(sum, zip(*groups, strict=True)))


def test_communicators_of_a_dense_layout():
    """16 ranks on two nodes: 24 channels inside, 16 over both; messages between them share 16 buffers."""
    world, tp, shards = ring(16, 16), ring(2, 24), ring(4, 24)
    between = (16 * 12, 16 * 12, 16 * 12 + 256)  # one stage on the other node
    assert bounds(Layout(tp=2, pp=2, dp_shard=4)) == added(world, tp, shards, between)
    assert bounds(Layout(dp_shard=16)) == added(world, ring(16, 16))
    assert bounds(Layout(dp_shard=4, dp_replicate=4)) == added(world, ring(4, 24), ring(4, 16))


def test_switches_take_channels_of_their_own():
    """16 channels of 2 MiB for each of the ranks of a group that shares a node: of more than two of them."""
    plain, switched = (bounds(Layout(tp=2, dp_shard=4), 8, switches=on) for on in (False, True))
    more = 16 * 2 * (8 + 4)  # the world, and 4 that share shards; not tp 2
    assert switched == added(plain, (0, more, more))


def test_stages_send_to_both_neighbours():
    """8 stages on a node: of two neighbours 32 channels each, 2 at least; on 8 nodes all through 16 buffers."""
    inside = (2 * 2 * 12, 2 * 32 * 12, 2 * 32 * 12 + 256)
    assert bounds(Layout(pp=8), 8) == added(ring(8, 24), inside)
    apart = (16 * 12, 16 * 12, 16 * 12 + 256)
    assert bounds(Layout(pp=8, dp_shard=8), 64) == added(ring(64, 16), ring(8, 24), apart)
    # 16 stages on two nodes: both neighbours of most are on their node, with 2 channels each.
    near = (2 * 2 * 12, 2 * 2 * 12, 2 * 2 * 12 + 256)
    assert bounds(Layout(pp=16), 16, dense(16)) == added(ring(16, 16), near)


class Several:
    """Communicators that may lie at several places, by axis; any other is one rank."""

    def __init__(self, groups):
        self.groups = groups

    def places(self, axis):
        return self.groups.get(axis, (Group(size=1.0),))

    def least(self, axis, of):
        places = self.places(axis)
        size, stride = (np.array([[getattr(group, name)] for group in places]) for name in ("size", "stride"))
        return Anywhere(group=Group(size=size, stride=stride), rows=np.array([0])).least_of(of)


def least(layout, places, devices=16):
    """What all ways to shard have at least, in MiB, of communicators that may lie at several places."""
    setting = prepare(asked(dense(), nvidia(devices), layout, workload(global_batch_size=64))).setting
    communicators = outside_bytes(setting, split_layout(layout)[0], places, every_sharding=True).communicators
    return tuple(
        np.asarray(item).item() / MIB
        for item in (communicators.low, communicators.expected, communicators.high)
    )


def test_a_bound_takes_each_group_where_it_needs_least_and_none_of_shards():
    """Two ranks of a node have 24 channels, of two nodes 16; shards and copies have groups of any size, or none."""
    groups = {"tp": (Group(size=2.0), Group(size=2.0, stride=8.0)), "dp_cp": (Group(size=8.0, stride=2.0),)}
    result = least(Layout(tp=2, dp_shard=8), Several(groups))
    assert result == added(ring(16, 16), ring(2, 16))


def test_experts_exchange_with_everybody():
    """3 peers of ep 4; tp 2 as etp 2; four copies of each expert; on two nodes 7 near peers of 2 channels each."""
    layout = Layout(tp=2, ep=2, etp=2, dp_shard=4)
    groups = (ring(8, 24), ring(2, 24), ring(4, 24), ring(2, 24), ring(2, 24))
    assert bounds(layout, 8, moe()) == added(*groups, (2 * 12, 32 * 12, 32 * 12 + 256))
    far = (7 * 2 * 12 + 16 * 12,) * 2
    assert bounds(Layout(ep=16, dp_shard=16), 16, moe()) == added(
        ring(16, 16), ring(16, 16), (*far, far[1] + 256)
    )


@pytest.mark.parametrize(("kind", "peers"), [("all_gather", 0), ("ring", 2), ("ulysses", 3)])
def test_context_ranks_that_send_connect(kind, peers):
    """Around the ring with two neighbours, for heads with everybody; gathers use what rings have."""
    sends = (peers * 2 * 12, peers * 32 * 12, peers * 32 * 12 + (256 if peers else 0))
    shards = ring(8, 24)  # they hold the same weights as the 2 data-parallel ranks
    assert bounds(Layout(cp=4, cp_kind=kind, dp_shard=2), 8) == added(ring(8, 24), ring(4, 24), shards, sends)


def test_context_ranks_in_pairs_connect_inside_and_around():
    """One peer inside; four pairs, of which two are neighbours around."""
    layout = Layout(cp=8, cp_kind="hierarchical", cp_inner=2, dp_shard=1)
    inner, outer = ((peers * 2 * 12, peers * 32 * 12, peers * 32 * 12 + 256) for peers in (1, 2))
    assert bounds(layout, 8) == added(ring(8, 24), ring(8, 24), ring(8, 24), inner, outer)


def test_buffers_of_dispatchers_are_known_exactly():
    """Among the ranks of ep 4 and those that share their experts (etp 2): as large at least as at most."""
    layout = Layout(tp=2, ep=4, etp=2, dp_shard=4)
    plain = added(ring(8, 24), ring(2, 24), ring(4, 24), ring(2, 24))  # one copy of each expert
    size = expert_buffer_bytes(ranks=8.0, hidden_bytes=2.0 * 1024) / MIB
    assert bounds(replace(layout, dispatcher="deepep"), 8, moe()) == pytest.approx(added(plain, (size,) * 3))
    # HybridEP: of 2,048 tokens in two halves; 4 of 16 experts a rank, 8 ranks on the node.
    size = hybrid_buffer_bytes(ranks=8.0, near=8.0, tokens=1024.0, hidden=1024.0, experts=4.0) / MIB
    assert bounds(replace(layout, dispatcher="hybridep"), 8, moe()) == pytest.approx(
        added(plain, (size,) * 3)
    )
    # Tokens that travel to experts in 8 bits come back in 16.
    narrow_tokens = replace(workload(global_batch_size=64), precision=Precision(activations="fp8"))
    prepared = prepare(asked(moe(), nvidia(8), replace(layout, dispatcher="deepep"), narrow_tokens))
    communicators = evaluate(prepared.setting, prepared.inputs).outside.communicators
    size_of_two = expert_buffer_bytes(ranks=8.0, hidden_bytes=2.0 * 1024) / MIB
    assert float(communicators.low) / MIB == pytest.approx(plain[0] + size_of_two)
    narrow = replace(moe(), layers=tuple(
        replace(layer, ffn=replace(layer.ffn, latent_size=256)) if isinstance(layer.ffn, MoeFfn) else layer
        for layer in moe().layers
    ))  # fmt: skip
    size = expert_buffer_bytes(ranks=8.0, hidden_bytes=2.0 * 256) / MIB
    assert bounds(replace(layout, dispatcher="deepep"), 8, narrow) == pytest.approx(added(plain, (size,) * 3))
    size = hybrid_buffer_bytes(ranks=8.0, near=8.0, tokens=1024.0, hidden=256.0, experts=4.0) / MIB
    assert bounds(replace(layout, dispatcher="hybridep"), 8, narrow) == pytest.approx(
        added(plain, (size,) * 3)
    )

"""Communicators of a layout: which there are, and that their memory stays apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, moe, workload

from forescale.explain import explain
from forescale.memory.dispatch import expert_buffer_bytes
from forescale.project import project
from forescale.spec import Strategy
from forescale.spec.strategy import Kernels
from forescale.spec.workload import Precision


def nvidia(num_devices):
    made = cluster(num_devices)
    return replace(made, device=replace(made.device, vendor="NVIDIA"))


def names(model, strategy, devices):
    node = explain(model, nvidia(devices), strategy, workload(global_batch_size=64), "memory.overhead")
    made = dict(dict(node.inputs)["outside the allocator"].inputs)["communicators"]
    return {name for name, _ in made.inputs}


def run(strategy, devices=16, model=None):
    return project(model or dense(), nvidia(devices), strategy, workload(global_batch_size=64))


def test_every_group_of_several_ranks_has_one():
    assert names(dense(), Strategy(tp=2, pp=2, dp_shard=4), 16) == {"world", "tp", "dp_cp", "pp"}
    experts = names(moe(), Strategy(tp=2, ep=4, etp=1, dp_shard=8), 16)
    assert experts == {"world", "tp", "dp_cp", "ep", "expert_dp"}


def test_one_device_needs_none():
    assert run(Strategy(), devices=1).memory.stages[0].communicators_bytes == 0.0


def test_they_lie_outside_the_allocator():
    stage = run(Strategy(tp=2, dp_shard=8)).memory.stages[0]
    assert stage.communicators_bytes > 0.0
    beside = stage.overhead_bytes - stage.fragmentation_bytes
    assert stage.communicators_bytes < beside
    assert stage.reserved_bytes + beside == pytest.approx(stage.peak_bytes)


def test_bounds_hold_the_expectation():
    memory = run(Strategy(tp=2, pp=2, dp_shard=4)).memory
    assert memory.peak_low_bytes < memory.peak_bytes < memory.peak_high_bytes


def test_deepep_makes_no_all_to_all_communicator():
    def outside(dispatcher):
        layout = Strategy(ep=8, dp_shard=16, dispatcher=dispatcher)
        return run(layout, model=moe()).memory.stages[0].communicators_bytes

    assert outside("deepep") < outside("all_to_all")


def test_a_layout_that_only_fragmentation_endangers_says_what_helps():
    plain = run(Strategy(dp_shard=8, micro_batch_size=8), devices=8).memory
    tight = replace(nvidia(8), device=replace(nvidia(8).device, hbm_bytes=1.2 * plain.peak_bytes))
    work = replace(workload(global_batch_size=64), varied_lengths=True)
    for allocator, verdict, notes in (("segments", "AT RISK", 1), ("expandable_segments", "FITS", 0)):
        layout = Strategy(dp_shard=8, micro_batch_size=8, allocator=allocator)
        found = project(dense(), tight, layout, work)
        assert found.memory.verdict == verdict
        assert len([note for note in found.notes if note.topic == "allocator"]) == notes


def test_a_verdict_says_which_end_of_the_interval_fits():
    strategy, work = Strategy(dp_shard=8, micro_batch_size=8), workload(global_batch_size=64)
    memory = project(dense(), nvidia(8), strategy, work).memory
    sizes = {
        "FITS": memory.peak_high_bytes + 1,
        "AT RISK": (memory.peak_low_bytes + memory.peak_high_bytes) / 2,
        "OOM": memory.peak_low_bytes - 1,
    }
    for verdict, size in sizes.items():
        device = replace(nvidia(8).device, hbm_bytes=size)
        found = project(dense(), replace(nvidia(8), device=device), strategy, work).memory
        assert found.verdict == verdict
        assert found.peak_high_bytes == memory.peak_high_bytes


def test_under_pressure_the_allocator_returns_what_no_tensor_is_in():
    """DeepSpeed's flat copy of gradients finds no room; the memory that it leaves behind is given back."""
    kernels = Kernels(flat_update=True)
    strategy = Strategy(dp_shard=8, zero=0, micro_batch_size=4, kernels=kernels)
    fp16 = Precision(parameters="fp16", gradients="fp16", compute="fp16", activations="fp16")
    work = replace(workload(global_batch_size=64), precision=fp16)
    flat = project(dense(), nvidia(8), strategy, work).memory
    plain = project(dense(), nvidia(8), replace(strategy, kernels=Kernels()), work).memory
    assert flat.peak_bytes > plain.peak_bytes
    more, more_at_least = (
        getattr(flat, name) - getattr(plain, name) for name in ("peak_bytes", "peak_low_bytes")
    )
    assert 0.0 <= more_at_least < 0.7 * more


def test_deepep_has_buffers_of_its_own_instead_of_a_communicator():
    strategy = Strategy(ep=8, dp_shard=16, dispatcher="deepep")
    assert "DeepEP" in names(moe(), strategy, 16)
    assert "ep" not in names(moe(), strategy, 16)
    size = expert_buffer_bytes(ranks=8.0, hidden_bytes=2.0 * 1024)
    node = explain(moe(), nvidia(16), strategy, workload(global_batch_size=64), "memory.overhead")
    made = dict(dict(dict(node.inputs)["outside the allocator"].inputs)["communicators"].inputs)
    assert made["DeepEP"].value == size

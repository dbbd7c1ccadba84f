"""States per device against the figures printed in the ZeRO paper and the Ultra-Scale Playbook."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests import small

import forescale as fs
from forescale.memory.inputs import StateBytes
from forescale.memory.states import (
    absent_flat,
    gradient_bytes,
    on_host,
    optimizer_bytes,
    optimizer_element_bytes,
    received_bytes,
    update_bytes,
    update_element_bytes,
    weight_bytes,
)
from forescale.project import project
from forescale.spec import Layout
from forescale.spec.layout import Kernels, Offload
from forescale.spec.workload import Precision

ZERO_PAPER = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}
"""Gigabytes per device for 7.5 billion parameters on 64 devices (Rajbhandari et al. 2020, Figure 1)."""
HALF = Precision(gradients="bf16")


def states(parameters: float, shards: float, zero: int, precision: Precision) -> float:
    element = {"bf16": 2.0, "fp32": 4.0}
    common = {"parameters": parameters, "shards": shards, "zero": zero}
    return float(
        weight_bytes(element_bytes=2.0, **common)
        + gradient_bytes(element_bytes=element[precision.gradients], **common)
        + optimizer_bytes(element_bytes=optimizer_element_bytes(precision), **common)
    )


@pytest.mark.parametrize("zero", ZERO_PAPER)
def test_figure_1_of_zero(zero: int) -> None:
    assert states(7.5e9, 64.0, zero, HALF) / 1e9 == pytest.approx(ZERO_PAPER[zero], abs=0.06)


@pytest.mark.parametrize(
    ("billions", "half", "full"), [(1, 16, 20), (7, 112, 140), (70, 1120, 1400), (405, 6480, 8100)]
)
def test_table_of_the_playbook(billions: int, half: int, full: int) -> None:
    assert states(billions * 1e9, 1.0, 0, HALF) == half * 1e9
    # with fp32 gradients it counts both the bf16 and the fp32 ones
    assert states(billions * 1e9, 1.0, 0, Precision()) + 2.0 * billions * 1e9 == full * 1e9


def test_shards_apply_from_their_stage() -> None:
    zero = np.arange(4.0)
    shared = {"parameters": 8.0, "element_bytes": 1.0, "shards": 4.0, "zero": zero}
    assert weight_bytes(**shared).tolist() == [8, 8, 8, 2]
    assert gradient_bytes(**shared).tolist() == [8, 8, 2, 2]
    assert optimizer_bytes(**shared).tolist() == [8, 2, 2, 2]
    assert update_bytes(**shared).tolist() == [8, 2, 2, 2]
    assert update_bytes(at_once=1.5, **shared).tolist() == [8, 2, 2, 1.5]  # sub-groups, at stage 3 alone


def test_the_update_copies_gradients_kept_in_less_than_fp32() -> None:
    assert update_element_bytes(HALF) == 4.0
    assert update_element_bytes(Precision()) == 0.0
    assert update_element_bytes(Precision(gradients="bf16", master="none")) == 0.0


HELD = StateBytes(
    weights=20.0, gradients=40.0, optimizer=120.0, frozen=6.0, update=7.0, updated=10.0, received=3.0
)


@pytest.mark.parametrize(
    ("share", "left", "master"), [(0.0, 0.0, True), (0.25, 0.0, True), (1.0, 4.0, False)]
)
def test_states_that_the_host_updates_leave_the_device(share, left, master):
    """Ten parameters with 12 bytes of states, of which `left` stay; the host adds fp32 gradients, and weights."""
    offload = Offload(optimizer=share, master=master)
    result = on_host(HELD, offload, np.array(1.0), left, 99.0)
    moved = 120.0 - left * 10.0
    assert (result.weights, result.gradients, result.frozen) == (20.0, 40.0, 6.0)
    assert result.optimizer == 120.0 - share * moved
    assert (result.update, result.updated) == (7.0 * (1 - share), 10.0 * (1 - share))
    assert result.copied == (share * 10.0 if left else 0.0)
    assert result.host == share * moved + (4.0 if master else 8.0) * share * 10.0
    assert (result.host_updated, result.host_optimizer) == (share * 10.0, share * 120.0)
    assert (result.host_weights, result.host_gradients) == (0.0, 0.0)


@pytest.mark.parametrize(("zero", "gone"), [(2.0, 0.0), (3.0, 1.0)])
def test_offloaded_shards_of_stage_3_leave_the_device_whole(zero, gone):
    result = on_host(HELD, Offload(parameters=True), np.array(zero), 0.0, 99.0)
    kept = 1.0 - gone
    assert (result.weights, result.frozen, result.gradients) == (20.0 * kept, 6.0 * kept, 40.0 * kept)
    assert (result.optimizer, result.update, result.updated) == (120.0 * kept, 7.0 * kept, 10.0 * kept)
    assert result.host == gone * (120.0 + 4.0 * 10.0 + 20.0)
    assert (result.host_weights, result.host_gradients) == (gone * 99.0, gone * 40.0)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 200.0),
        ({"waits": True}, 100.0),  # two rounds of 40 parameters and more, one at a time
        ({"waits": True, "bucket": 0.0}, 200.0),
        ({"waits": True, "bucket": 1000.0}, 200.0),
        ({"zero": 0.0}, 0.0),
        ({"zero": 3.0}, 0.0),
        ({"shards": 1.0}, 0.0),
    ],
)
def test_parameters_that_are_received_in_flat_tensors(more, expected):
    usual = {
        "parameters": 100.0,
        "element_bytes": 2.0,
        "bucket": 40.0,
        "zero": 1.0,
        "shards": 4.0,
        "waits": False,
    }
    assert received_bytes(**{**usual, **more}) == expected


def test_nothing_is_frozen_where_all_is_trained():
    result = project(small.dense(), small.cluster(8), Layout(dp_shard=8), small.workload())
    assert [stage.frozen_bytes for stage in result.memory.stages] == [0.0]


@pytest.mark.parametrize(("zero", "shards"), [(0, 1), (3, 4)])
def test_an_update_in_backward_leaves_the_gradient_of_the_largest_parameter(zero, shards):
    def stage(updates):
        kernels = Kernels(updates_in_backward=updates)
        layout = Layout(dp_shard=4, zero=zero, kernels=kernels)
        return project(small.dense(), small.cluster(4), layout, small.workload()).memory.stages[0]

    all_together, one = stage(updates=False), stage(updates=True)
    assert one.gradients_bytes == 4.0 * 32000 * 1024 / shards < all_together.gradients_bytes
    assert (one.weights_bytes, one.optimizer_bytes) == (
        all_together.weights_bytes,
        all_together.optimizer_bytes,
    )


@pytest.mark.parametrize(
    ("devices", "release", "gib"), [(1, "4.36", 67.5), (2, "4.36", 33.7), (1, "sdpa", 58.2)]
)
def test_an_update_of_single_kernels_makes_all_square_roots_at_once(devices, release, gib):
    # fms-acceleration @876e2ed6fc, a100_80gb.csv: allocated with torch.optim.AdamW in bf16; sdpa has a fused update
    result = fs.project(
        "mistral-7b",
        "a100-sxm-80gb",
        devices=devices,
        seq_len=4096,
        global_batch_size=4,
        micro_batch_size=4 // devices,
        zero=3 if devices > 1 else 0,
        recompute="full",
        framework=f"transformers@{release}",
        precision=Precision(gradients="bf16", master="none", moments="bf16"),
    )
    assert result.memory.stages[0].allocated_bytes / 2**30 == pytest.approx(gib, rel=0.005)


@pytest.mark.parametrize(("zero", "gone"), [(1.0, 0.0), (2.0, 1.0), (3.0, 1.0)])
def test_sharded_gradients_follow_an_optimizer_on_the_host(zero, gone):
    result = on_host(HELD, Offload(optimizer=1.0), np.array(zero), 0.0, 99.0, gradients=True)
    assert result.gradients == 40.0 * (1.0 - gone)
    assert result.host_gradients == 40.0 * gone
    assert result.host == 120.0 + 4.0 * 10.0 + 40.0 * gone
    usual = on_host(HELD, Offload(), np.array(zero), 0.0, 99.0, gradients=True)
    assert (usual.gradients, usual.host) == (40.0, 0.0)


@pytest.mark.parametrize(
    ("zero", "offload", "gradients", "passing"), [(2, 0.0, 2.0, 0.0), (2, 1.0, 0.0, 1.0), (3, 1.0, 0.0, 0.0)]
)
def test_deepspeed_leaves_no_gradients_beside_an_optimizer_on_the_host(zero, offload, gradients, passing):
    """DeepSpeed, stage_1_and_2.py: one buffer of the largest parameter stays on the device below stage 3."""

    def stage(moves):
        kernels = Kernels(offloads_gradients=moves)
        layout = Layout(dp_shard=4, zero=zero, kernels=kernels, offload=Offload(optimizer=offload))
        workload = replace(small.workload(), precision=HALF)
        return project(small.dense(), small.cluster(4), layout, workload).memory.stages[0]

    kept, moved = stage(moves=False), stage(moves=True)
    parameters = kept.gradients_bytes / 2.0
    assert moved.gradients_bytes == gradients * parameters
    assert moved.buffers_bytes - kept.buffers_bytes == passing * 2.0 * 32000 * 1024
    assert moved.host_bytes - kept.host_bytes == (2.0 - gradients) * parameters


@pytest.mark.parametrize(("zero", "loss", "layers"), [(1, 0.0, 0.0), (2, 0.0, 1.0), (3, 1.0, 1.0)])
def test_gradients_of_one_flat_tensor_exist_whole(zero, loss, layers):
    absent = np.array(8.0)
    assert absent_flat(absent=absent, zero=np.array(zero), until=3) == 8.0 * (1.0 - loss)
    assert absent_flat(absent=absent, zero=np.array(zero), until=2) == 8.0 * (1.0 - layers)

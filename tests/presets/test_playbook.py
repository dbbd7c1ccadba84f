"""Figures that the Ultra-Scale Playbook prints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import small
from tests.small import asked

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.explain.explain import explain
from forescale.presets import project_as
from forescale.presets.playbook.preset import (
    bytes_per_parameter,
    playbook_activation_bytes,
    playbook_bubble_ratio,
    playbook_cp_ratio,
    playbook_ddp_ratio,
    playbook_fsdp_ratio,
    playbook_parameters,
    playbook_pp_ratio,
    playbook_ratios,
    playbook_tp_ratio,
    playbook_zero_bytes,
    zero_states,
)
from forescale.project import project
from forescale.spec import Layout, Precision, Recompute, Workload
from forescale.spec.layout import Kernels

MIXED = Precision(gradients="bf16")
ACCUMULATED = Precision(gradients="fp32")
FULL = Precision(parameters="fp32", gradients="fp32", master="none")


@pytest.mark.parametrize(
    ("billions", "plain", "accumulated"),
    [(1, 16, 20), (7, 112, 140), (70, 1120, 1400), (405, 6480, 8100)],
)
def test_memory_table(billions, plain, accumulated):
    for precision, gigabytes in ((FULL, plain), (MIXED, plain), (ACCUMULATED, accumulated)):
        assert billions * bytes_per_parameter(precision).total == gigabytes


@pytest.mark.parametrize(
    ("precision", "weights", "gradients", "optimizer"),
    [
        (Precision(gradients="bf16"), 2, 2, 4 + 4 + 4),
        (Precision(compute="fp8", parameters="fp32"), 4, 4, 4 + 4),
        (Precision(compute="fp8", parameters="fp8", gradients="fp8", master="bf16", moments="fp8"), 1, 1, 2 + 1 + 1),
        (Precision(parameters="fp8", gradients="bf16", moments="bf16"), 1, 2, 4 + 2 + 2),
        (Precision(gradients="bf16", master="none"), 2, 2, 4 + 4),
        (Precision(compute="fp8", parameters="fp8", gradients="fp8", master="fp16", moments="fp8", second_moments="fp16"),
            1, 1, 2 + 1 + 2),
    ],
    ids=["bf16", "transformer-engine", "nanotron", "deepseek-v3", "no-master", "fp8-lm"],
)  # fmt: skip
def test_states_follow_their_types(precision, weights, gradients, optimizer):
    """The playbook's table of FP8 recipes: 16 bytes in bf16 and under Transformer Engine, 7 and 6."""
    item = bytes_per_parameter(precision)
    assert (item.weights, item.gradients, item.accumulated, item.optimizer) == (
        weights,
        gradients,
        0,
        optimizer,
    )


@pytest.mark.parametrize("compute", ["fp32", "tf32"])
def test_full_precision_takes_16_bytes_by_its_compute_type_alone(compute):
    item = bytes_per_parameter(Precision(compute=compute))
    assert (item.weights, item.gradients, item.accumulated, item.optimizer) == (4, 4, 0, 8)


def test_bytes_of_every_part():
    item = bytes_per_parameter(ACCUMULATED)
    assert (item.weights, item.gradients, item.accumulated, item.optimizer) == (2, 2, 4, 12)
    item = bytes_per_parameter(FULL)
    assert (item.weights, item.gradients, item.accumulated, item.optimizer) == (4, 4, 0, 8)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_stages_of_7_5_billion_parameters_on_64_devices(zero, gigabytes):
    """The figure that the playbook takes over from the ZeRO paper: Ψ = 7.5 B, k = 12, N = 64."""
    states = zero_states(7.5e9, bytes_per_parameter(MIXED), Layout(dp_shard=64, zero=zero))
    assert sum(states.values()) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_zero_formulas():
    item, shards = 1e9, 8.0
    formulas = {1: (2 + 2, 12), 2: (2, 2 + 12), 3: (0, 2 + 2 + 12)}
    for zero, (whole, sharded) in formulas.items():
        states = zero_states(item, bytes_per_parameter(MIXED), Layout(dp_shard=8, zero=zero))
        expected = playbook_zero_bytes(parameters=item, whole=whole, sharded=sharded, shards=shards)
        assert sum(states.values()) == pytest.approx(expected)


def test_fp32_gradients_follow_the_gradients():
    states = zero_states(1e9, bytes_per_parameter(ACCUMULATED), Layout(dp_shard=8, zero=2))
    assert states == pytest.approx({"weights": 2e9, "gradients": 6e9 / 8, "optimizer": 12e9 / 8})


def test_parameter_formula():
    """GPT-3: 96 layers of 12288, vocabulary 50257: 174.6 B without positions."""
    result = playbook_parameters(hidden_size=12288.0, vocab_size=50257.0, num_layers=96.0)
    assert result == 12288 * 50257 + 96 * (12 * 12288**2 + 13 * 12288) + 2 * 12288
    assert result == pytest.approx(174.6e9, rel=1e-3)


def test_activation_formula_and_what_selective_recompute_saves():
    """GPT-3 (175B): 70 % less activation memory."""
    shape = {"num_layers": 96.0, "seq_len": 2048.0, "batch": 1.0, "hidden_size": 12288.0, "num_heads": 96.0}
    kept, selective = (playbook_activation_bytes(scores=scores, **shape) for scores in (1.0, 0.0))
    assert kept == 96 * 2048 * 12288 * (34 + 80)
    assert 1 - selective / kept == pytest.approx(0.70, abs=0.005)


def test_ratios():
    device = {"peak": 989e12, "bandwidth": 25e9}
    fsdp = playbook_fsdp_ratio(dp=8.0, tokens=4096.0 * 8, **device)
    assert fsdp == pytest.approx(7 * 989e12 / (2 * 4096 * 8 * 25e9))
    ddp = playbook_ddp_ratio(dp=8.0, tokens=4096.0, **device)
    assert ddp == pytest.approx(7 / 8 * 989e12 / (2 * 4096 * 25e9))
    assert ddp == pytest.approx(fsdp)
    tp = playbook_tp_ratio(tp=8.0, hidden_size=8192.0, **device)
    assert tp == pytest.approx(989e12 * 7 / (24 * 8192 * 25e9))
    pp = playbook_pp_ratio(num_layers=10.0, hidden_size=8192.0, **device)
    assert pp == pytest.approx(989e12 / (32 * 8192 * 10 * 25e9))
    assert playbook_bubble_ratio(pp=8.0, vpp=2.0, num_microbatches=32.0) == pytest.approx(7 / 64)


def test_projection_of_a_llama():
    result = project_as(
        asked(
            load_model("llama-2-7b"),
            small.cluster(8),
            Layout(tp=2, dp_shard=4, zero=1, recompute=Recompute(granularity="full")),
            replace(Workload(seq_len=4096, global_batch_size=64), precision=MIXED),
            preset="playbook",
        )
    )
    stage = result.memory.stages[0]
    assert stage.weights_bytes == pytest.approx(2 * result.params.total / 2)
    assert stage.optimizer_bytes == pytest.approx(12 * result.params.total / 2 / 4)
    assert stage.activations_bytes == pytest.approx(32 * 2 * 4096 * 4096 / 2)
    assert {"parameters", "activations"} <= {note.topic for note in result.notes}
    assert [item.part for item in result.communication] == ["data_comm", "tensor_comm"]


BLOCK = replace(small.dense(10), hidden_size=10_000, max_seq_len=None)
"""The playbook's example: ten blocks of 16h² = 1.6 B parameters."""


@pytest.mark.parametrize(
    ("layout", "batch", "part", "payload", "volume"),
    [
        (Layout(dp_shard=8, zero=0), 8, "data_comm", 25e6, 32e9),
        (Layout(dp_shard=8, zero=3), 8, "data_comm", 0.8e9, 24e9),
        (Layout(tp=8, micro_batch_size=8), 8, "tensor_comm", 80e6, 6.4e9),
        (Layout(pp=5), 8, "pipeline_comm", 80e6, 2.56e9),  # 40 M and 1.28 G elements there
        (Layout(dp_shard=8, zero=0, kernels=Kernels(bucket_elements=50e6)), 8, "data_comm", 100e6, 32e9),
    ],
)
def test_messages_and_volumes_of_the_formulas_for_compute_and_comms(layout, batch, part, payload, volume):
    question = asked(
        BLOCK,
        small.cluster(layout.num_devices),
        layout,
        Workload(seq_len=4000, global_batch_size=batch),
        preset="playbook",
    )
    sent = {item.part: item for item in project_as(question).communication}[part]
    assert (sent.payload_bytes, sent.volume_bytes) == pytest.approx((payload, volume))
    assert explain(question, f"volume.{part}").value == sent.volume_bytes
    assert explain(question, f"ratio.{part}").value == sent.ratio
    assert explain(question, "params.block").value == 1.6e9


@pytest.mark.parametrize(("layers", "verdict"), [(8, "AT RISK"), (2000, "OOM")])
def test_no_layout_is_said_to_fit(layers, verdict):
    """The playbook leaves out the context, buffers, logits and fragmentation, and states no interval."""
    question = asked(
        small.dense(layers),
        small.cluster(8),
        Layout(dp_shard=8),
        Workload(seq_len=1024, global_batch_size=16),
        preset="playbook",
    )
    memory = project_as(question).memory
    assert memory.verdict == verdict
    assert (memory.peak_bytes < memory.capacity_bytes) == (verdict == "AT RISK")
    assert memory.peak_low_bytes == memory.peak_bytes == memory.peak_high_bytes


def test_pipelines_hold_p_micro_batches():
    workload = Workload(seq_len=1024, global_batch_size=16)
    one, four = (
        project_as(asked(small.dense(8), small.cluster(pp), Layout(pp=pp), workload, preset="playbook"))
        for pp in (1, 4)
    )
    assert four.memory.stages[0].activations_bytes == pytest.approx(one.memory.stages[0].activations_bytes)
    assert [item.part for item in four.communication] == ["pipeline_comm", "bubble"]


def test_ring_ratio_from_its_own_parts():
    """Llama-3.1-8B over 4 ranks: 32768 tokens each, K and V of 2 × 8 × 128, at 989 TFLOP/s and 25 G elements/s."""
    tokens, kv_width, hidden = 131072 / 4, 2 * 8 * 128, 4096
    sent = tokens * kv_width / 25e9
    scored = 4 * tokens * tokens * hidden / 989e12
    result = playbook_cp_ratio(
        cp=4.0,
        peak=989e12,
        hidden_size=float(hidden),
        kv_width=float(kv_width),
        seq_len=131072.0,
        bandwidth=25e9,
    )
    assert result == pytest.approx(sent / scored)


def test_ratios_take_the_tier_that_holds_the_group():
    model, workload = load_model("llama-3.1-8b"), Workload(seq_len=8192, global_batch_size=64)
    cluster = load_cluster("h100-sxm", 64)
    layout = Layout(tp=4, cp=2, dp_shard=8, zero=3)
    ratios = {
        playbook_ratio.part: playbook_ratio.value
        for playbook_ratio in playbook_ratios(model, cluster, layout, workload, num_layers=32)
    }
    assert set(ratios) == {"tensor_comm", "context_comm", "data_comm"}
    fast, slow = (tier.bandwidth / 2.0 for tier in (cluster.tiers[0], cluster.tiers[-1]))
    peak = cluster.device.matrix_flops.bf16
    assert ratios["tensor_comm"] == pytest.approx(3 * peak / (24 * 4096 * fast))
    assert ratios["context_comm"] == pytest.approx(2 * peak * 2048 / (4 * 8192 * 4096 * fast))
    assert ratios["data_comm"] == pytest.approx(7 * peak / (2 * 8192 * 8 * slow))


def test_groups_of_whole_nodes_take_all_ports():
    """The engine hides the gradients of one sequence of 8,192 tokens per device on 512 H100."""
    model, workload = load_model("llama-3.1-8b"), Workload(seq_len=8192, global_batch_size=512)
    cluster = load_cluster("h100-sxm", 512)
    ports = cluster.devices_per_node * cluster.tiers[-1].bandwidth / 2.0
    (ratio,) = playbook_ratios(model, cluster, Layout(dp_shard=512), workload, num_layers=32)
    peak = cluster.device.matrix_flops.bf16
    assert ratio.value == pytest.approx(511 / 512 * peak / (2 * 8192 * ports))
    assert ratio.value < 1.0
    local = project(asked(model, cluster, Layout(dp_shard=512), workload))
    assert local.time_s["data_comm"] < 0.1 * local.step_time_s


def test_gathers_of_stage_3_over_whole_nodes_hide():
    """The engine prices stage 3 of Llama-2-13B on 32 H100 among its fastest layouts."""
    workload = Workload(seq_len=4096, global_batch_size=128)
    model, cluster = load_model("llama-2-13b"), load_cluster("h100-sxm", 32)
    (ratio,) = playbook_ratios(model, cluster, Layout(dp_shard=32, zero=3), workload, num_layers=40)
    assert (ratio.name, ratio.value < 1.0) == ("ZeRO-3 gather to forward", True)

"""Buffers and overhead: gathered parameters, dummy gradients, packaged figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.small import cluster, dense, moe, sees, workload

from forescale.catalogue.clusters import load_cluster
from forescale.face import ask
from forescale.graph.layer import layer_block
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.memory.buffers import (
    bucket_bytes,
    dummy_gradient_bytes,
    gather_stream_bytes,
    gathered_parameter_bytes,
    kept_whole,
    replica_bucket_bytes,
    resharded_bytes,
    resharded_copy_bytes,
    whole_parameter_bytes,
)
from forescale.memory.parameters import product_elements
from forescale.project import project
from forescale.spec import DenseFfn, FullAttention, Layout
from forescale.spec.layout import Kernels, Overlap, Recompute
from forescale.spec.workload import Precision


def products(model, strategy):
    degrees, choices = split_layout(strategy)
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=128.0)
    return product_elements(layer_block(model, model.layers[-1], layout))


def test_fused_weights_count_together():
    layer = dense().layers[0]
    h, width = 1024, layer.ffn.ffn_hidden_size
    result = products(dense(), Layout(tp=2))
    assert result["attention.qkv"] == h * (16 + 2 * 4) * 64 / 2
    assert result["ffn.up"] == 2 * h * width / 2
    assert result["ffn.down"] == h * width / 2


def test_of_experts_one_counts():
    assert products(moe(), Layout(ep=4, dp_shard=4))["moe.down"] == 512 * 1024
    assert products(moe(), Layout(ep=16, dp_shard=16))["moe.down"] == 512 * 1024


def test_panels_of_summa_are_summed_before_they_are_accumulated():
    assert "ffn.down" in products(dense(), Layout(tp=2, cp=2))
    assert products(dense(), Layout(tp=2, cp=2, tp_kind="summa")) == {}


def test_dummy_gradients_exist_where_a_layer_does_and_gradients_accumulate():
    layers, zero = np.array([0.0, 1.0, 5.0, 5.0]), np.array([1.0, 1.0, 1.0, 3.0])
    result = dummy_gradient_bytes(elements=10.0, element_bytes=2.0, layers=layers, zero=zero)
    assert result.tolist() == [0, 20, 20, 0]


def test_gathered_parameters_and_whole_gradients_over_several_shards():
    zero, shards = np.array([1.0, 2.0, 3.0, 3.0]), np.array([8.0, 8.0, 1.0, 8.0])
    shared = {"parameters": 10.0, "trained": 10.0, "reduced_bytes": 4.0, "shards": shards, "zero": zero}
    # two copies in bf16, a gradient in bf16 and its fp32 copy
    assert gathered_parameter_bytes(copies=2.0, **shared).tolist() == [0, 60, 0, 100]
    # weights in bf16; of fp32 gradients 7 in 8, as the shards are counted already
    assert whole_parameter_bytes(**shared).tolist() == [0, 35, 0, 55]
    # a quarter trained
    subset = {**shared, "trained": 2.5}
    assert gathered_parameter_bytes(copies=2.0, **subset).tolist() == [0, 15, 0, 55]
    assert whole_parameter_bytes(**subset).tolist() == [0, 8.75, 0, 28.75]
    # weights and gradients in fp32
    assert gathered_parameter_bytes(copies=2.0, element_bytes=4.0, **shared).tolist() == [0, 80, 0, 160]
    assert whole_parameter_bytes(element_bytes=4.0, **shared).tolist() == [0, 35, 0, 75]


def test_a_buffer_of_scores_stands_where_attention_keeps_them():
    def added(tp=1, *, flash=False):
        base = Layout(tp=tp, micro_batch_size=2, flash_attention=flash)
        question = {"cluster": cluster(tp), "workload": workload()}
        plain, buffered = (
            project(
                dense(), strategy=replace(base, kernels=Kernels(score_buffer=on)), **question
            ).memory.stages[0]
            for on in (False, True)
        )
        return buffered.buffers_bytes - plain.buffers_bytes

    of_scores = 2 * 2 * 16 * workload().seq_len ** 2  # bf16, two sequences, 16 heads
    assert (added(), added(2), added(flash=True)) == (of_scores, of_scores / 2, 0)


def test_buckets_of_replicas_stand_where_states_are_not_sharded():
    """PyTorch's DDP: a flat tensor of every parameter, of several replicas."""
    zero, dp = np.array([0.0, 0.0, 1.0]), np.array([1.0, 4.0, 4.0])
    result = replica_bucket_bytes(parameters=10.0, element_bytes=2.0, replicas=dp, zero=zero)
    assert result.tolist() == [0, 20, 0]
    base = Layout(dp_shard=8, zero=0)
    question = {"cluster": cluster(8), "workload": workload()}
    plain, buckets = (
        project(dense(), strategy=replace(base, kernels=Kernels(replica_buckets=on)), **question)
        for on in (False, True)
    )
    difference = buckets.memory.stages[0].buffers_bytes - plain.memory.stages[0].buffers_bytes
    assert difference == plain.memory.stages[0].weights_bytes


def test_buckets_of_ddp_under_transformers_have_the_type_of_the_gradients():
    """Accelerate leaves gradient_as_bucket_view False: replicas hold the gradients of what is trained once more."""
    asked = {"seq_len": 512, "micro_batch_size": 1, "zero": 0, "framework": "transformers"}
    for types in ({"gradients": "fp32"}, {"gradients": "bf16"}):
        one, two = (
            project(ask("llama-3.2-1b", "h100-sxm", devices=devices, global_batch_size=2 * devices, precision=types, **asked))
            for devices in (1, 2)
        )  # fmt: skip
        stages = [item.memory.stages[0] for item in (one, two)]
        assert stages[1].buffers_bytes - stages[0].buffers_bytes == stages[1].gradients_bytes > 0


def test_whole_gradients_stand_beside_the_shards():
    """FSDP in no_sync: gradients of all parameters in the type of the weights, where micro-batches are several."""
    question = {"cluster": cluster(8), "workload": workload()}
    base = Layout(dp_shard=8, zero=3)
    plain, whole = (
        project(dense(), strategy=replace(base, kernels=Kernels(keeps_whole_gradients=on)), **question)
        for on in (False, True)
    )
    difference = whole.memory.stages[0].buffers_bytes - plain.memory.stages[0].buffers_bytes
    several = workload().global_batch_size > 8
    assert difference == (8 * plain.memory.stages[0].weights_bytes if several else 0)


def test_replicas_that_share_no_states_have_buckets_too():
    base = Layout(dp_replicate=4, zero=0)
    plain, buckets = (
        project(
            dense(), cluster(4), replace(base, kernels=Kernels(replica_buckets=on)), workload()
        ).memory.stages[0]
        for on in (False, True)
    )
    assert buckets.buffers_bytes - plain.buffers_bytes == plain.weights_bytes


def test_the_buffer_of_scores_is_of_the_layer_with_most_heads():
    first, *rest = dense().layers
    fewer = replace(first, attention=replace(first.attention, num_heads=8, num_kv_heads=4))
    model = replace(dense(), layers=(fewer, *rest))
    plain, buffered = (
        project(
            model, cluster(1), Layout(flash_attention=False, kernels=Kernels(score_buffer=on)), workload(global_batch_size=1)
        ).memory.stages[0].buffers_bytes
        for on in (False, True)
    )  # fmt: skip
    assert buffered - plain == 2 * 16 * workload().seq_len ** 2


def test_chunks_of_products_have_workspaces_where_there_is_a_collective_and_the_engine_runs_them():
    device = load_cluster("h100-sxm", 2)

    def added(tp, *, fused):
        on, off = (
            project(
                dense(), device, Layout(tp=tp, sp=tp > 1, dp_shard=2 // tp, overlap=Overlap(tensor=item), kernels=Kernels(fused=fused)), workload()
            ).memory.stages[0].buffers_bytes
            for item in (True, False)
        )  # fmt: skip
        return on - off

    assert added(2, fused=True) > 0.0
    assert added(2, fused=False) == added(1, fused=True) == 0.0


def test_kinds_of_layers_share_the_dummy_gradients_of_weights_that_both_have():
    """A stage of the dense layer alone and one of experts: attention's weights on either; in 16 bits at least."""
    first, *others = moe().layers
    shared = dense().layers[0].attention
    layers = tuple(replace(other, attention=shared) for other in (first, *others))
    model = replace(moe(), layers=layers)
    attention = 1024 * (16 + 2 * 4) * 64 + 1024 * 1024

    def dummies(**precision):
        work = replace(workload(), precision=Precision(**precision))
        on, off = (
            project(model, cluster(8), Layout(pp=8, kernels=Kernels(dummy_gradients=item)), work)
            for item in (True, False)
        )
        stages = zip(on.memory.stages, off.memory.stages, strict=True)
        return [one.buffers_bytes - other.buffers_bytes for one, other in stages]

    result = dummies()
    assert result[0] == 2 * (attention + 3 * 1024 * 2048)
    assert result[1] > 2 * (attention + 3 * 1024 * 512)  # of experts one, a shared one and the router
    assert dummies(compute="fp8", recipe="blockwise", parameters="fp8") == result


def test_a_tower_is_on_the_first_stage():
    """What it has at work, gathers and has dummy gradients of; the other stage is that of the model without one."""
    thin = replace(
        dense().layers[0],
        attention=FullAttention(num_heads=2, num_kv_heads=1, head_dim=64),
        ffn=DenseFfn(ffn_hidden_size=64),
    )
    seeing, blind = (replace(model, layers=(thin,) * 8) for model in (sees(), dense()))
    layout = Layout(pp=2, dp_shard=4, zero=3, reshard="always", micro_batch_size=2)
    for kernels in (Kernels(), Kernels(gathers_aside=True), Kernels(gathers_each_weight=True)):
        for zero in (1, 3):
            question = replace(layout, zero=zero, kernels=kernels)
            (first, last), (plain, other) = (
                project(model, cluster(8), question, workload()).memory.stages for model in (seeing, blind)
            )
            for name in ("buffers_bytes", "activations_bytes", "overhead_bytes"):
                assert getattr(last, name) == getattr(other, name)
                assert getattr(first, name) > getattr(plain, name)


def test_resharding_by_default_depends_on_stages():
    pp = np.array([1.0, 4.0])
    names = {
        policy: np.broadcast_to(
            resharded_bytes(always=1.0, never=9.0, whole=kept_whole(pp=pp, reshard=policy)), 2
        ).tolist()
        for policy in ("default", "always", "never")
    }
    assert names == {"default": [1, 9], "always": [1, 1], "never": [9, 9]}


def test_what_the_gathering_stream_receives():
    """At stage 3 with several shards, in 16 bits; so many neighbours keep a copy among them."""
    zero, shards = np.array([2.0, 3.0, 3.0, 3.0]), np.array([8.0, 1.0, 2.0, 8.0])
    assert gather_stream_bytes(parameters=10.0, shards=shards, zero=zero).tolist() == [0, 0, 20, 20]
    near = resharded_copy_bytes(parameters=12.0, ranks=4.0, shards=shards, zero=zero)
    assert near.tolist() == [0, 0, 12, 6]
    shared = {"parameters": 10.0, "trained": 10.0, "reduced_bytes": 4.0}
    shared |= {"shards": np.array([2.0]), "zero": np.array([3.0])}
    assert gathered_parameter_bytes(copies=2.0, **shared).tolist() == [100]
    assert whole_parameter_bytes(**shared).tolist() == [40]


@pytest.mark.parametrize(
    ("zero", "flat", "gradients", "expected"),
    [(3, False, "bf16", 4), (3, False, "fp32", 6), (3, True, "fp32", 6), (2, True, "bf16", 4)],
)
def test_a_model_that_is_one_unit_of_fsdp_is_whole_when_backward_ends(zero, flat, gradients, expected):
    """FSDP2 holds weights and gradients, then gradients and those to reduce; the first FSDP also joins gradients."""
    kernels = Kernels(fsdp_unit="model", flat_parameters=flat, gradient_sum="after_product")
    one = one_unit(zero, kernels, gradients)
    stage = one.memory.stages[0]
    assert stage.buffers_bytes + stage.activations_bytes == expected * one.params.total


@pytest.mark.parametrize("zero", [0, 1])
def test_units_of_fsdp_change_nothing_where_gradients_are_whole(zero):
    layer, model = (one_unit(zero, Kernels(fsdp_unit=unit), "bf16").memory for unit in ("layer", "model"))
    assert layer == model


def one_unit(zero, kernels, gradients):
    layout = Layout(dp_shard=4, zero=zero, recompute=Recompute(granularity="full"), kernels=kernels)
    asked = replace(workload(), seq_len=16, precision=Precision(gradients=gradients))
    return project(dense(), cluster(4), layout, asked)


def test_overlapped_reductions_of_deepspeed_have_two_buckets_below_stage_3():
    """DeepSpeed, runtime/zero/stage_1_and_2.py, setup_buckets; stage3.py has one."""
    zero = np.arange(4.0)
    assert bucket_bytes(elements=5.0, element_bytes=2.0, zero=zero).tolist() == [0, 10, 10, 10]
    assert bucket_bytes(elements=5.0, element_bytes=2.0, zero=zero, double=True).tolist() == [0, 20, 20, 10]

    def buffers(**more):
        layout = Layout(dp_shard=4, zero=2, kernels=Kernels(bucket_elements=1e6, **more))
        return project(dense(), cluster(4), layout, workload()).memory.stages[0].buffers_bytes

    assert buffers(flat_gradients=True) - buffers() == 4e6

"""Buffers and overhead: gathered parameters, dummy gradients, packaged figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.small import cluster, dense, moe, workload

from forescale.graph.layer import layer_block
from forescale.graph.layout import Layout, split_strategy
from forescale.memory.buffers import (
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
from forescale.spec import Strategy
from forescale.spec.strategy import Kernels
from forescale.spec.workload import Precision


def products(model, strategy):
    degrees, choices = split_strategy(strategy)
    layout = Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=128.0)
    return product_elements(layer_block(model, model.layers[-1], layout))


def test_fused_weights_count_together():
    layer = dense().layers[0]
    h, width = 1024, layer.ffn.ffn_hidden_size
    found = products(dense(), Strategy(tp=2))
    assert found["attention.qkv"] == h * (16 + 2 * 4) * 64 / 2
    assert found["ffn.up"] == 2 * h * width / 2
    assert found["ffn.down"] == h * width / 2


def test_of_experts_one_counts():
    assert products(moe(), Strategy(ep=4, dp_shard=4))["moe.down"] == 512 * 1024
    assert products(moe(), Strategy(ep=16, dp_shard=16))["moe.down"] == 512 * 1024


def test_dummy_gradients_exist_where_a_layer_does_and_gradients_accumulate():
    layers, zero = np.array([0.0, 1.0, 5.0, 5.0]), np.array([1.0, 1.0, 1.0, 3.0])
    found = dummy_gradient_bytes(elements=10.0, element_bytes=2.0, layers=layers, zero=zero)
    assert found.tolist() == [0, 20, 20, 0]


def test_gathered_parameters_and_whole_gradients_over_several_shards():
    zero, shards = np.array([1.0, 2.0, 3.0, 3.0]), np.array([8.0, 8.0, 1.0, 8.0])
    shared = {"parameters": 10.0, "trained": 10.0, "reduced_bytes": 4.0, "shards": shards, "zero": zero}
    # two copies in bf16, a gradient in bf16 and its fp32 copy
    assert gathered_parameter_bytes(copies=2.0, **shared).tolist() == [0, 60, 0, 100]
    # weights in bf16; of fp32 gradients 7 in 8, as the shards are counted already
    assert whole_parameter_bytes(**shared).tolist() == [0, 35, 0, 55]
    # a quarter trained
    some = {**shared, "trained": 2.5}
    assert gathered_parameter_bytes(copies=2.0, **some).tolist() == [0, 15, 0, 55]
    assert whole_parameter_bytes(**some).tolist() == [0, 8.75, 0, 28.75]


def test_a_buffer_of_scores_stands_where_attention_keeps_them():
    def added(tp=1, *, flash=False):
        base = Strategy(tp=tp, micro_batch_size=2, flash_attention=flash)
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
    found = replica_bucket_bytes(parameters=10.0, element_bytes=2.0, replicas=dp, zero=zero)
    assert found.tolist() == [0, 20, 0]
    base = Strategy(dp_shard=8, zero=0)
    question = {"cluster": cluster(8), "workload": workload()}
    plain, buckets = (
        project(dense(), strategy=replace(base, kernels=Kernels(replica_buckets=on)), **question)
        for on in (False, True)
    )
    difference = buckets.memory.stages[0].buffers_bytes - plain.memory.stages[0].buffers_bytes
    assert difference == plain.memory.stages[0].weights_bytes


def test_resharding_by_default_depends_on_stages():
    pp = np.array([1.0, 4.0])
    found = {
        policy: np.broadcast_to(
            resharded_bytes(always=1.0, never=9.0, whole=kept_whole(pp=pp, reshard=policy)), 2
        ).tolist()
        for policy in ("default", "always", "never")
    }
    assert found == {"default": [1, 9], "always": [1, 1], "never": [9, 9]}


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

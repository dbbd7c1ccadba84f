"""Memory of captured launches: a pool of their own beside the eager one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, moe, workload

from forescale.memory.peak import second_pool_bytes
from forescale.project import project
from forescale.spec import Layout

LAYOUT = Layout(ep=4, dp_shard=8, micro_batch_size=4)


def buffers(model, graphs, layout=LAYOUT):
    stage = project(model, cluster(8), replace(layout, graphs=graphs), workload()).memory.stages[0]
    return stage.buffers_bytes


def test_two_pools_take_the_sum_of_what_one_takes_the_larger_of():
    assert 5.0 + second_pool_bytes(captured=3.0, others=5.0) == 3.0 + 5.0
    assert 3.0 + second_pool_bytes(captured=3.0, others=0.0) == 3.0


@pytest.mark.parametrize("model", [dense(), moe()])
def test_partial_graphs_hold_a_working_set_apart(model):
    layout = LAYOUT if model.is_moe else replace(LAYOUT, ep=1)
    more = buffers(model, "partial", layout) - buffers(model, "none", layout)
    activations = project(model, cluster(8), layout, workload()).memory.stages[0].activations_bytes
    assert 0.0 < more < activations


def test_the_update_cannot_have_the_memory_of_a_graph_of_the_whole_step():
    assert buffers(moe(), "full") >= buffers(moe(), "none")
    precision = replace(workload().precision, gradients="bf16")
    work = replace(workload(), precision=precision)
    eager, captured = (
        project(moe(), cluster(8), replace(LAYOUT, graphs=graphs), work).memory.stages[0].buffers_bytes
        for graphs in ("none", "full")
    )
    assert captured >= eager

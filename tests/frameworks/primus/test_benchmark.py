"""Artifacts as Primus writes them (performance_projection/projection.py, `_save_profiling_results`)."""

from __future__ import annotations

import copy
import json

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.frameworks.primus.benchmark import is_primus_bench, primus_bench
from forescale.io.question import build_question
from forescale.project import project
from forescale.projection.result import tokens_per_device_second
from forescale.question import Question
from forescale.spec import Layout, Workload

GIB = 2.0**30
LAYER = {
    "type": "moe",
    "forward_time_ms": 9.5,
    "backward_time_ms": 20.5,
    "activation_memory_bytes": int(5.4 * GIB),
    "attention": {"forward_time_ms": 2.5, "backward_time_ms": 6.0, "activation_memory_bytes": 1},
    "mlp": {"forward_time_ms": 7.0, "backward_time_ms": 14.5, "a2a_forward_time_ms": 1.2, "a2a_backward_time_ms": 1.2},
}  # fmt: skip
ENDS = {
    "embedding": {"type": "embedding", "forward_time_ms": 0.1, "backward_time_ms": 0.4, "activation_memory_bytes": 0},
    "output": {"type": "output", "forward_time_ms": 3.0, "backward_time_ms": 6.5, "activation_memory_bytes": 0},
}  # fmt: skip
V2 = {
    "schema_version": 2,
    "metadata": {
        "benchmark_ep": 8, "benchmark_tp": 1, "benchmark_pp": 1, "benchmark_gpus": 8, "benchmark_world_size": 8,
        "original_ep": 8, "original_tp": 1, "original_pp": 4, "original_cp": 1, "original_num_experts": 8,
        "benchmark_num_experts": 8, "gpus_per_node": 8, "alloc_conf": None,
        "bench_training_config_summary": {
            "num_layers": 1, "moe_pattern": [1], "num_experts": 8, "tensor_model_parallel_size": 1,
            "pipeline_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": 1,
            "context_model_parallel_size": 1, "expert_model_parallel_size": 8, "recompute_granularity": None,
            "recompute_num_layers": 0, "recompute_layer_ids": None, "micro_batch_size": 2, "sequence_length": 8192,
            "global_batch_size": 128,
        },
    },
    "profiling_results": {
        "0": LAYER,
        **ENDS,
        "_tp_allreduce_benchmark": {"2": {"measured_median_ms": 1.1, "measured_avg_ms": 1.2, "msg_size_bytes": 201326592}},
        "_optimizer_benchmark": {"step_time_ms": 41.0, "samples_ms": [41.0]},
    },
    "memory_results": {
        "captured_on_rank": 0, "snapshots": [], "phase_deltas": [],
        "global_peak_allocated_bytes": int(60 * GIB), "global_peak_reserved_bytes": int(66.42 * GIB),
    },
}  # fmt: skip
V1 = {
    "metadata": {"benchmark_ep": 8, "benchmark_tp": 1, "benchmark_pp": 1, "benchmark_gpus": 8},
    "profiling_results": {"0": LAYER, "1": LAYER, **ENDS, "_memory_benchmark": V2["memory_results"]},
}
TARGET = Question(
    model=load_model("mixtral-8x22b"),
    cluster=load_cluster("mi355x", 64),
    workload=Workload(seq_len=8192, global_batch_size=128),
    strategy=Layout(pp=4, ep=8, dp_shard=16, zero=1, micro_batch_size=2),
)


def changed(document, *path, value):
    result = copy.deepcopy(document)
    place = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return result


def test_the_shape_of_the_run_comes_from_the_file():
    assert is_primus_bench(V2)
    bench = primus_bench(V2, TARGET, where="bench.json")
    question = bench.question
    assert (question.model.num_layers, question.cluster.num_devices) == (1, 8)
    assert (question.layout.pp, question.layout.ep, question.layout.dp, question.layout.micro_batch_size) == (
        1,
        8,
        8,
        2,
    )
    assert question.workload.global_batch_size == 128
    assert [(block.kind, block.part, block.seconds) for block in bench.blocks] == [
        ("moe", "forward", pytest.approx(9.5e-3)), ("moe", "backward", pytest.approx(20.5e-3)),
        ("embedding", "forward", pytest.approx(1e-4)), ("embedding", "backward", pytest.approx(4e-4)),
        ("head", "forward", pytest.approx(3e-3)), ("head", "backward", pytest.approx(6.5e-3)),
        ("model", "update", pytest.approx(41e-3)),
    ]  # fmt: skip
    (reduce,) = bench.measurements.collectives
    assert (reduce.kind, reduce.num_ranks, reduce.ranks_per_node, reduce.num_bytes) == (
        "all_reduce",
        2,
        2,
        201326592,
    )
    assert bench.ranks[0].peak_reserved_bytes == int(66.42 * GIB)


def test_version_1_says_less_and_is_read():
    bench = primus_bench(V1, TARGET, where="bench.json")
    assert bench.question.model.num_layers == TARGET.model.num_layers
    assert bench.question.layout.ep == 8
    assert bench.ranks[0].peak_allocated_bytes == 60 * GIB
    assert bench.measurements is None


@pytest.mark.parametrize("document", [V1, V2], ids=["v1", "v2"])
def test_a_target_is_restored_from_it(document, tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    values = {
        "model": TARGET.model, "cluster": TARGET.cluster, "strategy": TARGET.strategy, "workload": TARGET.workload,
        "cost": {"benchmarks": [str(file)]},
    }  # fmt: skip
    result = project(build_question(values, where="test"))
    rows = {(row.block, row.part): row for row in result.costs.restored}
    assert rows["head", "forward"].kind == "measured"
    layer = next(block for block, _ in rows if block.endswith("+moe"))
    assert 0.0 < rows[layer, "forward"].measured_s <= 9.5e-3
    overhead = result.memory.stages[0].overhead_bytes
    assert overhead > 6.42 * GIB


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (changed(V2, "schema_version", value=3), "newer_version its schema_version"),
        (changed(V2, "profiling_results", value=[]), "wrong_type bench.json, profiling_results"),
        (changed(V2, "profiling_results", "0", "forward_time_ms", value="x"), "wrong_type forward_time_ms"),
        (
            {**V2, "profiling_results": {}, "memory_results": None},
            "not_measured it",
        ),
        (
            changed(V2, "metadata", "bench_training_config_summary", "moe_pattern", value=[0]),
            "moe_pattern must say of each layer",
        ),
        (changed(V2, "metadata", "bench_training_config_summary", "tensor_model_parallel_size", value=3), "not_divisible the number of devices"),
    ],
)  # fmt: skip
def test_what_is_no_such_artifact(document, text):
    with raises(SpecError, text):
        primus_bench(document, TARGET, where="bench.json")


def test_the_figures_of_the_documented_example():
    """Projected 5,026 ms on 8 nodes: 3,260 tokens/s/GPU (Example Calculation, step 3)."""
    rate = tokens_per_device_second(tokens=128 * 8192, step_time=5.026, num_devices=64)
    assert f"{rate:,.0f}" == "3,260"

from __future__ import annotations

from dataclasses import replace

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.memory.anchored import LayerMeasurement, RankPeak, anchored_memory
from forescale.memory.timeline import block_loads, total_bytes
from forescale.project import project
from forescale.spec import Strategy, Workload

DENSE, MOE = load_model("llama-3.1-8b"), load_model("mixtral-8x7b")
GIB = 2.0**30


def question(model=DENSE, devices=8, **layout):
    cluster = load_cluster("h100-sxm", devices)
    strategy = Strategy(tp=2, dp_shard=devices // 2 // layout.get("pp", 1), **layout)
    return project(model, cluster, strategy, Workload(seq_len=4096, global_batch_size=devices * 4))


BENCH, TARGET = question(), question(devices=64, pp=2)


def peak(allocated: float, gap: float = 2 * GIB, **more: float) -> RankPeak:
    return RankPeak(peak_allocated_bytes=allocated, peak_reserved_bytes=allocated + gap, **more)


def anchored(allocated: float, target=TARGET, bench=BENCH, layers=(), margin: float = 0.05, **more: float):
    return anchored_memory(
        target, bench, ranks=[peak(allocated, **more)], layers=layers, safety_margin=margin
    )


def test_a_run_that_went_as_computed_leaves_the_gap_alone():
    own = BENCH.memory.stages[0].allocated_bytes
    found = anchored(own)
    assert found.residual.live_tensor_excess_bytes == 0
    assert found.residual.framework_overhead_bytes == pytest.approx(2 * GIB)
    for stage, simulated in zip(found.stages, TARGET.memory.stages, strict=True):
        outside = simulated.overhead_bytes - simulated.fragmentation_bytes
        point = simulated.allocated_bytes + outside + 2 * GIB
        assert stage.estimate.point_bytes == pytest.approx(point)
        assert stage.estimate.upper_bytes == pytest.approx(point + 0.05 * 2 * GIB)


def test_anchored_on_itself_the_point_estimate_is_the_measured_peak():
    own = BENCH.memory.stages[0].allocated_bytes
    measured = peak(own + GIB, peak_device_bytes=own + 4 * GIB)
    found = anchored_memory(BENCH, BENCH, ranks=[measured], safety_margin=0.0)
    assert found.worst.estimate.point_bytes == pytest.approx(own + 4 * GIB)
    assert found.worst.outside_bytes == pytest.approx(GIB)
    assert found.worst.estimate.upper_bytes == found.worst.estimate.point_bytes


def test_the_fullest_measured_rank_counts_and_is_compared_with_its_own_stage():
    bench = question(pp=2)
    stages = bench.memory.stages
    ranks = [
        peak(stages[0].allocated_bytes - GIB, stage=0),
        peak(stages[0].allocated_bytes + 5 * GIB, stage=1, rank=4),
    ]
    found = anchored_memory(TARGET, bench, ranks=ranks, safety_margin=0.05)
    assert found.measured.rank == 4
    assert found.analytical_at_bench_bytes == pytest.approx(stages[1].allocated_bytes)


def test_a_rank_of_a_stage_that_the_bench_does_not_have_is_refused():
    with pytest.raises(SpecError, match="rank 0 is of stage 1; with pp 1 they are 0 to 0"):
        anchored(1.0, stage=1)


def test_measured_layers_scale_what_is_kept_at_bench_and_target():
    kept = total_bytes(block_loads(BENCH.model, BENCH.strategy, BENCH.workload).layers[0].kept)
    layers = [LayerMeasurement(kind="dense", activation_bytes=1.1 * kept)]
    own = BENCH.memory.stages[0].allocated_bytes
    found = anchored(own, layers=layers)
    assert found.corrections[0].factor == pytest.approx(1.1)
    assert found.corrections[0].kind == "attention+dense"
    assert found.analytical_at_bench_bytes == pytest.approx(own + 0.1 * kept * 32)
    first = found.stages[0].activations_bytes - TARGET.memory.stages[0].activations_bytes
    per_layer = total_bytes(block_loads(TARGET.model, TARGET.strategy, TARGET.workload).layers[0].kept)
    assert first == pytest.approx(0.1 * per_layer * 16 * 2)


def test_layers_without_bytes_and_both_ends_correct_nothing():
    own = BENCH.memory.stages[0].allocated_bytes
    found = anchored(
        own, layers=[LayerMeasurement(kind="dense"), LayerMeasurement(kind="head", activation_bytes=1e9)]
    )
    assert found.corrections == ()


@pytest.mark.parametrize(
    ("model", "kind", "text"),
    [
        (DENSE, "moe", "no kind of layer that llama-3.1-8b has: attention\\+dense"),
        (MOE, "dense", "no kind of layer that mixtral-8x7b has: attention\\+moe"),
    ],
)
def test_layers_that_the_model_has_not(model, kind, text):
    bench = question(model)
    with pytest.raises(SpecError, match=text):
        anchored(60 * GIB, bench=bench, layers=[LayerMeasurement(kind=kind, activation_bytes=1.0)])


def test_the_verdict_goes_by_the_devices_capacity():
    own = BENCH.memory.stages[0].allocated_bytes
    point = anchored(own).worst.estimate.point_bytes
    for capacity, verdict in ((point - 1, "OOM"), (point + 1, "AT RISK"), (point + GIB, "FITS")):
        target = replace(TARGET, memory=replace(TARGET.memory, capacity_bytes=capacity))
        assert anchored(own, target=target).worst.estimate.verdict == verdict


def test_a_negative_margin_is_refused():
    with pytest.raises(SpecError, match="0 or more"):
        anchored(60 * GIB, margin=-0.1)


def test_the_document_has_the_decomposition():
    body = anchored(60 * GIB).to_json()
    assert body["point_bytes"] == pytest.approx(
        body["analytical_bytes"] + body["framework_overhead_bytes"] + body["live_tensor_excess_bytes"]
    )
    assert [stage["stage"] for stage in body["stages"]] == [0, 1]

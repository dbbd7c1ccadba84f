"""Timelines against the projection's peak, and against hand-made schedules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, moe, workload

from forescale.errors import SpecError
from forescale.memory.timeline import one_forward_one_backward, stage_timeline
from forescale.project import project
from forescale.spec import Kernels, Recompute, Strategy

STRATEGY = Strategy(tp=2, pp=4, dp_shard=2, kernels=Kernels(accumulate_in_product=False))


def test_order_of_1f1b():
    assert one_forward_one_backward(stage=0, pp=3, num_microbatches=4) == (
        *(("F", 0), ("F", 1), ("F", 2), ("B", 0)),
        *(("F", 3), ("B", 1), ("B", 2), ("B", 3)),
    )
    last = one_forward_one_backward(stage=2, pp=3, num_microbatches=2)
    assert last == (("F", 0), ("B", 0), ("F", 1), ("B", 1))
    assert len(one_forward_one_backward(stage=0, pp=8, num_microbatches=2)) == 4


@pytest.mark.parametrize("recompute", [Recompute(), Recompute(granularity="full")])
def test_peak_is_the_projections(recompute):
    strategy = replace(STRATEGY, recompute=recompute)
    projected = project(dense(), cluster(16), strategy, workload()).memory.stages
    for stage in projected:
        peak = stage_timeline(dense(), strategy, workload(), stage=stage.stage).peak
        assert peak.num_bytes == pytest.approx(stage.activations_bytes)


def test_peak_of_mixed_layers_is_at_most_the_projections():
    model = replace(moe(), num_mtp_layers=0)
    projected = project(model, cluster(16), STRATEGY, workload()).memory.stages
    for stage in projected:
        peak = stage_timeline(model, STRATEGY, workload(), stage=stage.stage).peak
        assert peak.num_bytes <= stage.activations_bytes * (1 + 1e-12)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_tensors_sum_to_their_instant(stage):
    timeline = stage_timeline(dense(), STRATEGY, workload(), stage=stage)
    for instant in (timeline.peak, timeline.instants[0], timeline.instants[-1]):
        assert sum(timeline.tensors(instant).values()) == pytest.approx(instant.num_bytes)


def test_peak_of_the_first_stage_holds_a_micro_batch_per_later_stage():
    timeline = stage_timeline(dense(), STRATEGY, workload(), stage=0)
    assert {name.split("/")[0] for name in timeline.tensors(timeline.peak)} == {"0", "1", "2", "3"}
    assert timeline.peak.phase == "backward"


def test_peak_of_the_last_stage_is_the_loss():
    timeline = stage_timeline(dense(), STRATEGY, workload(), stage=3)
    assert timeline.peak.block == "head"


def test_stages_that_do_not_exist():
    with pytest.raises(SpecError, match="stages are 0 to 3"):
        stage_timeline(dense(), STRATEGY, workload(), stage=4)
    with pytest.raises(SpecError, match="vpp is 2"):
        stage_timeline(dense(), replace(STRATEGY, vpp=2), workload(), stage=0)

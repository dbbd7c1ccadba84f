"""What hides behind what, each switch by itself; and what two stages that share a matrix exchange."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import toy
from tests.small import cluster, dense, moe, workload

from forescale.catalogue.clusters import load_cluster
from forescale.project import project
from forescale.spec import Layout
from forescale.spec.layout import Overlap
from forescale.time.overlap import beyond_wait, pipeline_wait

PIPELINE = Layout(pp=4, dp_shard=4, overlap=Overlap(grad_reduce=False, param_gather=False))


def times(model, layout, devices=16):
    return project(model, cluster(devices), layout, workload())


def test_a_stage_waits_for_those_before_it():
    assert pipeline_wait(stage=3.0, seconds=2.0, vpp=2.0) == 3.0
    assert beyond_wait(exposed=5.0, wait=3.0) == 2.0
    assert beyond_wait(exposed=2.0, wait=3.0) == 0.0


def test_bubbles_hide_the_traffic_of_all_stages_but_the_first():
    # The last stages hold more: what they reduce fits into their wait, and the first stage's shows.
    uneven = replace(PIPELINE, stage_layers=(1, 1, 3, 3))
    shown = [
        times(dense(), replace(uneven, overlap=replace(uneven.overlap, bubbles=on))) for on in (False, True)
    ]
    assert shown[1].time_s["data_comm"] < shown[0].time_s["data_comm"]
    others = [{k: v for k, v in item.time_s.items() if k not in ("data_comm", "overhead")} for item in shown]
    assert others[0] == others[1]


def test_without_a_pipeline_there_are_no_bubbles_to_hide_in():
    alone = Layout(dp_shard=16, overlap=Overlap(grad_reduce=False))
    hidden = replace(alone, overlap=Overlap(grad_reduce=False, bubbles=True))
    assert times(dense(), alone).step_time_s == times(dense(), hidden).step_time_s


def test_at_stage_3_gathers_and_reductions_hide_each_for_itself():
    layout = Layout(dp_shard=16, zero=3, micro_batch_size=4)
    both, gathers, reductions, none = (
        times(dense(), replace(layout, overlap=Overlap(param_gather=gather, grad_reduce=reduce))).step_time_s
        for gather, reduce in ((True, True), (True, False), (False, True), (False, False))
    )
    assert both < gathers < none
    assert both < reductions < none


def test_shared_experts_hide_dispatch_and_combine_in_part_and_another_microbatch_hides_more():
    layout = Layout(ep=8, dp_shard=8, micro_batch_size=4, graphs="full")
    shown = [
        times(moe(), replace(layout, overlap=Overlap(**which)), 8).time_s["expert_comm"]
        for which in (
            {},
            {"shared_experts": True},
            {"expert": True},
            {"expert": True, "shared_experts": True},
        )
    ]
    assert shown[0] > shown[1] > shown[2]
    assert shown[2] == shown[3]


def test_layers_without_shared_experts_hide_nothing_behind_them():
    bare = moe()
    layers = tuple(
        replace(layer, ffn=replace(layer.ffn, shared_ffn_hidden_size=0))
        if getattr(layer.ffn, "num_experts", 0)
        else layer
        for layer in bare.layers
    )
    layout = Layout(ep=8, dp_shard=8)
    hidden = replace(layout, overlap=Overlap(shared_experts=True))
    model = replace(bare, layers=layers)
    assert times(model, layout, 8).step_time_s == times(model, hidden, 8).step_time_s


@pytest.mark.parametrize(("schedule", "exchanges"), [(None, True), ("zb-h1", True), ("zbv", False)])
def test_tied_embeddings_on_two_stages_add_up_their_gradients(schedule, exchanges):
    """The other traffic is the same: both stages hold a copy, as untied ones hold a matrix each."""
    layout = Layout(pp=2, vpp=2 if schedule == "zbv" else 1, dp_shard=8, schedule=schedule)
    free, tied = (
        project(
            replace(dense(), tied_embeddings=on), toy.cluster(16), layout, workload(), costs=toy.costs()
        ).time_s["data_comm"]
        for on in (False, True)
    )
    item = (
        32000 * 1024 * 4 / 100e9
    )  # the matrix padded to a multiple of 128 as it is; two ranks of a ring: once
    assert tied - free == pytest.approx(item if exchanges else 0.0, rel=1e-9, abs=1e-12)


def test_one_stage_has_one_copy_and_nothing_to_exchange():
    layout = Layout(dp_shard=16)
    parts = [
        project(replace(dense(), tied_embeddings=on), load_cluster("h100-sxm", 16), layout, workload()).time_s
        for on in (False, True)
    ]
    assert parts[1]["data_comm"] <= parts[0]["data_comm"]

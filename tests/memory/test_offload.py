"""Seconds and bytes of offload against Megatron-Bridge's measurements and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.small import cluster, dense, moe, workload

from forescale.advise.changing import fit
from forescale.advise.check import Limits, check, verdict_within
from forescale.catalogue.clusters import load_cluster
from forescale.face import ask
from forescale.memory.offload import (
    exposed_copies,
    exposed_update_copies,
    host_update_seconds,
    in_transit_bytes,
    load_host_rates,
    offloaded_share,
    resident_bytes,
)
from forescale.project import project
from forescale.search import search
from forescale.spec import Layout, Recompute
from forescale.spec.layout import Offload
from forescale.units import GIB, format_bytes


@pytest.mark.parametrize(("fraction", "added_s"), [(0.25, 0.875), (0.5, 1.488), (0.75, 2.191), (1.0, 3.193)])
def test_seconds_that_an_offloaded_optimizer_adds(fraction, added_s):
    """Qwen3-30B-A3B on 16 H100, Megatron-Bridge skills/nemo-mbridge-perf-cpu-offloading: copies not overlapped."""
    rates = load_host_rates()
    parameters = fraction * 1.91e9
    update = host_update_seconds(num_bytes=28.0 * parameters, bandwidth=rates.update_bandwidth)
    copies = 2 * 4.0 * parameters / (64e9 * rates.link_share)
    result = update + exposed_update_copies(copies=copies, update=update, overlapped=False)
    assert result == pytest.approx(added_s, rel=0.1)


def test_overlap_hides_copies_behind_the_update():
    """The same source: 3.877 instead of 4.189 s."""
    assert exposed_update_copies(copies=0.312, update=2.88, overlapped=True) == 0.0


def test_copies_of_an_update_run_both_ways_at_once_beside_it():
    """Four seconds of gradients down and four of parameters up, beside an update of one."""
    assert exposed_update_copies(copies=8.0, update=1.0, overlapped=True) == 3.0
    assert exposed_update_copies(copies=8.0, update=1.0, overlapped=False) == 8.0


def test_share_of_layers_ends_at_all_of_them():
    layers = np.array([10.0, 20.0, 40.0])
    assert offloaded_share(num_layers=20.0, layers_on_stage=layers).tolist() == [1.0, 1.0, 0.5]


def moving(num_layers: float, on_stage: float, unit: float = 1.0) -> float:
    return in_transit_bytes(
        offloaded=40.0, num_layers=num_layers, layers_on_stage=on_stage, units_on_stage=on_stage / unit
    )


def test_two_layers_are_in_transit_where_all_are_offloaded():
    assert moving(8.0, 4.0) == 20.0
    assert moving(4.0, 4.0) == 20.0
    assert moving(1.0, 1.0) == 40.0


def test_one_layer_is_in_transit_where_some_stay():
    assert moving(4.0, 8.0) == 10.0
    assert moving(1.0, 8.0) == 40.0


def test_layers_that_are_replayed_together_move_as_one():
    assert (moving(8.0, 8.0, 2.0), moving(4.0, 8.0, 2.0)) == (20.0, 20.0)
    layout = Layout(dp_shard=8, recompute=Recompute(granularity="full", unit=2))
    stays, moves = (
        project(dense(8), cluster(8), replace(layout, offload=Offload(activation_layers=layers)), workload())
        for layers in (0, 8)
    )
    (one,), (other,) = stays.memory.stages, moves.memory.stages
    on_the_way = other.activations_bytes - (one.activations_bytes - other.host_bytes)
    assert on_the_way == pytest.approx(2 / 4 * other.host_bytes)


def test_what_multi_token_prediction_keeps_goes_to_the_host_of_the_last_stage():
    layout = Layout(pp=2, dp_shard=4, offload=Offload(modules=("core_attn",)))
    stages = [
        project(replace(moe(), num_mtp_layers=count), cluster(8), layout, workload()).memory.stages
        for count in (0, 1)
    ]
    assert stages[0][0].host_bytes == stages[1][0].host_bytes > 0.0
    assert stages[0][1].host_bytes < stages[1][1].host_bytes


def test_layers_in_transit_are_on_the_device_too():
    assert resident_bytes(kept=18.0, in_transit=2.0) == 20.0


def test_copies_hide_behind_a_pass_and_run_both_ways_at_once():
    shared = {"out": 6.0, "back": 4.0, "bandwidth": 2.0}
    assert exposed_copies(cover=1.0, overlapped=True, **shared) == 2.0
    assert exposed_copies(cover=9.0, overlapped=True, **shared) == 0.0
    assert exposed_copies(cover=9.0, overlapped=False, **shared) == 5.0


PAGED = {"devices": 1, "seq_len": 2048, "micro_batch_size": 1, "global_batch_size": 2, "framework": "transformers",
         "recompute": "full", "precision": {"master": "none", "moments": "fp32", "gradients": "bf16"}}  # fmt: skip


def of_pages(model, paged, **asked):
    question = ask(model, "rtx-4090", **{**PAGED, **asked})
    layout = replace(question.strategy, offload=replace(question.strategy.offload, paged=paged))
    return project(question.with_layout(layout)).memory


def test_moments_that_find_no_room_are_paged_out():
    """bitsandbytes, functional.py, get_paged: cudaMallocManaged."""
    whole, paged = (of_pages("qwen2.5-3b", paged) for paged in (False, True))
    moved = paged.stages[0].host_bytes
    assert (whole.verdict, paged.verdict) == ("OOM", "FITS")
    assert moved == pytest.approx(whole.peak_high_bytes - whole.capacity_bytes, rel=1e-12)
    assert 0 < moved < whole.stages[0].optimizer_bytes
    assert paged.peak_bytes == pytest.approx(whole.peak_bytes - moved, rel=1e-12)


def test_nothing_is_paged_out_where_there_is_room():
    whole, paged = (of_pages("qwen2.5-0.5b", paged) for paged in (False, True))
    assert whole.verdict == "FITS"
    assert paged == whole


def test_only_moments_are_paged_out():
    """A master copy, weights in 32 bits under autocast, stays; what does not fit without moments runs out of memory."""
    memory = of_pages(
        "qwen2.5-7b", True, precision={"master": "fp32", "moments": "fp32", "gradients": "bf16"}
    )
    stage = memory.stages[0]
    assert memory.verdict == "OOM"
    assert stage.host_bytes == pytest.approx(2.0 * stage.optimizer_bytes, rel=1e-12)


def test_a_search_finds_layouts_that_fit_by_pages_alone():
    question = ask("qwen2.5-3b", "rtx-4090", devices=2, seq_len=2048, global_batch_size=8, framework="transformers",
                   precision={"master": "none", "moments": "fp32", "gradients": "bf16"},
                   max_memory=24e9)  # fmt: skip
    base = replace(question.space.base, offload=replace(question.space.base.offload, paged=True))
    best = search(question.with_space(base=base, zero=(0,))).best[0]
    bare = replace(best.strategy, offload=replace(best.strategy.offload, paged=False))
    assert project(question.with_layout(bare)).memory.peak_bytes > question.memory_limit


@pytest.mark.parametrize(("devices", "ranks"), [(4, 4), (16, 8)])
def test_the_host_memory_of_a_node_is_noted_where_something_is_offloaded(devices, ranks):
    asked = {
        "devices": devices,
        "seq_len": 1024,
        "global_batch_size": 16,
        "zero": 3,
        "framework": "transformers",
    }
    kept = project(ask("llama-3.1-8b", "h100-sxm", offload={"parameters": True}, **asked))
    (note,) = [note for note in kept.notes if note.topic == "host memory"]
    most = kept.memory.stages[0].host_bytes
    assert format_bytes(ranks * most) in note.text
    assert most * devices == pytest.approx(18.0 * kept.params.total, rel=0.02)
    on_device = project(ask("llama-3.1-8b", "h100-sxm", **asked))
    assert not any(note.topic == "host memory" for note in on_device.notes)


@pytest.mark.parametrize(("host", "verdict"), [(0.0, "FITS"), (1024.0 * GIB, "FITS"), (64.0 * GIB, "OOM")])
def test_what_is_offloaded_must_fit_the_host_of_a_node_where_its_memory_is_known(host, verdict):
    cluster = replace(load_cluster("h100-sxm", 8), host_memory_bytes=host)
    question = ask("llama-3.1-8b", cluster, seq_len=1024, global_batch_size=8, zero=3, recompute="full",
                   framework="deepspeed-zero", offload={"optimizer": 1.0})  # fmt: skip
    memory = project(question).memory
    assert memory.host_bytes == pytest.approx(18.0 * 8.03e9, rel=0.01)
    assert (memory.verdict, memory.exceeds_host) == (verdict, verdict == "OOM")
    assert verdict_within(project(question), question.memory_limit) == verdict
    codes = [
        finding.code for finding in check(question, Limits(), project).findings if finding.level == "error"
    ]
    assert codes == (["host_memory"] if verdict == "OOM" else [])


def test_no_change_is_proposed_that_the_host_has_no_room_for():
    def offers(name):
        asked = {
            "zero": 2,
            "framework": "deepspeed",
            "global_batch_size": 4,
            "seq_len": 2048,
            "recompute": "full",
        }
        fixes = fit(ask("llama-2-13b", name, devices=4, **asked)).fixes
        return {fix.text: fix.verdict for fix in fixes}

    change = "zero 3, optimizer_offload 1"
    assert (offers("a10g")[change], offers("g5.12xlarge")[change]) == ("FITS", "OOM")

"""Data-parallel traffic at stage 3: what is gathered when, in time as in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, moe, workload

from forescale.project import project
from forescale.spec import MoeFfn, Strategy
from forescale.spec.strategy import Kernels, Overlap
from forescale.time.data_parallel import update_owners

BARE = Overlap(grad_reduce=False, param_gather=False)


def run(batch=128, devices=16, **changes):
    layout = replace(Strategy(dp_shard=16, zero=3, overlap=BARE), **changes)
    return project(dense(), cluster(devices), layout, workload(global_batch_size=max(batch, devices)))


def test_parameters_kept_whole_are_gathered_once_a_step_however_many_micro_batches():
    once = [run(batch, reshard="never").time_s["data_comm"] for batch in (16, 128)]
    again = [run(batch, reshard="always").time_s["data_comm"] for batch in (16, 128)]
    assert once[1] == pytest.approx(once[0], rel=0.05)  # but for what the slowest device adds
    assert again[1] == pytest.approx(8 * again[0], rel=0.05)
    assert once[0] < again[0]


def test_memory_and_time_follow_the_same_rule():
    always, never = run(reshard="always"), run(reshard="never")
    assert never.time_s["data_comm"] < always.time_s["data_comm"]
    assert never.memory.stages[0].buffers_bytes > always.memory.stages[0].buffers_bytes


def test_the_default_keeps_parameters_whole_where_there_are_stages():
    for pp, same in ((1, "always"), (4, "never")):
        shards = 16 // pp
        default, told = (run(pp=pp, dp_shard=shards, reshard=way) for way in ("default", same))
        assert default.time_s == told.time_s
        assert default.memory == told.memory


def test_sharding_over_neighbours_is_between_both():
    always, near, never = (run(reshard=way) for way in ("always", 4, "never"))
    assert never.time_s["data_comm"] < near.time_s["data_comm"] < always.time_s["data_comm"]
    buffers = [each.memory.stages[0].buffers_bytes for each in (always, near, never)]
    assert buffers[0] < buffers[1] < buffers[2]
    parameters = sum(stage.weights_bytes for stage in near.memory.stages) * 16 / 2
    assert buffers[1] - buffers[0] == pytest.approx(2 * parameters / 4)


def test_neighbours_beyond_the_group_are_the_group():
    assert run(reshard=64).time_s == run(reshard="always").time_s


def test_below_stage_3_nothing_is_sharded_again():
    runs = [run(zero=1, reshard=way) for way in ("always", "never", 4)]
    assert runs[0].time_s == runs[1].time_s == runs[2].time_s
    assert runs[0].memory == runs[1].memory == runs[2].memory


def test_owners_broadcast_what_they_updated():
    assert update_owners(ranks=16.0, tensors=100.0) == 16.0
    shares, whole = (
        run(zero=1, kernels=Kernels(broadcasts_updates=on), dp_shard=512, devices=512) for on in (False, True)
    )
    assert whole.time_s["data_comm"] > shares.time_s["data_comm"]
    near = [run(zero=1, kernels=Kernels(broadcasts_updates=on)).time_s["data_comm"] for on in (False, True)]
    assert whole.time_s["data_comm"] / shares.time_s["data_comm"] > near[1] / near[0]


def test_selection_biases_are_updated_from_the_tokens_of_all_ranks():
    plain = moe()
    biased = replace(
        plain,
        layers=tuple(
            replace(layer, ffn=replace(layer.ffn, score_bias=True))
            if isinstance(layer.ffn, MoeFfn)
            else layer
            for layer in plain.layers
        ),
    )
    layout = Strategy(ep=8, dp_shard=16)
    times = [project(each, cluster(16), layout, workload()).time_s["data_comm"] for each in (plain, biased)]
    assert times[0] < times[1] < times[0] + 1e-3

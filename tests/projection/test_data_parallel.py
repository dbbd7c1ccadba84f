"""Data-parallel traffic at stage 3: what is gathered when, in time as in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import cluster, dense, workload

from forescale.project import project
from forescale.spec import Strategy
from forescale.spec.strategy import Overlap

BARE = Overlap(grad_reduce=False, param_gather=False)


def run(batch=128, **changes):
    layout = replace(Strategy(dp_shard=16, zero=3, overlap=BARE), **changes)
    return project(dense(), cluster(16), layout, workload(global_batch_size=batch))


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

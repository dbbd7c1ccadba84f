"""Memory traces replayed: what they say at every time is what the timeline says."""

from __future__ import annotations

import json

import pytest
from tests.small import dense, workload

from forescale.io.memory_trace import memory_snapshot, perfetto_counters
from forescale.memory.timeline import stage_timeline
from forescale.spec import Strategy


@pytest.fixture(scope="module")
def timeline():
    strategy = Strategy(pp=2, dp_shard=16)
    return stage_timeline(dense(2), strategy, workload(), stage=0)


def test_counters_follow_the_timeline(timeline):
    document = json.loads(json.dumps(perfetto_counters(timeline, rank=3)))
    counters = [event for event in document["traceEvents"] if event["ph"] == "C"]
    assert [event["args"]["bytes"] for event in counters] == [i.num_bytes for i in timeline.instants]
    assert {event["pid"] for event in document["traceEvents"]} == {3}


def test_a_replayed_snapshot_has_the_peak_of_the_timeline(timeline):
    snapshot = memory_snapshot(timeline, rank=1)
    assert snapshot["device_traces"][0] == []
    alive, peak = {}, 0
    for event in snapshot["device_traces"][1]:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert alive.pop(event["addr"]) == event["size"]
        peak = max(peak, sum(alive.values()))
    assert peak == pytest.approx(timeline.peak.num_bytes)


def test_frames_name_the_tensor(timeline):
    first = memory_snapshot(timeline)["device_traces"][0][0]
    assert [frame["name"] for frame in first["frames"]][1:] == ["embedding", "0"]

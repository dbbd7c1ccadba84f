"""Files of a timeline, replayed: what they say at every time is what the timeline says."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError
from forescale.io.step_memory import step_counters, step_snapshot, write_timeline
from forescale.project import memory_timeline
from forescale.spec import Layout, Recompute, Workload

LAYOUT = Layout(tp=4, pp=2, dp_shard=2)
CASES = {
    "1f1b": LAYOUT,
    "interleaved": replace(LAYOUT, vpp=2),
    "recompute": replace(LAYOUT, recompute=Recompute(granularity="full")),
    "split backward": replace(LAYOUT, schedule="zb-h1"),
    "offload": replace(LAYOUT, pp=4, dp_shard=1, vpp=2, schedule="pipeoffload"),
    "one rank": replace(LAYOUT, pp=1, dp_shard=4),
}


def timeline_of(layout):
    workload = Workload(seq_len=2048, global_batch_size=16)
    return memory_timeline(load_model("llama-3.1-8b"), load_cluster("h100-sxm", 16), layout, workload)


@pytest.fixture(params=CASES)
def timeline(request):
    return timeline_of(CASES[request.param])


def test_counters_follow_the_timeline(timeline):
    events = json.loads(json.dumps(step_counters(timeline)))["traceEvents"]
    for rank in timeline.ranks:
        shown = [e for e in events if e["ph"] == "C" and e["pid"] == rank.rank and e["name"] == "allocated"]
        assert [event["args"]["bytes"] for event in shown] == rank.allocated.tolist()
        assert [event["ts"] for event in shown] == sorted(event["ts"] for event in shown)
    assert any(event["ph"] == "X" for event in events)


def replay(trace):
    alive, peak = {}, 0
    for event in trace:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert alive.pop(event["addr"]) == event["size"]
        peak = max(peak, sum(alive.values()))
    return alive, peak


def test_a_replayed_snapshot_peaks_as_the_timeline_does(timeline):
    snapshot = step_snapshot(timeline)
    for rank, trace in zip(timeline.ranks, snapshot["device_traces"], strict=True):
        alive, peak = replay(trace)
        assert peak == pytest.approx(rank.peak.allocated_bytes, rel=1e-6)
        assert sum(alive.values()) == pytest.approx(rank.standing.states + rank.standing.buffers, rel=1e-6)
        segments = {s["address"]: s["total_size"] for s in snapshot["segments"] if s["device"] == rank.rank}
        assert segments == alive
        times = [event["time_us"] for event in trace]
        assert times == sorted(times)


def test_addresses_stay_exact_in_a_browser(timeline):
    snapshot = step_snapshot(timeline)
    assert max(event["addr"] for trace in snapshot["device_traces"] for event in trace) < 2**53


def test_frames_name_the_tensor_its_pass_and_its_stage():
    trace = step_snapshot(timeline_of(LAYOUT))["device_traces"][0]
    names = {tuple(frame["name"] for frame in event["frames"]) for event in trace}
    assert ("ffn.up", "attention+dense", "kept", "micro-batch 3", "stage 0") in names


def test_the_suffix_says_the_format(tmp_path):
    timeline = timeline_of(LAYOUT)
    write_timeline(timeline, tmp_path / "trace.json")
    write_timeline(timeline, tmp_path / "snapshot.pickle")
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert len(snapshot["device_traces"]) == 2
    with raises(ForescaleError, "wrong_suffix a timeline"):
        write_timeline(timeline, tmp_path / "trace.txt")
    with pytest.raises(ForescaleError, match="cannot write"):
        write_timeline(timeline, tmp_path / "none" / "trace.json")

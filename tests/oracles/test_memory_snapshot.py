"""PyTorch's own snapshot tools read the snapshots."""

from __future__ import annotations

import pickle

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.io.step_memory import step_snapshot
from forescale.project import memory_timeline
from forescale.spec import Layout, Workload

viz = pytest.importorskip("torch.cuda._memory_viz")


def test_pytorch_reads_a_snapshot():
    timeline = memory_timeline(
        load_model("llama-3.1-8b"),
        load_cluster("h100-sxm", 16),
        Layout(tp=4, pp=2, dp_shard=2),
        Workload(seq_len=2048, global_batch_size=16),
    )
    snapshot = pickle.loads(pickle.dumps(step_snapshot(timeline)))
    text = viz.trace(snapshot)
    assert "Device 0" in text
    assert "Device 1" in text
    total_size = sum(segment["total_size"] for segment in snapshot["segments"])
    assert f"total_reserved: {viz.Bytes(total_size)}" in viz.segsum(snapshot)
    assert "optimizer" in viz.memory(snapshot, format_flamegraph=lambda text: text)

from __future__ import annotations

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.project import project
from forescale.report.memory_compare import ComparedValue, MemoryComparison, memory_bars
from forescale.spec import Layout, Workload

GIB = 2.0**30


@pytest.fixture(scope="module")
def comparison():
    model, cluster = load_model("llama-3.1-8b"), load_cluster("h100-sxm", 16)
    workload = Workload(seq_len=4096, global_batch_size=64)
    rows = [
        ComparedValue(
            value=str(tp),
            projection=project(model, cluster, Layout(tp=tp, pp=2, dp_shard=8 // tp), workload),
        )
        for tp in (2, 8)
    ]
    return MemoryComparison(across="tp", rows=tuple(rows), refused={"3": "no"})


def test_bars_are_the_fullest_rank(comparison):
    chart = memory_bars(comparison)
    for bar, row in zip(chart.bars, comparison.rows, strict=True):
        assert bar.total == pytest.approx(row.projection.memory.peak_bytes / GIB)
        assert bar.remark == row.projection.memory.verdict
    assert chart.limit == pytest.approx(comparison.rows[0].projection.memory.capacity_bytes / GIB)


def test_the_document_adds_up(comparison):
    body = comparison.to_json()
    assert body["schema"] == "forescale.memory_compare/1"
    for row in body["rows"]:
        parts = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
        assert sum(row[f"{part}_bytes"] for part in parts) == pytest.approx(row["peak_bytes"])
    assert body["refused"] == [{"value": "3", "reason": "no"}]

"""The report of the ALModel analysis says what the analysis printed."""

from __future__ import annotations

import pytest
from tests.presets.almodel.published import CLUSTER, MODEL, WORKLOAD, rows

from forescale.cli.formats.markdown import to_markdown
from forescale.presets.almodel import Almodel, first_table_terms, search_almodel
from forescale.report.almodel import almodel_report
from forescale.report.document import Table

TEXT = frozenset({"remat", "bottleneck"})
SLACK = {"gb": 0.11, "pflop": 0.15, "percent": 1.0, "s": 0.011}
"""A last digit, by unit of the column."""


@pytest.fixture(scope="module")
def report():
    result = search_almodel(MODEL, CLUSTER, WORKLOAD)
    other = Almodel(terms=first_table_terms())
    first = search_almodel(MODEL, CLUSTER, WORKLOAD, preset=other, worst=0, least_mfu=0.2)
    return almodel_report(result, first)


def section(report, title):
    return next(one for one in report.contents if one.title.startswith(title))


def table(report, title):
    return next(one for one in section(report, title).contents if isinstance(one, Table))


@pytest.mark.parametrize(
    ("title", "name"), [("Slowest", "slowest"), ("Layouts on the terms of", "first_table")]
)
def test_rows_of_the_rankings(report, title, name):
    shown, printed = table(report, title), rows(name)
    assert len(shown.rows) == len(printed) == 10
    assert len(shown.headings) == len(printed[0]) + 1
    for row, expected in zip(shown.rows, printed, strict=True):
        for cell, (column, value) in zip(row[1:], expected.items(), strict=True):
            if column in TEXT or "_" not in column:
                assert cell == value, column
            else:
                allowed = SLACK[column.rpartition("_")[2]]
                assert float(cell) == pytest.approx(float(value), abs=allowed), column


def test_headers(report):
    text = to_markdown(report)
    for line in (
        "| Parameters | 17.43B (expert: 16.11B, non-expert: 1.33B) |",
        "| Layers | 21 (16 linear attention + 5 latent attention; 1 dense + 20 MoE) |",
        "| Experts | 256 × FFN 512, top_k=8, shared expert 1,024 |",
        "| Backward FLOPs/sample | 26.63 TFLOPs |",
        "= 147,648 TFLOPs total |",
        "AR={2: 23.1, 4: 46.3, 8: 80.1}, AG={2: 34.3, 4: 89.9, 8: 186.3}, RS={2: 46.0, 4: 92.5, 8: 185.3}",
        "| PP ppermute | 600 GB/s (overlapped) |",
        "| FSDP overlap | 85% |",
        "| XLA reserve | 30% |",
        "W=64.9GB + O=129.9GB + G=64.9GB",
    ):
        assert line in text


def test_details(report):
    titles = [one.title for one in report.contents if one.level == 2]
    assert titles[1:] == [
        f"#{place}: TP={row['tp']} DP={row['dp']} PP={row['pp']} EP={row['ep']} FSDP={row['fsdp']} "
        f"CP={row['cp']} remat={row['remat']}"
        for place, row in enumerate(rows("detailed"), start=1)
    ]
    text = to_markdown(report)
    for line in (
        "| Weights | 2.03 | expert: 1.88 + non-expert: 0.15 |",
        "| XLA reserve | 21.24 | 30% of everything modelled |",
        "| Total | 92.02 | of 96 GiB HBM (96% used) |",
        "per_device_batch=10, micro_batch=20 (PDB × TP × CP), GA=4",
        "| FSDP gather + scatter | 754.9 | 4.06 total, 2.51 exposed | overlap=85% of compute |",
        "| DP all-reduce | 3.0 | 0.07 | exposed |",
        "| CP all-gather (KV) | 12.5 | 0.32 | exposed |",
        "| Optimizer (AdamW) | 14.2 | 0.00 | memory-bound, 28B/param, HBM=3,690GB/s |",
    ):
        assert line in text


def test_summary(report):
    (bullets,) = section(report, "Summary").contents
    assert bullets.items[:3] == (
        "Best layout: TP=1 DP=4 PP=1 EP=1 FSDP=32 CP=1 remat=save_out_proj",
        "Best step time: 4.402s, MFU: 31.5%",
        "MFU range: 3.4% - 31.5%",
    )


def test_nothing_asked_for_is_nothing_written():
    result = search_almodel(MODEL, CLUSTER, WORKLOAD, top=1, worst=0)
    short = almodel_report(result, num_detailed=0)
    assert {one.title for one in short.contents} == {
        "Model", "Training", "Hardware", "Layouts by step time", "Column legend", "Summary", "Notes"
    }  # fmt: skip

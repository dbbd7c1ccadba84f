"""The default model against published measurements."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives import AlphaBeta, ExpertExchange
from forescale.cost.collectives.expert_exchange import reachable_blocks
from forescale.cost.collectives.measured import errors, read_collectives, stack
from forescale.cost.placement import Group
from forescale.io.nccl_tests import read_nccl_tests

DATA = Path(__file__).parents[2] / "data/collectives"
SAMPLE = DATA / "nccl_tests_sample.csv"


def spread(cluster, rows):
    batches = stack(load_cluster(cluster, 8), rows)
    return np.concatenate([errors(batch, AlphaBeta.of(batch.cluster)) for batch in batches])


def test_perlmutter_from_4_mib_within_15_percent():
    rows = [row for row in read_collectives(SAMPLE, "Perlmutter") if row.num_bytes >= 4 * 2**20]
    assert len(rows) == 76
    off = np.abs(np.expm1(spread("perlmutter", rows)))
    assert np.median(off) < 0.06
    assert np.quantile(off, 0.9) < 0.25


def test_perlmutter_on_more_nodes_than_the_fit_saw():
    rows = [
        row
        for row in read_collectives(SAMPLE, "Perlmutter")
        if row.num_ranks // row.ranks_per_node > 32 and row.num_bytes >= 4 * 2**20
    ]
    assert len(rows) > 15
    assert np.median(np.abs(np.expm1(spread("perlmutter", rows)))) < 0.15


@pytest.mark.parametrize(
    ("hardware", "cluster"),
    [
        ("A100-80GB SXM", "a100-sxm-80gb"),
        ("H100 SXM", "h100-sxm"),
        ("H200 SXM", "h200-sxm"),
        ("B200", "b200"),
        ("GB200", "gb200-nvl72"),
    ],
)
def test_one_node(hardware, cluster):
    off = np.abs(np.expm1(spread(cluster, read_collectives(SAMPLE, hardware))))
    assert np.median(off) < 0.1
    assert off.max() < 0.5


@pytest.mark.parametrize(
    ("log", "cluster", "nodes", "bar"),
    [
        ("h100_2_nodes", "h100-sxm", 2, 0.1),
        ("h100_4_nodes", "h100-sxm", 4, 0.1),
        ("h100_8_nodes", "h100-sxm", 8, 0.15),
        ("mi300x_1_node", "mi300x", 1, 0.03),
        ("mi355x_2_nodes", "mi355x", 2, 0.1),
        ("mi300x_2_nodes", "mi300x", 2, 0.2),
    ],
)
def test_logs(log, cluster, nodes, bar):
    run = read_nccl_tests(
        DATA / f"{log}_all_reduce.txt", kind="all_reduce", num_ranks=8 * nodes, ranks_per_node=8
    )
    rows = [row for row in run.rows if row.num_bytes >= 2**20]
    assert np.median(np.abs(np.expm1(spread(cluster, rows)))) < bar


def test_a_tree_on_two_nodes_of_another_slingshot_system():
    # GH200 with the tree forced: 22.7 GB/s per link, which only both directions of a 25 GB/s link can give.
    run = read_nccl_tests(
        DATA / "gh200_2_nodes_all_reduce.txt", kind="all_reduce", num_ranks=8, ranks_per_node=4
    )
    assert run.rows[-1].num_bytes / run.rows[-1].seconds / 4 == pytest.approx(22.7e9, rel=0.01)


def test_deep_ep_without_a_fit_of_its_own():
    with (DATA / "deepep_sample.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    off = []
    for row in rows:
        ranks = 8 * int(row["nodes"])
        base = AlphaBeta.of(load_cluster("h100-sxm" if "H100" in row["hardware"] else "h200-sxm", ranks))
        # Dispatch in fp8 with a scale per 128 values, combine in bf16.
        width = 1 + 4 / 128 if "dispatch" in row["op"] else 2
        # The benchmark has as many groups as nodes, and takes 4 of them.
        groups = {"num_groups": ranks // 8, "top_groups": min(4, ranks // 8)}
        seconds = ExpertExchange(base=base, top_k=8, **groups).seconds(
            kind="all_to_all",
            num_bytes=8.0 * float(row["m"]) * float(row["k"]) * width,
            group=Group(size=float(ranks)),
        )
        off.append(float(seconds) / (float(row["time_us"]) * 1e-6) - 1)
    assert np.median(np.abs(off)) < 0.1


def test_deepseek_sends_a_token_to_at_most_4_nodes():
    base = AlphaBeta.of(load_cluster("h100-sxm", 512))
    free, limited = (
        ExpertExchange(base=base, top_k=8, num_groups=64, top_groups=limit).seconds(
            kind="all_to_all", num_bytes=1e9, group=Group(size=512.0)
        )
        for limit in (0, 4)
    )
    assert limited < 0.6 * free
    plain = base.seconds(kind="all_to_all", num_bytes=1e9, group=Group(size=512.0))
    assert free < plain


def test_groups_of_experts_may_span_nodes_and_nodes_may_hold_groups():
    limit = {"num_groups": 8.0, "top_groups": 4.0}
    assert reachable_blocks(num_blocks=4.0, **limit) == 4.0
    assert reachable_blocks(num_blocks=8.0, **limit) == 4.0
    assert reachable_blocks(num_blocks=64.0, **limit) == 32.0


def test_mixed_kinds_go_to_the_base_model():
    base = AlphaBeta.of(load_cluster("h100-sxm", 64))
    for kind in ("all_gather", "p2p"):
        args = {"kind": kind, "num_bytes": 1e8, "group": Group(size=64.0)}
        assert ExpertExchange(base=base, top_k=8).seconds(**args) == base.seconds(**args)


def test_provenance_is_that_of_the_widest_tier():
    fitted = AlphaBeta.of(load_cluster("perlmutter", 64)).provenance(kind="all_gather")
    assert fitted.kind == "fitted"
    assert "NCCL 2.19" in fitted.source
    assert 0 < fitted.low < 1 < fitted.high
    assert AlphaBeta.of(load_cluster("tpu-v5p", 64)).provenance(kind="all_gather").kind == "roofline"

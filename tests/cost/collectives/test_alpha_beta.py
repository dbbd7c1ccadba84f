"""The default model against published measurements."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests import toy

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.expert_exchange import (
    ExpertExchange,
    copy_rate,
    distinct_blocks,
    link_shares,
    reachable_blocks,
)
from forescale.cost.mesh import Group, ranks_per_tier
from forescale.cost.timings import errors, read_collectives, stack
from forescale.io.measurements import read_nccl_tests
from forescale.spec import Tier

DATA = Path(__file__).parents[2] / "data/collectives"
PUBLISHED = Path(__file__).parents[3] / "data/published"
SAMPLE = DATA / "nccl_tests_sample.csv"


def spread(cluster, rows):
    batches = stack(load_cluster(cluster, 8), rows)
    return np.concatenate([errors(batch, AlphaBeta.from_cluster(batch.cluster)) for batch in batches])


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
    ("hardware", "cluster", "most"),
    [
        ("A100-80GB SXM", "a100-sxm-80gb", 0.04),
        ("H100 SXM", "h100-sxm", 0.05),
        ("H200 SXM", "h200-sxm", 0.07),
        ("B200", "b200", 0.04),
        ("GB200", "gb200-nvl72", 0.04),
        ("B300", "b300", 0.08),
        ("GB300", "gb300-nvl72", 0.08),
    ],
)
def test_long_all_to_alls_of_a_node(hardware, cluster, most):
    """From 128 MiB on, where the last copies of the first chunks count little; B300 and GB300 are in no fit."""
    rows = [
        row
        for row in read_collectives(PUBLISHED / "kernels.csv", hardware)
        if row.kind == "all_to_all" and row.num_bytes >= 128 * 2**20
    ]
    assert len(rows) >= 3
    assert np.abs(spread(cluster, rows)).max() < most


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
        base = AlphaBeta.from_cluster(
            load_cluster("h100-sxm" if "H100" in row["hardware"] else "h200-sxm", ranks)
        )
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


CLUSTERS = {
    "B200": "b200",
    "B300": "b300",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "H100 SXM": "h100-sxm",
}


@pytest.mark.parametrize("hardware", CLUSTERS)
def test_deep_ep_copies_as_fast_as_its_sms(hardware):
    """Within a node of Blackwell its 8, 20 or 24 SMs set the pace, not the links."""
    off = []
    with (PUBLISHED / "kernels.csv").open(newline="") as stream:
        rows = [
            row
            for row in csv.DictReader(stream)
            if row["id"].startswith("AICEP")
            and (row["hardware"], row["nodes"]) == (hardware, "1")
            and float(row["m"]) >= 4096
        ]
    for row in rows:
        ranks = int(row["gpus_per_node"])
        num_sms = int(re.search(r"(\d+) SMs", row["library"])[1])
        model = ExpertExchange(
            base=AlphaBeta.from_cluster(load_cluster(CLUSTERS[hardware], ranks)),
            top_k=8,
            copy_rate=copy_rate("deepep", "NVIDIA") * num_sms / 20,
        )
        width = 1 + 4 / 128 if "dispatch" in row["op"] else 2
        num_bytes = 8.0 * float(row["m"]) * float(row["k"]) * width
        seconds = model.seconds(kind="all_to_all", num_bytes=num_bytes, group=Group(size=float(ranks)))
        off.append(float(seconds) / (float(row["time_us"]) * 1e-6) - 1)
    assert len(off) > 15
    assert np.median(np.abs(off)) < 0.13


def test_hybrid_ep_reaches_more_of_a_link_than_all_to_alls_do():
    """On 8 B200 of 900 GB/s kernels that write into other devices' memory dispatch at 643, combine at 740 GB/s."""
    base, shares = AlphaBeta.from_cluster(load_cluster("b200", 8)), link_shares("hybridep", "NVIDIA")
    assert link_shares("hybridep", "AMD") == link_shares("deepep", "NVIDIA") == ()
    plain, direct = (
        ExpertExchange(base=base, top_k=8, link_shares=item).seconds(
            kind="all_to_all", num_bytes=8e9, group=Group(size=8.0)
        )
        for item in ((), shares)
    )
    copies = 8 * (1 - (7 / 8) ** 8) * 7 / 8
    assert 643e9 < copies * 1e9 / direct < 740e9
    assert direct < 0.92 * plain, "and plain has none of the copies that leave an all-to-all 0.60"


@pytest.mark.parametrize(("cluster", "ranks", "domain"), [("gb300-nvl72", 64, 64), ("b200", 64, 8)])
def test_rows_take_the_probabilities_of_an_nvlink_domain_along(cluster, ranks, domain):
    """A row of 1,024 numbers in bf16, and a probability in fp32 for each of 512 experts, in one of both messages."""
    base = AlphaBeta.from_cluster(load_cluster(cluster, ranks))
    plain, beside = (
        ExpertExchange(base=base, top_k=22, probabilities=item)
        .exchange(base.route(Group(size=float(ranks))))
        .lines[0]
        for item in (None, (512.0, 2048.0))
    )
    assert beside.fixed == plain.fixed
    ratio = beside.seconds_per_byte / plain.seconds_per_byte
    assert ratio == pytest.approx(1.0 + 4.0 * 512.0 * domain / ranks / 2048.0 / 2.0)


def test_a_routing_map_is_written_to_all_ranks_where_that_is_faster():
    """Rings of 64 ranks wait 63 times; between nodes they send a part once to each node, direct writes 8 times."""
    args = {"kind": "all_gather", "num_bytes": 67e6, "group": Group(size=64.0)}
    for cluster, direct in (("gb200-nvl72", True), ("b200", False)):
        base = AlphaBeta.from_cluster(load_cluster(cluster, 64))
        model = ExpertExchange(base=base, top_k=8, probabilities=(256.0, 14336.0))
        assert (model.seconds(**args) < 0.5 * base.seconds(**args)) == direct
        assert direct or model.seconds(**args) == pytest.approx(base.seconds(**args))


def test_deepseek_sends_a_token_to_at_most_4_nodes():
    base = AlphaBeta.from_cluster(load_cluster("h100-sxm", 512))
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
    base = AlphaBeta.from_cluster(load_cluster("h100-sxm", 64))
    for kind in ("all_gather", "p2p"):
        args = {"kind": kind, "num_bytes": 1e8, "group": Group(size=64.0)}
        assert ExpertExchange(base=base, top_k=8).seconds(**args) == base.seconds(**args)


def test_provenance_is_that_of_the_widest_tier():
    fitted = AlphaBeta.from_cluster(load_cluster("perlmutter", 64)).provenance(kind="all_gather")
    assert fitted.kind == "fitted"
    assert "NCCL 2.19" in fitted.source
    assert 0 < fitted.low < 1 < fitted.high
    assert (
        AlphaBeta.from_cluster(load_cluster("tpu-v5p", 64)).provenance(kind="all_gather").kind == "roofline"
    )


def test_blocks_that_a_tokens_experts_fall_into():
    """Of 4 blocks two even choices hit 4 · (1 - (3/4)²); of at most 2, 2 · (1 - (1/2)²)."""
    assert distinct_blocks(num_blocks=4.0, top_k=2, limit=4.0) == 4 * (1 - 9 / 16)
    assert distinct_blocks(num_blocks=4.0, top_k=2, limit=2.0) == 2 * (1 - 1 / 4)
    assert distinct_blocks(num_blocks=1.0, top_k=8, limit=1.0) == 1.0


def test_a_ring_between_nodes_leaves_an_eighth_of_the_links_inside_idle():
    """Of 8 ranks in a node one sends outwards for each ring: links inside carry 7/8, and set the pace if they are slow."""
    near, far = (
        Tier(name="toy node", size=8, bandwidth=100e9, latency=0.0),
        Tier(name="toy network", size=0, bandwidth=400e9, latency=0.0),
    )
    model = AlphaBeta.from_cluster(toy.cluster(16, near, far), own=toy.links())
    group = Group(size=16.0)
    assert model.seconds(kind="all_reduce", num_bytes=1e9, group=group) == pytest.approx(
        2 * 15 / 16 * 7 / 8 * 1e9 / 100e9
    )
    assert model.seconds(kind="all_gather", num_bytes=1e9, group=group) == pytest.approx(
        15 / 16 * 7 / 8 * 1e9 / 100e9
    )
    # 7 of 16 parts go to the same node, 8 to the other over links that carry an eighth of the ranks' each.
    slow = AlphaBeta.from_cluster(
        toy.cluster(16, near, Tier(name="toy network", size=0, bandwidth=10e9, latency=0.0)), own=toy.links()
    )
    assert slow.seconds(kind="all_reduce", num_bytes=1e9, group=group) == pytest.approx(
        2 * 15 / 16 / 8 * 1e9 / 10e9
    )
    assert slow.seconds(kind="all_to_all", num_bytes=1e9, group=group) == pytest.approx(8 / 16 * 1e9 / 10e9)
    assert slow.seconds(kind="p2p", num_bytes=1e9, group=group) == pytest.approx(1e9 / 10e9)


def test_links_behind_the_same_nic_start_up_once():
    """A node, a pod of switches and what joins pods: the node's links start, and the NIC's."""
    tiers = (
        Tier(name="toy node", size=8, bandwidth=400e9, latency=0.0),
        Tier(name="toy pod", size=32, bandwidth=50e9, latency=0.0),
        Tier(name="toy core", size=0, bandwidth=50e9, latency=0.0),
    )
    (link,) = toy.links()
    slow = replace(link, protocols=(replace(link.protocols[0], launch=1.0),), exchange_launch=3.0)
    model = AlphaBeta.from_cluster(toy.cluster(64, *tiers), own=(slow,))
    for ranks, starts in ((8.0, 1), (32.0, 2), (64.0, 2)):
        for kind, item in (("all_gather", 1.0), ("all_to_all", 3.0)):
            seconds = model.seconds(kind=kind, num_bytes=1.0, group=Group(size=ranks))
            assert seconds == pytest.approx(starts * item, rel=1e-6)


def test_a_nic_that_started_for_a_rack_does_not_start_again_for_the_core():
    """Racks of 16, pods of 64 and a core behind one NIC: pairs of a rack, four pods apart, cross no pod's switch."""
    tiers = tuple(Tier(name=f"toy {size}", size=size, bandwidth=50e9, latency=0.0) for size in (8, 16, 64, 0))
    slow = replace(toy.links()[0], protocols=(replace(toy.links()[0].protocols[0], launch=1.0),))
    model = AlphaBeta.from_cluster(toy.cluster(256, *tiers), own=(slow,))
    apart = Group(size=2.0, stride=8.0, outer=((4.0, 64.0),))
    assert ranks_per_tier(apart, model.cluster) == (1.0, 2.0, 2.0, 8.0)
    assert model.seconds(kind="all_gather", num_bytes=1.0, group=apart) == pytest.approx(1.0, rel=1e-6)


def test_a_single_shot_sums_in_two_passes():
    """Each rank sends its 7 of 8 parts, adds up what it got, and sends its sum to all."""
    one = replace(toy.links()[0], algorithms=("single_shot",))
    model = AlphaBeta.from_cluster(toy.cluster(8), own=(one,))
    seconds = {
        kind: model.seconds(kind=kind, num_bytes=1e9, group=Group(size=8.0))
        for kind in ("all_reduce", "all_gather")
    }
    assert seconds == pytest.approx(
        {"all_reduce": 2 * 7 / 8 * 1e9 / 100e9, "all_gather": 7 / 8 * 1e9 / 100e9}
    )

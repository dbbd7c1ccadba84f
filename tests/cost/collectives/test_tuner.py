"""What NCCL believes of its ways within a node, and where it changes from one to the next."""

from __future__ import annotations

import numpy as np
import pytest
from tests.toy import replace

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.tuner import (
    BELIEVED,
    believed_bandwidth,
    believed_latency,
    believed_seconds,
    picked,
    switch_bandwidth,
)
from forescale.cost.mesh import Group
from forescale.formula import Term
from forescale.spec.cluster import LinkParameters


def lines(cluster, kind, ranks):
    model = AlphaBeta.from_cluster(load_cluster(cluster, 64))
    return model.lines(kind=kind, route=model.route(Group(size=float(ranks))))


def changes(cluster, kind, ranks):
    """Return the bytes, in MB, from which another way is picked, and that way."""
    result, before = [], None
    for num_bytes in np.exp(np.linspace(np.log(1e3), np.log(1e10), 4000)):
        way = lines(cluster, kind, ranks).way(float(num_bytes))
        if way != before:
            result.append((round(float(num_bytes) / 1e6, 2), way))
            before = way
    return result


def test_formulas():
    assert believed_bandwidth(links=240e9, share=0.5, most=87.7e9) == 87.7e9
    assert believed_bandwidth(links=80e9, share=0.5, most=87.7e9) == 40e9
    assert believed_latency(launch=6.6e-6, hop=6e-7, steps=7.0) == pytest.approx(10.8e-6)
    value = {"num_bytes": 1e6, "latency": 1e-5, "seconds_per_byte": 1e-11, "seconds": 1.0}
    assert believed_seconds(**value, within=1.0) == pytest.approx(2e-5)
    assert believed_seconds(**value, within=0.0) == 1.0
    both = believed_seconds(**value, within=np.array([1.0, 0.0]))
    assert both.tolist() == pytest.approx([2e-5, 1.0])


def test_the_seconds_picked_are_those_of_the_least_belief():
    numbers = {"a": 3.0, "b": 5.0, f"a{BELIEVED}": 2.0, f"b{BELIEVED}": 1.0}
    assert picked(**numbers) == 5.0
    assert picked(**numbers | {f"a{BELIEVED}": 1.0}) == 3.0  # the first of equals
    several = picked(**numbers | {f"a{BELIEVED}": np.array([0.5, 2.0])})
    assert several.tolist() == [3.0, 5.0]


@pytest.mark.parametrize(
    ("ranks", "gigabytes"),
    [(2.0, 2 * 60.0), (4.0, 4 * 60.0), (8.0, 8 * 40.0), (32.0, 32 * 11.0), (64.0, 32 * 11.0)],
)
def test_channels_through_the_switches_of_hopper(ranks, gigabytes):
    """370.8 GB/s of 18 links hold n + 1 shares: 123, 74, 41 and 11 GB/s each."""
    speeds = {str(speed): speed * 1e9 for speed in (3, 6, 11, 12, 15, 20, 24, 30, 40, 50, 60)}
    result = switch_bandwidth(links=370.8e9, num_ranks=ranks, most=32.0, **speeds)
    assert result == pytest.approx(gigabytes * 1e9)
    assert switch_bandwidth(links=5e9, num_ranks=ranks, most=32.0, **speeds) == 0.0


def test_where_nccl_changes_protocol_on_8_a100():
    """LL of 10.8 us and 100 GB/s, LL128 of 27.3 us and 252, Simple of 32.2 us and 274 (src/graph/tuning.cc)."""
    first, second, third = changes("a100-sxm-80gb", "all_gather", 8)
    assert (first[1], second[1], third[1]) == ("ring LL", "ring LL128", "ring Simple")
    assert second[0] == pytest.approx(16.5e-12 / (1 / 100.2e9 - 1 / 252.3e9), rel=0.02)
    assert third[0] == pytest.approx(4.9e-12 / (1 / 252.3e9 - 1 / 274.3e9), rel=0.06)


def test_rings_of_two_skip_ll128():
    """Of one step LL128 starts later than Simple and is no faster."""
    assert [way for _, way in changes("a100-sxm-80gb", "all_gather", 2)] == ["ring LL", "ring Simple"]


def test_switches_sum_for_eight_but_not_for_four_of_hopper():
    """267 GB/s by the switch against 206 of a ring of 8, 200 against 240 of a ring of 4."""
    assert changes("h100-sxm", "all_reduce", 8)[-1][1] == "in_network"
    assert changes("h100-sxm", "all_reduce", 4)[-1][1] == "ring Simple"


def test_what_is_picked_may_be_slower_than_another_way():
    ways = lines("a100-sxm-80gb", "all_gather", 4)
    seconds = {line.label: ways._choices(2.0 * 2**20)[line.label] for line in ways.lines}
    assert ways(2.0 * 2**20) == seconds["ring Simple"] > 1.3 * seconds["ring LL"]


def test_an_explanation_says_that_the_library_picks():
    model = AlphaBeta.from_cluster(load_cluster("a100-sxm-80gb", 8))
    size = Term(np.array([2.0 * 2**20]), name="bytes", unit="byte")
    term = model.seconds(kind="all_gather", num_bytes=size, group=Group(size=np.array([4.0])))
    nodes = {node.name: node for node in term.at(0).walk()}
    assert nodes["picked"].text == "ring Simple, which the library picks of 3 ways"
    assert "src/enqueue.cc" in nodes["picked"].source


def test_across_nodes_the_fastest_counts():
    assert all(line.guess is None for line in lines("h100-sxm", "all_reduce", 16).lines)


def test_algorithms_of_ones_own_are_taken_by_their_time():
    cluster = load_cluster("a100-sxm-80gb", 8)
    link_parameters = LinkParameters(algorithms=("ring", "single_shot"))
    inner = replace(cluster.tiers[0], parameters=link_parameters)
    model = AlphaBeta.from_cluster(replace(cluster, tiers=(inner, *cluster.tiers[1:])))
    result = model.lines(kind="all_gather", route=model.route(Group(size=8.0)))
    assert all(line.guess is None for line in result.lines)

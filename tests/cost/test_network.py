"""Collectives by size and ranks are those that a step pays, with the figures of nccl-tests."""

from __future__ import annotations

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.measured import Measurements
from forescale.cost.mesh import Group
from forescale.cost.network import KINDS, price_network
from forescale.cost.select import Costs
from forescale.cost.timings import MeasuredCollective
from forescale.errors import SpecError

H100 = load_cluster("h100-sxm", 64)
MIB = 2.0**20


def priced(kind, ranks, size=64 * MIB, **more):
    (result,) = price_network(H100, ranks=[ranks], sizes=[size], kinds=[kind], **more).prices
    return result


@pytest.mark.parametrize("stride", [1, 8])
def test_a_price_is_the_one_of_a_step(stride):
    group = Group(size=8.0, stride=float(stride))
    assert priced("all_reduce", 8, stride=stride).seconds == AlphaBeta.from_cluster(H100).seconds(
        kind="all_reduce", num_bytes=64 * MIB, group=group
    )


FACTORS = {  # nccl-tests, doc/PERFORMANCE.md
    "all_reduce": 2 * 7 / 8,
    "all_gather": 7 / 8,
    "reduce_scatter": 7 / 8,
    "all_to_all": 7 / 8,
    "broadcast": 1.0,
    "reduce": 1.0,
    "p2p": 1.0,
}


@pytest.mark.parametrize(("kind", "factor"), FACTORS.items())
def test_bus_bandwidth_has_the_factors_of_nccl_tests(kind, factor):
    result = priced(kind, 8)
    assert result.algorithm_bandwidth == 64 * MIB / result.seconds
    assert result.bus_bandwidth == pytest.approx(factor * result.algorithm_bandwidth, rel=1e-12)


def test_ranks_side_by_side_share_all_ports_of_their_nodes():
    near, far = priced("all_reduce", 8, 2.0**32), priced("all_reduce", 8, 2.0**32, stride=8)
    whole = priced("all_reduce", 64, 2.0**32)
    port = H100.tiers[-1].bandwidth
    assert far.bus_bandwidth < port < whole.bus_bandwidth < near.bus_bandwidth


@pytest.mark.parametrize(
    ("name", "ranks", "measured", "rel"),
    [
        ("v100-jean-zay", 4, 124.0, 0.15),
        ("v100-jean-zay", 16, 10.57, 0.1),
        ("v100-jean-zay", 64, 6.9, 0.6),
        ("a100-jean-zay", 32, 5.06, 0.1),
    ],
)
def test_omni_path_of_jean_zay_is_what_nccl_reached_without_a_plugin_for_it(name, ranks, measured, rel):
    """All-reduces of 4 GB on 1, 4 and 16 nodes of 4 V100 and on 4 of 8 A100 (bigscience, experiments/bandwidth)."""
    cluster = load_cluster(name, ranks)
    (result,) = price_network(cluster, ranks=[ranks], sizes=[4e9], kinds=["all_reduce"]).prices
    assert result.bus_bandwidth == pytest.approx(measured * 1e9, rel=rel)


def test_groups_side_by_side_go_over_links_of_their_own():
    """Where the rings of one group take one link of a node, those of eight take all four."""
    cluster = load_cluster("a100-jean-zay", 32)
    model, port = AlphaBeta.from_cluster(cluster), cluster.tiers[-1]
    size = 2.0**32
    one, *_, eight = (
        model.seconds(kind="all_gather", num_bytes=size, group=Group(size=float(ranks), stride=32.0 / ranks))
        for ranks in (32, 16, 8, 4)
    )
    link = 0.42 * port.bandwidth / port.nics_per_device
    assert size * 31 / 32 / one == pytest.approx(link, rel=0.1)
    assert size * 3 / 4 / eight == pytest.approx(4.0 * link / 8.0, rel=0.1)


@pytest.mark.parametrize(
    ("ranks", "stride", "measured"), [(4, 1, 20.7), (2, 4, 4.0), (4, 2, 7.65), (8, 1, 13.5)]
)
def test_cards_of_two_sockets_share_the_link_between_them(ranks, stride, measured):
    """SimuMax @4dcaae5, configs/system/a100_pcie.json: what all-gathers reach on 8 A100 PCIe [GB/s]."""
    group = Group(size=float(ranks), stride=float(stride))
    size = 2.0**30
    seconds = AlphaBeta.from_cluster(load_cluster("a100-pcie-sockets", 8)).seconds(
        kind="all_gather", num_bytes=size, group=group
    )
    assert size * (ranks - 1) / ranks / seconds == pytest.approx(measured * 1e9, rel=0.3)


def test_the_way_is_the_fastest_line():
    small, large = priced("all_reduce", 64, 4096.0), priced("all_reduce", 64, 2.0**32)
    assert (small.way, large.way) == ("tree LL", "ring Simple")


def test_what_was_timed_is_looked_up_and_named():
    row = MeasuredCollective(kind="all_gather", num_bytes=MIB, num_ranks=8, ranks_per_node=8, seconds=3e-5)
    timed = Measurements(source="a table", collectives=(row,))
    costs = Costs(measurements=timed)
    result = priced("all_gather", 8, MIB, costs=costs)
    assert (result.seconds, result.way) == (3e-5, "timed")
    assert priced("all_reduce", 8, MIB, costs=costs).way != "timed"


def test_usual_groups_are_a_node_and_the_cluster():
    network = price_network(H100, sizes=[MIB])
    assert list(network.shared.items()) == [(8, (8.0, 8.0)), (64, (8.0, 64.0))]
    assert {row["kind"] for row in network.rows()} == set(KINDS)


@pytest.mark.parametrize(("ranks", "stride"), [(1, 1), (65, 1), (16, 8)])
def test_a_group_that_the_cluster_cannot_hold_is_refused(ranks, stride):
    with pytest.raises(SpecError, match=r"a group has 2 to \d+ ranks"):
        price_network(H100, ranks=[ranks], stride=stride)


def test_collectives_that_take_as_long_are_one_line():
    time, bandwidth = price_network(H100, ranks=[64]).pictures()
    assert [line.name for line in time.lines] == [
        "all_reduce",
        "all_gather, reduce_scatter",
        "all_to_all",
        "p2p",
    ]
    assert [label for _, label in bandwidth.y.ticks] == ["0.1", "1", "10", "100"]


def test_pictures_are_of_the_prices_in_milliseconds_and_gigabytes_per_second():
    near = price_network(H100, ranks=[8], sizes=[MIB, 64 * MIB], kinds=["all_reduce"])
    (line,), (rate,) = (picture.lines for picture in near.pictures())
    assert [dot.x for dot in line.dots] == [1.0, 64.0]
    assert [dot.y for dot in line.dots] == [1000.0 * price.seconds for price in near.prices]
    assert [dot.y for dot in rate.dots] == [price.bus_bandwidth / 1e9 for price in near.prices]
    assert "ranks side by side" in near.pictures()[0].note
    apart = price_network(H100, ranks=[8], stride=8, sizes=[MIB], kinds=["all_reduce"])
    assert "8 devices from rank to rank" in apart.pictures()[0].note


def test_usual_groups_are_those_of_a_node_and_of_the_cluster():
    assert list(price_network(H100, sizes=[MIB]).shared) == [8, 64]
    assert list(price_network(H100, sizes=[MIB], stride=3).shared) == [2, 21]
    assert list(price_network(H100, sizes=[MIB], stride=8).shared) == [2, 8]
    with pytest.raises(SpecError, match=r"2 to 64 ranks on 64 devices; got 65"):
        price_network(H100, ranks=[65])
    with pytest.raises(SpecError, match=r"2 to 32 ranks that are 2 devices apart on 64"):
        price_network(H100, ranks=[33], stride=2)


def test_rooted_collectives_take_what_the_links_of_the_root_take() -> None:
    """Gather and scatter send (n - 1)/n of the buffer over the root's links; a barrier sends one number."""
    prices = price_network(H100, ranks=[8], sizes=[1e6, 1e9], kinds=["gather", "scatter", "barrier"])
    exchange = price_network(H100, ranks=[8], sizes=[1e6, 1e9], kinds=["all_to_all"])
    number = price_network(H100, ranks=[8], sizes=[4.0], kinds=["all_reduce"])
    seconds = [price.seconds for price in exchange.prices]
    assert [price.seconds for price in prices.of("gather", 8)] == seconds
    assert [price.seconds for price in prices.of("scatter", 8)] == seconds
    assert [price.seconds for price in prices.of("barrier", 8)] == [number.prices[0].seconds] * 2
    assert {price.bus_bandwidth for price in prices.of("barrier", 8)} == {0.0}

"""Each algorithm against times worked out by hand on a network without overheads."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests.cost.collectives.clusters import cluster, fast, slow, two_level

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives.algorithms import ALGORITHMS, doublings
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import LinkCalibration, NetworkCalibration, WireProtocol
from forescale.cost.mesh import Group
from forescale.formula import Term

ALPHA_FAST, ALPHA_SLOW, FAST, SLOW = 1e-6, 5e-6, 400e9, 50e9
VOLUME = 64e6


def model(algorithm, built=None, **changes):
    link = LinkCalibration(
        name="ideal", protocols=(WireProtocol(name="only", launch=0.0, hop_factor=1.0, efficiency=1.0),),
        algorithms=(algorithm,), **changes,
    )  # fmt: skip
    built = built or two_level()
    return AlphaBeta(cluster=built, calibration=NetworkCalibration(links=(link,) * len(built.tiers)))


def seconds(algorithm, kind, size, stride=1.0, built=None, **changes):
    group = Group(size=float(size), stride=float(stride))
    return float(model(algorithm, built, **changes).seconds(kind=kind, num_bytes=VOLUME, group=group))


def test_ring_in_one_node():
    assert seconds("ring", "all_gather", 8) == pytest.approx(7 * ALPHA_FAST + 7 / 8 * VOLUME / FAST)
    assert seconds("ring", "reduce_scatter", 8) == seconds("ring", "all_gather", 8)
    assert seconds("ring", "all_reduce", 8) == pytest.approx(2 * seconds("ring", "all_gather", 8))


def test_ring_over_nodes_has_n_minus_d_fast_and_d_minus_1_slow_hops():
    # 64 ranks, 8 per node: 8 links leave each node, 400 GB/s together; inside, 7 of 8 hops use 400 GB/s each.
    slowest = max(1 / (8 * SLOW), 7 / 8 / FAST)
    expected = 56 * ALPHA_FAST + 7 * ALPHA_SLOW + 63 / 64 * VOLUME * slowest
    assert seconds("ring", "all_gather", 64) == pytest.approx(expected)


def test_one_rank_per_node_has_one_link():
    expected = 7 * ALPHA_SLOW + 7 / 8 * VOLUME / SLOW
    assert seconds("ring", "all_gather", 8, stride=8) == pytest.approx(expected)


def test_slices_hide_the_hops_of_a_ring():
    """Half of a transfer hides hops: all of them where it is long, half where it is as long as they are, else none."""
    wire = WireProtocol(name="only", launch=0.0, hop_factor=1.0, efficiency=1.0, slices=2.0)
    link = LinkCalibration(name="ideal", protocols=(wire,), algorithms=("ring",))
    built = AlphaBeta(cluster=two_level(), calibration=NetworkCalibration(links=(link, link)))
    hops, group = 7 * ALPHA_FAST, Group(size=8.0)

    def taken(kind, transfer):
        return float(built.seconds(kind=kind, num_bytes=transfer * FAST * 8 / 7, group=group))

    assert taken("all_gather", 2 * hops) == pytest.approx(2 * hops + hops / 2)
    assert taken("all_reduce", 2 * hops) == pytest.approx(2 * taken("reduce_scatter", 2 * hops))
    assert taken("all_gather", 1e-6 * hops) == pytest.approx(hops, rel=1e-5)
    assert taken("all_gather", 1e3 * hops) == pytest.approx(1e3 * hops, rel=3e-3)
    assert taken("broadcast", 2 * hops * 7 / 8) == pytest.approx(3 * hops)


def test_chunks_are_sliced_where_every_link_slices_them():
    plain, sliced = (
        WireProtocol(name="only", launch=0.0, hop_factor=1.0, efficiency=1.0, slices=n) for n in (1.0, 2.0)
    )

    def taken(*wires):
        links = tuple(
            LinkCalibration(name="ideal", protocols=(wire,), algorithms=("ring",)) for wire in wires
        )
        built = AlphaBeta(cluster=two_level(), calibration=NetworkCalibration(links=links))
        return float(built.seconds(kind="all_gather", num_bytes=VOLUME, group=Group(size=64.0)))

    assert taken(plain, sliced) == taken(sliced, plain) == taken(plain, plain)
    assert taken(sliced, sliced) < taken(plain, plain)


def test_broadcast_pipes_the_whole_message():
    assert seconds("ring", "broadcast", 8) == pytest.approx(7 * ALPHA_FAST + VOLUME / FAST)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize(("ranks", "nics", "rings"), [(8, 1.0, 16), (8, 0.5, 8), (2, 1.0, 4)])
def test_a_network_forwards_whole_steps_of_what_is_piped(kind, ranks, nics, rings):
    """Over 3 hops between 4 nodes, of two rings a NIC: a step each, or all that a ring has of a short message."""
    wire = WireProtocol(name="only", launch=0.0, hop_factor=1.0, efficiency=1.0, step=1e6)
    near, far = (
        LinkCalibration(name="ideal", protocols=(item,), algorithms=("ring",))
        for item in (replace(wire, step=0.0), wire)
    )
    inner, outer = two_level().tiers
    place = replace(two_level(), tiers=(inner, replace(outer, nics_per_device=nics)))
    built = AlphaBeta(cluster=place, calibration=NetworkCalibration(links=(near, far)))
    plain = AlphaBeta(cluster=place, calibration=NetworkCalibration(links=(near, near)))
    group = Group(size=float(ranks), outer=((4.0, 8.0),))

    def waits(num_bytes, kind=kind):
        return float(
            built.seconds(kind=kind, num_bytes=num_bytes, group=group)
            - plain.seconds(kind=kind, num_bytes=num_bytes, group=group)
        )

    whole = pytest.approx(3 * 1e6 / (SLOW / nics / 2), rel=1e-9)
    assert waits(1e9) == whole
    assert waits(1e8) == whole
    assert waits(rings * 1e6) == whole
    assert waits(rings * 1e6 / 4) == pytest.approx(waits(1e9) / 4)
    assert waits(1e9, "all_gather") == 0.0


def test_few_ranks_per_node_use_a_share_of_the_links():
    plain = seconds("ring", "all_gather", 8, stride=8)
    shy = seconds("ring", "all_gather", 8, stride=8, member_half=0.25)
    assert shy - 7 * ALPHA_SLOW == pytest.approx(1.25 * (plain - 7 * ALPHA_SLOW))


def test_tree_over_nodes():
    # 8 nodes: 3 levels up and 3 down; blocks move V up and V down over 8 links.
    latency = 2 * (7 * ALPHA_FAST + 3 * ALPHA_SLOW)
    slowest = max(2 / (8 * SLOW), 2 * 7 / 8 / FAST)
    assert seconds("tree", "all_reduce", 64) == pytest.approx(latency + VOLUME * slowest)


def test_two_trees_of_two_nodes_use_both_directions():
    base = seconds("tree", "all_reduce", 2, stride=8)
    assert base == pytest.approx(2 * ALPHA_SLOW + VOLUME / SLOW)
    assert seconds("tree", "all_reduce", 2, stride=8, pair_share=1.0) == pytest.approx(
        2 * ALPHA_SLOW + 2 * VOLUME / SLOW
    )


def test_in_network_reduction_sends_once_and_multicasts_a_part():
    built = cluster(fast(in_network_reduction=True), slow())
    assert seconds("in_network", "all_reduce", 8, built=built) == pytest.approx(9 / 8 * VOLUME / FAST)


def test_in_network_reduction_serves_two_ranks():
    built = cluster(fast(in_network_reduction=True), slow())
    assert seconds("in_network", "all_reduce", 2, built=built) == pytest.approx(3 / 2 * VOLUME / FAST)


def test_switches_that_a_group_does_not_cross_cost_it_nothing():
    """Slow ones in nodes with one rank each, and slow ones between nodes of which one is used."""
    both = {"in_network_reduction": True}
    near = cluster(fast(bandwidth=SLOW / 10, **both), slow(**both))
    rail = seconds("in_network", "all_reduce", 8, stride=8, built=near)
    assert rail == pytest.approx(2 * ALPHA_SLOW + VOLUME / SLOW)
    far = cluster(fast(**both), slow(bandwidth=SLOW / 10, **both))
    assert seconds("in_network", "all_reduce", 8, built=far) == pytest.approx(9 / 8 * VOLUME / FAST)


def test_in_network_reduction_needs_switches_and_two_ranks():
    built = cluster(fast(in_network_reduction=True), slow())
    assert seconds("in_network", "all_reduce", 8, stride=8, built=built) == float("inf")


def test_switches_between_nodes_take_the_sum_up_and_bring_it_down_once():
    # 8 links leave a node and carry V up while sums come down, where trees move 2·V; a hop to the switch and back.
    built = cluster(fast(in_network_reduction=True), slow(in_network_reduction=True))
    slowest = max(9 / 8 / FAST, 1 / (8 * SLOW))
    assert seconds("in_network", "all_reduce", 64, built=built) == pytest.approx(
        2 * ALPHA_SLOW + VOLUME * slowest
    )
    one_per_node = seconds("in_network", "all_reduce", 8, stride=8, built=built)
    assert one_per_node == pytest.approx(2 * ALPHA_SLOW + VOLUME / SLOW)


def test_switches_between_nodes_work_without_those_inside():
    built = cluster(fast(), slow(in_network_reduction=True))
    slowest = max(2 * 7 / 8 / FAST, 1 / (8 * SLOW))
    assert seconds("in_network", "all_reduce", 64, built=built) == pytest.approx(
        2 * (7 * ALPHA_FAST + ALPHA_SLOW) + VOLUME * slowest
    )
    assert seconds("in_network", "all_reduce", 8, built=built) == float("inf")


def test_halving_doubling_exchanges_halves():
    # 8 ranks: V/2 + V/4 + V/8 per pass.
    expected = 2 * (3 * ALPHA_FAST + 7 / 8 * VOLUME / FAST)
    assert seconds("halving_doubling", "all_reduce", 8) == pytest.approx(expected)


def test_hierarchical_leaves_an_eighth_to_the_slow_network():
    inner = 7 * ALPHA_FAST + 7 / 8 * VOLUME / FAST
    outer = 7 * ALPHA_SLOW + 7 / 8 * VOLUME / 8 / SLOW
    assert seconds("hierarchical", "all_reduce", 64) == pytest.approx(2 * (inner + outer))


def test_bruck_takes_any_number_of_ranks():
    six = cluster(fast(6), slow(), num_devices=6)
    expected = 3 * ALPHA_FAST + 5 / 6 * VOLUME / FAST
    assert seconds("bruck", "all_gather", 6, built=six) == pytest.approx(expected)


def test_single_shot_takes_one_hop():
    assert seconds("single_shot", "all_gather", 8) == pytest.approx(ALPHA_FAST + 7 / 8 * VOLUME / FAST)


def test_direct_all_to_all_waits_for_the_slowest_tier():
    # Of 64 parts 56 leave the node.
    assert seconds("direct_exchange", "all_to_all", 64) == pytest.approx(56 / 64 * VOLUME / SLOW)
    assert seconds("direct_exchange", "all_to_all", 8) == pytest.approx(7 / 8 * VOLUME / FAST)


def test_primus_splits_an_all_to_all_7_to_8_inside_and_outside_on_two_nodes():
    # (N - 1)/g = 7/16 stay in the node of 8, (g - N)/g = 8/16 leave it.
    expected = max(7 / 16 / FAST, 8 / 16 / SLOW) * VOLUME
    assert seconds("direct_exchange", "all_to_all", 16) == pytest.approx(expected)


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_bus_bandwidth_of_all_to_all_is_n_over_n_minus_1_of_the_nic(nodes):
    # NVIDIA/nccl-tests issue 130: "2x network bandwidth per GPU" on two nodes, N/(N-1) in general.
    size = 8 * nodes
    bus = (size - 1) / size * VOLUME / seconds("direct_exchange", "all_to_all", size)
    exact = (size - 1) / (size - 8) * SLOW
    assert bus == pytest.approx(exact)
    assert bus == pytest.approx(nodes / (nodes - 1) * SLOW, rel=0.08)


def test_rails_move_the_buffer_once_per_tier():
    assert seconds("hierarchical_exchange", "all_to_all", 64) == pytest.approx(
        7 / 8 * VOLUME * (1 / FAST + 1 / SLOW)
    )


@pytest.mark.parametrize(("stride", "bandwidth", "alpha"), [(1, FAST, ALPHA_FAST), (8, SLOW, ALPHA_SLOW)])
def test_point_to_point_takes_the_innermost_tier_of_neighbours(stride, bandwidth, alpha):
    assert seconds("p2p", "p2p", 4, stride=stride) == pytest.approx(alpha + VOLUME / bandwidth)


def test_a_pipeline_waits_for_its_slowest_hop():
    assert seconds("p2p", "p2p", 4, stride=4) == seconds("p2p", "p2p", 4, stride=8)


def test_every_algorithm_has_its_own_name_and_some_kinds():
    names = [way.name for way in ALGORITHMS]
    assert len(set(names)) == len(names)
    assert all(way.kinds for way in ALGORITHMS)


@pytest.mark.parametrize(
    ("count", "steps"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1025, 11), (2.5, 2)]
)
def test_steps_of_a_binomial_tree(count, steps):
    assert doublings(count=count) == steps


CHUNKS = {
    "exchange_chunk": 16e6,
    "exchange_out_bandwidth": 1e12,
    "exchange_short": 16e3,
    "exchange_launch": 15e-6,
    "exchange_short_launch": 9e-6,
}


def exchanged(kind, size, num_bytes, stride=1.0, **changes):
    built = model("p2p" if kind == "p2p" else "direct_exchange", **CHUNKS | changes)
    group = Group(size=float(size), stride=float(stride))
    return float(built.seconds(kind=kind, num_bytes=num_bytes, group=group))


def test_the_first_chunks_of_an_exchange_are_copied_out_once_they_are_whole():
    sent = 3 / 4 / FAST
    assert exchanged("all_to_all", 4, 8e6) == pytest.approx(15e-6 + 8e6 * (sent + 3 / 4 / 1e12))
    assert exchanged("all_to_all", 4, 64e6) == pytest.approx(15e-6 + 64e6 * sent + 16e6 * 3 / 4 / 1e12)
    # Between two ranks all of a message leaves.
    assert exchanged("p2p", 2, 64e6) == pytest.approx(15e-6 + ALPHA_FAST + 64e6 / FAST + 16e6 / 1e12)


@pytest.mark.parametrize(("kind", "peers"), [("all_to_all", 4), ("p2p", 1)])
def test_short_parts_go_with_flags(kind, peers):
    """Up to 16 KB for each peer; their launch never takes longer than that of long ones."""
    most, more = (exchanged(kind, 4, peers * 16e3 + extra) for extra in (0.0, 1.0))
    assert more - most == pytest.approx(6e-6, rel=1e-4)
    slow_start = {"exchange_short_launch": 20e-6}
    most, more = (exchanged(kind, 4, peers * 16e3 + extra, **slow_start) for extra in (0.0, 1.0))
    assert more - most == pytest.approx(0.0, abs=1e-10)


@pytest.mark.parametrize("kind", ["all_to_all", "p2p"])
def test_exchanges_across_nodes_have_no_chunks_of_a_node(kind):
    plain = {"exchange_chunk": 0.0}
    for size, stride in ((4, 8), (16, 1)):
        assert exchanged(kind, size, 1e4, stride) == exchanged(kind, size, 1e4, stride, **plain)
        assert exchanged(kind, size, 64e6, stride) == exchanged(kind, size, 64e6, stride, **plain)


def test_own_part_is_copied():
    plain = seconds("ring", "all_gather", 2)
    assert seconds("ring", "all_gather", 2, copy_bandwidth=1e12) == pytest.approx(plain + VOLUME / 2 / 1e12)
    # A sum writes its part in its last step, whether in place or not: another speed.
    for kind in ("all_reduce", "reduce_scatter"):
        summed = seconds("ring", kind, 2, copy_bandwidth=1e12)
        assert summed == seconds("ring", kind, 2)
        assert seconds("ring", kind, 2, sum_bandwidth=1e12) == pytest.approx(summed + VOLUME / 2 / 1e12)
    assert seconds("ring", "all_gather", 2, sum_bandwidth=1e12) == plain


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_across_nodes_the_network_hides_copies_of_the_own_part(kind):
    """nccl-tests on 4 to 128 nodes of Perlmutter: out of place takes what in place does, within 1 %."""
    apart = seconds("ring", kind, 2, stride=8, copy_bandwidth=1e12, sum_bandwidth=1e12)
    assert apart == seconds("ring", kind, 2, stride=8)
    pods = cluster(fast(8), slow(name="pod", size=16), slow(), num_devices=32)
    inside = seconds("ring", kind, 2, stride=8, built=pods, copy_bandwidth=1e12, sum_bandwidth=1e12)
    assert inside == apart, "of nodes of one pod, too"


def test_a_pod_and_what_lies_beyond_it_share_the_nic():
    # 4 nodes, 2 to a pod: what leaves the node passes the NIC, whether it stays in the pod or not.
    pods = cluster(fast(8), slow(name="pod", size=16), slow(bandwidth=25e9), num_devices=32)
    beta = (seconds("ring", "all_gather", 4, stride=8, built=pods) - 3 * ALPHA_SLOW) / VOLUME
    assert beta == pytest.approx(3 / 4 * max(1 / SLOW, 1 / 2 / 25e9))
    expected = max(3 / 4 / SLOW, 2 / 4 / 25e9) * VOLUME
    assert seconds("direct_exchange", "all_to_all", 4, stride=8, built=pods) == pytest.approx(expected)


def test_pairwise_exchange_goes_peer_by_peer():
    # 16 ranks on 2 nodes: 7 steps inside, 8 outside, each with 1/16 of the buffer; the tiers wait for each other.
    expected = 7 * (ALPHA_FAST + VOLUME / 16 / FAST) + 8 * (ALPHA_SLOW + VOLUME / 16 / SLOW)
    assert seconds("pairwise_exchange", "all_to_all", 16) == pytest.approx(expected)
    assert seconds("direct_exchange", "all_to_all", 16) == pytest.approx(8 * VOLUME / 16 / SLOW)


def test_an_oversubscribed_level_is_a_tier_with_what_is_left():
    # Two pods of 8 nodes of 8 behind a spine 4 times oversubscribed: half of the buffer crosses it.
    built = cluster(fast(), slow(size=64), slow(name="spine", bandwidth=SLOW / 4), num_devices=128)
    full = cluster(fast(), slow(size=64), slow(name="spine"), num_devices=128)
    assert seconds("direct_exchange", "all_to_all", 128, built=built) == pytest.approx(2 * VOLUME / SLOW)
    assert seconds("direct_exchange", "all_to_all", 128, built=full) == pytest.approx(
        120 / 128 * VOLUME / SLOW
    )
    assert seconds("ring", "all_gather", 64, built=built) == seconds("ring", "all_gather", 64, built=full)


def test_a_recorded_message_says_which_way_won():
    built = load_cluster("h100-sxm", 64)
    size = Term(np.array([1e9]), name="bytes", unit="byte")
    group = Group(size=np.array([64.0]))
    term = AlphaBeta.from_cluster(built).seconds(kind="all_gather", num_bytes=size, group=group)
    texts = {node.name: node.text for node in term.at(0).walk()}
    assert texts["fastest"] == "ring Simple, the fastest of 3 ways"


def test_halving_doubling_over_nodes_leaves_an_eighth_to_the_slow_network():
    # 3 steps inside with V/2 + V/4 + V/8, then 3 outside with V/16 + V/32 + V/64.
    expected = 3 * ALPHA_FAST + 3 * ALPHA_SLOW + 7 / 8 * VOLUME / FAST + 7 / 64 * VOLUME / SLOW
    assert seconds("halving_doubling", "all_gather", 64) == pytest.approx(expected)
    assert seconds("halving_doubling", "all_reduce", 64) == pytest.approx(2 * expected)


def test_bruck_over_nodes_crosses_their_border_in_every_step():
    expected = 6 * ALPHA_SLOW + 63 / 64 * VOLUME / SLOW
    assert seconds("bruck", "all_gather", 64) == pytest.approx(expected)
    assert seconds("bruck", "reduce_scatter", 64) == pytest.approx(expected)
    assert seconds("bruck", "all_reduce", 64) == pytest.approx(2 * expected)


def test_a_single_shot_over_nodes_takes_one_hop_of_the_slow_network():
    expected = ALPHA_SLOW + 56 / 64 * VOLUME / SLOW
    assert seconds("single_shot", "all_gather", 64) == pytest.approx(expected)
    assert seconds("single_shot", "all_reduce", 64) == pytest.approx(2 * expected)


def test_a_tree_in_one_node_is_a_chain():
    assert seconds("tree", "all_reduce", 8) == pytest.approx(2 * (7 * ALPHA_FAST + 7 / 8 * VOLUME / FAST))


def test_peers_of_an_exchange_are_started_one_by_one():
    direct = seconds("direct_exchange", "all_to_all", 16, peer_latency=1e-6, exchange_launch=3e-6)
    assert direct == pytest.approx(2 * 3e-6 + 15e-6 + 8 / 16 * VOLUME / SLOW)  # a launch per tier in use
    rails = seconds("hierarchical_exchange", "all_to_all", 16, peer_latency=1e-6)
    assert rails == pytest.approx(
        8e-6 + VOLUME * (7 / 8 / FAST + 1 / 2 / SLOW)
    )  # 7 in the node, 1 on the rail


def test_of_two_wire_protocols_the_faster_is_taken():
    quick = WireProtocol(name="LL", launch=1e-6, hop_factor=2.0, efficiency=0.25)
    wide = WireProtocol(name="Simple", launch=9e-6, hop_factor=5.0, efficiency=0.75)
    link = LinkCalibration(name="ideal", protocols=(quick, wide), algorithms=("ring", "single_shot"))
    both = AlphaBeta(cluster=two_level(), calibration=NetworkCalibration(links=(link, link)))

    def ways(volume):
        for wire in (quick, wide):
            moved = 7 / 8 * volume / (wire.efficiency * FAST)
            yield wire.launch + 7 * wire.hop_factor * ALPHA_FAST + moved
            yield wire.launch + wire.hop_factor * ALPHA_FAST + moved

    for volume in (1e3, 1e6, 1e7, 1e9):
        result = both.seconds(kind="all_gather", num_bytes=volume, group=Group(size=8.0))
        assert float(result) == pytest.approx(min(ways(volume)))


@pytest.mark.parametrize(
    "way", [way for way in ALGORITHMS if way.name != "in_network"], ids=lambda way: way.name
)
def test_on_switches_more_ranks_never_take_less(way):
    for kind in sorted(way.kinds - {"p2p"}):
        taken = [seconds(way.name, kind, size) for size in (2, 4, 8, 16, 32, 64)]
        assert taken == pytest.approx(sorted(taken), rel=1e-9)
        assert taken[-1] > taken[0] > 0.0

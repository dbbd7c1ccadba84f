"""Every way of every collective with everything a link loses, worked out by hand.

Two tiers that differ in all parameters; 64 ranks on 8 nodes, groups of all, of a node, and of one rank per node.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cost.collectives.clusters import cluster, fast, slow

from forescale.cost.calibration import Fit
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import LinkCalibration, NetworkCalibration, WireProtocol
from forescale.cost.collectives.expert_exchange import ExpertExchange
from forescale.cost.mesh import Group
from forescale.spec.cluster import Tier

VOLUME, ALL, NODE, RAIL = 64e6, (64, 1), (8, 1), (8, 8)
NEAR, FAR, NEAR_S, FAR_S = 400e9, 50e9, 1e-6, 5e-6


def link(
    way, *, launch, hop, share, tree, tree_hop, pair, member, reduced, reduced_s, sent, sent_s, peer, copies
):
    wire = WireProtocol(name="only", launch=launch, hop_factor=hop, efficiency=share)
    return LinkCalibration(
        name="lossy", protocols=(wire,), algorithms=(way,), tree_efficiency=tree, tree_hop_factor=tree_hop,
        pair_share=pair, member_half=member, reduction_efficiency=reduced, reduction_launch=reduced_s,
        exchange_efficiency=sent, exchange_launch=sent_s, peer_latency=peer, copy_bandwidth=copies[0],
        sum_bandwidth=copies[0], exchange_copy_bandwidth=copies[1],
    )  # fmt: skip


def inner(way):
    return link(
        way, launch=2e-6, hop=3.0, share=0.8, tree=0.7, tree_hop=9.0, pair=0.9, member=0.0, reduced=0.6,
        reduced_s=4e-6, sent=0.5, sent_s=7e-6, peer=0.1e-6, copies=(1e12, 2e12),
    )  # fmt: skip


def outer(way):
    return link(
        way, launch=11e-6, hop=2.0, share=0.9, tree=0.65, tree_hop=1.5, pair=0.75, member=0.25, reduced=0.55,
        reduced_s=99.0, sent=0.45, sent_s=13e-6, peer=0.3e-6, copies=(1.0, 1.0),
    )  # fmt: skip


def built(way, *, near=False, far=False):
    """Return the model; switches of a tier may reduce."""
    tiers = (fast(in_network_reduction=near), slow(in_network_reduction=far))
    return AlphaBeta(cluster=cluster(*tiers), calibration=NetworkCalibration(links=(inner(way), outer(way))))


def seconds(way, kind, where, **switches):
    size, stride = where
    group = Group(size=float(size), stride=float(stride))
    return float(built(way, **switches).seconds(kind=kind, num_bytes=VOLUME, group=group))


NEAR_RATE = NEAR * 0.8
FAR_ALL, FAR_ONE = FAR * 0.9 * 8 / 8.25, FAR * 0.9 * 1 / 1.25
"""Of a link that leaves a node: what all of its 8 ranks reach, and what one reaches by itself."""
BOTH, ONE_NEAR, ONE_FAR = 2e-6 + 11e-6, 2e-6, 11e-6
"""Seconds to start on both tiers, and on either."""
HOP_NEAR, HOP_FAR = 3 * NEAR_S, 2 * FAR_S
PASSES = [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)]


def copied(ranks):
    """Seconds in which a rank's own part is copied inside a node; across nodes the network hides it."""
    return VOLUME / ranks / 1e12


@pytest.mark.parametrize(("kind", "passes"), PASSES)
def test_ring(kind, passes):
    """7 of 8 hops inside; each of a node's links outwards carries an eighth, one more to close the ring."""
    slowest = max(7 / 8 / NEAR_RATE, 1 / 8 / FAR_ALL)
    result = BOTH + passes * (56 * HOP_NEAR + 7 * HOP_FAR + 63 / 64 * VOLUME * slowest)
    assert seconds("ring", kind, ALL) == pytest.approx(result)
    inside = ONE_NEAR + passes * (7 * HOP_NEAR + 7 / 8 * VOLUME / NEAR_RATE) + copied(8)
    assert seconds("ring", kind, NODE) == pytest.approx(inside)
    rail = ONE_FAR + passes * (7 * HOP_FAR + 7 / 8 * VOLUME / FAR_ONE)
    assert seconds("ring", kind, RAIL) == pytest.approx(rail)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_ring_of_one_root(kind):
    """The whole message passes every link once."""
    assert seconds("ring", kind, NODE) == pytest.approx(ONE_NEAR + 7 * HOP_NEAR + VOLUME / NEAR_RATE)
    assert seconds("ring", kind, RAIL) == pytest.approx(ONE_FAR + 7 * HOP_FAR + VOLUME / FAR_ONE)


def test_tree():
    """Chains in nodes, 3 levels over 8 of them; between two nodes 0.75 of what more move."""
    latency = 7 * HOP_NEAR + 3 * HOP_FAR * 1.5
    slowest = max(2 * 7 / 8 / NEAR_RATE, 2 / 8 / (FAR_ALL * 0.65))
    assert seconds("tree", "all_reduce", ALL) == pytest.approx(BOTH + 2 * latency + VOLUME * slowest)
    pair = 2 * 0.75 * VOLUME / (FAR_ONE * 0.65)
    assert seconds("tree", "all_reduce", (2, 8)) == pytest.approx(ONE_FAR + 2 * HOP_FAR * 1.5 + pair)
    triple = 2 * VOLUME / (FAR_ONE * 0.65)
    assert seconds("tree", "all_reduce", (3, 8)) == pytest.approx(ONE_FAR + 2 * 2 * HOP_FAR * 1.5 + triple)


def test_switches():
    """Inside (1 + 1/8) of the message; between nodes an eighth per link goes up while sums come down."""
    inside = 9 / 8 / (NEAR * 0.6)
    across = 1 / 8 / (FAR_ALL * 0.55)
    both = 4e-6 + 11e-6 + 2 * HOP_FAR + VOLUME * max(inside, across)
    assert seconds("in_network", "all_reduce", ALL, near=True, far=True) == pytest.approx(both)
    alone = 4e-6 + VOLUME * inside + copied(8)
    assert seconds("in_network", "all_reduce", NODE, near=True) == pytest.approx(alone)
    # Those between nodes alone, behind chains in nodes; those in nodes alone, below a tree.
    chain = 2 * 7 / 8 / NEAR_RATE
    apart = BOTH + 2 * (7 * HOP_NEAR + HOP_FAR) + VOLUME * max(chain, across)
    assert seconds("in_network", "all_reduce", ALL, far=True) == pytest.approx(apart)
    tree = 2 / 8 / (FAR_ALL * 0.65)
    below = 4e-6 + 11e-6 + 2 * 3 * HOP_FAR * 1.5 + VOLUME * max(inside, tree)
    assert seconds("in_network", "all_reduce", ALL, near=True) == pytest.approx(below)
    rail = 11e-6 + 2 * HOP_FAR + VOLUME / (FAR_ONE * 0.55)
    assert seconds("in_network", "all_reduce", RAIL, near=True, far=True) == pytest.approx(rail)
    assert seconds("in_network", "all_reduce", RAIL, far=True) == pytest.approx(rail), "chains of one rank"
    assert seconds("in_network", "all_reduce", NODE, near=True, far=True) == pytest.approx(alone)


@pytest.mark.parametrize(("kind", "passes"), PASSES)
def test_halving_and_doubling(kind, passes):
    """Halves, quarters and eighths inside; what is left outside."""
    phases = 3 * HOP_NEAR + 3 * HOP_FAR + VOLUME * (7 / 8 / NEAR_RATE + 7 / 64 / FAR_ALL)
    assert seconds("halving_doubling", kind, ALL) == pytest.approx(BOTH + passes * phases)


@pytest.mark.parametrize(("kind", "passes"), PASSES)
def test_hierarchical(kind, passes):
    phases = 7 * HOP_NEAR + 7 * HOP_FAR + VOLUME * (7 / 8 / NEAR_RATE + 7 / 64 / FAR_ALL)
    assert seconds("hierarchical", kind, ALL) == pytest.approx(BOTH + passes * phases)


@pytest.mark.parametrize(("kind", "passes"), PASSES)
def test_bruck(kind, passes):
    """Some rank crosses a border in each of 6 steps, alone on its link."""
    steps = 6 * HOP_FAR + 63 / 64 * VOLUME / (FAR * 0.9)
    assert seconds("bruck", kind, ALL) == pytest.approx(BOTH + passes * steps)
    inside = 3 * HOP_NEAR + 7 / 8 * VOLUME / NEAR_RATE
    local = copied(8)
    assert seconds("bruck", kind, NODE) == pytest.approx(ONE_NEAR + passes * inside + local)


@pytest.mark.parametrize(("kind", "passes"), PASSES)
def test_single_shot(kind, passes):
    """56 of 64 parts leave the node; peers are told one by one, on the slower tier."""
    shot = HOP_FAR + 56 * 0.3e-6 + 56 / 64 * VOLUME / (FAR * 0.9)
    assert seconds("single_shot", kind, ALL) == pytest.approx(BOTH + passes * shot)
    inside = HOP_NEAR + 7 * 0.1e-6 + 7 / 8 * VOLUME / NEAR_RATE
    local = copied(8)
    assert seconds("single_shot", kind, NODE) == pytest.approx(ONE_NEAR + passes * inside + local)


STARTS = 7e-6 + 13e-6
OWN = VOLUME / 64 / 2e12
PEERS = 7 * 0.1e-6 + 56 * 0.3e-6


def test_all_to_all():
    direct = STARTS + PEERS + 56 / 64 * VOLUME / (FAR * 0.45) + OWN
    assert seconds("direct_exchange", "all_to_all", ALL) == pytest.approx(direct)
    inside = 7e-6 + 7 * 0.1e-6 + 7 / 8 * VOLUME / (NEAR * 0.5) + VOLUME / 8 / 2e12
    assert seconds("direct_exchange", "all_to_all", NODE) == pytest.approx(inside)
    steps = 7 * HOP_NEAR + 56 * HOP_FAR
    pairs = VOLUME * (7 / 64 / (NEAR * 0.5) + 56 / 64 / (FAR * 0.45))
    assert seconds("pairwise_exchange", "all_to_all", ALL) == pytest.approx(STARTS + steps + pairs + OWN)
    rails = VOLUME * 7 / 8 * (1 / (NEAR * 0.5) + 1 / (FAR * 0.45))
    explicit = 7 * 0.1e-6 + 7 * 0.3e-6
    assert seconds("hierarchical_exchange", "all_to_all", ALL) == pytest.approx(
        STARTS + explicit + rails + OWN
    )


def test_point_to_point():
    """The slowest hop, start and rate of those in use."""
    assert seconds("p2p", "p2p", NODE) == pytest.approx(7e-6 + HOP_NEAR + VOLUME / (NEAR * 0.5))
    assert seconds("p2p", "p2p", RAIL) == pytest.approx(13e-6 + HOP_FAR + VOLUME / (FAR * 0.45))
    assert seconds("p2p", "p2p", ALL) == pytest.approx(13e-6 + HOP_FAR + VOLUME / (FAR * 0.45))


def test_of_two_wire_protocols_switches_take_the_one_of_whole_messages_and_trees_the_faster():
    """A quick one on both tiers beside the usual; then on the inner alone, beside which the outer has its only one."""
    short = WireProtocol(name="LL", launch=1e-6, hop_factor=1.0, efficiency=0.1)
    near, far = (
        replace(item("in_network"), protocols=(short, *item("tree").protocols)) for item in (inner, outer)
    )
    tiers = (fast(in_network_reduction=True), slow(in_network_reduction=True))

    def taken(volume, *links):
        made = AlphaBeta(cluster=cluster(*tiers), calibration=NetworkCalibration(links=links))
        return float(made.seconds(kind="all_reduce", num_bytes=volume, group=Group(size=64.0)))

    inside, across = 9 / 8 / (NEAR * 0.6), 1 / 8 / (FAR_ALL * 0.55)
    switched = 4e-6 + 11e-6 + 2 * HOP_FAR + VOLUME * max(inside, across)
    assert taken(VOLUME, near, far) == pytest.approx(switched)
    first, plain = replace(near, algorithms=("tree",)), outer("tree")
    quick = 1e-6 + 11e-6 + 2 * (7 * NEAR_S + 3 * HOP_FAR * 1.5) + 8 * 2 * 7 / 8 / (NEAR * 0.1)
    assert taken(8.0, first, plain) == pytest.approx(quick)
    slowest = max(2 * 7 / 8 / NEAR_RATE, 2 / 8 / (FAR_ALL * 0.65))
    whole = BOTH + 2 * (7 * HOP_NEAR + 3 * HOP_FAR * 1.5) + VOLUME * slowest
    assert taken(VOLUME, first, plain) == pytest.approx(whole)


def experts(where, top_k, **groups):
    size, stride = where
    model = ExpertExchange(base=built("direct_exchange"), top_k=top_k, **groups)
    group = Group(size=float(size), stride=float(stride))
    return float(model.seconds(kind="all_to_all", num_bytes=VOLUME, group=group))


@pytest.mark.parametrize("top_k", [1, 2, 6])
def test_tokens_that_travel_once(top_k):
    """Of 64 ranks, k experts fall on 64·(1 − (63/64)^k); of 8 nodes alike, and all but one of 8 away."""

    def copies(blocks):
        return blocks * (1 - (1 - 1 / blocks) ** top_k)

    inside = copies(64) / top_k * 7 / 8 / (NEAR * 0.5)
    across = copies(8) / top_k * 7 / 8 / (FAR * 0.45)
    assert experts(ALL, top_k) == pytest.approx(STARTS + VOLUME * max(inside, across))
    node = copies(8) / top_k * 7 / 8 / (NEAR * 0.5)
    assert experts(NODE, top_k) == pytest.approx(7e-6 + VOLUME * node)
    rail = copies(8) / top_k * 7 / 8 / (FAR * 0.45)
    assert experts(RAIL, top_k) == pytest.approx(13e-6 + VOLUME * rail)


def test_tokens_limited_to_some_nodes():
    """Of 8 groups of experts 2: two nodes of 8."""
    across = 2 * (1 - (1 / 2) ** 4) / 4 * 7 / 8 / (FAR * 0.45)
    assert experts(ALL, 4, num_groups=8, top_groups=2) == pytest.approx(STARTS + VOLUME * across)
    one = 1 / 4 * 7 / 8 / (FAR * 0.45)
    assert experts(ALL, 4, num_groups=8, top_groups=1) == pytest.approx(STARTS + VOLUME * one)
    plain = experts(ALL, 4)
    for groups in ({"num_groups": 8, "top_groups": 8}, {"num_groups": 8, "top_groups": 0}):
        assert experts(ALL, 4, **groups) == plain


def shaped(tier, *ways, size=64):
    wire = WireProtocol(name="only", launch=0.0, hop_factor=1.0, efficiency=1.0)
    ideal = LinkCalibration(name="ideal", protocols=(wire,), algorithms=ways)
    return AlphaBeta(cluster=cluster(tier, num_devices=size), calibration=NetworkCalibration(links=(ideal,)))


def taken(model, kind, size, stride=1.0):
    return float(model.seconds(kind=kind, num_bytes=VOLUME, group=Group(size=float(size), stride=stride)))


@pytest.mark.parametrize("stated", [True, False])
def test_a_mesh_uses_the_links_among_its_ranks(stated):
    """7 links of 64 GB/s; three ranks have 2 of them, a message one."""
    pair = {"link_bandwidth": 64e9} if stated else {}
    tier = Tier(name="mesh", size=8, bandwidth=448e9, latency=1e-6, topology="mesh", **pair)
    model = shaped(tier, "ring", "direct_exchange", "p2p", "halving_doubling", size=8)
    assert taken(model, "broadcast", 3) == pytest.approx(2e-6 + VOLUME / 128e9)
    assert taken(model, "all_to_all", 3) == pytest.approx(2 / 3 * VOLUME / 128e9)
    assert taken(model, "all_to_all", 8) == pytest.approx(7 / 8 * VOLUME / 448e9)
    assert taken(model, "p2p", 8) == pytest.approx(1e-6 + VOLUME / 64e9)
    whole = Tier(name="mesh", size=0, bandwidth=448e9, latency=1e-6, topology="mesh", **pair)
    assert taken(shaped(whole, "p2p", size=8), "p2p", 8) == pytest.approx(1e-6 + VOLUME / 64e9)


@pytest.mark.parametrize("stated", [True, False])
def test_a_torus_has_two_links_per_dimension(stated):
    """4 x 4 x 4 of 45 GB/s a link: part of a dimension has one, a plane four, all of it six."""
    pair = {"link_bandwidth": 45e9} if stated else {}
    tier = Tier(name="ici", size=64, bandwidth=270e9, latency=1e-6, topology="torus", dimensions=3, **pair)
    model = shaped(tier, "ring", "direct_exchange", "p2p")
    for ranks, links in ((2, 1), (4, 2), (16, 4), (64, 6)):
        assert taken(model, "broadcast", ranks) == pytest.approx((ranks - 1) * 1e-6 + VOLUME / (links * 45e9))
    # Of an all-to-all, messages cross a quarter of a ring of 4: as much as its links bring.
    for ranks, links in ((4, 2), (64, 2)):
        assert taken(model, "all_to_all", ranks) == pytest.approx(
            (ranks - 1) / ranks * VOLUME / (links * 45e9)
        )
    assert taken(model, "p2p", 4) == pytest.approx(1e-6 + VOLUME / 45e9)
    # 64 devices of a pod of 4,096 are a slice, whose sides wrap as well where whole cubes of 4 do.
    for wraps_from, links in ((4, 2), (0, 1)):
        slice_ = shaped(replace(tier, size=4096, wraps_from=wraps_from), "ring")
        assert taken(slice_, "broadcast", 4) == pytest.approx(3e-6 + VOLUME / (links * 45e9))


MESH = Tier(name="mesh", size=8, bandwidth=448e9, latency=1e-6, topology="mesh")
"""7 links of 64 GB/s."""
TORUS = Tier(name="ici", size=64, bandwidth=270e9, latency=1e-6, topology="torus", dimensions=3)
"""4 x 4 x 4; 6 links of 45 GB/s, of which an all-to-all fills as much as two."""


@pytest.mark.parametrize(
    ("way", "kind", "found"),
    [
        # Partners, one at a time, have one link among them: 3 exchanges, or 7 peers of an eighth each.
        ("halving_doubling", "all_gather", 3e-6 + 7 / 8 * VOLUME / 64e9),
        ("bruck", "all_gather", 3e-6 + 7 / 8 * VOLUME / 64e9),
        ("pairwise_exchange", "all_to_all", 7e-6 + 7 / 8 * VOLUME / 64e9),
        # Rings run over all links at once.
        ("hierarchical", "all_gather", 7e-6 + 7 / 8 * VOLUME / 448e9),
    ],
)
def test_ways_over_a_mesh(way, kind, found):
    assert taken(shaped(MESH, way, size=8), kind, 8) == pytest.approx(found)


@pytest.mark.parametrize(
    ("way", "kind", "found"),
    [
        ("single_shot", "all_gather", 1e-6 + 63 / 64 * VOLUME / 90e9),
        ("hierarchical_exchange", "all_to_all", 63 / 64 * VOLUME / 90e9),
        ("ring", "all_gather", 63e-6 + 63 / 64 * VOLUME / 270e9),
    ],
)
def test_ways_over_a_torus(way, kind, found):
    """What all pairs send at once passes links that others need too."""
    assert taken(shaped(TORUS, way), kind, 64) == pytest.approx(found)


def test_a_longer_ring_of_one_dimension_is_no_slower_for_other_dimensions():
    """Of 4 ranks in a row two links at most are filled, whatever the torus holds beside."""
    model = shaped(TORUS, "direct_exchange")
    assert taken(model, "all_to_all", 16) == pytest.approx(15 / 16 * VOLUME / (8 * 45e9 / 4))


def beyond_pods(way):
    """Two nodes of 8 to a pod, two pods; a NIC of 50 GB/s leads to both, 25 GB/s of it between pods."""
    pods = (fast(), slow(name="pod", size=16), slow(name="core", bandwidth=25e9))
    wire = WireProtocol(name="only", launch=0.0, hop_factor=1.0, efficiency=1.0)
    ideal = LinkCalibration(name="ideal", protocols=(wire,), algorithms=(way,))
    built = cluster(*pods, num_devices=32)
    return AlphaBeta(cluster=built, calibration=NetworkCalibration(links=(ideal,) * 3))


def test_what_leaves_a_pod_passes_the_link_of_its_node_as_well():
    """4 ranks, one a node: three quarters of a shot pass the NIC. One after the other: one peer in the pod, two beyond."""
    shot = FAR_S + max(3 / 4 / 50e9, 2 / 4 / 25e9) * VOLUME
    assert taken(beyond_pods("single_shot"), "all_gather", 4, 8.0) == pytest.approx(shot)
    wide = AlphaBeta(
        cluster=cluster(fast(), slow(name="pod", size=16), slow(name="core"), num_devices=32),
        calibration=beyond_pods("single_shot").calibration,
    )
    assert taken(wide, "all_gather", 4, 8.0) == pytest.approx(FAR_S + 3 / 4 / 50e9 * VOLUME)
    pairs = FAR_S + VOLUME / 4 / 50e9 + 2 * (FAR_S + VOLUME / 4 / 25e9)
    assert taken(beyond_pods("pairwise_exchange"), "all_to_all", 4, 8.0) == pytest.approx(pairs)


def test_experts_beyond_a_pod_are_reached_through_the_link_of_the_node():
    """One rank a node, 4 nodes in 2 pods, 2 experts a token: 4·(1 − (3/4)²) nodes, 3 of 4 elsewhere, on the NIC."""
    base = beyond_pods("direct_exchange")
    wide = AlphaBeta(
        cluster=cluster(
            fast(), slow(name="pod", size=16), slow(name="core", bandwidth=100e9), num_devices=32
        ),
        calibration=base.calibration,
    )
    nic = 4 * (1 - (3 / 4) ** 2) / 2 * 3 / 4 / 50e9
    group = Group(size=4.0, stride=8.0)
    result = ExpertExchange(base=wide, top_k=2).seconds(kind="all_to_all", num_bytes=VOLUME, group=group)
    assert float(result) == pytest.approx(VOLUME * nic)


def test_messages_and_exchanges_go_by_the_protocol_for_long_messages():
    """LL has quick hops; point-to-point traffic uses Simple."""
    quick = WireProtocol(name="LL", launch=0.0, hop_factor=1.0, efficiency=0.25)
    wide = WireProtocol(name="Simple", launch=0.0, hop_factor=5.0, efficiency=0.75)
    for way, kind, hops in (("p2p", "p2p", 1), ("pairwise_exchange", "all_to_all", 7)):
        link = LinkCalibration(name="ideal", protocols=(quick, wide), algorithms=(way,))
        built = cluster(fast(), num_devices=8)
        model = AlphaBeta(cluster=built, calibration=NetworkCalibration(links=(link,)))
        moved = VOLUME / NEAR if kind == "p2p" else 7 / 8 * VOLUME / NEAR
        assert taken(model, kind, 8) == pytest.approx(hops * 5e-6 + moved)


def test_a_link_that_knows_fewer_protocols_uses_its_last():
    """A node with LL and Simple, a network with Simple alone: LL inside goes with Simple outside."""
    quick = WireProtocol(name="LL", launch=1e-6, hop_factor=1.0, efficiency=0.25)
    wide = WireProtocol(name="Simple", launch=9e-6, hop_factor=5.0, efficiency=0.75)
    near = LinkCalibration(name="near", protocols=(quick, wide), algorithms=("ring",))
    far = LinkCalibration(name="far", protocols=(wide,), algorithms=("ring",))
    model = AlphaBeta(cluster=cluster(fast(), slow()), calibration=NetworkCalibration(links=(near, far)))
    result = model.seconds(kind="all_gather", num_bytes=8.0, group=Group(size=64.0))
    assert float(result) == pytest.approx(1e-6 + 9e-6 + 56e-6 + 7 * 5 * FAR_S, rel=1e-4)


def test_a_library_offers_what_any_of_its_links_does():
    """The network's tree is there for groups that cross it, beside the node's ring; and intervals are the widest."""
    wire = WireProtocol(name="only", launch=0.0, hop_factor=1.0, efficiency=1.0)
    near, far = (
        LinkCalibration(name=way, protocols=(wire,), algorithms=(way,), fit=Fit(low=low, high=high))
        for way, low, high in (("ring", 0.9, 1.2), ("tree", 0.7, 1.1))
    )
    model = AlphaBeta(cluster=cluster(fast(), slow()), calibration=NetworkCalibration(links=(near, far)))
    group = Group(size=8.0, stride=8.0)
    tree = 2 * 3 * FAR_S + 2 * 1e3 / FAR
    assert float(model.seconds(kind="all_reduce", num_bytes=1e3, group=group)) == pytest.approx(tree)
    spread = model.provenance(kind="all_reduce")
    assert (spread.low, spread.high) == (0.7, 1.2)


def test_a_mesh_of_two_has_one_link():
    tier = Tier(name="mesh", size=2, bandwidth=100e9, latency=1e-6, topology="mesh")
    assert taken(shaped(tier, "p2p", size=2), "p2p", 2) == pytest.approx(1e-6 + VOLUME / 100e9)


@pytest.mark.parametrize(("devices", "links"), [(16, 2), (64, 1)])
@pytest.mark.parametrize(("ranks", "stride", "beside"), [(4, 4.0, 1), (16, 1.0, 4)])
def test_a_torus_of_nodes_counts_nodes(devices, links, ranks, stride, beside):
    """4 nodes of 4 are a ring of 4, which closes, or part of one of 16; a rank of each node, or 4 beside each other."""
    ring = Tier(name="ring", size=0, bandwidth=90e9, latency=0.0, topology="torus", dimensions=1)
    wire = WireProtocol(name="only", launch=0.0, hop_factor=1.0, efficiency=1.0)
    ideal = LinkCalibration(name="ideal", protocols=(wire,), algorithms=("ring",))
    built_ = AlphaBeta(
        cluster=cluster(fast(4, latency=0.0, bandwidth=4e12), ring, num_devices=devices, per_node=4),
        calibration=NetworkCalibration(links=(ideal, ideal)),
    )
    assert taken(built_, "broadcast", ranks, stride=stride) == pytest.approx(VOLUME / (beside * links * 45e9))


def test_trees_over_two_tiers_wait_for_the_levels_of_both():
    """4 nodes, 2 to a pod: one level between nodes of a pod, one between pods."""
    levels = 2 * (1 * FAR_S + 1 * FAR_S)
    moved = max(1 / 50e9, 1 / (2 * 25e9)) * VOLUME  # half of the bytes between just two blocks
    assert taken(beyond_pods("tree"), "all_reduce", 4, 8.0) == pytest.approx(levels + moved)


def test_long_messages_take_the_protocol_that_only_one_link_has():
    quick = WireProtocol(name="LL", launch=1e-6, hop_factor=1.0, efficiency=0.25)
    wide = WireProtocol(name="Simple", launch=9e-6, hop_factor=5.0, efficiency=0.75)
    near = LinkCalibration(name="near", protocols=(quick, wide), algorithms=("ring",))
    far = LinkCalibration(name="far", protocols=(wide,), algorithms=("ring",))
    tiers = (fast(bandwidth=10e9), slow())
    model = AlphaBeta(cluster=cluster(*tiers), calibration=NetworkCalibration(links=(near, far)))
    simple = 18e-6 + 56 * 5e-6 + 7 * 5 * FAR_S + 63 / 64 * 1e9 * 7 / 8 / (0.75 * 10e9)
    result = model.seconds(kind="all_gather", num_bytes=1e9, group=Group(size=64.0))
    assert float(result) == pytest.approx(simple)


def test_a_message_has_the_link_of_one_neighbour():
    """A switch of 400 GB/s whose ports to one peer carry 100."""
    tier = Tier(name="node", size=8, bandwidth=400e9, latency=1e-6, link_bandwidth=100e9)
    assert taken(shaped(tier, "p2p", size=8), "p2p", 8) == pytest.approx(1e-6 + VOLUME / 100e9)
    assert taken(shaped(tier, "ring", size=8), "broadcast", 8) == pytest.approx(7e-6 + VOLUME / 400e9)

from __future__ import annotations

from functools import partial

import pytest
from tests.cost.collectives.clusters import cluster

from forescale.catalogue.clusters import load_cluster
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import (
    LinkCalibration,
    NetworkCalibration,
    WireProtocol,
    calibrate,
)
from forescale.cost.collectives.route import (
    mesh_bandwidth,
    ring_load,
    route,
    torus_bandwidth,
    torus_exchange_bandwidth,
)
from forescale.cost.mesh import Group
from forescale.cost.network import price_network
from forescale.spec.cluster import Tier


@pytest.mark.parametrize(("ranks", "share"), [(2, 1 / 7), (4, 3 / 7), (8, 1.0)])
def test_primus_derates_a_mesh_of_8_by_the_links_in_use(ranks, share):
    # MI300X: node_bw 448 GB/s over 7 links.
    assert mesh_bandwidth(bandwidth=448e9, link_bandwidth=64e9, num_ranks=ranks) == pytest.approx(
        448e9 * share
    )


def _tpu(kind, num_bytes, ranks):
    # TPU v5e: 4.5e10 byte/s per link and direction, a ring of 8.
    tier = Tier(
        name="ici", size=8, bandwidth=90e9, latency=0.0, topology="torus", link_bandwidth=45e9, dimensions=1
    )
    link = LinkCalibration(
        name="ideal", protocols=(WireProtocol(name="DMA", launch=0.0, hop_factor=1.0, efficiency=1.0),),
        algorithms=("ring", "direct_exchange"),
    )  # fmt: skip
    built = AlphaBeta(cluster=cluster(tier, num_devices=8), calibration=NetworkCalibration(links=(link,)))
    return float(built.seconds(kind=kind, num_bytes=num_bytes, group=Group(size=float(ranks))))


def test_scaling_book_all_gather_on_a_ring_of_8():
    # bf16[2048, 8192] takes 373 us by bytes / W; the book leaves out (n - 1)/n.
    assert _tpu("all_gather", 2.0 * 2048 * 8192, 8) == pytest.approx(7 / 8 * 373e-6, rel=2e-3)
    assert _tpu("all_reduce", 2.0 * 2048 * 8192, 8) == pytest.approx(7 / 8 * 746e-6, rel=2e-3)


def test_scaling_book_all_to_all_takes_a_quarter():
    # 93.2 us for the whole array, an eighth of it in each rank's buffer.
    assert _tpu("all_to_all", 2.0 * 2048 * 8192 / 8, 8) == pytest.approx(7 / 8 * 93.2e-6, rel=2e-3)


def test_part_of_a_dimension_does_not_wrap():
    rate = partial(torus_bandwidth, link_bandwidth=45e9, side=16.0, closed=1.0, dimensions=2)
    assert [rate(num_ranks=ranks) for ranks in (4, 16, 256)] == [45e9, 90e9, 180e9]


def test_dimensions_that_do_not_close_have_half_the_bandwidth():
    rate = partial(torus_bandwidth, link_bandwidth=45e9, side=8.0, closed=0.0, dimensions=2)
    assert [rate(num_ranks=ranks) for ranks in (4, 8, 64)] == [45e9, 45e9, 90e9]


@pytest.mark.parametrize(("ranks", "closed", "factor"), [(64, 1.0, 8), (64, 0.0, 4), (32, 1.0, 4)])
def test_long_rings_and_lines_slow_an_all_to_all_down(ranks, closed, factor):
    exchange = torus_exchange_bandwidth(
        ring_bandwidth=90e9, link_bandwidth=45e9, num_ranks=ranks, side=64.0, closed=closed
    )
    assert exchange == pytest.approx(factor * 45e9 / ranks)


def exchanged(name, devices):
    """Return the seconds of an all-to-all of 1 GB over all devices."""
    (price,) = price_network(
        load_cluster(name, devices), ranks=[devices], sizes=[1e9], kinds=["all_to_all"]
    ).prices
    return price.seconds


@pytest.mark.parametrize(("devices", "seconds"), [(32, 9.807e-3), (48, 13.07e-3), (64, 7.38e-3)])
def test_instances_of_an_ultraserver_are_a_ring_only_together(devices, seconds):
    """Four instances close; two and three are a line with one link of 64 GB/s between neighbours."""
    assert exchanged("trn2-ultraserver", devices) == pytest.approx(seconds, rel=1e-2)


@pytest.mark.parametrize(
    ("name", "devices", "closes"),
    [
        ("tpu-v5e", 256, True), ("tpu-v5e", 64, False), ("tpu-v6e", 128, False), ("tpu-v5p", 64, True),
        ("tpu-v5p", 512, True), ("tpu-v5p", 32, False), ("tpu-v4", 64, True), ("tpu-v7-cores", 128, True),
    ],
)  # fmt: skip
def test_slices_wrap_around_from_16_or_from_whole_cubes_of_4(name, devices, closes):
    built = load_cluster(name, devices)
    (leg, *_) = route(Group(size=float(devices)), built, calibrate(built)).legs
    most = built.tiers[0].bandwidth
    assert leg.bandwidth == pytest.approx(most if closes else most / 2)


def test_a_mesh_beyond_a_package_counts_packages():
    """Frontier: 50 GB/s from a die to each of three other packages."""
    built = load_cluster("mi250x-frontier", 8)
    rates = [route(Group(size=float(size)), built, calibrate(built)).legs[1].bandwidth for size in (4, 8)]
    assert rates == [50e9, 150e9]


def test_links_that_a_group_does_not_use_carry_nothing():
    """2 ranks in each of 8 nodes a pod apart: the node carries 1 - 1/2, the pod nothing, the core 1/2."""
    loads = [
        ring_load(num_ranks=16.0, inner=near, reach=far)
        for near, far in ((1.0, 2.0), (2.0, 2.0), (2.0, 16.0))
    ]
    assert loads == [1 / 2, 0.0, 1 / 2]

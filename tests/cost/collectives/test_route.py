from __future__ import annotations

import pytest
from tests.cost.collectives.clusters import cluster

from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import LinkCalibration, NetworkCalibration, WireProtocol
from forescale.cost.collectives.route import (
    mesh_bandwidth,
    ring_load,
    torus_bandwidth,
    torus_exchange_bandwidth,
)
from forescale.cost.mesh import Group
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
    assert torus_bandwidth(link_bandwidth=45e9, num_ranks=4, side=16.0, dimensions=2) == 45e9
    assert torus_bandwidth(link_bandwidth=45e9, num_ranks=16, side=16.0, dimensions=2) == 90e9
    assert torus_bandwidth(link_bandwidth=45e9, num_ranks=256, side=16.0, dimensions=2) == 180e9


def test_long_rings_slow_an_all_to_all_down():
    ring = torus_bandwidth(link_bandwidth=45e9, num_ranks=64, side=64.0, dimensions=1)
    exchange = torus_exchange_bandwidth(ring_bandwidth=ring, link_bandwidth=45e9, num_ranks=64, side=64.0)
    assert exchange == pytest.approx(8 * 45e9 / 64)


def test_links_that_a_group_does_not_use_carry_nothing():
    """2 ranks in each of 8 nodes a pod apart: the node carries 1 - 1/2, the pod nothing, the core 1/2."""
    loads = [
        ring_load(num_ranks=16.0, inner=near, reach=far)
        for near, far in ((1.0, 2.0), (2.0, 2.0), (2.0, 16.0))
    ]
    assert loads == [1 / 2, 0.0, 1 / 2]

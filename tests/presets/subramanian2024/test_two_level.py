from __future__ import annotations

import math

import numpy as np
import pytest
from tests.cost.collectives.clusters import cluster, fast, slow

from forescale.cost.mesh import Group
from forescale.errors import SpecError
from forescale.presets.subramanian2024.two_level import TwoLevel

# System A100 of Subramanian et al. 2024, table A3, domain of 8.
BF, BS, LF, LS = 300e9 * 0.7, 25e9 * 0.7, 2.5e-6, 5e-6


def a100(num_devices=16384, **changes):
    tiers = (fast(8, bandwidth=300e9, latency=LF), slow(bandwidth=25e9, latency=LS))
    return TwoLevel(cluster=cluster(*tiers, num_devices=num_devices), efficiency=0.7, **changes)


def group(size, per_domain):
    return Group(size=float(per_domain), stride=1.0, outer=((float(size // per_domain), 8.0),))


def published(volume, n, g, kind):
    """The published function, written out case by case."""
    if volume == 0 or n == 1:
        return 0.0
    d = n // g
    c = 1.0 if kind in ("reduce", "broadcast") else (n - 1) / n
    if g == 1:
        return LS * (n - 1) + c * volume / BS
    if d == 1:
        return LF * (n - 1) + c * volume / BF
    k = 2 if kind == "all_reduce" else 1
    return k * max(c * volume / (g * BS), c * volume / BF) + LS * (d - 1) + LF * (n - d)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
@pytest.mark.parametrize(("n", "g"), [(1, 1), (4, 4), (8, 8), (16, 1), (16, 2), (64, 8), (512, 4)])
def test_it_is_the_published_formula(kind, n, g):
    for volume in (0.0, 1e3, 1e6, 12.58e9):
        seconds = float(a100().seconds(kind=kind, num_bytes=volume, group=group(n, g)))
        assert seconds == pytest.approx(published(volume, n, g, kind), rel=1e-14, abs=0.0)


def test_all_reduce_counts_once_only_in_the_published_code():
    inside = group(8, 8)
    quirky = float(a100().seconds(kind="all_reduce", num_bytes=1e9, group=inside)) - 7 * LF
    meant = float(a100(quirks=False).seconds(kind="all_reduce", num_bytes=1e9, group=inside)) - 7 * LF
    assert meant == pytest.approx(2 * quirky)


@pytest.mark.parametrize(
    ("n", "g", "expected"), [(2, 1, LS + 1e6 / BS), (2, 2, LF + 1e6 / BF), (8, 1, LS + 1e6 / BS)]
)
def test_messages(n, g, expected):
    assert float(a100().seconds(kind="p2p", num_bytes=1e6, group=group(n, g))) == pytest.approx(
        expected, rel=1e-14
    )


def test_slow_hops_of_a_mixed_pipeline_are_free_only_in_the_published_code():
    # 16 stages, 4 per domain: 15 links, 3 of them slow.
    quick = LF + 1e6 / BF
    assert float(a100().seconds(kind="p2p", num_bytes=1e6, group=group(16, 4))) == pytest.approx(
        12 / 15 * quick
    )
    meant = 12 / 15 * quick + 3 / 15 * (LS + 1e6 / BS)
    assert float(a100(quirks=False).seconds(kind="p2p", num_bytes=1e6, group=group(16, 4))) == pytest.approx(
        meant
    )


def test_arrays_equal_scalars():
    sizes, volumes = np.array([1.0, 2.0, 8.0, 64.0, 512.0]), np.array([1e9, 0.0, 1e6, 1e3, 5e7])
    together = a100().seconds(kind="all_gather", num_bytes=volumes, group=Group(size=sizes))
    alone = [
        float(a100().seconds(kind="all_gather", num_bytes=float(v), group=Group(size=float(s))))
        for s, v in zip(sizes, volumes, strict=True)
    ]
    assert together.tolist() == alone
    assert all(map(math.isfinite, alone))


def test_it_needs_two_tiers():
    with pytest.raises(SpecError, match="two network tiers"):
        TwoLevel(cluster=cluster(slow()), efficiency=0.7)


def test_several_network_cards_share_what_leaves_a_domain():
    """Two cards of a device: 64 ranks, 8 a domain, 16 cards; slow links still set the pace."""
    tiers = (fast(8, bandwidth=3000e9, latency=LF), slow(bandwidth=25e9, latency=LS, nics_per_device=2.0))
    model = TwoLevel(cluster=cluster(*tiers, num_devices=64), efficiency=0.7)
    moved = 63 / 64 * 1e9 / (2 * 8 * BS)
    assert float(model.seconds(kind="all_gather", num_bytes=1e9, group=group(64, 8))) == pytest.approx(
        moved + 7 * LS + 56 * LF
    )

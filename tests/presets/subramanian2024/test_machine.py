from __future__ import annotations

import math

import numpy as np
import pytest

from forescale.presets.subramanian2024.layers import Quirks
from forescale.presets.subramanian2024.machine import Machine

# System A100 of Subramanian et al. 2024, table A3, domain of 8.
BF, BS, LF, LS = 300e9 * 0.7, 25e9 * 0.7, 2.5e-6, 5e-6


def a100(quirks=True, bandwidth=BF, nics=1.0):
    machine = Machine(
        matrix_rate=312e12, vector_rate=78e12, compute_efficiency=0.7, operation_latency=2e-5, hbm_bandwidth=1.6e12,
        hbm_bytes=80e9, domain=8, nics=nics,
        links={"fast_bandwidth": bandwidth, "slow_bandwidth": BS, "fast_latency": LF, "slow_latency": LS},
    )  # fmt: skip
    meant = {} if quirks else {"quirks": Quirks.none()}

    def seconds(kind, volume, n, g):
        question = {"num_bytes": volume, "near": g, "quirks": Quirks(), **meant}
        if kind == "p2p":
            return machine.message(pp=n, **question)
        return machine.collective(kind=kind, num_ranks=n, **question)

    return seconds


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
        seconds = float(a100()(kind, volume, float(n), float(g)))
        assert seconds == pytest.approx(published(volume, n, g, kind), rel=1e-14, abs=0.0)


def test_all_reduce_counts_once_only_in_the_published_code():
    quirky = float(a100()("all_reduce", 1e9, 8.0, 8.0)) - 7 * LF
    meant = float(a100(quirks=False)("all_reduce", 1e9, 8.0, 8.0)) - 7 * LF
    assert meant == pytest.approx(2 * quirky)


@pytest.mark.parametrize(
    ("n", "g", "expected"), [(2, 1, LS + 1e6 / BS), (2, 2, LF + 1e6 / BF), (8, 1, LS + 1e6 / BS)]
)
def test_messages(n, g, expected):
    assert float(a100()("p2p", 1e6, float(n), float(g))) == pytest.approx(expected, rel=1e-14)


def test_slow_hops_of_a_mixed_pipeline_are_free_only_in_the_published_code():
    # 16 stages, 4 per domain: 15 links, 3 of them slow.
    quick = LF + 1e6 / BF
    assert float(a100()("p2p", 1e6, 16.0, 4.0)) == pytest.approx(12 / 15 * quick)
    meant = 12 / 15 * quick + 3 / 15 * (LS + 1e6 / BS)
    assert float(a100(quirks=False)("p2p", 1e6, 16.0, 4.0)) == pytest.approx(meant)


def test_arrays_equal_scalars():
    sizes, volumes = np.array([1.0, 2.0, 8.0, 64.0, 512.0]), np.array([1e9, 0.0, 1e6, 1e3, 5e7])
    near = np.minimum(sizes, 8.0)
    together = a100()("all_gather", volumes, sizes, near)
    alone = [
        float(a100()("all_gather", float(v), float(s), float(g)))
        for s, v, g in zip(sizes, volumes, near, strict=True)
    ]
    assert together.tolist() == alone
    assert all(map(math.isfinite, alone))


def test_several_network_cards_share_what_leaves_a_domain():
    """Two cards of a device: 64 ranks, 8 a domain, 16 cards; slow links still set the pace."""
    seconds = a100(bandwidth=3000e9 * 0.7, nics=2.0)
    moved = 63 / 64 * 1e9 / (2 * 8 * BS)
    assert float(seconds("all_gather", 1e9, 64.0, 8.0)) == pytest.approx(moved + 7 * LS + 56 * LF)

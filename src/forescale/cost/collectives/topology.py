"""Bandwidth that a group reaches on networks without a switch."""

from __future__ import annotations

import numpy as np

from forescale.cost.collectives.masks import indicator
from forescale.formula import formula
from forescale.numeric import Numeric

_SCALING = "Austin et al. 2025, How to Scale Your Model (Google DeepMind)"


@formula(
    unit="byte/s",
    source="Primus projection documentation, mesh topology: (g - 1)/(N - 1) of the node's bandwidth",
)
def mesh_bandwidth(*, bandwidth: Numeric, link_bandwidth: Numeric, num_ranks: Numeric) -> Numeric:
    """min(bandwidth, (g - 1)·link): g ranks of a fully connected mesh use only the links among themselves."""
    return np.minimum(bandwidth, np.maximum(num_ranks - 1.0, 1.0) * link_bandwidth)


@formula(unit="byte/s", source=f"{_SCALING}, TPU networking: two links per axis, axes add up")
def torus_bandwidth(
    *, link_bandwidth: Numeric, num_ranks: Numeric, side: Numeric, dimensions: int
) -> Numeric:
    """2·d·link over d whole dimensions of a torus; one link over part of a dimension, which does not wrap."""
    used = 0.5 + 0.5 * indicator(num_ranks >= side)
    for dimension in range(1, dimensions):
        used = used + indicator(num_ranks > side**dimension)
    return 2.0 * used * link_bandwidth


@formula(
    unit="byte/s",
    source=f"{_SCALING}, all-to-all: a quarter of the all-gather's time on a bidirectional ring",
)
def torus_exchange_bandwidth(
    *, ring_bandwidth: Numeric, link_bandwidth: Numeric, num_ranks: Numeric, side: Numeric
) -> Numeric:
    """min(ring, 8·link / k): messages of an all-to-all cross a quarter of a ring of k devices on average."""
    length = np.maximum(np.minimum(num_ranks, side), 1.0)
    return np.minimum(ring_bandwidth, 8.0 * link_bandwidth / length)

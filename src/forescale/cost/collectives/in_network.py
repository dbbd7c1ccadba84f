"""In-network reduction (NVLS, SHARP): switches of the innermost tier add up and multicast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.cost.collectives.algorithm import doublings
from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@formula(
    unit="s",
    source="Klenk et al. 2020 (ISCA), An in-network architecture for accelerating shared-memory multiprocessor collectives",
)
def in_network_seconds(
    *, num_bytes: Numeric, launch: Numeric, latency: Numeric, seconds_per_byte: Numeric,
    outer_seconds_per_byte: Numeric, usable: Numeric,
) -> Numeric:  # fmt: skip
    """Launch + latency + V·max(beta, beta outside): each rank sends the tensor once and gets it back once.

    What the switches reduced goes on through the outer tiers piece by piece, so the slower of the two decides.
    Infinite where it is not usable.
    """
    seconds = launch + latency + num_bytes * np.maximum(seconds_per_byte, outer_seconds_per_byte)
    return np.where(usable, seconds, np.inf)[()]


@dataclass(frozen=True, slots=True)
class InNetwork:
    """All-reduce by the switches of the innermost tier, then a tree across the blocks."""

    name: str = "in_network"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce",))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return its time; infinite where the switches cannot reduce or a block holds one rank of the group."""
        first, *others = route.legs
        latency: Numeric = first.link.reduction_latency
        outer: Numeric = 0.0
        for leg in others:
            levels = doublings(count=leg.shared / leg.inner)
            latency = latency + 2.0 * levels * (leg.link.tree_latency * leg.hop_latency(protocol))
            outer = np.maximum(outer, 2.0 * leg.crossed / (leg.pooled(protocol) * leg.link.tree_efficiency))
        last = protocol == route.num_protocols - 1
        return in_network_seconds(
            num_bytes=num_bytes, launch=first.link.protocols[protocol].launch, latency=latency,
            seconds_per_byte=1.0 / (first.bandwidth * first.link.reduction_efficiency),
            outer_seconds_per_byte=outer,
            usable=(first.shared >= 2.0) * (last and first.tier.in_network_reduction),
        )  # fmt: skip

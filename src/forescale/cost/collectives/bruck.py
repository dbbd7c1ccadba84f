"""Bruck: ceil(log2 n) steps for any n; every rank sends to one at distance 1, 2, 4, ... around the ring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.cost.collectives.algorithm import doublings, passes
from forescale.cost.collectives.halving_doubling import halving_seconds
from forescale.cost.collectives.route import Route
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@dataclass(frozen=True, slots=True)
class Bruck:
    """Bruck et al. 1997; for all-reduce its mirror image scatters first."""

    name: str = "bruck"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce", "all_gather", "reduce_scatter"))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return its time: the ranks at the edge of a block cross its border at every step."""
        latency: Numeric = 0.0
        beta: Numeric = 0.0
        volume = 1.0 - 1.0 / route.num_ranks
        for leg in route.legs:
            latency = np.maximum(latency, leg.crossed * leg.hop_latency(protocol))
            rate = leg.neighbour_bandwidth * leg.link.protocols[protocol].efficiency
            beta = np.maximum(beta, leg.crossed * volume / rate)
        return halving_seconds(
            num_bytes=num_bytes, passes=passes(kind), launch=route.launch(protocol),
            latency=doublings(count=route.num_ranks) * latency, seconds_per_byte=beta,
        )  # fmt: skip

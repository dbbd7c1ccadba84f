"""Bruck: ceil(log2 n) steps for any n; every rank sends to one at distance 1, 2, 4, ... around the ring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forescale.cost.collectives.algorithm import Line, doublings, fixed_seconds, passes
from forescale.cost.collectives.ring import ring_seconds_per_byte
from forescale.cost.collectives.route import Route
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@dataclass(frozen=True, slots=True)
class Bruck:
    """Bruck et al. 1997, Efficient algorithms for all-to-all communications; mirrored to scatter."""

    name: str = "bruck"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce", "all_gather", "reduce_scatter"))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:
        """Yield a line per wire protocol: ranks at the edge of a block cross its border in every step."""
        for protocol, wire in route.protocols:
            latency: Numeric = 0.0
            slowest: Numeric = 0.0
            for leg in route.legs:
                latency = np.maximum(latency, leg.crossed * leg.hop(protocol))
                rate = leg.neighbour_bandwidth * leg.link.wire(protocol).efficiency
                slowest = np.maximum(slowest, leg.crossed / rate)
            yield Line(
                label=f"{self.name} {wire}",
                fixed=fixed_seconds(
                    launch=route.launch(protocol),
                    passes=passes(kind),
                    latency=doublings(count=route.num_ranks) * latency,
                ),
                seconds_per_byte=ring_seconds_per_byte(
                    passes=passes(kind), num_ranks=route.num_ranks, seconds_per_byte=slowest
                ),
            )

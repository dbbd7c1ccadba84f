"""All-to-all: every rank has a different part for every other; direct, or in two phases over rails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@formula(
    unit="s",
    source="Primus projection documentation, all-to-all: intra (N - 1)/g and inter (g - N)/g of the buffer",
)
def exchange_seconds(
    *, num_bytes: Numeric, launch: Numeric, latency: Numeric, seconds_per_byte: Numeric
) -> Numeric:
    """Launch + latency + V·beta; beta holds each tier's share of the buffer over its bandwidth."""
    return launch + latency + num_bytes * seconds_per_byte


def _launch(route: Route) -> Numeric:
    first, *others = route.legs
    launch: Numeric = first.link.exchange_launch
    for leg in others:
        launch = np.maximum(launch, leg.crossed * leg.link.exchange_launch)
    return launch


@dataclass(frozen=True, slots=True)
class DirectExchange:
    """All pairs at once; the tiers work at the same time, so the slowest decides."""

    name: str = "direct_exchange"
    kinds: frozenset[CollectiveKind] = frozenset(("all_to_all",))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return its time; the wire protocol plays no part."""
        latency: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            peers = leg.shared - leg.inner
            latency = latency + peers * leg.link.peer_latency
            rate = leg.exchange_bandwidth * leg.link.exchange_efficiency
            beta = np.maximum(beta, peers / (route.num_ranks * rate))
        return exchange_seconds(
            num_bytes=num_bytes, launch=_launch(route), latency=latency, seconds_per_byte=beta
        )


@dataclass(frozen=True, slots=True)
class HierarchicalExchange:
    """First along the rails to the right block, then inside it: fewer, longer messages across blocks."""

    name: str = "hierarchical_exchange"
    kinds: frozenset[CollectiveKind] = frozenset(("all_to_all",))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return its time: inside, (1 - inner/shared) of the whole buffer moves, whatever its origin."""
        latency: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            latency = latency + (leg.shared / leg.inner - 1.0) * leg.link.peer_latency
            rate = leg.exchange_bandwidth * leg.link.exchange_efficiency
            beta = beta + (1.0 - leg.inner / leg.shared) / rate
        return exchange_seconds(
            num_bytes=num_bytes, launch=_launch(route), latency=latency, seconds_per_byte=beta
        )

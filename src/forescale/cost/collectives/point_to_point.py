"""Point to point: one message to the neighbour."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@formula(unit="s", source="Hockney 1994, The communication challenge for MPP")
def message_seconds(
    *, num_bytes: Numeric, launch: Numeric, latency: Numeric, seconds_per_byte: Numeric
) -> Numeric:
    """Launch + latency + V·beta."""
    return launch + latency + num_bytes * seconds_per_byte


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """The slowest hop between consecutive ranks of the group: it sets the pace of a pipeline or a ring."""

    name: str = "p2p"
    kinds: frozenset[CollectiveKind] = frozenset(("p2p",))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return the time of one hop over the outermost tier that the group crosses."""
        latency: Numeric = 0.0
        launch: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            latency = np.maximum(latency, leg.crossed * leg.hop_latency(protocol))
            launch = np.maximum(launch, leg.crossed * leg.link.exchange_launch)
            rate = leg.neighbour_bandwidth * leg.link.protocols[protocol].efficiency
            beta = np.maximum(beta, leg.crossed / rate)
        return message_seconds(num_bytes=num_bytes, launch=launch, latency=latency, seconds_per_byte=beta)

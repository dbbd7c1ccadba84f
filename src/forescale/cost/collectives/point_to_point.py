"""Point to point: one message to the neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forescale.cost.collectives.algorithm import Line, fixed_seconds
from forescale.cost.collectives.route import Route
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """The slowest hop between consecutive ranks of the group: it sets the pace of a pipeline or a ring."""

    name: str = "p2p"
    kinds: frozenset[CollectiveKind] = frozenset(("p2p",))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:  # noqa: ARG002
        """Yield one line: a hop over the slowest tier between neighbours."""
        first = len(route.protocols) - 1
        latency: Numeric = 0.0
        launch: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            latency = np.maximum(latency, leg.crossed * leg.hop(first))
            launch = np.maximum(launch, leg.crossed * leg.link.exchange_launch)
            rate = leg.neighbour_bandwidth * leg.link.exchange_efficiency
            beta = np.maximum(beta, leg.crossed / rate)
        fixed = fixed_seconds(launch=launch, passes=1.0, latency=latency)
        yield Line(label=self.name, fixed=fixed, seconds_per_byte=beta)

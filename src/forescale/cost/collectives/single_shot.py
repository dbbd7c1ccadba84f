"""Single shot: every rank talks to all others at once; one hop, direct links only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.cost.collectives.algorithm import passes
from forescale.cost.collectives.halving_doubling import halving_seconds
from forescale.cost.collectives.route import Route
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@dataclass(frozen=True, slots=True)
class SingleShot:
    """Direct exchange; all-reduce scatters first (two shots)."""

    name: str = "single_shot"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce", "all_gather", "reduce_scatter"))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return its time: the tiers work at once, each at its own share (shared - inner)/n of the tensor."""
        latency: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            peers = leg.shared - leg.inner
            latency = np.maximum(
                latency, leg.crossed * leg.hop_latency(protocol) + peers * leg.link.peer_latency
            )
            rate = leg.exchange_bandwidth * leg.link.protocols[protocol].efficiency
            beta = np.maximum(beta, peers / (route.num_ranks * rate))
        return halving_seconds(
            num_bytes=num_bytes, passes=passes(kind), launch=route.launch(protocol), latency=latency, seconds_per_byte=beta
        )  # fmt: skip

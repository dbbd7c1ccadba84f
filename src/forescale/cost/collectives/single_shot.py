"""Single shot: every rank talks to all others at once, over direct links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forescale.cost.collectives.algorithm import Line, fixed_seconds, passes
from forescale.cost.collectives.all_to_all import exchange_seconds_per_byte
from forescale.cost.collectives.route import Route
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, larger


@dataclass(frozen=True, slots=True)
class SingleShot:
    """Direct exchange of parts; all-reduce takes two shots, one to scatter and one to gather."""

    name: str = "single_shot"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce", "all_gather", "reduce_scatter"))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:
        """Yield a line per wire protocol; the tiers work at once, each at its share of the message."""
        for protocol, wire in route.protocols:
            latency: Numeric = 0.0
            beta: Numeric = 0.0
            for leg in route.legs:
                hop = leg.crossed * leg.hop(protocol) + (leg.shared - leg.inner) * leg.link.peer_latency
                latency = larger(latency, hop)
                share = exchange_seconds_per_byte(
                    num_ranks=route.num_ranks,
                    inner=leg.inner,
                    reach=leg.reach,
                    bandwidth=leg.exchange_bandwidth * leg.link.wire(protocol).efficiency,
                )
                beta = larger(beta, share)
            fixed = fixed_seconds(launch=route.launch(protocol), passes=passes(kind), latency=latency)
            yield Line(label=f"{self.name} {wire}", fixed=fixed, seconds_per_byte=passes(kind) * beta)

"""Recursive halving and doubling (hypercube): ceil(log2 n) exchanges, each with a partner twice as far."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.cost.collectives.algorithm import doublings, passes
from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@formula(unit="s", source="Thakur, Rabenseifner and Gropp 2005, section 4.5 (recursive halving and doubling)")
def halving_seconds(
    *, num_bytes: Numeric, passes: Numeric, launch: Numeric, latency: Numeric, seconds_per_byte: Numeric
) -> Numeric:
    """Launch + passes·(latency + V·beta), beta summed over tiers: exchanges follow one another."""
    return launch + passes * (latency + num_bytes * seconds_per_byte)


@dataclass(frozen=True, slots=True)
class HalvingDoubling:
    """Far partners exchange the small parts, near ones the large; one exchange per tier doubling."""

    name: str = "halving_doubling"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce", "all_gather", "reduce_scatter"))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return its time with one wire protocol."""
        latency: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            latency = latency + doublings(count=leg.shared / leg.inner) * leg.hop_latency(protocol)
            volume = 1.0 / leg.inner - 1.0 / leg.shared
            beta = beta + volume / (leg.exchange_bandwidth * leg.link.protocols[protocol].efficiency)
        return halving_seconds(
            num_bytes=num_bytes, passes=passes(kind), launch=route.launch(protocol), latency=latency, seconds_per_byte=beta
        )  # fmt: skip

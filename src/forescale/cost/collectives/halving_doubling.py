"""Recursive halving and doubling (hypercube): ceil(log2 n) exchanges, each with a partner twice as far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forescale.cost.collectives.algorithm import THAKUR, Line, doublings, fixed_seconds, passes
from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@formula(unit="s/byte", source=f"{THAKUR}, section 4.5: each exchange halves what is left")
def phase_seconds_per_byte(
    *, passes: Numeric, inner: Numeric, shared: Numeric, bandwidth: Numeric
) -> Numeric:
    """passes·(1/inner - 1/shared)/b: what is left of the message after the inner tiers did their part."""
    return passes * (1.0 / inner - 1.0 / shared) / bandwidth


@dataclass(frozen=True, slots=True)
class HalvingDoubling:
    """Near partners exchange the large parts, far ones the small; exchanges follow one another."""

    name: str = "halving_doubling"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce", "all_gather", "reduce_scatter"))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:
        """Yield a line per wire protocol; a partner is reached over one link where there is no switch."""
        for protocol, wire in route.protocols:
            latency: Numeric = 0.0
            beta: Numeric = 0.0
            for leg in route.legs:
                latency = latency + doublings(count=leg.fan) * leg.hop(protocol)
                beta = beta + phase_seconds_per_byte(
                    passes=passes(kind),
                    inner=leg.inner,
                    shared=leg.shared,
                    bandwidth=leg.neighbour_bandwidth * leg.efficiency(protocol),
                )
            fixed = fixed_seconds(launch=route.launch(protocol), passes=passes(kind), latency=latency)
            yield Line(label=f"{self.name} {wire}", fixed=fixed, seconds_per_byte=beta)

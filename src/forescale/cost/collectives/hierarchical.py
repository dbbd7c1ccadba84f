"""Hierarchical: a ring inside each tier, from the inside out; outer tiers carry what inner ones left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forescale.cost.collectives.algorithm import Line, fixed_seconds, passes
from forescale.cost.collectives.halving_doubling import phase_seconds_per_byte
from forescale.cost.collectives.route import Route
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@dataclass(frozen=True, slots=True)
class Hierarchical:
    """Reduce-scatter outwards, all-gather back in; the phases follow one another."""

    name: str = "hierarchical"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce", "all_gather", "reduce_scatter"))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:
        """Yield a line per wire protocol: fan - 1 steps per tier and pass."""
        for protocol, wire in route.protocols:
            latency: Numeric = 0.0
            beta: Numeric = 0.0
            for leg in route.legs:
                latency = latency + (leg.fan - 1.0) * leg.hop(protocol)
                beta = beta + phase_seconds_per_byte(
                    passes=passes(kind),
                    inner=leg.inner,
                    shared=leg.shared,
                    bandwidth=leg.bandwidth * leg.efficiency(protocol),
                )
            fixed = fixed_seconds(launch=route.launch(protocol), passes=passes(kind), latency=latency)
            yield Line(label=f"{self.name} {wire}", fixed=fixed, seconds_per_byte=beta)

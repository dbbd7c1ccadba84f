"""Hierarchical: a ring inside each tier, inside out; outer tiers carry only what inner ones left."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.cost.collectives.algorithm import passes
from forescale.cost.collectives.halving_doubling import halving_seconds
from forescale.cost.collectives.route import Route
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@dataclass(frozen=True, slots=True)
class Hierarchical:
    """Reduce-scatter inwards out, all-gather outwards in; the phases follow one another."""

    name: str = "hierarchical"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce", "all_gather", "reduce_scatter"))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return its time with one wire protocol."""
        latency: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            latency = latency + (leg.shared / leg.inner - 1.0) * leg.hop_latency(protocol)
            volume = 1.0 / leg.inner - 1.0 / leg.shared
            beta = beta + volume / (leg.bandwidth * leg.link.protocols[protocol].efficiency)
        return halving_seconds(
            num_bytes=num_bytes, passes=passes(kind), launch=route.launch(protocol), latency=latency, seconds_per_byte=beta
        )  # fmt: skip

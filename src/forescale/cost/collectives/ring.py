"""Ring: n - 1 steps per pass, each rank forwards what it received; bandwidth-optimal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forescale.cost.collectives.algorithm import THAKUR, Line, fixed_seconds, passes
from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, larger


@formula(unit="s/byte", source=f"{THAKUR}, section 4.1")
def ring_seconds_per_byte(*, passes: Numeric, num_ranks: Numeric, seconds_per_byte: Numeric) -> Numeric:
    """passes·(n - 1)/n·beta: each rank sends all parts but one in each pass."""
    return passes * (num_ranks - 1.0) / num_ranks * seconds_per_byte


def tightest(route: Route, protocol: int) -> Numeric:
    """Return seconds per byte of ring traffic: those of the tier that is slowest for its load."""
    slowest: Numeric = 0.0
    for leg in route.legs:
        slowest = larger(slowest, leg.load / (leg.bandwidth * leg.efficiency(protocol)))
    return slowest


def hop_seconds(route: Route, protocol: int) -> Numeric:
    """Return the latency of one pass: all hops, each of its tier."""
    latency: Numeric = 0.0
    for leg in route.legs:
        latency = latency + leg.hops * leg.hop(protocol)
    return latency


@dataclass(frozen=True, slots=True)
class Ring:
    """Rings over all ranks, as many in parallel as a block has links outwards."""

    name: str = "ring"
    kinds: frozenset[CollectiveKind] = frozenset(
        ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
    )

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:
        """Yield a line per wire protocol; broadcast and reduce pipe the whole message along the ring."""
        for protocol, wire in route.protocols:
            beta = tightest(route, protocol)
            if kind not in ("broadcast", "reduce"):
                beta = ring_seconds_per_byte(
                    passes=passes(kind), num_ranks=route.num_ranks, seconds_per_byte=beta
                )
            fixed = fixed_seconds(
                launch=route.launch(protocol), passes=passes(kind), latency=hop_seconds(route, protocol)
            )
            yield Line(label=f"{self.name} {wire}", fixed=fixed, seconds_per_byte=beta)

"""Tree: chains inside the innermost tier, double binary trees across; few steps for small messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forescale.cost.collectives.algorithm import Line, doublings, fixed_seconds, passes
from forescale.cost.collectives.masks import indicator
from forescale.cost.collectives.route import Leg, Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, larger

_SANDERS = (
    "Sanders, Speck and Träff 2009, Two-tree algorithms for full bandwidth broadcast, reduction and scan"
)


@formula(unit="s/byte", source=f"{_SANDERS}, section 3")
def tree_seconds_per_byte(
    *, passes: Numeric, fan: Numeric, inner: Numeric, bandwidth: Numeric, pair_share: Numeric
) -> Numeric:
    """passes·share/(g·b), 0 without a second block; share = 1, `pair_share` between just two blocks.

    In two trees of half the message a block is inner node of one and leaf of the other: it moves V up and V
    down in each direction. Between two blocks each tree is one edge, and half of that is left.
    """
    share = indicator(fan > 1.0) * (1.0 - (1.0 - pair_share) * indicator(fan <= 2.0))
    return passes * share / (inner * bandwidth)


@formula(unit="s/byte", source=f"{_SANDERS}, section 2: pipelined chain")
def chain_seconds_per_byte(*, passes: Numeric, fan: Numeric, bandwidth: Numeric) -> Numeric:
    """passes·(1 - 1/g)/b: a rank forwards the message to the next, the last of g does not."""
    return passes * (1.0 - 1.0 / fan) / bandwidth


def across(route: Route, *, kind: CollectiveKind, protocol: int) -> tuple[Numeric, Numeric]:
    """Return latency and seconds per byte of the trees over all tiers but the innermost."""
    latency: Numeric = 0.0
    beta: Numeric = 0.0
    for leg in route.legs[1:]:
        hops, share = leg_across(leg, kind=kind, protocol=protocol)
        latency = latency + hops
        beta = larger(beta, share)
    return latency, beta


def leg_across(leg: Leg, *, kind: CollectiveKind, protocol: int) -> tuple[Numeric, Numeric]:
    """Return latency and seconds per byte of the trees over one tier."""
    latency = doublings(count=leg.fan) * (leg.hop(protocol) * leg.link.tree_hop_factor)
    return latency, tree_seconds_per_byte(
        passes=passes(kind),
        fan=leg.fan,
        inner=leg.inner,
        bandwidth=leg.bandwidth * leg.efficiency(protocol) * leg.link.tree_efficiency,
        pair_share=leg.link.pair_share,
    )


@dataclass(frozen=True, slots=True)
class Tree:
    """Double binary tree; NCCL broadcasts and reduces to one rank by rings only (src/graph/tuning.cc)."""

    name: str = "tree"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce",))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:
        """Yield a line per wire protocol."""
        first = route.legs[0]
        for protocol, wire in route.protocols:
            latency, beta = across(route, kind=kind, protocol=protocol)
            chain = chain_seconds_per_byte(
                passes=passes(kind), fan=first.fan, bandwidth=first.bandwidth * first.efficiency(protocol)
            )
            fixed = fixed_seconds(
                launch=route.launch(protocol),
                passes=passes(kind),
                latency=latency + (first.fan - 1.0) * first.hop(protocol),
            )
            yield Line(label=f"{self.name} {wire}", fixed=fixed, seconds_per_byte=larger(beta, chain))

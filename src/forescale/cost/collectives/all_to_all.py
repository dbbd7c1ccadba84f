"""All-to-all: every rank has a different part for every other; at once, peer by peer, or along rails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forescale.cost.collectives.algorithm import Line, fixed_seconds
from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, larger

_PRIMUS = (
    "Primus projection documentation, all-to-all: (N - 1)/g of the buffer inside a node, (g - N)/g outside"
)


@formula(unit="s/byte", source=_PRIMUS)
def exchange_seconds_per_byte(
    *, num_ranks: Numeric, inner: Numeric, reach: Numeric, bandwidth: Numeric
) -> Numeric:
    """(reach - inner)/n/b: the parts for the ranks that these links and no inner ones reach."""
    return (reach - inner) / num_ranks / bandwidth


@formula(
    unit="s/byte",
    source="NCCL documentation, PXN: messages of a node go along its rails and are handed on inside",
)
def rail_seconds_per_byte(*, fan: Numeric, bandwidth: Numeric) -> Numeric:
    """(1 - 1/fan)/b: the buffer is sorted by block of this tier, and all but one block's part leaves."""
    return (1.0 - 1.0 / fan) / bandwidth


@dataclass(frozen=True, slots=True)
class DirectExchange:
    """A single shot, all pairs at once; the tiers work at the same time, so the slowest decides."""

    name: str = "direct_exchange"
    kinds: frozenset[CollectiveKind] = frozenset(("all_to_all",))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:  # noqa: ARG002
        """Yield one line; the wire protocol plays no part."""
        latency: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            latency = latency + (leg.shared - leg.inner) * leg.link.peer_latency
            share = exchange_seconds_per_byte(
                num_ranks=route.num_ranks,
                inner=leg.inner,
                reach=leg.reach,
                bandwidth=leg.exchange_bandwidth * leg.link.exchange_efficiency,
            )
            beta = larger(beta, share)
        fixed = fixed_seconds(launch=route.exchange_launch(), passes=1.0, latency=latency)
        yield Line(label=self.name, fixed=fixed, seconds_per_byte=beta)


@dataclass(frozen=True, slots=True)
class PairwiseExchange:
    """One peer after the other, n - 1 steps; a step over an outer tier leaves the inner ones idle."""

    name: str = "pairwise_exchange"
    kinds: frozenset[CollectiveKind] = frozenset(("all_to_all",))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:  # noqa: ARG002
        """Yield one line: the steps of all tiers follow one another, each over one pair's links."""
        long = len(route.protocols) - 1
        latency: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            latency = latency + (leg.shared - leg.inner) * leg.hop(long)
            beta = beta + exchange_seconds_per_byte(
                num_ranks=route.num_ranks,
                inner=leg.inner,
                reach=leg.shared,
                bandwidth=leg.neighbour_bandwidth * leg.link.exchange_efficiency,
            )
        fixed = fixed_seconds(launch=route.exchange_launch(), passes=1.0, latency=latency)
        yield Line(label=self.name, fixed=fixed, seconds_per_byte=beta)


@dataclass(frozen=True, slots=True)
class HierarchicalExchange:
    """Along the rails to the right block first, then inside it: fewer and longer messages across blocks."""

    name: str = "hierarchical_exchange"
    kinds: frozenset[CollectiveKind] = frozenset(("all_to_all",))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:  # noqa: ARG002
        """Yield one line; the phases follow one another."""
        latency: Numeric = 0.0
        beta: Numeric = 0.0
        for leg in route.legs:
            latency = latency + (leg.fan - 1.0) * leg.link.peer_latency
            beta = beta + rail_seconds_per_byte(
                fan=leg.fan, bandwidth=leg.exchange_bandwidth * leg.link.exchange_efficiency
            )
        fixed = fixed_seconds(launch=route.exchange_launch(), passes=1.0, latency=latency)
        yield Line(label=self.name, fixed=fixed, seconds_per_byte=beta)

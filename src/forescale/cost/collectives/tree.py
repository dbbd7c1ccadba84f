"""Tree: chains inside the innermost tier, a double binary tree across; few steps for small messages."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.cost.collectives.algorithm import doublings
from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@formula(
    unit="s",
    source="Sanders, Speck and Träff 2009, Two-tree algorithms for full bandwidth broadcast, reduction and scan",
)
def tree_seconds(
    *, num_bytes: Numeric, passes: Numeric, launch: Numeric, latency: Numeric, seconds_per_byte: Numeric,
    efficiency: Numeric,
) -> Numeric:  # fmt: skip
    """Launch + passes·(latency + V·beta / efficiency): up the tree and, for all-reduce, down again.

    In two trees each rank is inner node of one and leaf of the other, so it sends and receives V once per pass.
    """
    return launch + passes * (latency + num_bytes * seconds_per_byte / efficiency)


@dataclass(frozen=True, slots=True)
class Tree:
    """Double binary tree."""

    name: str = "tree"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce", "broadcast", "reduce"))

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return tree time with one wire protocol."""
        first, *others = route.legs
        latency = (first.shared - 1.0) * first.hop_latency(protocol)
        for leg in others:
            levels = doublings(count=leg.shared / leg.inner)
            latency = latency + levels * (leg.link.tree_latency * leg.hop_latency(protocol))
        return tree_seconds(
            num_bytes=num_bytes, passes=2.0 if kind == "all_reduce" else 1.0, launch=route.launch(protocol),
            latency=latency, seconds_per_byte=route.seconds_per_byte(protocol),
            efficiency=min(leg.link.tree_efficiency for leg in route.legs),
        )  # fmt: skip

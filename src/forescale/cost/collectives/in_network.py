"""In-network reduction (NVLS, SHARP): switches of any tier add up and multicast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from forescale.cost.collectives.algorithm import Line, fixed_seconds
from forescale.cost.collectives.masks import indicator
from forescale.cost.collectives.route import Leg, Route
from forescale.cost.collectives.tree import chain_seconds_per_byte, leg_across
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric, larger

_KLENK = "Klenk et al. 2020 (ISCA), An in-network architecture for accelerating shared-memory collectives"
_GRAHAM = "Graham et al. 2016 (COMHPC), Scalable hierarchical aggregation protocol (SHArP)"


@formula(
    unit="s/byte", source=f"{_KLENK}, section 3: a rank's data leave once, its part of the sum returns once"
)
def in_network_seconds_per_byte(*, fan: Numeric, bandwidth: Numeric) -> Numeric:
    """(1 + 1/g)/b: the switch fetches the tensor from each rank, which multicasts its part of the sum."""
    return (1.0 + 1.0 / fan) / bandwidth


@formula(
    unit="s/byte",
    source=f"{_GRAHAM}, section 3: each host sends its data up the tree once and receives the sum once",
)
def aggregation_seconds_per_byte(*, fan: Numeric, inner: Numeric, bandwidth: Numeric) -> Numeric:
    """1/(g·b), 0 without a second block: what a block added up leaves over its g links while sums return."""
    return indicator(fan > 1.0) / (inner * bandwidth)


@formula(unit="s", source=f"{_KLENK}, section 3: it needs a switch and two ranks below it")
def where_usable(*, seconds: Numeric, usable: Numeric) -> Numeric:
    """Seconds where it can be used, else infinite."""
    return cast("Numeric", np.where(usable, seconds, np.inf)[()])


@dataclass(frozen=True, slots=True)
class InNetwork:
    """All-reduce by the switches of those tiers that can add up; by chain and tree on the others (NVLS tree)."""

    name: str = "in_network"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce",))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:
        """Yield one line: only whole messages (Simple) can be reduced on the way."""
        first, *others = route.legs
        reducing = [leg for leg in route.legs if leg.reduces]
        if not reducing:
            return
        last = len(route.protocols) - 1
        launch, latency, beta = _inside(first, last)
        for leg in others:
            hops, share = _aggregated(leg, last) if leg.reduces else leg_across(leg, kind=kind, protocol=last)
            latency = latency + hops
            beta = larger(beta, share)
            launch = launch + leg.starts * leg.link.wire(last).launch
        fixed = fixed_seconds(launch=launch, passes=2.0, latency=latency)
        joined = [leg.fan for leg in reducing]
        most = joined[0]
        for fan in joined[1:]:
            most = larger(most, fan)
        yield Line(
            label=self.name,
            fixed=where_usable(seconds=fixed, usable=indicator(most >= 2.0)),
            seconds_per_byte=beta,
        )


def _inside(leg: Leg, protocol: int) -> tuple[Numeric, Numeric, Numeric]:
    """Return launch, latency and seconds per byte of the innermost tier: its switch, or a chain."""
    if leg.reduces:
        rate = leg.bandwidth * leg.link.reduction_efficiency
        beta = indicator(leg.fan > 1.0) * in_network_seconds_per_byte(fan=leg.fan, bandwidth=rate)
        return leg.starts * leg.link.reduction_launch, 0.0, beta
    rate = leg.bandwidth * leg.efficiency(protocol)
    beta = chain_seconds_per_byte(passes=2.0, fan=leg.fan, bandwidth=rate)
    launch = leg.starts * leg.link.wire(protocol).launch
    return launch, (leg.fan - 1.0) * leg.hop(protocol), beta


def _aggregated(leg: Leg, protocol: int) -> tuple[Numeric, Numeric]:
    """Return latency of one pass, a hop to the switches, and seconds per byte of a tier that adds up."""
    rate = leg.bandwidth * leg.efficiency(protocol) * leg.link.reduction_efficiency
    beta = aggregation_seconds_per_byte(fan=leg.fan, inner=leg.inner, bandwidth=rate)
    return leg.crossed * leg.hop(protocol), beta

"""In-network reduction (NVLS): switches of the innermost tier add up and multicast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from forescale.cost.collectives.algorithm import Line, fixed_seconds
from forescale.cost.collectives.masks import indicator
from forescale.cost.collectives.route import Route
from forescale.cost.collectives.tree import across
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric

_KLENK = "Klenk et al. 2020 (ISCA), An in-network architecture for accelerating shared-memory collectives"


@formula(
    unit="s/byte", source=f"{_KLENK}, section 3: a rank's data leave once, its part of the sum returns once"
)
def in_network_seconds_per_byte(*, fan: Numeric, bandwidth: Numeric) -> Numeric:
    """(1 + 1/g)/b: the switch fetches the tensor from each rank, which multicasts its part of the sum."""
    return (1.0 + 1.0 / fan) / bandwidth


@formula(unit="s", source=f"{_KLENK}, section 3: it needs a switch and two ranks below it")
def where_usable(*, seconds: Numeric, usable: Numeric) -> Numeric:
    """Seconds where it can be used, else infinite."""
    return cast("Numeric", np.where(usable, seconds, np.inf)[()])


@dataclass(frozen=True, slots=True)
class InNetwork:
    """All-reduce by the switches of the innermost tier, and by a tree across its blocks (NVLS tree)."""

    name: str = "in_network"
    kinds: frozenset[CollectiveKind] = frozenset(("all_reduce",))

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:
        """Yield one line: only whole messages (Simple) can be reduced on the way."""
        first = route.legs[0]
        if not first.reduces:
            return
        last = len(route.protocols) - 1
        latency, outer = across(route, kind=kind, protocol=last)
        inner = in_network_seconds_per_byte(
            fan=first.fan, bandwidth=first.bandwidth * first.link.reduction_efficiency
        )
        launch: Numeric = first.link.reduction_launch
        for leg in route.legs[1:]:
            launch = launch + leg.starts * leg.link.wire(last).launch
        fixed = fixed_seconds(launch=launch, passes=2.0, latency=latency)
        yield Line(
            label=self.name,
            fixed=where_usable(seconds=fixed, usable=indicator(first.fan >= 2.0)),
            seconds_per_byte=np.maximum(inner, outer),
        )

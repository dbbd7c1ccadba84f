"""The contract of one algorithm, and the counts they share."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


class Algorithm(Protocol):
    """One way to do some collectives."""

    @property
    def name(self) -> str:
        """What calibrations call it."""
        ...

    @property
    def kinds(self) -> frozenset[CollectiveKind]:
        """The collectives it does."""
        ...

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, route: Route, protocol: int) -> Numeric:
        """Return seconds with one wire protocol; infinite where the algorithm cannot serve the group."""
        ...


def passes(kind: CollectiveKind) -> float:
    """All-reduce is a reduce-scatter and an all-gather; the others are one pass."""
    return 2.0 if kind == "all_reduce" else 1.0


@formula(unit="1", source="Thakur, Rabenseifner and Gropp 2005, section 4: steps of a binomial tree")
def doublings(*, count: Numeric) -> Numeric:
    """ceil(log2(count)), exact for any count."""
    return 1.0 * np.frexp(np.ceil(count) - 1.0)[1]

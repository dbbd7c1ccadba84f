"""The contract of one algorithm, and what several share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from forescale.cost.collectives.route import Route
from forescale.formula import formula
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric

THAKUR = "Thakur, Rabenseifner and Gropp 2005, Optimization of collective communication operations in MPICH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Time of one way to do a collective: fixed + bytes·seconds_per_byte."""

    label: str
    fixed: Numeric
    seconds_per_byte: Numeric


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

    def lines(self, *, kind: CollectiveKind, route: Route) -> Iterator[Line]:
        """Yield a line per wire protocol; infinite where the algorithm cannot serve a group."""
        ...


def passes(kind: CollectiveKind) -> float:
    """Return 2 for all-reduce, which scatters and gathers, and 1 for the others."""
    return 2.0 if kind == "all_reduce" else 1.0


@formula(unit="1", source=f"{THAKUR}, section 4: steps of a binomial tree")
def doublings(*, count: Numeric) -> Numeric:
    """ceil(log2 count), exact for any count."""
    return np.frexp(np.ceil(count) - 1.0)[1] * 1.0


@formula(unit="s", source="Hockney 1994, The communication challenge for MPP: latency and bandwidth")
def fixed_seconds(*, launch: Numeric, passes: Numeric, latency: Numeric) -> Numeric:
    """Launch + passes·latency: what a message of no length takes."""
    return launch + passes * latency

"""What every model of communication offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from forescale.cost.model import Provenance
from forescale.cost.placement import Group
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric

Priced: TypeAlias = Callable[[Numeric], Numeric]
"""Seconds of a message by its bytes, for one collective in one group."""
Prices: TypeAlias = Callable[[CollectiveKind], Priced]
"""Prices of one group by collective."""


class CollectiveModel(Protocol):
    """Prices messages among the ranks of a group.

    Sizes may be floats, arrays over candidates or recorded terms; the result has the same kind, and a
    candidate alone gets bit for bit what it gets inside an array. One rank or an empty message costs nothing.
    """

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the seconds of one collective; `num_bytes` as in `graph.ops.Collective`."""
        ...

    def within(self, group: Group) -> Prices:
        """Return the prices of one group: worth keeping for several collectives and messages."""
        ...

    def provenance(self, *, kind: CollectiveKind) -> Provenance:
        """Return where the parameters behind `kind` come from."""
        ...

"""What every model of communication offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from forescale.cost.placement import Group
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a time comes from and how far off it was where it could be checked."""

    basis: Literal["measured", "fitted", "nominal"]
    source: str
    residual: float | None = None
    """Median of |model / measured - 1| over the rows of the source."""


class CollectiveModel(Protocol):
    """Prices one message. Elementwise over candidates; groups of one rank and empty messages cost nothing."""

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the seconds of one collective; `num_bytes` as in `graph.ops.Collective`."""
        ...

    def provenance(self, *, kind: CollectiveKind) -> Provenance:
        """Return where the parameters behind `kind` come from."""
        ...

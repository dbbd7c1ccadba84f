"""What a compute cost model is: seconds of an operator, and where that number comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from forescale.graph.ops import Compute
from forescale.numeric import Numeric

ProvenanceKind: TypeAlias = Literal["measured", "interpolated", "fitted", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a duration comes from and how far the truth lay from it in 8 cases of 10."""

    kind: ProvenanceKind
    """From the most to the least certain: measured here, interpolated, fitted to other shapes, a prior."""
    source: str
    low: float
    """The 10th percentile of measured / predicted where it was checked; multiply seconds by it."""
    high: float
    """The 90th percentile of measured / predicted."""


class ComputeModel(Protocol):
    """Prices the operators of one device.

    Extents may be floats, arrays over candidates or recorded terms; the result has the same kind, and a
    candidate alone gets bit for bit what it gets inside an array.
    """

    def seconds(self, op: Compute) -> Numeric:
        """Return the duration of `op` on one device [s]."""
        ...

    def provenance(self, op: Compute) -> Provenance:
        """Return where that duration comes from."""
        ...

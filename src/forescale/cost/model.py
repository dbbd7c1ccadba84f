"""What a cost model is: seconds of kernels or of messages, and where these numbers come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from forescale.cost.mesh import Group
from forescale.graph.ops import CollectiveKind, Compute
from forescale.numeric import Integers, Numeric
from forescale.struct import Struct

ProvenanceKind: TypeAlias = Literal["measured", "restored", "interpolated", "fitted", "roofline"]
TRACED = {"none": "torch-traced", "default": "torch-compiled", "reduce-overhead": "torch-graphs"}
"""Software of a model whose operators were recorded, by mode of torch.compile: what a run loses is in the prices of
its kernels."""


class Provenance(Struct, frozen=True, kw_only=True):
    """Where a duration comes from and the half width of its 80 % interval."""

    kind: ProvenanceKind
    """From the most to the least certain: measured here, restored from a measured block, interpolated, fitted to
    other shapes, a prior."""
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

    def num_bytes(self, op: Compute) -> Numeric:
        """Return the bytes that `op` reads from and writes to device memory."""
        ...


class Priced(Protocol):
    """Prices one collective in one group."""

    def __call__(self, num_bytes: Numeric) -> Numeric:
        """Return the seconds of a message."""
        ...

    def take(self, rows: Integers) -> Priced:
        """Return the prices of some candidates' groups, which are on the last axis."""
        ...


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

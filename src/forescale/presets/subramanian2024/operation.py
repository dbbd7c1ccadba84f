"""One operation of a layer: work and messages of both directions, weights and saved activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric

TensorAxis: TypeAlias = Literal["tp1", "tp2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How one layer is cut: tensor-parallel ranks of both axes, micro-batch, panels, ranks close together."""

    tp1: Numeric
    tp2: Numeric
    micro_batch_size: Numeric
    panels: Numeric
    near_tp1: Numeric
    """Ranks of tp1 in one fast domain."""
    near_tp2: Numeric
    """Ranks of tp2 in one fast domain."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """A collective over one axis; an object that stands in several places is priced once."""

    kind: CollectiveKind
    axis: TensorAxis
    num_bytes: Numeric
    """Bytes of the whole (gathered) tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One direction of an operation, for one micro-batch."""

    flops: Numeric
    num_bytes: Numeric
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A line of the paper's tables."""

    name: str
    on_matrix_units: bool
    forward: Work
    backward: Work
    parameters: Numeric = 0.0
    """Weights of one device."""
    saved_bytes: Numeric = 0.0
    """What one micro-batch keeps for backward."""
    panels: Numeric | None = None
    """Panels of a blocked product, whose messages hide behind its own work; None exposes all messages."""


Layer: TypeAlias = tuple[Operation, ...]
"""The operations of one layer; the last is the norm whose output travels to the next stage."""

"""Which mesh axes split which logical dimension: the one table that all sizes and collectives follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.spec.strategy import (
    Allocator,
    ContextKind,
    Dispatcher,
    Kernels,
    LaunchGraphs,
    Offload,
    Overlap,
    Recompute,
    Reshard,
    Routing,
    Strategy,
)
from forescale.spec.workload import STORAGE_BYTES, Precision, narrow_bytes

Dim: TypeAlias = Literal[
    "residual",
    "sequence",
    "core_sequence",
    "hidden",
    "heads",
    "kv_heads",
    "core_heads",
    "ffn",
    "vocab",
    "experts",
    "expert_ffn",
    "rank",
]
"""`residual` is the sequence between blocks, `sequence` inside tensor-parallel regions, `core_*` inside the
attention core; `rank` is a low-rank width, never split."""
Extent: TypeAlias = tuple[Dim, float]
"""A logical dimension and its global size."""
Axis: TypeAlias = Literal["tp", "cp", "ep", "etp"]
"""Mesh axes that split an activation or a weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """The numeric half of a strategy: one value, or one per candidate."""

    tp: Numeric
    cp: Numeric
    ep: Numeric
    etp: Numeric
    pp: Numeric
    vpp: Numeric
    dp_replicate: Numeric
    dp_shard: Numeric
    zero: Numeric
    micro_batch_size: Numeric

    @property
    def dp(self) -> Numeric:
        """Data-parallel degree of everything but experts."""
        return self.dp_replicate * self.dp_shard

    @property
    def expert_dp(self) -> Numeric:
        """Data-parallel degree of expert parameters."""
        return self.tp * self.cp * self.dp / (self.ep * self.etp)

    @property
    def expert_shards(self) -> Numeric:
        """Ranks that the states of expert parameters are sharded over: their replicas within one `dp_shard`."""
        return self.tp * self.cp * self.dp_shard / (self.ep * self.etp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The half of a strategy that changes the operator list: the key by which search groups candidates."""

    sp: bool = True
    cp_kind: ContextKind = "all_gather"
    flash_attention: bool = True
    recompute: Recompute = field(default_factory=Recompute)
    overlap: Overlap = field(default_factory=Overlap)
    kernels: Kernels = field(default_factory=Kernels)
    reshard: Reshard = "default"
    software: str | None = None
    schedule: str | None = None
    graphs: LaunchGraphs = "none"
    dispatcher: Dispatcher = "all_to_all"
    routing: Routing = field(default_factory=Routing)
    allocator: Allocator = "segments"
    offload: Offload = field(default_factory=Offload)


def split_strategy(strategy: Strategy) -> tuple[Degrees, Choices]:
    """Return the numeric degrees (as floats) and the structural choices of one strategy."""
    degrees = Degrees(
        **{name: float(getattr(strategy, name)) for name in Degrees.__dataclass_fields__},
    )
    choices = Choices(
        sp=strategy.sp,
        cp_kind=strategy.cp_kind,
        flash_attention=strategy.flash_attention,
        recompute=strategy.recompute,
        overlap=strategy.overlap,
        kernels=strategy.kernels,
        reshard=strategy.reshard,
        software=strategy.software,
        schedule=strategy.schedule,
        graphs=strategy.graphs,
        dispatcher=strategy.dispatcher,
        routing=strategy.routing,
        allocator=strategy.allocator,
        offload=strategy.offload,
    )
    return degrees, choices


@formula(unit="1", source="definition")
def several(*, degree: Numeric) -> Numeric:
    """1 where the degree exceeds one, else 0."""
    return np.minimum(degree - 1.0, 1.0)


@formula(unit="1", source="Megatron-LM: key/value heads are copied when there are fewer than tp ranks")
def head_split(*, tp: Numeric, num_kv_heads: Numeric) -> Numeric:
    """min(tp, num_kv_heads)."""
    return np.minimum(tp, num_kv_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Rules from logical dimension to mesh axes, with the degrees they stand for."""

    degrees: Degrees
    choices: Choices
    precision: Precision
    seq_len: Numeric

    def axes(self, dim: Dim) -> tuple[Axis, ...]:
        """Return the mesh axes that split `dim`."""
        ulysses = self.choices.cp_kind == "ulysses"
        match dim:
            case "residual":
                return ("cp", "tp") if self.choices.sp else ("cp",)
            case "sequence":
                return ("cp",)
            case "core_sequence":
                return () if ulysses else ("cp",)
            case "heads" | "kv_heads" | "ffn" | "vocab":
                return ("tp",)
            case "core_heads":
                return ("tp", "cp") if ulysses else ("tp",)
            case "experts":
                return ("ep",)
            case "expert_ffn":
                return ("etp",)
            case _:
                return ()

    def split(self, dim: Dim) -> Numeric:
        """Return into how many parts `dim` is split."""
        result: Numeric = 1.0
        for axis in self.axes(dim):
            result = result * getattr(self.degrees, axis)
        return result

    def more_than_one(self, axis: Axis) -> Numeric:
        """Return 1 where the axis has several ranks, else 0: buffers of collectives that one rank skips."""
        return several(degree=getattr(self.degrees, axis))

    def tokens(self, dim: Dim = "sequence") -> Numeric:
        """Return the tokens of one micro-batch on one device where the sequence is laid out as `dim`."""
        return self.degrees.micro_batch_size * self.seq_len / self.split(dim)

    @property
    def element_bytes(self) -> float:
        """Bytes per activation element."""
        return STORAGE_BYTES[self.precision.activations]

    @property
    def wide_type(self) -> str:
        """Compute type of products that 8-bit recipes leave alone: that of the activations."""
        return self.precision.activations if self.precision.is_narrow else self.precision.compute

    @property
    def linear_input_bytes(self) -> float:
        """Bytes per element of a linear layer's saved input: narrow recipes of Transformer Engine keep it so."""
        return self.sent_input_bytes if self.narrows_inputs else self.element_bytes

    @property
    def narrows_inputs(self) -> bool:
        """Whether linear layers keep their inputs in a narrower type than activations have."""
        return self.precision.is_narrow and self.choices.kernels.narrow_inputs

    @property
    def sent_input_bytes(self) -> float:
        """Bytes per element of a linear layer's input where it is gathered: narrow recipes narrow it before."""
        return narrow_bytes(self.precision) if self.precision.is_narrow else self.element_bytes

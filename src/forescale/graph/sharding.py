"""Which mesh axes split which logical dimension: the one table that all sizes and collectives follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

import msgspec

from forescale.formula import formula
from forescale.numeric import Numeric, lcm, minimum
from forescale.spec.context import CONTEXT_KINDS, ContextKind, ContextParallel, inner_ranks
from forescale.spec.dispatchers import Dispatcher
from forescale.spec.layout import (
    Allocator,
    Kernels,
    LaunchGraphs,
    Layout,
    Offload,
    Overlap,
    Recompute,
    Reshard,
    Routing,
    TensorKind,
    expert_shards,
)
from forescale.spec.model import Images
from forescale.spec.workload import STORAGE_BYTES, Precision, Trainable, Workload, narrow_bytes
from forescale.struct import Struct

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
Axis: TypeAlias = Literal["tp", "cp", "cp_inner", "cp_outer", "ep", "etp"]
"""Mesh axes that split an activation or a weight; `cp_inner` and `cp_outer` are the two halves of cp that
hierarchical context parallelism tells apart."""


class Degrees(Struct, frozen=True, kw_only=True):
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
    def keeps_parameters(self) -> bool:
        """Whether it is known, of one layout, that each rank keeps whole parameters: below ZeRO stage 3."""
        return isinstance(self.zero, float) and self.zero < 3.0

    @property
    def keeps_gradients(self) -> bool:
        """Whether that is known of gradients, and so of both: below ZeRO stage 2."""
        return isinstance(self.zero, float) and self.zero < 2.0

    @property
    def dp(self) -> Numeric:
        """Return the data-parallel degree of everything but experts (number of ranks)."""
        return self.dp_replicate * self.dp_shard

    @property
    def expert_dp(self) -> Numeric:
        """Data-parallel degree of expert parameters."""
        return self.tp * self.cp * self.dp / (self.ep * self.etp)

    @property
    def expert_shards(self) -> Numeric:
        """Ranks that the states of expert parameters are sharded over: their replicas within one `dp_shard`."""
        return expert_shards(self)


NODE = 8
"""Devices of the fastest tier where no cluster is asked about: parameters and FLOP do not depend on it."""
OF_BLOCKS = ("tp", "cp", "ep", "etp", "micro_batch_size")
"""Degrees that a block's operators and tensors depend on."""


class StructuralOptions(Struct, frozen=True, kw_only=True):
    """The half of a strategy that changes the operator list: the key by which search groups candidates."""

    tp_kind: TensorKind = "1d"
    summa_panels: int = 1
    sp: bool = True
    cp_kind: ContextKind = "all_gather"
    cp_balanced: bool = True
    cp_inner: int | None = None
    domain: int = NODE
    """Devices that share the fastest tier, of which `cp_inner` None takes as many as it can."""
    flash_attention: bool = True
    recompute: Recompute = msgspec.field(default_factory=Recompute)
    overlap: Overlap = msgspec.field(default_factory=Overlap)
    kernels: Kernels = msgspec.field(default_factory=Kernels)
    reshard: Reshard = "default"
    software: str | None = None
    schedule: str | None = None
    graphs: LaunchGraphs = "none"
    dispatcher: Dispatcher = "all_to_all"
    routing: Routing = msgspec.field(default_factory=Routing)
    allocator: Allocator = "segments"
    offload: Offload = msgspec.field(default_factory=Offload)

    @property
    def overlapped(self) -> Overlap:
        """What runs beside compute: without sp tensor parallelism has no collectives that products are cut along.

        Source: Megatron-LM, training/arguments.py (tp_comm_overlap); PyTorch's asynchronous tensor parallelism.
        """
        return self.overlap if self.sp else replace(self.overlap, tensor=False)

    @property
    def of_operators(self) -> StructuralOptions:
        """The options that all layouts with the same operators, at the same prices, have in common.

        They may differ in what is hidden behind what; only tensor parallelism's overlap changes operators.
        """
        return replace(self, overlap=Overlap(tensor=self.overlapped.tensor))

    @property
    def deferred_head_gradients(self) -> int:
        """Micro-batches whose head weight gradients are deferred; a named schedule places weight gradients itself."""
        return self.kernels.deferred_head_gradients if self.schedule is None else 0

    @property
    def crosses(self) -> bool:
        """Whether a forward runs beside the backward of another micro-batch, to hide exchanges of experts."""
        return self.overlap.expert and not self.kernels.halves_cross


def split_layout(layout: Layout, *, domain: int = NODE) -> tuple[Degrees, StructuralOptions]:
    """Return the numeric degrees (as floats) and the structural choices of one strategy.

    `domain` is of the cluster: the devices that share its fastest tier. One stage runs no schedule, whatever its name.
    """
    degrees = {name: float(getattr(layout, name)) for name in Degrees.__dataclass_fields__}
    choices = {
        name: getattr(layout, name) for name in StructuralOptions.__dataclass_fields__ if name != "domain"
    }
    if layout.pp == 1:
        choices["schedule"] = None
    return Degrees(**degrees), StructuralOptions(**choices, domain=domain)


@formula(unit="1", source="definition")
def several(*, degree: Numeric) -> Numeric:
    """1 where the degree exceeds one, else 0."""
    return minimum(degree - 1.0, 1.0)


@formula(unit="1", source="Megatron-LM: key/value heads are copied when there are fewer than tp ranks")
def head_split(*, tp: Numeric, num_kv_heads: Numeric) -> Numeric:
    """min(tp, num_kv_heads)."""
    return minimum(tp, num_kv_heads)


@formula(
    unit="1",
    source="van de Geijn and Watts 1997, SUMMA, section 3: a panel lies in one column of the one matrix's blocks "
    "and one row of the other's",
)
def panel_steps(*, tp: Numeric, cp: Numeric, panels: float) -> Numeric:
    """n_b = lcm(tp, cp) · panels."""
    grid: Numeric = lcm(tp, cp)
    return grid * panels


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRules:
    """Rules from logical dimension to mesh axes, with the degrees they stand for."""

    degrees: Degrees
    choices: StructuralOptions
    precision: Precision
    seq_len: Numeric
    document_len: float | None = None
    """Tokens of the documents that a sequence is packed with; None is one."""
    trainable: Trainable = field(default_factory=Trainable)
    images: Images = field(default_factory=Images)
    """What a vision tower is given with each sequence."""
    _splits: dict[Dim, Numeric] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Parts of the dimensions that were asked for."""

    @classmethod
    def from_workload(cls, workload: Workload, degrees: Degrees, choices: StructuralOptions) -> ShardingRules:
        """Return the layout of a workload's sequences."""
        return cls(
            degrees=degrees,
            choices=choices,
            precision=workload.precision,
            seq_len=float(workload.seq_len),
            document_len=None if workload.document_len is None else float(workload.document_len),
            trainable=workload.trainable,
            images=workload.images,
        )

    @property
    def of_blocks(self) -> ShardingRules | None:
        """The layout less what no block depends on: pipeline, data parallel and shards; None of several layouts."""
        local = {name: getattr(self.degrees, name) for name in OF_BLOCKS}
        if not all(isinstance(item, float) for item in (self.seq_len, *local.values())):
            return None
        others = dict.fromkeys((name for name in Degrees.__dataclass_fields__ if name not in local), 1.0)
        return replace(self, degrees=Degrees(**local, **others))

    def axes(self, dim: Dim) -> tuple[Axis, ...]:
        """Return the mesh axes that split `dim`."""
        context = self.context
        match dim:
            case "residual":  # under SUMMA the sequence over cp, the hidden size over tp
                return ("cp", "tp") if self.choices.sp else ("cp",)
            case "sequence":
                return ("cp",)
            case "core_sequence":
                return (context.around,) if context.around else ()
            case "heads" | "kv_heads" | "ffn" | "vocab":
                return ("tp",)
            case "core_heads":
                return ("tp", context.exchanges) if context.exchanges else ("tp",)
            case "experts":
                return ("ep",)
            case "expert_ffn":
                return ("etp",)
            case _:
                return ("tp",) if self.summa and dim == "hidden" else ()

    def split(self, dim: Dim) -> Numeric:
        """Return the number of parts into which `dim` is sharded."""
        if dim not in self._splits:
            self._splits[dim] = self._parts(self.axes(dim))
        return self._splits[dim]

    def weight_split(self, dims: Sequence[Dim]) -> tuple[Numeric, ...]:
        """Return the number of shards of each dimension of a weight.

        As those of activations; on the grid of SUMMA rows over cp, and columns and vectors over tp.
        """
        if self.summa and len(dims) > 1:
            axes: list[tuple[Axis, ...]] = [("cp",), *(() for _ in dims[2:]), ("tp",)]
            return tuple(map(self._parts, axes))
        return tuple(map(self.split, dims))

    def _parts(self, axes: Sequence[Axis]) -> Numeric:
        result: Numeric = 1.0
        for axis in axes:
            result = result * self.degree(axis)
        return result

    @property
    def context(self) -> ContextParallel:
        """How context-parallel ranks see all keys and values."""
        return CONTEXT_KINDS[self.choices.cp_kind]

    @property
    def summa(self) -> bool:
        """Whether matrices lie on the grid of SUMMA."""
        return self.choices.tp_kind == "summa"

    @property
    def panel_steps(self) -> Numeric:
        """Return the number of steps that SUMMA takes for one product."""
        return panel_steps(tp=self.degrees.tp, cp=self.degrees.cp, panels=float(self.choices.summa_panels))

    def degree(self, axis: Axis) -> Numeric:
        """Return the number of ranks of an axis."""
        if axis not in ("cp_inner", "cp_outer"):
            return cast("Numeric", getattr(self.degrees, axis))
        inner: Numeric = inner_ranks(
            cp=self.degrees.cp,
            tp=self.degrees.tp,
            wanted=self.choices.cp_inner,
            domain=self.choices.domain,
        )
        return inner if axis == "cp_inner" else self.degrees.cp / inner

    def more_than_one(self, axis: Axis) -> Numeric:
        """Return 1 where the axis has several ranks, else 0: a factor for buffers that a single rank does not need."""
        return several(degree=self.degree(axis))

    def tokens(self, dim: Dim = "sequence") -> Numeric:
        """Return the tokens of one micro-batch on one device where the sequence is laid out as `dim`."""
        return self.degrees.micro_batch_size * self.seq_len / self.split(dim)

    @property
    def element_bytes(self) -> float:
        """Bytes per activation element."""
        return STORAGE_BYTES[self.precision.activations]

    @property
    def widened(self) -> ShardingRules:
        """Return the same rules where products stay in the type of activations."""
        types = replace(self.precision, compute=self.precision.activations, recipe="none")
        return replace(self, precision=types) if self.precision.is_narrow else self

    @property
    def wide_type(self) -> str:
        """Compute type of products that 8-bit recipes leave alone: that of the activations."""
        return self.precision.activations if self.precision.is_narrow else self.precision.compute

    @property
    def narrow_type(self) -> str:
        """Compute type of products that a recipe narrows: fp8 with scales of rows or blocks has other kernels."""
        precision = self.precision
        apart = precision.compute == "fp8" and precision.recipe in ("rowwise", "blockwise")
        return f"fp8_{precision.recipe}" if apart else precision.compute

    @property
    def accumulate_bytes(self) -> float:
        """Bytes per element of a weight gradient beyond a product's own output: the sum is read and written."""
        local = 4.0 if self.precision.compute in ("fp32", "tf32") else 2.0
        return max(2.0 * STORAGE_BYTES[self.precision.gradients] - local, 0.0)

    @property
    def summed_bytes(self) -> float:
        """Bytes per element of a weight gradient that kernels of their own move to add it to the sum, or 0.

        They read both and write the sum; a cast before is written, and read for them.
        """
        kernels, stored = self.choices.kernels, STORAGE_BYTES[self.precision.gradients]
        if kernels.gradient_sum != "apart":
            return 0.0
        local = 4.0 if self.precision.compute in ("fp32", "tf32") else 2.0
        return local + (4.0 if kernels.keeps_product_gradients else 2.0) * stored

    @property
    def core_type(self) -> str:
        """Compute type of attention cores: fp8 where kernels narrow them, else that of 16-bit products at least."""
        if self.precision.is_narrow and self.choices.kernels.narrow_attention:
            return "fp8"
        return "bf16" if self.wide_type == "fp8" else self.wide_type

    @property
    def narrows_head(self) -> bool:
        """Whether the output projection onto the vocabulary multiplies in MXFP8."""
        return self.precision.compute == "mxfp8" and self.choices.kernels.narrow_head

    @property
    def narrows_experts(self) -> bool:
        """Whether routed experts multiply in an 8- or 4-bit compute type."""
        return self.precision.is_narrow and self.choices.kernels.narrow_experts

    @property
    def fuses_operations(self) -> bool:
        """Whether Transformer Engine's op fuser hands on what a kernel before a product has quantised: in MXFP8."""
        return self.precision.compute == "mxfp8" and self.choices.kernels.fused_grouped_mlp

    @property
    def fuses_experts(self) -> bool:
        """Whether products of routed experts quantise and activate in their own kernels: scales of blocks alone.

        Transformer Engine, ops/fused/grouped_mlp.py: the recipe is MXFP8 or NVFP4.
        """
        blocks = self.precision.compute in ("mxfp8", "nvfp4")
        return blocks and self.narrows_experts and self.choices.kernels.fused_grouped_mlp

    @property
    def expert_type(self) -> str:
        """Compute type of routed experts."""
        return self.narrow_type if self.narrows_experts else self.wide_type

    @property
    def expert_input_bytes(self) -> float:
        """Bytes per element of a routed expert's saved input."""
        return self.linear_input_bytes if self.narrows_experts else self.element_bytes

    @property
    def linear_input_bytes(self) -> float:
        """Bytes per element of a linear layer's saved input: narrow recipes of Transformer Engine keep it so."""
        return self.sent_input_bytes if self.narrows_inputs else self.element_bytes

    @property
    def narrows_inputs(self) -> bool:
        """Whether linear layers keep their inputs in a narrower type than activations have."""
        return self.precision.is_narrow and self.choices.kernels.narrow_inputs

    @property
    def narrows_activation_inputs(self) -> bool:
        """Whether activations of feed-forwards keep their inputs in 8 bits."""
        return self.precision.is_narrow and self.choices.kernels.narrow_activation_inputs

    @property
    def narrows_core_output(self) -> bool:
        """Whether attention's output is kept in 12 bits alone."""
        return self.precision.is_narrow and self.choices.kernels.narrow_core_output

    @property
    def sent_input_bytes(self) -> float:
        """Bytes per element of a linear layer's input where it is gathered: narrow recipes narrow it before."""
        return narrow_bytes(self.precision) if self.precision.is_narrow else self.element_bytes

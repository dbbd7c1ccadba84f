"""Timed kernels and collectives as a bench artifact writes them, one table a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt, Le

from forescale.cost.timings import MeasuredCollective
from forescale.graph.ops import AttentionCore, CollectiveKind, Elementwise, Gemm, GroupedGemm
from forescale.limits import Devices

Extent: TypeAlias = Annotated[float, Gt(0), Le(1e18)]
Seconds: TypeAlias = Annotated[float, Ge(1e-12), Le(1e6)]
KernelType: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp8_blockwise", "mxfp8", "nvfp4"]
TrafficFamily: TypeAlias = Literal[
    "elementwise", "norm", "softmax", "permute", "embedding", "loss", "optimizer", "cast"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTiming:
    """`batch` products of m x k by k x n."""

    op: Literal["gemm"] = "gemm"
    m: Extent
    n: Extent
    k: Extent
    batch: Extent = 1.0
    dtype: KernelType = "bf16"
    accumulate_bytes: Annotated[float, Ge(0), Le(1e3)] = 0.0
    """Bytes read and written besides per output element: 6 where a 16-bit product is added to fp32 gradients."""
    seconds: Seconds

    @property
    def operator(self) -> Gemm:
        """What was timed."""
        return Gemm(
            m=float(self.m),
            n=float(self.n),
            k=float(self.k),
            batch=float(self.batch),
            dtype=self.dtype,
            accumulate_bytes=float(self.accumulate_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemmTiming:
    """One product per expert; `m` rows of all experts together."""

    op: Literal["grouped_gemm"] = "grouped_gemm"
    groups: Extent
    m: Extent
    n: Extent
    k: Extent
    dtype: KernelType = "bf16"
    contract: Literal["k", "m"] = "k"
    """"m": the weight gradient, contracted over rows."""
    accumulate_bytes: Annotated[float, Ge(0), Le(1e3)] = 0.0
    seconds: Seconds

    @property
    def operator(self) -> GroupedGemm:
        """What was timed."""
        return GroupedGemm(
            groups=float(self.groups),
            m=float(self.m),
            n=float(self.n),
            k=float(self.k),
            dtype=self.dtype,
            contract=self.contract,
            accumulate_bytes=float(self.accumulate_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiming:
    """Scores, softmax and values: forward, or backward alone."""

    op: Literal["attention"] = "attention"
    batch: Extent
    heads: Extent
    kv_heads: Extent
    q_len: Extent
    kv_len: Extent
    qk_dim: Extent
    v_dim: Extent
    pairs: Extent | None = None
    """Query-key pairs per sequence and head that the mask leaves; by default half of them where causal."""
    causal: bool = True
    backward: bool = False
    flash: bool = True
    dtype: Literal["fp16", "bf16", "fp8"] = "bf16"
    seconds: Seconds

    @property
    def operator(self) -> AttentionCore:
        """What was timed."""
        everything = float(self.q_len * self.kv_len)
        return AttentionCore(
            batch=float(self.batch),
            heads=float(self.heads),
            kv_heads=float(self.kv_heads),
            q_len=float(self.q_len),
            kv_len=float(self.kv_len),
            pairs=float(self.pairs) if self.pairs else everything / 2.0 if self.causal else everything,
            qk_dim=float(self.qk_dim),
            v_dim=float(self.v_dim),
            causal=self.causal,
            backward=self.backward,
            flash=self.flash,
            dtype=self.dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseTiming:
    """A step bound by memory traffic."""

    op: Literal["elementwise"] = "elementwise"
    family: TrafficFamily = "elementwise"
    bytes_moved: Extent
    kernels: Extent = 1.0
    seconds: Seconds

    @property
    def operator(self) -> Elementwise:
        """What was timed."""
        return Elementwise(
            bytes_moved=float(self.bytes_moved), family=self.family, kernels=float(self.kernels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTiming:
    """One collective; bytes as nccl-tests prints them as size."""

    kind: CollectiveKind
    num_bytes: Extent
    num_ranks: Annotated[int, Gt(1), Le(2**24)]
    ranks_per_node: Devices
    seconds: Seconds

    @property
    def measured(self) -> MeasuredCollective:
        """What was timed."""
        return MeasuredCollective(
            kind=self.kind,
            num_bytes=float(self.num_bytes),
            num_ranks=self.num_ranks,
            ranks_per_node=self.ranks_per_node,
            seconds=self.seconds,
        )


KernelTiming: TypeAlias = GemmTiming | GroupedGemmTiming | AttentionTiming | ElementwiseTiming
KERNEL_TIMINGS: dict[str, type[KernelTiming]] = {
    "gemm": GemmTiming,
    "grouped_gemm": GroupedGemmTiming,
    "attention": AttentionTiming,
    "elementwise": ElementwiseTiming,
}
"""Row of `kernels` by its `op`."""

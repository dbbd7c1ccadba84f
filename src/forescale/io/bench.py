"""Bench artifacts: what was measured, and of which configuration, in JSON with a versioned schema.

```json
{
  "schema": "forescale.bench/1",
  "config": {"model": "llama-3.1-8b", "cluster": "h100-sxm", "devices": 8,
             "strategy": {"tp": 2}, "workload": {"seq_len": 4096, "global_batch_size": 64}},
  "ranks": [{"rank": 0, "stage": 0, "peak_allocated_bytes": 4.1e10, "peak_reserved_bytes": 4.4e10}],
  "layers": [{"kind": "attention+dense", "activation_bytes": 1.2e9, "forward_s": 0.004}],
  "kernels": [{"op": "gemm", "m": 8192, "n": 28672, "k": 4096, "dtype": "bf16", "seconds": 0.0029}],
  "collectives": [{"kind": "all_reduce", "num_bytes": 67108864, "num_ranks": 8, "ranks_per_node": 8,
                   "seconds": 0.00035}],
  "conditions": {"date": "2026-08-01", "device": "NVIDIA H100 80GB HBM3", "software": "torch 2.8"}
}
```

`config` has the sections of a plan file. Everything but the schema may be left out, but something must have been
measured, and ranks and layers need the `config` of their run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Le

from forescale.cost.timings import MeasuredCollective
from forescale.errors import ReaderError, SpecError, UnknownKeyError
from forescale.files import parse_json, read_text
from forescale.graph.ops import AttentionCore, CollectiveKind, Elementwise, Gemm, GroupedGemm
from forescale.io.validation import build
from forescale.limits import Devices
from forescale.memory.anchored import LayerMeasurement, RankPeak
from forescale.syntax import parse_mapping

SCHEMA = "forescale.bench/1"
KEYS = ("schema", "config", "ranks", "layers", "kernels", "collectives", "conditions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Where and when it was measured."""

    date: str = ""
    device: str = ""
    software: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArtifact:
    """One measured run."""

    config: Mapping[str, Any] | None = None
    """What was run, as a plan file says it (`build_question`); None where kernels were timed by themselves."""
    ranks: tuple[RankPeak, ...] = ()
    layers: tuple[LayerMeasurement, ...] = ()
    kernels: tuple[KernelTiming, ...] = ()
    collectives: tuple[CollectiveTiming, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)


def read_bench(path: str | Path) -> BenchArtifact:
    """Return the artifact that a JSON file holds.

    Raises
    ------
    ReaderError
        If the file is missing, is not JSON, or has another schema; the message says which can be read.
    SpecError
        If anything in it is unknown, missing or impossible.
    """
    file = Path(path)
    document = parse_mapping(read_text(file), file, parse_json)
    _check_schema(document.get("schema"), file)
    return build_bench(document, where=str(file))


def build_bench(document: Mapping[str, Any], *, where: str) -> BenchArtifact:
    """Return the artifact that plain values describe."""
    for key in document:
        if key not in KEYS:
            raise UnknownKeyError(key, where, KEYS)
    config = document.get("config")
    if "config" in document and not isinstance(config, Mapping):
        raise SpecError(
            f"{where}: config must be a table with model, cluster, devices and workload; got {config!r}"
        )
    artifact = BenchArtifact(
        config=config,
        ranks=tuple(
            build(RankPeak, row, where=f"{where}, {at}") for at, row in _rows(document, "ranks", where)
        ),
        layers=tuple(
            build(LayerMeasurement, row, where=f"{where}, {at}")
            for at, row in _rows(document, "layers", where)
        ),
        kernels=tuple(_kernel(row, f"{where}, {at}") for at, row in _rows(document, "kernels", where)),
        collectives=tuple(
            build(CollectiveTiming, row, where=f"{where}, {at}")
            for at, row in _rows(document, "collectives", where)
        ),
        conditions=build(Conditions, document.get("conditions", {}), where=f"{where}, conditions"),
    )
    _check(artifact, where)
    return artifact


def _check_schema(found: object, file: Path) -> None:
    if found == SCHEMA:
        return
    if isinstance(found, str) and found.startswith("forescale.bench/"):
        raise ReaderError(
            file, f"its schema is {found}; this version reads {SCHEMA}, so measure again or convert it"
        )
    raise ReaderError(file, f"it is no bench artifact: its schema must be {SCHEMA}, got {found!r}")


def _check(artifact: BenchArtifact, where: str) -> None:
    """Refuse an artifact without measurements, or with measurements of a run that it does not have."""
    if not (artifact.ranks or artifact.kernels or artifact.collectives):
        raise SpecError(
            f"{where}: nothing was measured; it needs at least one measured rank, kernel or collective"
        )
    if artifact.config is None and (artifact.ranks or artifact.layers):
        raise SpecError(f"{where}: ranks and layers need config, the run that they were measured in")


def _kernel(row: Mapping[str, Any], where: str) -> KernelTiming:
    """Return one timed kernel; its `op` says what else it has."""
    op = row.get("op")
    if op not in KERNEL_TIMINGS:
        raise SpecError(f"{where}: op must be one of {', '.join(KERNEL_TIMINGS)}; got {op!r}")
    return build(KERNEL_TIMINGS[op], row, where=where)


def _rows(document: Mapping[str, Any], key: str, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise SpecError(f"{where}: {key} must be a list of tables, got {rows!r}")
    return [(f"{key}[{index}]", row) for index, row in enumerate(rows)]


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

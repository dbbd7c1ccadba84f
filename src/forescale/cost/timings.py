"""Timed kernels and collectives, row by row and stacked: what fits and their checks work on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from forescale.arrays import np
from forescale.cost.mesh import Group
from forescale.cost.model import CollectiveModel
from forescale.cost.roofline import OPERAND_BYTES
from forescale.errors import MISSPELT, SpecError, not_one_of, shown
from forescale.files import Row, read_table
from forescale.graph.ops import (
    AttentionCore,
    CollectiveKind,
    Compute,
    Elementwise,
    Gemm,
    GroupedGemm,
    flags_of,
    stacked,
)
from forescale.limits import AMOUNT, DEVICES, Count, Interval, within
from forescale.numeric import Array, Numeric
from forescale.spec import Device
from forescale.spec.cluster import Cluster
from forescale.struct import Struct

NUMBERS = {"msg_bytes": AMOUNT, "n_gpus": DEVICES, "nodes": DEVICES, "time_us": AMOUNT}
COLLECTIVE_COLUMNS = ("id", "hardware", "kind", "op", *NUMBERS, "gpus_per_node")
"""Columns of a table of collectives; the last is for the reader."""
_KINDS: Mapping[str, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "p2p",
}


def kind_of(name: str) -> CollectiveKind | None:
    """Return the collective that a benchmark calls `name`, None if it is none of ours."""
    return _KINDS.get(name.casefold().removesuffix("_mpi").removesuffix("_perf"))


Duration: TypeAlias = Annotated[float, Interval(ge=1e-12, le=1e6)]
Part: TypeAlias = Literal["forward", "backward", "input_gradient", "weight_gradient", "update"]


class Timed(Struct, frozen=True, kw_only=True):
    """What was timed several times [s]."""

    seconds: Duration
    """The median."""
    p10_s: Duration | None = None
    p90_s: Duration | None = None
    repeats: Count | None = None
    """How often it was timed."""

    def __post_init__(self) -> None:
        """Refuse a median that lies outside its own spread."""
        low, high = self.p10_s or self.seconds, self.p90_s or self.seconds
        if not low <= self.seconds <= high:
            msg = (
                f"the median, {self.seconds:g} s, lies between p10_s and p90_s; they are {low:g} and {high:g}"
            )
            raise SpecError(msg)


T = TypeVar("T", bound=Timed)


def pooled(rows: Iterable[T]) -> tuple[T, ...]:
    """Return one row for rows of the same work: the median of their medians, the widest of their spreads."""
    alike: dict[T, list[T]] = defaultdict(list)
    for row in rows:
        alike[replace(row, seconds=1.0, p10_s=None, p90_s=None, repeats=None)].append(row)
    return tuple(item[0] if len(item) == 1 else _together(item) for item in alike.values())


def _together(rows: Sequence[T]) -> T:
    return replace(
        rows[0],
        seconds=float(np.median([row.seconds for row in rows])),
        p10_s=min(row.p10_s or row.seconds for row in rows),
        p90_s=max(row.p90_s or row.seconds for row in rows),
        repeats=sum(row.repeats or 1 for row in rows),
    )


class BlockTiming(Timed, frozen=True, kw_only=True):
    """One part of the work of one block on one device, for one micro-batch; an update, for one step."""

    kind: str
    """A kind of layer such as "attention+dense", or embedding, or head (final norm, output layer and loss); of an
    update model, where it is of all of them."""
    part: Part
    """backward is both gradients together, as autograd runs them; input_gradient and weight_gradient run apart."""


class StepTiming(Timed, frozen=True, kw_only=True):
    """A whole optimizer step of the run that was measured."""

    num_microbatches: Count


class ProfiledOperator(Struct, frozen=True, kw_only=True):
    """All calls of one operator or kernel in a step, as a profiler recorded them on one rank."""

    name: str
    part: str
    """Kind of work (catalogue/kernel_parts.json)."""
    calls: float
    seconds: float
    """Without the operators inside it."""
    flops: float = 0.0
    """Of matrix products whose shapes were recorded."""
    num_bytes: float = 0.0
    """Of messages whose shapes were recorded."""
    dtype: str = ""
    """Of matrix products whose shapes were recorded."""
    samples: tuple[float, ...] = ()
    """Seconds in each step, where several were recorded."""


class MeasuredCollective(Struct, frozen=True, kw_only=True):
    """One timed collective; bytes as in `graph.ops.Collective`, which is what nccl-tests prints as size."""

    kind: CollectiveKind
    num_bytes: float
    num_ranks: int
    ranks_per_node: int
    seconds: float
    id: str = ""


class CollectiveBatch(Struct, frozen=True, kw_only=True):
    """Rows of one cluster and kind that one vectorised evaluation prices."""

    cluster: Cluster
    kind: CollectiveKind
    group: Group
    num_bytes: Array
    seconds: Array
    ids: tuple[str, ...]


def stack(cluster: Cluster, rows: Iterable[MeasuredCollective]) -> list[CollectiveBatch]:
    """Stack rows that were measured on `cluster`, which is sized to hold the largest."""
    by_kind: dict[CollectiveKind, list[MeasuredCollective]] = defaultdict(list)
    for row in rows:
        by_kind[row.kind].append(row)
    return [_batch(cluster, kind, group) for kind, group in by_kind.items()]


def _batch(cluster: Cluster, kind: CollectiveKind, rows: Sequence[MeasuredCollective]) -> CollectiveBatch:
    per_node = np.array([row.ranks_per_node for row in rows], dtype=np.float64)
    ranks = np.array([row.num_ranks for row in rows], dtype=np.float64)
    nodes = ranks / per_node
    size = float(cluster.devices_per_node)
    return CollectiveBatch(
        cluster=cluster.sized(int(size * nodes.max())),
        kind=kind,
        group=Group(
            size=per_node, stride=np.ones_like(per_node), outer=((nodes, np.full_like(nodes, size)),)
        ),
        num_bytes=np.array([row.num_bytes for row in rows], dtype=np.float64),
        seconds=np.array([row.seconds for row in rows], dtype=np.float64),
        ids=tuple(row.id for row in rows),
    )


def errors(batch: CollectiveBatch, model: CollectiveModel) -> Array:
    """Return ln(predicted / measured) of each row, positive where the model is too slow."""
    predicted = model.seconds(kind=batch.kind, num_bytes=batch.num_bytes, group=batch.group)
    return np.asarray(np.log(predicted / batch.seconds), dtype=np.float64)


def read_collectives(path: Path, hardware: str) -> list[MeasuredCollective]:
    """Return the collective rows of a kernel table that name `hardware`.

    Parameters
    ----------
    path
        CSV with the columns id, hardware, kind, op, msg_bytes, n_gpus, nodes and time_us.
    hardware
        Start of the hardware column.
    """
    table = read_table(path)
    table.need(COLLECTIVE_COLUMNS[:-1], "table of collectives")
    parsed = [_collective_row(row) for row in table.rows if row.text("hardware").startswith(hardware)]
    return [row for row in parsed if row is not None]


def _collective_row(row: Row) -> MeasuredCollective | None:
    kind = kind_of(row.text("op")) if row.text("kind") == "collective" else None
    if kind is None or not all(row.text(key) for key in NUMBERS):
        return None
    values = {key: _number(row, key, allowed) for key, allowed in NUMBERS.items()}
    return MeasuredCollective(
        kind=kind,
        num_bytes=values["msg_bytes"],
        num_ranks=int(values["n_gpus"]),
        ranks_per_node=max(1, int(values["n_gpus"] // values["nodes"])),
        seconds=values["time_us"] * 1e-6,
        id=row.id,
    )


KERNEL_COLUMNS = (
    "id", "hardware", "kind", "op", "dtype", "m", "n", "k", "groups", "batch", "heads", "kv_heads", "qk_head_dim",
    "v_head_dim", "seq_len", "causal", "measured_tflops", "time_us", "library", "notes",
)  # fmt: skip
"""Columns that are read; a table has those that its kernels need."""
DESCRIBED = (
    "source", "layout", "network", "peak_tflops", "efficiency_pct", "measured_busbw_GBps", "measured_algbw_GBps",
    "mem_bw_GBps", "confidence",
)  # fmt: skip
"""Columns for the reader."""


class KernelRow(Struct, frozen=True, kw_only=True):
    """One measured kernel."""

    id: str
    table: str
    """Prefix of the id: the collection it belongs to."""
    device: Device
    library: str
    ops: tuple[Compute, ...]
    """The operators timed together."""
    extra: tuple[Elementwise, ...]
    """What the benchmark timed besides."""
    seconds: float
    loop: tuple[float, float] | None = None
    """Seconds of load before it was timed, and that it was timed for; None is not known."""


class KernelBatch(Struct, frozen=True, kw_only=True):
    """Rows that one vectorised evaluation prices."""

    device: Device
    table: str
    ids: tuple[str, ...]
    ops: tuple[Compute, ...]
    extra: tuple[Elementwise, ...]
    seconds: Array
    loop: tuple[Array, Array] | None = None


def read_kernels(path: Path, devices: Mapping[str, Device]) -> list[KernelRow]:
    """Return the compute rows of a kernel table (columns as in the validation corpus).

    Parameters
    ----------
    path
        CSV with id, hardware, kind, dtype, extents and `time_us` or `measured_tflops`.
    devices
        Device by the table's hardware name; rows of other hardware are left out.
    """
    table = read_table(path)
    table.need(("hardware", "kind"), "table of kernels")
    table.know((*KERNEL_COLUMNS, *COLLECTIVE_COLUMNS, *DESCRIBED))
    parsed = [
        _kernel_row(row, devices[row.text("hardware")])
        for row in table.rows
        if row.text("hardware") in devices
    ]
    return [row for row in parsed if row is not None]


def _kernel_row(row: Row, device: Device) -> KernelRow | None:
    read = _READERS.get(row.text("kind"))
    if read is None and (meant := get_close_matches(row.text("kind"), _READERS, n=1, cutoff=MISSPELT)):
        raise row.refused("kind", f"{shown(row.text('kind'))} is no kind of kernel; did you mean {meant[0]}?")
    if read is None or not (row.text("time_us") or row.text("measured_tflops")):
        return None
    ops, extra, flops = read(row)
    if extra and isinstance(op := ops[0], Gemm) and op.dtype == "fp8":
        extra = tuple(replace(item, bytes_moved=_cast_bytes(op, device)) for item in extra)
    if row.text("time_us"):
        seconds = _number(row, "time_us") * 1e-6
    else:
        seconds = flops / (_number(row, "measured_tflops") * 1e12)
    table = row.id.split("-")[0]
    return KernelRow(
        id=row.id,
        table=table,
        device=device,
        library=row.text("library"),
        ops=ops,
        extra=extra,
        seconds=seconds,
    )


def _number(row: Row, key: str, allowed: Interval = AMOUNT) -> float:
    """Return what a column says; extents, times and rates are greater than 0."""
    try:
        return float(within(row.number(key), allowed, "it", whole=allowed is DEVICES))
    except SpecError as error:
        raise row.refused(key, error) from error


Parsed: TypeAlias = tuple[tuple[Compute, ...], tuple[Elementwise, ...], float]


def _gemm(row: Row) -> Parsed:
    dtype = _dtype(row)
    m, n, k = (_number(row, key) for key in ("m", "n", "k"))
    gradient = "fp32" in row.text("dtype")
    # An fp32 main gradient is read and written (8 bytes) or only written (4) where bf16 output takes 2.
    accumulate = (6.0 if "accumulate=True" in row.text("notes") else 2.0) if gradient else 0.0
    op = Gemm(
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        batch=_number(row, "batch") if row.text("batch") else 1.0,
        accumulate_bytes=accumulate,
    )
    quantised = "activation quantisation included" in row.text("dtype")
    # One scale per tensor takes the maximum, the scale and the pass that casts.
    passes = 3.0 if dtype == "fp8" else 1.0
    cast = Elementwise(bytes_moved=m * k * 3.0, family="cast", kernels=passes)
    extra = (cast,) if quantised else ()
    return (op,), extra, float(op.flops)


HALVED: Final = frozenset(("ampere", "hopper", "blackwell", "blackwell-ultra"))
"""Generations whose L2 is two partitions that each keep what their cores read (NVIDIA A100 whitepaper, L2 cache)."""
SLOWER: Final = 1.4
"""Of casts by one scale per tensor against fused ones: serving kernels of six machines."""


def _cast_bytes(op: Gemm, device: Device) -> Numeric:
    """Return the bytes that a cast by one scale per tensor moves: its input twice, and what it writes.

    Loops of serving kernels give the same input to every call. What the L2 still has of it is not read again: from
    the call before where all of a call fits, from the pass before where the input does.
    """
    kept = device.l2_bytes * (0.5 if device.architecture in HALVED else 1.0)
    value = 2.0 * op.m * op.k
    call = value + op.m * op.k + op.n * op.k + 2.0 * op.m * op.n
    read = 2.0 * (float(call > kept) + float(value > kept))
    return op.m * op.k * (read + 1.0) * SLOWER


def _grouped(row: Row) -> Parsed:
    groups = _number(row, "groups")
    m, n, k = (_number(row, key) for key in ("m", "n", "k"))
    weight = row.text("op") == "bwd_grad_w"
    notes = row.text("notes")
    # A main gradient that is added to is read and written: 8 bytes in fp32, 4 in bf16, where its output takes 2.
    accumulate = (2.0 if "main_grad=bf16" in notes else 6.0) if "accumulate=True" in notes else 0.0
    op = GroupedGemm(
        groups=groups,
        m=m * groups,
        n=n,
        k=k,
        dtype=_dtype(row),
        contract="m" if weight else "k",
        accumulate_bytes=accumulate,
    )
    return (op,), (), float(op.flops)


def _attention(row: Row) -> Parsed:
    length, causal = _number(row, "seq_len"), bool(row.flag("causal"))
    heads, flash = _number(row, "heads"), row.text("library") != "PyTorch unfused"
    forward = AttentionCore(
        batch=_number(row, "batch"),
        heads=heads,
        kv_heads=_number(row, "kv_heads") if row.text("kv_heads") else heads,
        q_len=length,
        kv_len=length,
        pairs=length * length / 2 if causal else length * length,
        qk_dim=_number(row, "qk_head_dim"),
        v_dim=_number(row, "v_head_dim"),
        causal=causal,
        flash=flash,
    )
    backward = replace(forward, backward=True)
    ops = {"attention_fwd": (forward,), "attention_bwd": (backward,)}.get(
        row.text("kind"), (forward, backward)
    )
    # Published rates count 2.5 forwards for the backward, fused or not.
    counted = {"attention_fwd": 1.0, "attention_bwd": 2.5}.get(row.text("kind"), 3.5)
    # The serving operator says which sequence is where, then splits queries, keys and values and writes the cache:
    # each read and written once.
    packed = length * float(forward.batch) * (heads + 2.0 * float(forward.kv_heads)) * float(forward.qk_dim)
    cache = "incl. KV-cache write" in row.text("op")
    extra = (Elementwise(bytes_moved=4.0 * packed, family="permute", kernels=2.0),) if cache else ()
    return ops, extra, float(forward.flops) * counted


_READERS: dict[str, Callable[[Row], Parsed]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped,
    "attention_fwd": _attention,
    "attention_bwd": _attention,
    "attention_fwd+bwd": _attention,
}


def _dtype(row: Row) -> str:
    text = row.text("dtype")
    if text.startswith("fp8") and ("128-block" in text or "fine-grained" in text):
        return "fp8_blockwise"
    for start, dtype in (
        ("bf16", "bf16"),
        ("fp16", "fp16"),
        ("nvfp4", "nvfp4"),
        ("mxfp8", "mxfp8"),
        ("fp8", "fp8"),
    ):
        if text.startswith(start):
            return dtype
    if text not in OPERAND_BYTES:
        raise row.refused("dtype", not_one_of("dtype", text, OPERAND_BYTES))
    return text


def batches(rows: Iterable[KernelRow]) -> list[KernelBatch]:
    """Stack rows that differ in extents only."""
    groups: dict[object, list[KernelRow]] = defaultdict(list)
    for row in rows:
        flags = (flags_of(op) for op in (*row.ops, *row.extra))
        groups[row.table, row.device.name, row.loop is None, *flags].append(row)
    return [
        KernelBatch(
            device=group[0].device,
            table=group[0].table,
            ids=tuple(row.id for row in group),
            ops=tuple(
                stacked([row.ops[index] for row in group], _array) for index in range(len(group[0].ops))
            ),
            extra=tuple(
                stacked([row.extra[index] for row in group], _array) for index in range(len(group[0].extra))
            ),
            seconds=np.array([row.seconds for row in group]),
            loop=_loops(group),
        )
        for group in groups.values()
    ]


def _loops(rows: Sequence[KernelRow]) -> tuple[Array, Array] | None:
    known = [row.loop for row in rows if row.loop is not None]
    return (np.array([item[0] for item in known]), np.array([item[1] for item in known])) if known else None


def _array(values: Iterable[float]) -> Array:
    return np.array([*values])

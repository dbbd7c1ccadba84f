"""Read measured kernels: each row of a table becomes operators and the seconds they took.

Rows that differ in extents only are stacked into operators with array extents, so that a fit prices them
with the very model that predicts. What a benchmark times besides the operators (a quantisation, a cache
write) becomes `extra` operators.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from forescale.errors import ReaderError
from forescale.graph.ops import AttentionCore, Compute, Elementwise, Gemm, GroupedGemm
from forescale.numeric import Array
from forescale.spec import Device

Op = TypeVar("Op", bound=Compute)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBatch:
    """Rows that one vectorised evaluation prices."""

    device: Device
    table: str
    ids: tuple[str, ...]
    ops: tuple[Compute, ...]
    extra: tuple[Elementwise, ...]
    seconds: Array


def read_kernels(path: Path, devices: Mapping[str, Device]) -> list[KernelRow]:
    """Return the compute rows of a kernel table (columns as in the validation corpus).

    Parameters
    ----------
    path
        CSV with id, hardware, kind, dtype, extents and `time_us` or `measured_tflops`.
    devices
        Device by the table's hardware name; rows of other hardware are left out.
    """
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    if not rows or "kind" not in rows[0]:
        raise ReaderError(path, "a kernel table needs the columns id, hardware, kind, dtype and time_us")
    parsed = (_row(row, devices[row["hardware"]]) for row in rows if row["hardware"] in devices)
    return [row for row in parsed if row is not None]


def _row(row: Mapping[str, str], device: Device) -> KernelRow | None:
    read = _READERS.get(row["kind"])
    found = read(row) if read else None
    if found is None:
        return None
    ops, extra, flops = found
    if row["time_us"]:
        seconds = float(row["time_us"]) * 1e-6
    elif row["measured_tflops"]:
        seconds = flops / (float(row["measured_tflops"]) * 1e12)
    else:
        return None
    table = row["id"].split("-")[0]
    return KernelRow(
        id=row["id"],
        table=table,
        device=device,
        library=row["library"],
        ops=ops,
        extra=extra,
        seconds=seconds,
    )


Parsed: TypeAlias = tuple[tuple[Compute, ...], tuple[Elementwise, ...], float]


def _gemm(row: Mapping[str, str]) -> Parsed | None:
    dtype = _dtype(row["dtype"])
    m, n, k = (float(row[key]) for key in ("m", "n", "k"))
    gradient = "fp32" in row["dtype"]
    # An fp32 main gradient is read and written (8 bytes) or only written (4) where bf16 output takes 2.
    accumulate = (6.0 if "accumulate=True" in row["notes"] else 2.0) if gradient else 0.0
    op = Gemm(m=m, n=n, k=k, dtype=dtype, batch=float(row["batch"] or 1), accumulate_bytes=accumulate)
    quantised = "activation quantisation included" in row["dtype"]
    # One scale per tensor takes a pass for its maximum before the pass that casts.
    per_element, passes = (5.0, 2.0) if dtype == "fp8" else (3.0, 1.0)
    cast = Elementwise(bytes_moved=m * k * per_element, family="cast", kernels=passes)
    extra = (cast,) if quantised else ()
    return (op,), extra, float(op.flops)


def _grouped(row: Mapping[str, str]) -> Parsed | None:
    groups = float(row["groups"])
    m, n, k = (float(row[key]) for key in ("m", "n", "k"))
    weight = row["op"] == "bwd_grad_w"
    accumulate = 6.0 if "accumulate=True" in row["notes"] else 0.0
    op = GroupedGemm(
        groups=groups,
        m=m * groups,
        n=n,
        k=k,
        dtype=_dtype(row["dtype"]),
        contract="m" if weight else "k",
        accumulate_bytes=accumulate,
    )
    return (op,), (), float(op.flops)


def _attention(row: Mapping[str, str]) -> Parsed | None:
    length, causal = float(row["seq_len"]), row["causal"] == "y"
    heads, flash = float(row["heads"]), row["library"] != "PyTorch unfused"
    forward = AttentionCore(
        batch=float(row["batch"]),
        heads=heads,
        kv_heads=float(row["kv_heads"] or heads),
        q_len=length,
        kv_len=length,
        pairs=length * length / 2 if causal else length * length,
        qk_dim=float(row["qk_head_dim"]),
        v_dim=float(row["v_head_dim"]),
        causal=causal,
        flash=flash,
    )
    backward = replace(forward, backward=True)
    ops = {"attention_fwd": (forward,), "attention_bwd": (backward,)}.get(row["kind"], (forward, backward))
    # Published rates count 2.5 forwards for the backward, fused or not.
    counted = {"attention_fwd": 1.0, "attention_bwd": 2.5}.get(row["kind"], 3.5)
    # The serving operator splits queries, keys and values and writes the cache: each read and written once.
    packed = (
        length
        * float(row["batch"])
        * (heads + 2.0 * float(row["kv_heads"] or heads))
        * float(row["qk_head_dim"])
    )
    cache = "incl. KV-cache write" in row["op"]
    extra = (Elementwise(bytes_moved=4.0 * packed, family="permute"),) if cache else ()
    return ops, extra, float(forward.flops) * counted


_READERS: dict[str, Callable[[Mapping[str, str]], Parsed | None]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped,
    "attention_fwd": _attention,
    "attention_bwd": _attention,
    "attention_fwd+bwd": _attention,
}


def _dtype(text: str) -> str:
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
    return text


def batches(rows: Iterable[KernelRow]) -> list[KernelBatch]:
    """Stack rows that differ in extents only."""
    groups: dict[object, list[KernelRow]] = defaultdict(list)
    for row in rows:
        groups[row.table, row.device.name, *(_shape_key(op) for op in (*row.ops, *row.extra))].append(row)
    return [
        KernelBatch(
            device=group[0].device,
            table=group[0].table,
            ids=tuple(row.id for row in group),
            ops=tuple(_stack([row.ops[index] for row in group]) for index in range(len(group[0].ops))),
            extra=tuple(_stack([row.extra[index] for row in group]) for index in range(len(group[0].extra))),
            seconds=np.array([row.seconds for row in group]),
        )
        for group in groups.values()
    ]


def _shape_key(op: Compute) -> tuple[object, ...]:
    flags = (getattr(op, item.name) for item in fields(op))
    return (
        type(op),
        *(flag for flag in flags if not isinstance(flag, float) or isinstance(flag, bool)),
        getattr(op, "accumulate_bytes", 0.0),
    )


def _stack(ops: Sequence[Op]) -> Op:
    extents: dict[str, Any] = {
        item.name: np.array([getattr(op, item.name) for op in ops], dtype=np.float64)
        for item in fields(ops[0])
        if isinstance(getattr(ops[0], item.name), float) and item.name not in {"accumulate_bytes", "kernels"}
    }
    return replace(ops[0], **extents)

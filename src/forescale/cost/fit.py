"""Fit the parameters of the compute models to measured kernels, within physical bounds.

A row of a kernel table becomes an operator and its measured seconds; rows of one device, family and data
type are stacked into one operator with array extents, so that the fit prices them with the very model that
predicts. What a benchmark times besides the operator (a quantisation, a cache write) is priced as
`extra` operators; what it adds per call is a nuisance constant of its source, fitted and dropped.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from forescale.cost.calibration import Calibration, Fit, Residual
from forescale.cost.model import ComputeModel
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


Parsed = tuple[tuple[Compute, ...], tuple[Elementwise, ...], float]


def _gemm(row: Mapping[str, str]) -> Parsed | None:
    dtype = _dtype(row["dtype"])
    m, n, k = (float(row[key]) for key in ("m", "n", "k"))
    gradient = "fp32" in row["dtype"]
    # An fp32 main gradient is read and written (8 bytes) or only written (4) where bf16 output takes 2.
    accumulate = (6.0 if "accumulate=True" in row["notes"] else 2.0) if gradient else 0.0
    op = Gemm(m=m, n=n, k=k, dtype=dtype, batch=float(row["batch"] or 1), accumulate_bytes=accumulate)
    quantised = "activation quantisation included" in row["dtype"]
    extra = (Elementwise(bytes_moved=m * k * 3.0, family="cast"),) if quantised else ()
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
    extra = ()
    return ops, extra, float(forward.flops) * counted


_READERS: dict[str, Callable[[Mapping[str, str]], Parsed | None]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped,
    "attention_fwd": _attention,
    "attention_bwd": _attention,
    "attention_fwd+bwd": _attention,
}


def _dtype(text: str) -> str:
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


def predicted(batch: KernelBatch, model: ComputeModel, *, call_s: float = 0.0) -> Array:
    """Return the seconds that `model` gives the rows of `batch`, with the benchmark's overhead `call_s`."""
    parts = [np.asarray(model.seconds(op), dtype=np.float64) for op in (*batch.ops, *batch.extra)]
    return np.asarray(np.sum(parts, axis=0) + call_s, dtype=np.float64)


def residual(
    batch_list: Sequence[KernelBatch],
    model: Callable[[Device], ComputeModel],
    *,
    source: str,
    call_s: float = 0.0,
) -> Residual:
    """Return the spread of ln(predicted / measured) over all rows of `batch_list`."""
    errors = np.concatenate(
        [np.log(predicted(item, model(item.device), call_s=call_s) / item.seconds) for item in batch_list]
    )
    return Residual(
        rows=errors.size,
        median_abs=_round(np.median(np.abs(errors))),
        bias=_round(np.median(errors)),
        p10=_round(np.quantile(errors, 0.1)),
        p90=_round(np.quantile(errors, 0.9)),
        source=source,
    )


def fitted_from(*, source: str, in_sample: Residual, held_out: Sequence[Residual] = ()) -> Fit:
    """Return a fit whose interval comes from the held-out rows, or else from the fitted ones."""
    checked = held_out or (in_sample,)
    low = float(np.exp(-max(item.p90 for item in checked)))
    high = float(np.exp(-min(item.p10 for item in checked)))
    return Fit(
        kind="fitted",
        source=source,
        in_sample=in_sample,
        held_out=tuple(held_out),
        low=_round(min(low, 1.0)),
        high=_round(max(high, 1.0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number to fit: where it starts and the physical bounds it stays within."""

    name: str
    start: float
    low: float
    high: float


def fit_parameters(
    batch_list: Sequence[KernelBatch],
    parameters: Sequence[Parameter],
    model: Callable[[Mapping[str, float], Device], ComputeModel],
    *,
    scale: float = 0.05,
) -> dict[str, float]:
    """Return the parameters that make ln(predicted / measured) smallest, outliers weighing linearly.

    `model` builds the cost model of a device from named parameters; "call_s", where it is listed, is the
    benchmark's own overhead per call and no parameter of the model.
    """
    from scipy.optimize import least_squares

    spans = np.array([item.high - item.low for item in parameters])
    lows = np.array([item.low for item in parameters])

    def errors(position: Array) -> Array:
        values = dict(zip((item.name for item in parameters), lows + position * spans, strict=True))
        call_s = values.pop("call_s", 0.0)
        logs = [
            np.log(predicted(item, model(values, item.device), call_s=call_s) / item.seconds)
            for item in batch_list
        ]
        return np.concatenate(logs)

    start = (np.array([item.start for item in parameters]) - lows) / spans
    found = least_squares(errors, start, bounds=(0.0, 1.0), loss="soft_l1", f_scale=scale, x_scale="jac")
    return {item.name: float(lows[i] + found.x[i] * spans[i]) for i, item in enumerate(parameters)}


def replaced(
    calibration: Calibration, section: str, key: str | None, values: Mapping[str, float]
) -> Calibration:
    """Return `calibration` with some parameters of one entry changed."""
    table = getattr(calibration, section)
    content: Any = replace(table, **values) if key is None else {**table, key: replace(table[key], **values)}
    return replace(calibration, **{section: content})


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)

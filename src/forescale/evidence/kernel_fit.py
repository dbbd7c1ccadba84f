"""Fit the parameters of the compute models to measured kernels, within physical bounds.

What a benchmark adds per call (a Python layer, a synchronisation), and how much more than its traffic a
quantisation timed with it costs, are nuisances of its table, fitted beside the parameters and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from forescale.cost.calibration import Calibration, Fit, Residual
from forescale.cost.model import ComputeModel
from forescale.cost.timings import KernelBatch
from forescale.evidence.least_squares import robust_least_squares
from forescale.numeric import Array
from forescale.spec import Device

ModelOf: TypeAlias = Callable[[Calibration, Device], ComputeModel]
"""Builds the cost model of a device from a calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number to fit: where it starts and the physical bounds it stays within."""

    name: str
    start: float
    low: float
    high: float


GEMM = (
    Parameter(name="fraction", start=0.75, low=0.3, high=1.0),
    Parameter(name="fill_k", start=64.0, low=0.0, high=1500.0),
    Parameter(name="tail", start=0.05, low=0.0, high=1.0),
    Parameter(name="launch_s", start=3e-6, low=1e-6, high=6e-6),
)
GROUPED = (
    Parameter(name="fraction", start=0.9, low=0.3, high=1.0),
    Parameter(name="group_s", start=1e-6, low=0.0, high=1e-5),
    Parameter(name="contract_m", start=0.85, low=0.3, high=1.0),
)
ATTENTION = (
    Parameter(name="fraction", start=0.75, low=0.1, high=1.0),
    Parameter(name="softmax_flops", start=150.0, low=0.0, high=1500.0),
    Parameter(name="fill", start=100.0, low=0.0, high=1000.0),
    Parameter(name="tail", start=0.3, low=0.0, high=1.0),
    Parameter(name="launch_s", start=4e-6, low=2e-6, high=1e-5),
)
TILE = (
    Parameter(name="fraction", start=0.8, low=0.3, high=1.0),
    Parameter(name="l2_bytes_per_clock", start=60.0, low=16.0, high=128.0),
    Parameter(name="fill_s", start=5e-7, low=0.0, high=3e-6),
    Parameter(name="tail", start=0.3, low=0.0, high=1.0),
    Parameter(name="epilogue", start=0.1, low=0.0, high=1.0),
    Parameter(name="launch_s", start=2e-6, low=1e-6, high=6e-6),
)
TILE_ATTENTION = (
    Parameter(name="fraction", start=0.8, low=0.1, high=1.0),
    Parameter(name="exp_per_clock", start=12.0, low=2.0, high=32.0),
    Parameter(name="overlap", start=0.5, low=0.0, high=1.0),
    Parameter(name="fill", start=1.0, low=0.0, high=8.0),
    Parameter(name="tail", start=0.5, low=0.0, high=1.0),
    Parameter(name="launch_s", start=4e-6, low=2e-6, high=1e-5),
)
MEMORY = (
    Parameter(name="bandwidth", start=0.75, low=0.05, high=1.0),
    Parameter(name="launch_s", start=3e-6, low=5e-7, high=5e-5),
)
UNFUSED = (
    Parameter(name="forward_bytes", start=12.0, low=4.0, high=60.0),
    Parameter(name="backward_bytes", start=12.0, low=4.0, high=60.0),
)
"""What is fitted of each family; bounds are physical (no rate above the peak, no negative cost)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Which parameters are fitted: a section of the calibration and, where it is a table, keys of it."""

    section: str
    keys: tuple[str, ...] = ()
    """Keys that share the parameters, such as ("bf16", "fp16")."""

    def changed(self, calibration: Calibration, values: Mapping[str, Any]) -> Calibration:
        """Return `calibration` with `values` in this entry."""
        table = getattr(calibration, self.section)
        content: Any = (
            replace(table, **values)
            if not self.keys
            else {**table, **{key: replace(table[key], **values) for key in self.keys}}
        )
        return replace(calibration, **{self.section: content})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A calibration and the nuisances of benchmarks that were fitted beside it."""

    calibration: Calibration
    call_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds per call by table."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Factor on the duration of extra operators by table."""


def fit_entry(
    calibration: Calibration,
    entry: Entry,
    rows: Sequence[KernelBatch],
    parameters: Sequence[Parameter],
    model: ModelOf,
    *,
    calls: Sequence[str] = (),
    extras: Sequence[str] = (),
    scale: float = 0.05,
    pull: float = 0.0,
) -> Fitted:
    """Return `calibration` with `entry` fitted to `rows`: least ln(predicted / measured), outliers linear.

    Parameters
    ----------
    calls
        Tables whose rows hold an unknown constant per call.
    extras
        Tables whose extra operators cost an unknown multiple of what the model says.
    scale
        Error from which a row weighs linearly instead of squared.
    pull
        Error that moving a parameter over its whole range would have to save: it holds what rows do not tell.
    """
    constants = [Parameter(name=f"call {table}", start=3e-6, low=0.0, high=3e-5) for table in calls]
    factors = [Parameter(name=f"extra {table}", start=1.0, low=0.3, high=5.0) for table in extras]
    free = (*parameters, *constants, *factors)
    lows = np.array([item.low for item in free])
    spans = np.array([item.high for item in free]) - lows

    def place(position: Array) -> Fitted:
        values = {item.name: float(lows[i] + position[i] * spans[i]) for i, item in enumerate(free)}
        call_s = {table: values.pop(f"call {table}") for table in calls}
        extra = {table: values.pop(f"extra {table}") for table in extras}
        return Fitted(calibration=entry.changed(calibration, values), call_s=call_s, extra=extra)

    start = (np.array([item.start for item in free]) - lows) / spans
    held = len(parameters)

    def objective(position: Array) -> Array:
        misfit = errors(rows, place(position), model)
        return np.concatenate([misfit, pull * (position - start)[:held]]) if pull else misfit

    return place(
        robust_least_squares(objective, start, np.zeros_like(start), np.ones_like(start), scale=scale)
    )


def errors(rows: Sequence[KernelBatch], fitted: Fitted, model: ModelOf) -> Array:
    """Return ln(predicted / measured) of all rows."""
    logs = []
    for batch in rows:
        seconds = predicted(
            batch, model(fitted.calibration, batch.device), extra=fitted.extra.get(batch.table, 1.0)
        )
        logs.append(np.log((seconds + fitted.call_s.get(batch.table, 0.0)) / batch.seconds))
    return np.concatenate(logs) if logs else np.zeros(0)


def predicted(batch: KernelBatch, model: ComputeModel, *, extra: float = 1.0) -> Array:
    """Return the seconds that `model` gives the rows of `batch`, those of extra operators times `extra`."""
    parts = [np.asarray(model.seconds(op), dtype=np.float64) for op in batch.ops]
    parts += [np.asarray(model.seconds(op), dtype=np.float64) * extra for op in batch.extra]
    return np.asarray(np.sum(np.broadcast_arrays(*parts), axis=0), dtype=np.float64)


def residual(logs: Array, *, source: str) -> Residual:
    """Return the spread of ln(predicted / measured)."""
    p10, median, p90 = (_round(value) for value in np.quantile(logs, (0.1, 0.5, 0.9)))
    return Residual(
        rows=int(logs.size),
        median_abs=_round(np.median(np.abs(logs))),
        bias=median,
        p10=p10,
        p90=p90,
        source=source,
    )


def fit_record(
    *,
    source: str,
    in_sample: Residual,
    held_out: Sequence[Residual] = (),
    interval: Residual | None = None,
    machines: Sequence[str] = (),
) -> Fit:
    """Return the record of a fit whose interval comes from `interval`, or else from the fitted rows."""
    spread = interval or in_sample
    return Fit(
        kind="fitted",
        source=source,
        in_sample=in_sample,
        held_out=tuple(held_out),
        low=_round(min(np.exp(-spread.p90), 1.0)),
        high=_round(max(np.exp(-spread.p10), 1.0)),
        machines=tuple(machines),
    )


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)

"""Fit the efficiencies of one device to its timed kernels, held near what is known of its generation.

What a benchmark adds per call (a Python layer, a synchronisation) is a nuisance of its table, fitted beside the
parameters and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import field
from msgspec.structs import replace

from forescale.cost.calibration import Calibration
from forescale.cost.measured import Measurements
from forescale.cost.model import ComputeModel
from forescale.cost.roofline import Roofline, peak_rate
from forescale.cost.tile import TileModel
from forescale.cost.timings import KernelBatch, KernelRow, batches
from forescale.errors import SpecError, not_measured, other_run
from forescale.files import packaged
from forescale.graph.ops import AttentionCore, Compute, EagerKernel, Elementwise, Gemm, GroupedGemm
from forescale.numeric import Array
from forescale.spec import Device
from forescale.struct import Struct
from forescale.units import counted
from forescale.validation.entries import FEWEST, EntryFit, Left, fit_and_check, moves_of
from forescale.validation.least_squares import robust_least_squares

ModelOf: TypeAlias = Callable[[Calibration, Device], Roofline]
"""Builds the cost model of a device from a calibration."""


class FittedKernelParameter(Struct, frozen=True, kw_only=True):
    """One number to fit: where it starts and the physical bounds it stays within."""

    name: str
    start: float
    low: float
    high: float
    prior: float | None = None
    """What is known of it before the rows; None is nothing but the bounds."""
    spread: float = 0.0
    """Standard deviation of that."""


def _parameters(family: str) -> tuple[FittedKernelParameter, ...]:
    rows = packaged("fit_bounds")["kernels"][family].items()
    return tuple(
        FittedKernelParameter(name=name, start=start, low=low, high=high) for name, (start, low, high) in rows
    )


GEMM, POWER, GROUPED, TILE, MEMORY, UNFUSED = map(
    _parameters, ("gemm", "power", "grouped", "tile", "memory", "unfused")
)
ATTENTION, TILE_ATTENTION = _parameters("attention"), _parameters("tile_attention")
(PADDING,) = _parameters("padding")
"""What is fitted of each family; bounds are physical (no rate above the peak, no negative cost)."""


class Entry(Struct, frozen=True, kw_only=True):
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


class FittedEntry(Struct, frozen=True, kw_only=True):
    """A calibration and the nuisances of benchmarks that were fitted beside it."""

    calibration: Calibration
    call_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds per call by table."""


def fit_entry(
    calibration: Calibration,
    entry: Entry,
    rows: Sequence[KernelBatch],
    parameters: Sequence[FittedKernelParameter],
    model: ModelOf,
    *,
    calls: Sequence[str] = (),
    scale: float = 0.05,
    pull: float = 0.0,
) -> FittedEntry:
    """Return `calibration` with `entry` fitted to `rows`: least ln(predicted / measured), outliers linear.

    A parameter one spread away from its prior counts as much as a row that is off by `scale`.

    Parameters
    ----------
    calls
        Tables whose rows hold an unknown constant per call.
    scale
        Error from which a row weighs linearly instead of squared.
    pull
        Error that moving a parameter over its whole range would have to save: it holds what rows do not tell.
    """
    constants = [
        FittedKernelParameter(name=f"call {table}", start=3e-6, low=0.0, high=3e-5) for table in calls
    ]
    free = (*parameters, *constants)
    lows = np.array([item.low for item in free])
    spans = np.array([item.high for item in free]) - lows

    def place(position: Array) -> FittedEntry:
        values = {item.name: float(lows[i] + position[i] * spans[i]) for i, item in enumerate(free)}
        call_s = {table: values.pop(f"call {table}") for table in calls}
        return FittedEntry(calibration=entry.changed(calibration, values), call_s=call_s)

    start = (np.array([item.start for item in free]) - lows) / spans
    num_parameters = len(parameters)

    known = [(nth, item) for nth, item in enumerate(free) if item.prior is not None]

    def objective(position: Array) -> Array:
        values = lows + position * spans
        away = [scale * (values[nth] - item.prior) / item.spread for nth, item in known]
        violation = np.concatenate([errors(rows, place(position), model), away])
        return np.concatenate([violation, pull * (position - start)[:num_parameters]]) if pull else violation

    return place(
        robust_least_squares(objective, start, np.zeros_like(start), np.ones_like(start), scale=scale)
    )


def errors(rows: Sequence[KernelBatch], fitted: FittedEntry, model: ModelOf) -> Array:
    """Return ln(predicted / measured) of all rows."""
    logs = []
    for batch in rows:
        seconds = predicted(batch, replace(model(fitted.calibration, batch.device), loop=batch.loop))
        logs.append(np.log((seconds + fitted.call_s.get(batch.table, 0.0)) / batch.seconds))
    return np.concatenate(logs) if logs else np.zeros(0)


def predicted(batch: KernelBatch, model: ComputeModel) -> Array:
    """Return the seconds that `model` gives the rows of `batch`."""
    parts = [np.asarray(model.seconds(op), dtype=np.float64) for op in (*batch.ops, *batch.extra)]
    return np.asarray(np.sum(np.broadcast_arrays(*parts), axis=0), dtype=np.float64)


Wanted: TypeAlias = tuple[Entry, tuple[FittedKernelParameter, ...], ModelOf]
PULL = 0.2
"""What moving a parameter from end to end of its range must save, in errors: four rows that are 5 % off; a choice."""


class KernelFits(Struct, frozen=True, kw_only=True):
    """A calibration of one device's kernels, and what it took to get there."""

    calibration: Calibration
    entries: tuple[EntryFit, ...]
    left: tuple[Left, ...]


def rows_of(measurements: Sequence[Measurements], device: Device) -> list[KernelRow]:
    """Return the timed kernels of several files as rows of `device`; each file is a source of its own.

    Raises
    ------
    SpecError
        If a file says that it was measured on another device.
    """
    result = []
    for one in measurements:
        if one.device and one.device != device.name:
            raise other_run(one.source, one.device, device.name)
        for number, (op, seconds) in enumerate(one.kernels):
            result.append(
                KernelRow(
                    id=f"{one.source}:{number}",
                    table=one.source,
                    device=device,
                    library="",
                    ops=(op,),
                    extra=(),
                    seconds=seconds,
                )
            )
    return result


def fit_kernels(
    rows: Sequence[KernelRow],
    base: Calibration,
    device: Device,
    *,
    name: str,
    date: str,
    per_call: bool = False,
) -> KernelFits:
    """Return `base` with every entry that `rows` time fitted to them.

    Parameters
    ----------
    rows
        Timed kernels of `device`, one operator each.
    name, date
        What the calibration is called, and when it was made.
    per_call
        Whether rows hold an unknown constant per call (a synchronisation, a Python layer): one per file is
        fitted beside the parameters, and dropped.

    Raises
    ------
    SpecError
        If there are too few timed kernels, or the device has no rate for a type.
    """
    if not rows:
        raise not_measured("the table", f"kernels of {device.name}")
    files = ", ".join(sorted({row.table for row in rows}))
    source = f"{files} around calibration {base.name}"
    calibration = replace(base, name=name, date=date, source=source, doubt=0.0)
    groups: dict[tuple[int, str], list[KernelRow]] = {}
    for row in rows:
        groups.setdefault(_family(row.ops[0]), []).append(row)
    entries: list[EntryFit] = []
    left: list[Left] = []
    for (_, family), members in sorted(groups.items()):
        if len(members) < FEWEST:
            reason = f"fewer than {FEWEST} rows"
            left.append(Left(path=f"kernels.{device.name}.{family}", rows=len(members), reason=reason))
            continue
        for item in _wanted(members[0].ops[0], device):
            calibration, entry = _fit_one(members, calibration, device, item, per_call=per_call)
            entries.append(entry)
    if not entries:
        msg = f"no kind of kernel on {device.name} was timed {FEWEST} times; the files have {counted(len(rows), 'row')}"
        raise SpecError(msg)
    return KernelFits(calibration=calibration, entries=tuple(entries), left=tuple(left))


def _family(op: Compute) -> tuple[int, str]:
    """Return the order of fitting, and the entry's section and key; grouped products follow the dense ones."""
    match op:
        case Gemm():
            return 0, f"gemm.{op.dtype}"
        case GroupedGemm():
            return 1, "grouped"
        case AttentionCore():
            return 2, f"attention.{_direction(op)}" if op.flash else "unfused"
        case Elementwise():
            return 3, f"memory.{op.family}"
        case EagerKernel():
            raise SpecError(f"{op.operator} was recorded; only kernels that a bench timed are fitted")


def _wanted(op: Compute, device: Device) -> tuple[Wanted, ...]:
    """Return the entries that kernels like `op` fit: of the roofline, and of the tile model where it has its own."""
    match op:
        case Gemm():
            peak_rate(device, op.dtype)  # says so where the device has none
            return (
                (Entry(section="gemm", keys=(op.dtype,)), GEMM, _roofline),
                (Entry(section="tile", keys=(op.dtype,)), TILE, _tile),
            )
        case GroupedGemm():
            return ((Entry(section="grouped"), GROUPED, _roofline),)
        case AttentionCore():
            if not op.flash:
                return ((Entry(section="unfused"), UNFUSED, _roofline),)
            keys = (_direction(op),)
            return (
                (Entry(section="attention", keys=keys), ATTENTION, _roofline),
                (Entry(section="tile_attention", keys=keys), TILE_ATTENTION, _tile),
            )
        case Elementwise():
            return ((Entry(section="memory", keys=(op.family,)), MEMORY, _roofline),)
        case EagerKernel():
            raise SpecError(f"{op.operator} was recorded; only kernels that a bench timed are fitted")


def _fit_one(
    rows: Sequence[KernelRow], base: Calibration, device: Device, requested: Wanted, *, per_call: bool
) -> tuple[Calibration, EntryFit]:
    entry, parameters, model = requested
    known = _values(base, entry, parameters)
    near = tuple(replace(item, start=min(max(known[item.name], item.low), item.high)) for item in parameters)

    def fitted_to(train: Sequence[KernelRow]) -> FittedEntry:
        calls = sorted({row.table for row in train}) if per_call else []
        return fit_entry(base, entry, batches(train), near, model, calls=calls, pull=PULL)

    def misses(test: Sequence[KernelRow], fitted: FittedEntry) -> Array:
        return errors(batches(test), fitted, model)

    and_check = fit_and_check(rows, FittedEntry(calibration=base), fitted_to, misses, lambda row: row.table)
    values = {
        key: float(f"{value:.4g}")
        for key, value in _values(and_check.fitted.calibration, entry, near).items()
    }
    calibration = _current(entry.changed(base, {**values, "fit": and_check.record(device.name)}), entry)
    path = ".".join(("kernels", device.name, entry.section, *entry.keys))
    moves = moves_of(path, known, values, {item.name: item.high - item.low for item in near})
    return calibration, and_check.entry(path, moves)


def _values(
    calibration: Calibration, entry: Entry, parameters: Sequence[FittedKernelParameter]
) -> Mapping[str, float]:
    table = getattr(calibration, entry.section)
    source = table[entry.keys[0]] if entry.keys else table
    return {item.name: float(getattr(source, item.name)) for item in parameters}


def _current(calibration: Calibration, entry: Entry) -> Calibration:
    """Return the calibration with measured attention for the older kernels too: what was timed is what runs."""
    if entry.section not in {"attention", "tile_attention"}:
        return calibration
    table = getattr(calibration, entry.section)
    (direction,) = entry.keys
    older = {key: table[direction] for key in table if key.startswith(f"{direction} ")}
    changed: dict[str, Any] = {entry.section: {**table, **older}}
    return replace(calibration, **changed)


def _direction(op: AttentionCore) -> str:
    return "backward" if op.backward else "forward"


def _roofline(calibration: Calibration, device: Device) -> Roofline:
    return Roofline(device=device, calibration=calibration)


def _tile(calibration: Calibration, device: Device) -> TileModel:
    return TileModel(device=device, calibration=calibration)

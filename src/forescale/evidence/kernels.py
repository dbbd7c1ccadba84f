"""Fit the efficiencies of one device to its timed kernels, held near what is known of its generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from forescale.cost.calibration import Calibration
from forescale.cost.measured import Measurements
from forescale.cost.roofline import Roofline, peak_rate
from forescale.cost.tile import TileModel
from forescale.cost.timings import KernelRow, batches
from forescale.errors import SpecError
from forescale.evidence import kernel_fit as fit
from forescale.evidence.entries import FEWEST, EntryFit, fit_and_check, moves_of
from forescale.evidence.runs import Left
from forescale.graph.ops import AttentionCore, Compute, Elementwise, Gemm, GroupedGemm
from forescale.numeric import Array
from forescale.spec import Device
from forescale.units import counted

PULL = 0.2
"""What moving a parameter from end to end of its range must save, in errors: four rows that are 5 % off; a choice."""
Wanted: TypeAlias = tuple[fit.Entry, tuple[fit.Parameter, ...], fit.ModelOf]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFits:
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
    found = []
    for one in measurements:
        if one.device and one.device != device.name:
            msg = f"{one.source} was measured on {one.device}; the fit is of {device.name}"
            raise SpecError(msg)
        for number, (op, seconds) in enumerate(one.kernels):
            found.append(
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
    return found


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
        msg = f"there are no timed kernels of {device.name} to fit to"
        raise SpecError(msg)
    files = ", ".join(sorted({row.table for row in rows}))
    calibration = replace(base, name=name, date=date, source=f"{files} around calibration {base.name}")
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
        for wanted in _wanted(members[0].ops[0], device):
            calibration, entry = _fit_one(members, calibration, device, wanted, per_call=per_call)
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


def _wanted(op: Compute, device: Device) -> tuple[Wanted, ...]:
    """Return the entries that kernels like `op` fit: of the roofline, and of the tile model where it has its own."""
    match op:
        case Gemm():
            peak_rate(device, op.dtype)  # says so where the device has none
            return (
                (fit.Entry(section="gemm", keys=(op.dtype,)), fit.GEMM, _roofline),
                (fit.Entry(section="tile", keys=(op.dtype,)), fit.TILE, _tile),
            )
        case GroupedGemm():
            return ((fit.Entry(section="grouped"), fit.GROUPED, _roofline),)
        case AttentionCore():
            if not op.flash:
                return ((fit.Entry(section="unfused"), fit.UNFUSED, _roofline),)
            keys = (_direction(op),)
            return (
                (fit.Entry(section="attention", keys=keys), fit.ATTENTION, _roofline),
                (fit.Entry(section="tile_attention", keys=keys), fit.TILE_ATTENTION, _tile),
            )
        case Elementwise():
            return ((fit.Entry(section="memory", keys=(op.family,)), fit.MEMORY, _roofline),)


def _fit_one(
    rows: Sequence[KernelRow], base: Calibration, device: Device, wanted: Wanted, *, per_call: bool
) -> tuple[Calibration, EntryFit]:
    entry, parameters, model = wanted
    known = _values(base, entry, parameters)
    near = tuple(replace(item, start=min(max(known[item.name], item.low), item.high)) for item in parameters)

    def fitted_to(train: Sequence[KernelRow]) -> fit.Fitted:
        calls = sorted({row.table for row in train}) if per_call else []
        return fit.fit_entry(base, entry, batches(train), near, model, calls=calls, pull=PULL)

    def misses(test: Sequence[KernelRow], fitted: fit.Fitted) -> Array:
        return fit.errors(batches(test), fitted, model)

    found = fit_and_check(rows, fit.Fitted(calibration=base), fitted_to, misses, lambda row: row.table)
    values = {
        key: float(f"{value:.4g}") for key, value in _values(found.fitted.calibration, entry, near).items()
    }
    calibration = _current(entry.changed(base, {**values, "fit": found.record(device.name)}), entry)
    path = ".".join(("kernels", device.name, entry.section, *entry.keys))
    moves = moves_of(path, known, values, {item.name: item.high - item.low for item in near})
    return calibration, found.entry(path, moves)


def _values(
    calibration: Calibration, entry: fit.Entry, parameters: Sequence[fit.Parameter]
) -> Mapping[str, float]:
    table = getattr(calibration, entry.section)
    source = table[entry.keys[0]] if entry.keys else table
    return {item.name: float(getattr(source, item.name)) for item in parameters}


def _current(calibration: Calibration, entry: fit.Entry) -> Calibration:
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

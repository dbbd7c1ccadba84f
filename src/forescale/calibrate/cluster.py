"""Calibrate one cluster with a few runs of its own: small moves around what is already known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forescale.calibrate.dataset import Run, measured_of
from forescale.calibrate.fit import fit
from forescale.calibrate.parameters import Parameter, value_at
from forescale.calibrate.report import Move, moves, spread_of
from forescale.cost.run_calibration import DeviceFactors, RunCalibration, Spread
from forescale.errors import SpecError
from forescale.numeric import Array

SCALE = 0.03
"""Error of one run that noise alone explains (logarithm); a choice."""
DEVICE_SPREAD, SOFTWARE_SPREAD, SHARED_SPREAD = 0.12, 0.2, 0.15
"""How far a cluster is expected to lie from published runs (logarithm); a choice near their held-out errors."""
RATES = ("wide", "narrow", "narrowest", "attention")
OVERHEADS = ("passes", "kernel_interval_s", "microbatch_overhead_s")
FLOOR = 0.5
"""Share of the known interval that few runs cannot narrow further; a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCalibration:
    """A calibration of one cluster, and what it took to get there."""

    calibration: RunCalibration
    moves: tuple[Move, ...]
    before: Array
    """ln(measured / predicted) of every run before the fit."""
    after: Array


def calibrate_cluster(
    runs: Sequence[Run], base: RunCalibration, *, name: str, date: str, source: str
) -> ClusterCalibration:
    """Return `base` moved towards a few runs of one cluster.

    Only factors that the runs touch move, each held near its value in `base`.

    Raises
    ------
    SpecError
        If there is no run, or runs of several devices.
    """
    devices = {run.case.question.cluster.device.name for run in runs}
    if len(devices) != 1:
        found = ", ".join(sorted(devices)) or "none"
        msg = (
            f"a cluster is calibrated with runs of one device; the runs are on {found}: leave out the others"
        )
        raise SpecError(msg)
    device = runs[0].case.question.cluster.device
    known = base.devices.get(device.name) or base.devices.get(device.architecture)
    known = known or base.devices.get("generic", DeviceFactors())
    own = replace(base, devices={**base.devices, device.name: known})
    parameters = _parameters(own, device.name, sorted({run.software for run in runs}))
    before = measured_of(runs) - np.array([run.log_predicted(own)[0] for run in runs])
    fitted = fit(runs, own, parameters, scale=SCALE)
    after = measured_of(runs) - fitted.linear.predicted
    held_out = {**base.held_out, device.name: _interval(base, device.architecture, after)}
    calibration = replace(
        fitted.calibration,
        name=name,
        date=date,
        source=source,
        in_sample={device.name: spread_of(after)},
        held_out=held_out,
    )
    return ClusterCalibration(
        calibration=calibration,
        moves=tuple(moves(own, calibration, parameters)),
        before=before,
        after=after,
    )


def _parameters(base: RunCalibration, device: str, software: Sequence[str]) -> tuple[Parameter, ...]:
    found = [_near(base, f"devices.{device}.{field}", DEVICE_SPREAD, high=1.3) for field in RATES]
    found += [
        _near(base, f"software.{name}.{field}", SOFTWARE_SPREAD) for name in software for field in OVERHEADS
    ]
    found += [
        _near(base, f"shared.{field}", SHARED_SPREAD, high=1.0)
        for field in ("network", "dispatch", "grouped")
    ]
    found.append(_near(base, "shared.contention", SOFTWARE_SPREAD, high=1.0))
    return tuple(item for item in found if item.prior > 0.0)


def _near(base: RunCalibration, path: str, spread: float, *, high: float = np.inf) -> Parameter:
    value = value_at(base, path)
    return Parameter(
        path=path,
        prior=value,
        spread=spread,
        low=value * float(np.exp(-4.0 * spread)),
        high=max(value, min(value * float(np.exp(4.0 * spread)), high)),
    )


def _interval(base: RunCalibration, architecture: str, errors: Array) -> Spread:
    """Return the interval of the cluster: that of its own errors, but not below half of what is known."""
    own = spread_of(errors)
    groups = [spread for name, spread in base.held_out.items() if name.startswith(f"{architecture}/")]
    known = groups[0] if groups else base.held_out.get("all", own)
    return replace(own, p10=min(own.p10, FLOOR * known.p10), p90=max(own.p90, FLOOR * known.p90))

"""Regularised, bounded and robust least squares on ln(predicted / measured): Gauss-Newton with priors.

All derivatives of a run come from one vectorised projection, one candidate per parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from forescale.cost.calibration import Spread
from forescale.cost.run_calibration import DeviceFactors, RunCalibration
from forescale.errors import differs
from forescale.numeric import Array
from forescale.struct import Struct
from forescale.validation.entries import Move
from forescale.validation.least_squares import bounded_least_squares
from forescale.validation.runs import (
    CalibrationRun,
    RunParameter,
    logs_of,
    measured_of,
    predict,
    value_at,
    weights_of,
    with_logs,
)

DIFFERENCE = 0.02
"""Step of a parameter's logarithm for its derivative."""
LONGEST_STEP = 0.4
CLOSE_ENOUGH = 0.01
REWEIGHTINGS = 8


class Linear(Struct, frozen=True, kw_only=True):
    """Predictions around one set of parameters."""

    logs: Array
    """(parameters,)"""
    predicted: Array
    """(runs,) ln of seconds."""
    jacobian: Array
    """(runs, parameters)"""


class Fitted(Struct, frozen=True, kw_only=True):
    """A calibration and the linear model it ended with."""

    calibration: RunCalibration
    linear: Linear


def linearise(
    runs: Sequence[CalibrationRun], base: RunCalibration, parameters: Sequence[RunParameter], logs: Array
) -> Linear:
    """Return predictions and derivatives at `logs`; steps go away from an upper bound."""
    highs = np.log([item.high for item in parameters])
    steps = np.where(logs + DIFFERENCE <= highs, DIFFERENCE, -DIFFERENCE)
    count = len(parameters) + 1
    grid = np.repeat(logs[:, None], count, axis=1)
    grid[np.arange(count - 1), np.arange(1, count)] += steps
    values = predict(runs, with_logs(base, parameters, grid), count)
    return Linear(
        logs=logs, predicted=values[:, 0], jacobian=(values[:, 1:] - values[:, :1]) / steps[None, :]
    )


def fit(
    runs: Sequence[CalibrationRun],
    base: RunCalibration,
    parameters: Sequence[RunParameter],
    *,
    scale: float,
    rounds: int = 6,
) -> Fitted:
    """Return the calibration that predicts `runs` best, starting from `base`.

    Parameters
    ----------
    scale
        Standard deviation of one run's error (logarithm); larger errors weigh linearly.
    """
    measured, weights = measured_of(runs), weights_of(runs)
    lows, highs = (np.log([getattr(item, end) for item in parameters]) for end in ("low", "high"))
    logs = np.clip(logs_of(base, parameters), lows, highs)
    linear = linearise(runs, base, parameters, logs)
    for _ in range(rounds):
        step = np.clip(
            best_step(linear, measured, weights, parameters, scale=scale), -LONGEST_STEP, LONGEST_STEP
        )
        linear = linearise(runs, base, parameters, np.clip(linear.logs + step, lows, highs))
        if np.max(np.abs(step)) < CLOSE_ENOUGH:
            break
    return Fitted(calibration=with_logs(base, parameters, linear.logs), linear=linear)


def best_step(
    linear: Linear, measured: Array, weights: Array, parameters: Sequence[RunParameter], *, scale: float
) -> Array:
    """Return the change of the parameters' logarithms that the linear model likes best."""
    priors, spreads = (np.array([getattr(item, name) for item in parameters]) for name in ("prior", "spread"))
    lows, highs = (
        np.log([getattr(item, end) for item in parameters]) - linear.logs for end in ("low", "high")
    )
    errors = linear.predicted - measured
    kept = np.diag(1.0 / spreads) @ (np.eye(len(parameters)) - _leaders(parameters))
    away = np.log(priors) / spreads - kept @ linear.logs
    step = np.zeros(len(parameters))
    for _ in range(REWEIGHTINGS):
        left = (errors + linear.jacobian @ step) / scale
        # Weights of the soft-l1 loss 2(√(1 + x²) − 1).
        strength = np.sqrt(weights / np.sqrt(1.0 + left * left)) / scale
        matrix = np.concatenate([linear.jacobian * strength[:, None], kept])
        target = np.concatenate([-errors * strength, away])
        step = bounded_least_squares(matrix, target, lows, highs)
    return step


def _leaders(parameters: Sequence[RunParameter]) -> Array:
    """Return (parameters, parameters): 1 where the prior of one is stated as a multiple of another."""
    paths = [item.path for item in parameters]
    return np.array([[float(item.like == path) for path in paths] for item in parameters])


DIGITS = 4


def moves(before: RunCalibration, after: RunCalibration, parameters: Sequence[RunParameter]) -> list[Move]:
    """Return how the parameters moved, the largest relative change first."""
    result = [
        Move(
            path=item.path,
            before=value_at(before, item.path),
            after=value_at(after, item.path),
        )
        for item in parameters
    ]
    return sorted(result, key=lambda move: -abs(float(np.log(move.after / move.before))))


def spread_of(errors: Array, weights: Array | None = None) -> Spread:
    """Return the spread of ln(measured / predicted), weighted where weights are given."""
    weights = np.ones(len(errors)) if weights is None else weights
    low, middle, high = quantiles(errors, weights, (0.1, 0.5, 0.9))
    return Spread(
        rows=len(errors),
        median_abs=round(quantiles(np.abs(errors), weights, (0.5,))[0], DIGITS),
        bias=round(middle, DIGITS),
        p10=round(low, DIGITS),
        p90=round(high, DIGITS),
    )


def quantiles(values: Array, weights: Array, shares: Sequence[float]) -> list[float]:
    """Return weighted quantiles, each value in the middle of its weight."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - 0.5 * weights[order]
    interp = np.interp(np.array(shares) * np.sum(weights), below, values[order])
    return [float(value) for value in interp]


def rounded(item: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return numbers in tables within tables to four digits."""
    if isinstance(item, Mapping):
        return {key: rounded(value) for key, value in item.items()}
    return float(f"{item:.{DIGITS}g}") if isinstance(item, float) else item


SCALE = 0.03
"""Error of one run that noise alone explains (logarithm); a choice."""
DEVICE_SPREAD, SOFTWARE_SPREAD, SHARED_SPREAD = 0.12, 0.2, 0.15
"""How far a cluster is expected to lie from published runs (logarithm); a choice near their held-out errors."""
RATES = ("wide", "narrow", "narrowest", "attention")
OVERHEADS = ("passes", "kernel_interval_s", "microbatch_overhead_s")
FLOOR = 0.5
"""Share of the known interval that few runs cannot narrow further; a choice."""


class ClusterCalibration(Struct, frozen=True, kw_only=True):
    """A calibration of one cluster, and what it took to get there."""

    calibration: RunCalibration
    moves: tuple[Move, ...]
    before: Array
    """ln(measured / predicted) of every run before the fit."""
    after: Array


def calibrate_cluster(
    runs: Sequence[CalibrationRun], base: RunCalibration, *, name: str, date: str, source: str
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
        result = ", ".join(sorted(devices)) or "none"
        allowed = "of one device"
        raise differs("the device of the runs", result, "a calibration", allowed, "leave out the others")
    device = runs[0].case.question.cluster.device
    known = base.devices.get(device.name) or base.devices.get(device.architecture)
    known = known or base.devices.get("generic", DeviceFactors())
    local = replace(base, devices={**base.devices, device.name: known})
    parameters = _parameters(local, device.name, sorted({run.software for run in runs}))
    before = measured_of(runs) - np.array([run.log_predicted(local)[0] for run in runs])
    fitted = fit(runs, local, parameters, scale=SCALE)
    after = measured_of(runs) - fitted.linear.predicted
    calibration = replace(
        fitted.calibration,
        name=name,
        date=date,
        source=source,
        own={**base.own, device.name: _interval(base, runs, after)},
    )
    return ClusterCalibration(
        calibration=calibration,
        moves=tuple(moves(local, calibration, parameters)),
        before=before,
        after=after,
    )


def _parameters(base: RunCalibration, device: str, software: Sequence[str]) -> tuple[RunParameter, ...]:
    nears = [_near(base, f"devices.{device}.{field}", DEVICE_SPREAD, high=1.3) for field in RATES]
    nears += [
        _near(base, f"software.{name}.{field}", SOFTWARE_SPREAD) for name in software for field in OVERHEADS
    ]
    nears += [
        _near(base, f"shared.{field}", SHARED_SPREAD, high=1.0)
        for field in ("network", "dispatch", "grouped")
    ]
    nears.append(_near(base, "shared.contention", SOFTWARE_SPREAD, high=1.0))
    return tuple(item for item in nears if item.prior > 0.0)


def _near(base: RunCalibration, path: str, spread: float, *, high: float = np.inf) -> RunParameter:
    value = value_at(base, path)
    return RunParameter(
        path=path,
        prior=value,
        spread=spread,
        low=value * float(np.exp(-4.0 * spread)),
        high=max(value, min(value * float(np.exp(4.0 * spread)), high)),
    )


def _interval(base: RunCalibration, runs: Sequence[CalibrationRun], errors: Array) -> Spread:
    """Return the interval of the cluster: that of its own errors, but not below half of what is known."""
    spread, question = spread_of(errors), runs[0].case.question
    compute = question.workload.precision.compute
    known = base.spread(
        question.cluster.device,
        compute,
        moe=question.model.is_moe,
        novelty="new family",
        software=runs[0].software,
    )
    return replace(spread, p10=min(spread.p10, FLOOR * known.p10), p90=max(spread.p90, FLOOR * known.p90))

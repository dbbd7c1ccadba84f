"""Regularised, bounded and robust least squares on ln(predicted / measured): Gauss-Newton with priors.

All derivatives of a run come from one vectorised projection, one candidate per parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forescale.calibrate.dataset import Run, measured_of, predict, weights_of
from forescale.calibrate.least_squares import bounded_least_squares
from forescale.calibrate.parameters import Parameter, logs_of, with_logs
from forescale.cost.run_calibration import RunCalibration
from forescale.numeric import Array

DIFFERENCE = 0.02
"""Step of a parameter's logarithm for its derivative."""
LONGEST_STEP = 0.4
CLOSE_ENOUGH = 0.01
REWEIGHTINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Predictions around one set of parameters."""

    logs: Array
    """(parameters,)"""
    predicted: Array
    """(runs,) ln of seconds."""
    jacobian: Array
    """(runs, parameters)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A calibration and the linear model it ended with."""

    calibration: RunCalibration
    linear: Linear


def linearise(
    runs: Sequence[Run], base: RunCalibration, parameters: Sequence[Parameter], logs: Array
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
    runs: Sequence[Run],
    base: RunCalibration,
    parameters: Sequence[Parameter],
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
    linear: Linear, measured: Array, weights: Array, parameters: Sequence[Parameter], *, scale: float
) -> Array:
    """Return the change of the parameters' logarithms that the linear model likes best."""
    priors, spreads = (np.array([getattr(item, name) for item in parameters]) for name in ("prior", "spread"))
    lows, highs = (
        np.log([getattr(item, end) for item in parameters]) - linear.logs for end in ("low", "high")
    )
    errors = linear.predicted - measured
    away = (np.log(priors) - linear.logs) / spreads
    step = np.zeros(len(parameters))
    for _ in range(REWEIGHTINGS):
        left = (errors + linear.jacobian @ step) / scale
        # Weights of the soft-l1 loss 2(√(1 + x²) − 1).
        strength = np.sqrt(weights / np.sqrt(1.0 + left * left)) / scale
        matrix = np.concatenate([linear.jacobian * strength[:, None], np.diag(1.0 / spreads)])
        target = np.concatenate([-errors * strength, away])
        step = bounded_least_squares(matrix, target, lows, highs)
    return step

"""Bounded least squares in which outliers count linearly: Levenberg and Marquardt's method, on numpy alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forescale.numeric import Array

ROUNDS, TRIALS = 200, 12
"""Derivatives taken, and steps tried with each, at most."""
CLOSE_ENOUGH = 1e-9
"""Relative gain of a round that ends the search."""
LEAST_SHARE = 1e-12
"""Of the largest curvature: a parameter that no residual feels stays where it is."""


def robust_least_squares(
    residuals: Callable[[Array], Array], start: Array, lows: Array, highs: Array, *, scale: float
) -> Array:
    """Return the position in [lows, highs] with the least soft-l1 loss Σ 2·(√(1 + (r / scale)²) − 1).

    Parameters
    ----------
    residuals
        (positions,) -> (rows,).
    start
        Where the search begins.
    scale
        Residual from which a row weighs linearly instead of squared.
    """
    position: Array = np.clip(start, lows, highs)
    errors = residuals(position) / scale
    loss, damping, curvature = _loss(errors), 1.0, np.zeros(len(position))
    for _ in range(ROUNDS):
        strength = (1.0 + errors * errors) ** -0.25
        slopes = _slopes(residuals, position, errors * scale, highs) / scale * strength[:, None]
        curvature = np.maximum(curvature, np.sum(slopes * slopes, axis=0))
        sqrt = np.sqrt(np.maximum(curvature, LEAST_SHARE * np.max(curvature)))
        if not np.any(sqrt):
            break
        before = loss
        for _ in range(TRIALS):
            matrix = np.concatenate([slopes, np.diag(np.sqrt(damping) * sqrt)])
            target = np.concatenate([-errors * strength, np.zeros(len(position))])
            trial = position + bounded_least_squares(matrix, target, lows - position, highs - position)
            result = residuals(np.clip(trial, lows, highs)) / scale
            if _loss(result) < loss:
                position, errors, loss = np.clip(trial, lows, highs), result, _loss(result)
                damping = max(damping / 5.0, 1e-12)
                break
            damping *= 5.0
        if before - loss <= CLOSE_ENOUGH * before:
            break
    return position


def bounded_least_squares(matrix: Array, target: Array, lows: Array, highs: Array) -> Array:
    """Return the x in [lows, highs] that brings `matrix` x nearest to `target`: cyclic coordinate descent.

    The problem is strictly convex (priors make the matrix of full rank), so coordinates alone reach it.
    """
    gram, right = _gram(matrix), np.sum(matrix * target[:, None], axis=0)
    position: Array = np.clip(_solved(gram, right), lows, highs)
    for _ in range(500):
        before = position.copy()
        for index in range(len(position)):
            slope = right[index] - np.sum(gram[index] * position)
            position[index] = np.clip(position[index] + slope / gram[index, index], lows[index], highs[index])
        if np.max(np.abs(position - before)) < 1e-7:
            break
    return position


def _gram(matrix: Array) -> Array:
    """Return matrixᵀ matrix, summed row by row: BLAS adds in another order on other processors."""
    return np.stack([np.sum(matrix * column[:, None], axis=0) for column in matrix.T])


def _solved(gram: Array, right: Array) -> Array:
    """Return the x with gram x = right, of a positive definite matrix, by Gauss' elimination without LAPACK."""
    rows = np.concatenate([gram, right[:, None]], axis=1)
    for index in range(len(rows)):
        rows[index] /= rows[index, index]
        others = rows[:, index].copy()
        others[index] = 0.0
        rows -= others[:, None] * rows[index]
    return np.asarray(rows[:, -1])


def _loss(errors: Array) -> float:
    return float(np.sum(np.sqrt(1.0 + errors * errors) - 1.0))


def _slopes(residuals: Callable[[Array], Array], position: Array, errors: Array, highs: Array) -> Array:
    """Return derivatives by forward differences (rows, positions), backward at an upper bound."""
    columns = []
    for index, value in enumerate(position):
        step = 1e-7 * max(1.0, abs(value))
        step = -step if value + step > highs[index] else step
        moved = position.copy()
        moved[index] += step
        columns.append((residuals(moved) - errors) / step)
    return np.stack(columns, axis=1)

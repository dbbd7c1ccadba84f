from __future__ import annotations

import numpy as np
import pytest

from forescale.validation.least_squares import bounded_least_squares, robust_least_squares


def test_bounded_least_squares_agrees_with_scipy():
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(0)
    for _ in range(20):
        matrix, target = random.normal(size=(30, 6)), random.normal(size=30)
        lows, highs = np.full(6, -0.05), np.full(6, 0.1)
        ours = bounded_least_squares(matrix, target, lows, highs)
        theirs = optimize.lsq_linear(matrix, target, bounds=(lows, highs), tol=1e-12).x
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_least_squares_call_neither_blas_nor_lapack(monkeypatch):
    """Their sums differ in the last digit from processor to processor, and a fit with them."""

    def refused(*_, **__):
        raise AssertionError

    monkeypatch.setattr(np.linalg, "solve", refused)
    random = np.random.default_rng(1)
    matrix, normal = random.normal(size=(40, 5)), random.normal(size=5)
    result = bounded_least_squares(matrix, matrix @ normal, np.full(5, -9.0), np.full(5, 9.0))
    np.testing.assert_allclose(result, normal, rtol=1e-12)


def made_up(seed):
    """Return residuals of a sum of a power law and a constant, with noise and some rows far off."""
    random = np.random.default_rng(seed)
    x = random.uniform(0.1, 3.0, 60)
    y = 1.3 * x**0.7 + 0.2 + random.normal(0.0, 0.02, 60) + np.where(random.random(60) < 0.1, 3.0, 0.0)
    return lambda place: place[0] * x ** place[1] + place[2] - y


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("high", [2.0, 1.2], ids=["free", "at a bound"])
def test_robust_least_squares_agrees_with_scipy(seed, high):
    optimize = pytest.importorskip("scipy.optimize")
    lows, highs, start = np.zeros(3), np.array([high, 2.0, 1.0]), np.array([0.5, 1.5, 0.9])
    ours = robust_least_squares(made_up(seed), start, lows, highs, scale=0.05)
    theirs = optimize.least_squares(
        made_up(seed),
        start,
        bounds=(lows, highs),
        loss="soft_l1",
        f_scale=0.05,
        x_scale="jac",
        xtol=1e-12,
        ftol=1e-12,
    ).x
    np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_what_no_residual_feels_stays_and_outliers_do_not_decide():
    rows = made_up(1)
    result = robust_least_squares(
        lambda place: rows(place[:3]),
        np.array([0.5, 1.5, 0.9, 0.25]),
        np.zeros(4),
        np.full(4, 2.0),
        scale=0.05,
    )
    assert result[3] == 0.25
    np.testing.assert_allclose(result[:3], (1.3, 0.7, 0.2), atol=0.08)
    assert robust_least_squares(
        lambda place: np.zeros(3), result, np.zeros(4), np.full(4, 2.0), scale=1.0
    ) == (pytest.approx(result))

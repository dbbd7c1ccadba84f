"""Leave sources out: predictions of runs by calibrations that have not seen their source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from forescale.calibrate.dataset import Run, measured_of, predict, weights_of
from forescale.calibrate.fit import Fitted, best_step
from forescale.calibrate.parameters import Parameter, with_logs
from forescale.cost.run_calibration import RunCalibration
from forescale.numeric import Array

FAMILIES = ("DGXC", "MB2", "NEMO", "BS", "TPU", "MAX", "SMX")
"""Sources that are releases of one document: to see one is to know the others."""


def family_of(source: str) -> str:
    """Return the document that a source is a release of, else the source itself."""
    return next((family for family in FAMILIES if source.startswith(family)), source)


def folds_of(runs: Sequence[Run], count: int = 5, *, families: bool = False) -> Array:
    """Return the fold of every run: whole sources, or whole families, largest first to the emptiest fold so far."""
    names = [family_of(run.source) if families else run.source for run in runs]
    core = Counter(name for name, run in zip(names, runs, strict=True) if run.case.core)
    every = Counter(names)
    filled, fold = [0.0] * count, {}
    for name in sorted(every, key=lambda item: (-core[item], -every[item], item)):
        fold[name] = filled.index(min(filled))
        filled[fold[name]] += core[name] + 0.2 * every[name]
    return np.array([fold[name] for name in names])


def held_out(
    runs: Sequence[Run],
    base: RunCalibration,
    parameters: Sequence[Parameter],
    fitted: Fitted,
    *,
    scale: float,
    folds: Array,
) -> Array:
    """Return ln(measured / predicted) of every run by the fit without its fold.

    Each fold's parameters come from the linear model around the fit of all runs; its runs are then projected
    with them exactly.
    """
    measured, weights, linear = measured_of(runs), weights_of(runs), fitted.linear
    errors = np.empty(len(runs))
    for fold in np.unique(folds):
        out = folds == fold
        step = best_step(linear, measured, np.where(out, 0.0, weights), parameters, scale=scale)
        calibration = with_logs(base, parameters, linear.logs + step)
        left = [run for run, is_out in zip(runs, out, strict=True) if is_out]
        errors[out] = measured[out] - predict(left, calibration)[:, 0]
    return errors

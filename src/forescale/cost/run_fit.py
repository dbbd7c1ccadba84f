"""Fit what whole runs lose against kernels measured alone, from measured step times.

The caller says how a set of factors predicts its runs (by projecting each of them); here the factors are
found that bring ln(predicted / measured) nearest to zero, each source weighing alike however many rows it
prints, outliers weighing linearly, and every factor drawn to its prior as strongly as that is sure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forescale.cost.calibration import RunFactors
from forescale.numeric import Array, Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParameter:
    """One run-level factor to fit: "sustained.KEY" or the name of a field of `RunFactors`."""

    name: str
    prior: float
    spread: float
    """How far from the prior one expects it to lie."""
    low: float
    high: float


RUN_PARAMETERS = (
    RunParameter(name="sustained.bf16", prior=0.85, spread=0.15, low=0.4, high=1.0),
    RunParameter(name="sustained.attention", prior=0.85, spread=0.15, low=0.3, high=1.0),
    RunParameter(name="sustained.memory", prior=0.9, spread=0.1, low=0.5, high=1.0),
    RunParameter(name="microbatch_overhead_s", prior=0.0, spread=5e-3, low=0.0, high=5e-2),
    RunParameter(name="step_overhead_s", prior=0.0, spread=5e-2, low=0.0, high=0.5),
)
"""What is fitted of a generation by default; no factor may exceed 1, no overhead may be negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFit:
    """Factors fitted to runs, and the errors that are left."""

    factors: RunFactors
    errors: Array
    """ln(predicted / measured) of every run."""


def fit_run(
    start: RunFactors,
    predict: Callable[[RunFactors], Array],
    measured: Array,
    sources: Sequence[str],
    parameters: Sequence[RunParameter] = RUN_PARAMETERS,
    *,
    scale: float = 0.05,
) -> RunFit:
    """Return the run factors that predict `measured` best.

    Parameters
    ----------
    predict
        Step times of all runs [s] under given factors.
    measured
        Measured step times [s].
    sources
        Source of each run.
    scale
        Error from which a run weighs linearly instead of squared.
    """
    from scipy.optimize import least_squares

    counts = Counter(sources)
    weights = np.sqrt(np.array([len(sources) / len(counts) / counts[source] for source in sources]))
    spreads = np.array([item.spread for item in parameters])
    lows, highs = (np.array([getattr(item, end) for item in parameters]) / spreads for end in ("low", "high"))
    priors = np.array([item.prior for item in parameters]) / spreads

    def errors(position: Array) -> Array:
        return np.log(predict(_factors(start, parameters, position * spreads)) / measured)

    def objective(position: Array) -> Array:
        # Linear beyond `scale`, as least_squares' own soft_l1, but for the runs alone and not for the priors.
        steps = errors(position) / scale
        soft = np.sign(steps) * np.sqrt(2.0 * (np.sqrt(1.0 + steps * steps) - 1.0))
        return np.concatenate([weights * soft, position - priors])

    inside = np.clip(priors, lows + 1e-3 * (highs - lows), highs - 1e-3 * (highs - lows))
    found = least_squares(objective, inside, bounds=(lows, highs), diff_step=1e-3, xtol=1e-4, ftol=1e-4)
    return RunFit(factors=_factors(start, parameters, found.x * spreads), errors=errors(found.x))


def source_folds(sources: Sequence[str], count: int = 5) -> list[NDArray[np.bool_]]:
    """Return `count` boolean masks of runs to hold out, no source in two of them, of similar size.

    Sources are dealt out largest first, each to the smallest fold so far; ties go by name.
    """
    sizes = Counter(sources)
    order = sorted(sizes, key=lambda source: (-sizes[source], source))
    folds: list[set[str]] = [set() for _ in range(min(count, len(order)))]
    filled = [0] * len(folds)
    for source in order:
        smallest = filled.index(min(filled))
        folds[smallest].add(source)
        filled[smallest] += sizes[source]
    names = np.array(sources)
    return [np.isin(names, sorted(fold)) for fold in folds]


def _factors(start: RunFactors, parameters: Sequence[RunParameter], values: Array) -> RunFactors:
    named = {item.name: float(value) for item, value in zip(parameters, values, strict=True)}
    sustained: dict[str, Numeric] = {
        **start.sustained,
        **{
            name.removeprefix("sustained."): value
            for name, value in named.items()
            if name.startswith("sustained.")
        },
    }
    others = {name: value for name, value in named.items() if not name.startswith("sustained.")}
    return replace(start, sustained=sustained, **others)  # type: ignore[arg-type]

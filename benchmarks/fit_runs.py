"""Fit the published run calibration to a corpus of runs: `python benchmarks/fit_runs.py RUNS.csv --date 2026-01-31`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from forescale.cost.calibration import Spread
from forescale.cost.run_calibration import RunCalibration, group_of, load_run_calibration
from forescale.evidence.cases import load_cases
from forescale.evidence.fit import Fitted, best_step, fit, rounded, spread_of
from forescale.evidence.runs import (
    CORE_WEIGHT,
    OTHER_WEIGHT,
    Parameter,
    Run,
    measured_of,
    predict,
    runs_of,
    weights_of,
    with_logs,
)
from forescale.evidence.scoreboard import headline_label
from forescale.numeric import Array

TARGET = Path("src/forescale/catalogue/calibrations/runs/published.json")
PRIORS = Path(__file__).with_name("priors.json")


def main() -> None:
    """Fit, cross-validate by source and by family of sources, write the calibration, print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--date", required=True)
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    base, priors = load_run_calibration(), json.loads(PRIORS.read_text(encoding="utf-8"))
    runs, _ = runs_of(load_cases(options.runs), base)
    parameters, scale = parameters_of(base, priors), priors["scale"]
    fitted = fit(runs, base, parameters, scale=scale)
    inside = measured_of(runs) - fitted.linear.predicted
    outside = {
        families: held_out(
            runs, base, parameters, fitted, scale=scale, folds=folds_of(runs, families=families)
        )
        for families in (False, True)
    }
    result = replace(
        fitted.calibration,
        name=options.output.stem,
        date=options.date,
        source=f"{len(runs)} published training runs ({options.runs.name}); held out in 5 folds by source",
        in_sample=spreads(runs, inside),
        held_out=spreads(runs, outside[False]),
    )
    options.output.write_text(json.dumps(rounded(asdict(result)), indent=1) + "\n", encoding="utf-8")
    labels = np.array([headline_label(run.case) if run.case.core else "" for run in runs])
    for title, errors in (
        ("seen", inside),
        ("unseen source", outside[False]),
        ("unseen family", outside[True]),
    ):
        for label in sorted(set(labels) - {""}):
            spread, chosen = spread_of(errors[labels == label]), np.abs(np.expm1(-errors[labels == label]))
            sys.stdout.write(
                f"{title:14s} {label:22s} n={spread.rows:4d} median |error| {np.median(chosen):6.1%} "
                f"90th percentile {np.percentile(chosen, 90):6.1%} bias {np.expm1(-spread.bias):+6.1%}\n"
            )


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


FEWEST = 8
"""Runs from which a group has an interval of its own."""


def spreads(runs: Sequence[Run], errors: Array) -> dict[str, Spread]:
    """Return the spread of every group that is large enough, and of "all"; core rows count most."""
    weights = np.array([CORE_WEIGHT if run.case.core else OTHER_WEIGHT for run in runs])
    groups: dict[str, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        asked = run.case.question
        compute = asked.workload.precision.compute
        groups[group_of(asked.cluster.device.architecture, compute)].append(index)
    groups["all"] = list(range(len(runs)))
    found = {}
    for name, members in sorted(groups.items()):
        if len(members) >= FEWEST or name == "all":
            found[name] = spread_of(errors[members], weights[members])
    return found


def parameters_of(base: RunCalibration, table: dict[str, Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a table of priors: {section: {entry: {field: [prior, spread, low, high]}}}.

    An entry "*" stands for all entries of that section which are not named. Entries that `same` lists share the
    numbers of another entry, but for those that they name themselves.
    """
    found = [_parameter(f"shared.{name}", numbers) for name, numbers in table["shared"].items()]
    for section in ("devices", "software"):
        priors, same = table[section], table.get("same", {}).get(section, {})
        for entry in getattr(base, section):
            own = priors.get(entry, {})
            fields = own if entry in same else {**priors["*"], **own}
            for name, numbers in fields.items():
                paths = tuple(
                    f"{section}.{follower}.{name}"
                    for follower, leader in same.items()
                    if leader == entry and name not in priors.get(follower, {})
                )
                found.append(_parameter(f"{section}.{entry}.{name}", numbers, paths))
    return tuple(found)


def _parameter(path: str, numbers: Sequence[float], shared_by: tuple[str, ...] = ()) -> Parameter:
    prior, spread, low, high = numbers
    return Parameter(path=path, prior=prior, spread=spread, low=low, high=high, shared_by=shared_by)


if __name__ == "__main__":
    main()

"""Fit the published run calibration to a corpus of runs: `python benchmarks/fit_runs.py RUNS.csv --date 2026-01-31`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from forescale.cost.run_calibration import load_run_calibration
from forescale.evidence.cases import load_cases
from forescale.evidence.fit import content_of, fit, folds_of, held_out, published, spread_of
from forescale.evidence.runs import load_priors, measured_of, parameters_of, runs_of
from forescale.evidence.scoreboard import headline_label

TARGET = Path("src/forescale/catalogue/calibrations/runs/published.json")


def main() -> None:
    """Fit, cross-validate by source and by family of sources, write the calibration, print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--date", required=True)
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    base, priors = load_run_calibration(), load_priors()
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
    result = published(
        fitted.calibration,
        runs,
        name=options.output.stem,
        date=options.date,
        source=f"{len(runs)} published training runs ({options.runs.name}); held out in 5 folds by source",
        in_sample=inside,
        held_out=outside[False],
    )
    options.output.write_text(json.dumps(content_of(result), indent=1) + "\n", encoding="utf-8")
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


if __name__ == "__main__":
    main()

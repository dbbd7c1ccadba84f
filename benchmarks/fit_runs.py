"""Fit the published run calibration to a corpus of runs: `python benchmarks/fit_runs.py RUNS.csv --date 2026-01-31`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.spreads import FEWEST, Errors, spreads, unseen_of, widths

from forescale.catalogue.frameworks import load_framework
from forescale.cost.calibration import UNMEASURED
from forescale.cost.run_calibration import (
    Novelty,
    RunCalibration,
    Seen,
    Unseen,
    groups_of,
    load_run_calibration,
    stack_of,
)
from forescale.errors import ForescaleError
from forescale.numeric import Array
from forescale.validation.case import Case, projector_of
from forescale.validation.cases import load_cases
from forescale.validation.fit import Fitted, best_step, fit, rounded
from forescale.validation.runs import (
    CalibrationRun,
    RunParameter,
    measured_of,
    predict,
    runs_of,
    weights_of,
    with_logs,
)

TARGET = Path("src/forescale/catalogue/calibrations/runs/published.json")
PEAKS = Path("src/forescale/catalogue/calibrations/memory/spreads.json")
UNNAMED = "megatron-core"
"""The framework assumed where a source names none."""
PRIORS = Path(__file__).with_name("priors.json")


def main() -> None:
    """Fit, predict every run by fits that had not seen it, write the calibration, print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--date", required=True)
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    base, priors = load_run_calibration(), json.loads(PRIORS.read_text(encoding="utf-8"))
    cases = load_cases(options.runs)
    runs, _ = runs_of(cases, base)
    parameters, scale = parameters_of(base, priors), priors["scale"]
    fitted = fit(runs, base, parameters, scale=scale)
    result = replace(
        fitted.calibration,
        name=options.output.stem,
        date=options.date,
        source=f"{len(runs)} published training runs ({options.runs.name})",
        seen=seen(runs, fitted.calibration),
        spreads={
            **{
                novelty: spreads(errors_of(runs, errors, fitted.calibration))
                for novelty, errors in unseen(runs, base, parameters, fitted, scale=scale).items()
            },
            LATER: later_releases(runs, fitted, parameters, scale=scale),
        },
    )
    options.output.write_text(json.dumps(rounded(asdict(result)), indent=1) + "\n", encoding="utf-8")
    PEAKS.write_text(json.dumps(rounded(peaks(cases, options)), indent=1) + "\n", encoding="utf-8")
    for novelty, groups in result.spreads.items():
        for name, spread in groups.items():
            sys.stdout.write(
                f"{novelty:14s} {name:24s} n={spread.rows:4d} median |error| {spread.median_abs:6.1%} "
                f"90th percentile {spread.p90_abs:6.1%} bias {spread.bias:+6.1%} coverage {spread.coverage:4.0%}\n"
            )


FAMILIES = ("DGXC", "MB2", "NEMO", "BS", "TPU", "MAX", "SMX")
"""Sources that are releases of one document: to see one is to know the others."""


def family_of(source: str) -> str:
    """Return the document that a source is a release of, else the source itself."""
    return next((family for family in FAMILIES if source.startswith(family)), source)


def seen(runs: Sequence[CalibrationRun], base: RunCalibration) -> Seen:
    """Return what the runs were."""
    return Seen(
        sources=tuple(sorted({run.source for run in runs})),
        families=FAMILIES,
        frameworks=tuple(sorted({record_of(run) for run in runs})),
        architectures=tuple(sorted({architecture_of(run) for run in runs})),
        stacks=stacks(runs, base),
    )


def stacks(runs: Sequence[CalibrationRun], base: RunCalibration) -> tuple[str, ...]:
    """Return the software stacks on a generation and width of numbers that enough runs are of.

    Stacks that differ only in their attention kernels are one.
    """
    alike = {name: replace(item, attention_kernel="", note="") for name, item in base.software.items()}
    counts = Counter((alike[run.software], _groups(run)[1]) for run in runs)
    pairs = product(alike.items(), counts.items())
    return tuple(
        sorted(
            stack_of(name, group)
            for (name, item), ((other, group), count) in pairs
            if item == other and count >= FEWEST
        )
    )


def _stack(run: CalibrationRun) -> str:
    return stack_of(run.software, _groups(run)[1])


def record_of(run: CalibrationRun) -> str:
    """Return the framework's record without its release."""
    return run.case.stated.framework.partition("@")[0] if run.case.stated else ""


def architecture_of(run: CalibrationRun) -> str:
    """Return the generation of the run's devices."""
    return run.case.question.cluster.device.architecture


def unseen(
    runs: Sequence[CalibrationRun],
    base: RunCalibration,
    parameters: Sequence[RunParameter],
    fitted: Fitted,
    *,
    scale: float,
) -> dict[Novelty, Array]:
    """Return ln(measured / predicted) of every run by novelty: by a fit that had not seen that much of it."""
    families = [family_of(run.source) for run in runs]
    unnamed = [as_unnamed(run, base) for run in runs]
    out = partial(held_out, base=base, parameters=parameters, fitted=fitted, scale=scale)
    return {
        "known source": out(runs, names=[str(index % PARTS) for index in range(len(runs))]),
        "new release": out(runs, names=[run.source for run in runs]),
        "new family": out(runs, names=families),
        "new stack": out(runs, names=families, asked=unnamed),
        "new device": out(runs, names=[architecture_of(run) for run in runs]),
    }


PARTS = 10
"""Parts of the runs, each of which is predicted by a fit to the others: what is known of a source that a run is of."""


def as_unnamed(run: CalibrationRun, base: RunCalibration) -> CalibrationRun:
    """Return the run as it is asked where nobody says which software trained it."""
    case = run.case
    if case.stated is None or case.model is None or case.cluster is None:
        return run
    stated = replace(case.stated, framework=UNNAMED)
    try:
        layout, workload = stated.trained(case.model, case.cluster)
        other = CalibrationRun(case=replace(case, strategy=layout, workload=workload), costs=run.costs)
        other.log_predicted(base)
    except ForescaleError:
        return run
    return other


def held_out(
    runs: Sequence[CalibrationRun],
    *,
    base: RunCalibration,
    parameters: Sequence[RunParameter],
    fitted: Fitted,
    scale: float,
    names: Sequence[str],
    asked: Sequence[CalibrationRun] | None = None,
) -> Array:
    """Return ln(measured / predicted) of every run by the fit without the runs that share its name.

    Each fit's parameters come from the linear model around the fit of all runs; what it had not seen is then
    projected with them exactly, as `asked` where that differs.
    """
    measured, weights, linear = measured_of(runs), weights_of(runs), fitted.linear
    asked, errors, every = asked or runs, np.empty(len(runs)), np.array(names)
    for name in sorted(set(names)):
        out = every == name
        step = best_step(linear, measured, np.where(out, 0.0, weights), parameters, scale=scale)
        calibration = with_logs(base, parameters, linear.logs + step)
        errors[out] = (
            measured[out]
            - predict([run for run, item in zip(asked, out, strict=True) if item], calibration)[:, 0]
        )
    return errors


LATER = "later release"


def later_releases(
    runs: Sequence[CalibrationRun], fitted: Fitted, parameters: Sequence[RunParameter], *, scale: float
) -> dict[str, Unseen]:
    """Return the errors on the runs of each release by the fit to those of earlier ones, by year and month.

    Runs whose framework has no date count as earlier. The fits are of the linear model around the fit of all runs.
    An interval is made from what was known before the release, as `spreads` makes it: the errors on earlier releases,
    each by a fit to those before, and on undated runs by a fit to the undated runs of other families. It is wider on a
    generation of devices that no earlier run is of. The width stated is the median of the release's runs.
    """
    measured, weights, linear = measured_of(runs), weights_of(runs), fitted.linear
    dates, families, generations = (
        np.array([name(run) for run in runs])
        for name in (released, lambda run: family_of(run.source), architecture_of)
    )

    def without(out: Array) -> Array:
        step = best_step(linear, measured, np.where(out, 0.0, weights), parameters, scale=scale)
        return measured - linear.predicted - linear.jacobian @ step

    result, errors, dated = dict[str, Unseen](), np.full(len(runs), np.nan), dates != ""
    blank = errors_of(runs, errors, fitted.calibration)
    for family in sorted(set(families[~dated].tolist())):
        inside = families == family
        errors[inside & ~dated] = without(inside | dated)[inside & ~dated]
    for date in sorted(set(dates[dated].tolist())):
        here, before = dates == date, ~np.isnan(errors)
        earlier = [run for run, item in zip(runs, before, strict=True) if item]
        many = stacks(earlier, fitted.calibration)
        rows = replace(blank, errors=errors, few=np.array([_stack(run) not in many for run in runs]))
        known, new = widths(rows, before), ~np.isin(generations, generations[before])
        half = np.array([known.of(rows, at) * UNMEASURED ** new[at] for at in np.flatnonzero(here).tolist()])
        errors[here] = without(dates >= date)[here]
        result[date] = unseen_of(errors[here], np.abs(errors[here]) <= half, float(np.median(half)))
    return result


def released(run: CalibrationRun) -> str:
    """Return the year and month of the release that trained a run; empty where it is not known."""
    return load_framework(run.case.stated.framework).released if run.case.stated else ""


def peaks(cases: Sequence[Case], options: argparse.Namespace) -> dict[str, Any]:
    """Return how far measured peaks lay from projected ones, by what their sources measured."""
    ask, result = projector_of(), defaultdict[str, list[tuple[str, float]]](list)
    for case in cases:
        if case.skipped_reason is None and case.measured.peak_bytes:
            peak_bytes = ask(case).peak_bytes or 0.0
            result[case.measured.peak_measure].append(
                (family_of(case.source), math.log(case.measured.peak_bytes / peak_bytes))
            )
    widths = {}
    for measure, pairs in sorted(result.items()):
        names, errors = np.array([name for name, _ in pairs]), np.array([error for _, error in pairs])
        covered = np.zeros(len(errors), dtype=bool)
        for name in set(names) if len(set(names)) > 1 else ():
            covered[names == name] = np.abs(errors[names == name]) <= np.percentile(
                np.abs(errors[names != name]), 80
            )
        widths[measure] = asdict(unseen_of(errors, covered, float(np.percentile(np.abs(errors), 80))))
    return {"date": options.date, "source": f"published peaks of {options.runs.name}", "widths": widths}


def errors_of(runs: Sequence[CalibrationRun], errors: Array, calibration: RunCalibration) -> Errors:
    """Return errors of runs with what tells the runs apart."""
    many = stacks(runs, calibration)
    return Errors(
        errors=errors,
        core=np.array([run.case.core for run in runs]),
        families=np.array([family_of(run.source) for run in runs]),
        groups=tuple(_groups(run) for run in runs),
        waits=np.array([run.waits(calibration) for run in runs]),
        few=np.array([_stack(run) not in many for run in runs]),
    )


def _groups(run: CalibrationRun) -> tuple[str, ...]:
    question = run.case.question
    compute = question.workload.precision.compute
    return groups_of(architecture_of(run), compute, moe=question.model.is_moe)


def parameters_of(base: RunCalibration, table: dict[str, Any]) -> tuple[RunParameter, ...]:
    """Return the parameters of a table of priors: {section: {entry: {field: [prior, spread, low, high]}}}.

    A fifth element names the entry whose number the prior is a multiple of. An entry "*" stands for all entries of
    that section which are not named. Entries that `same` lists share the numbers of another entry, but for those
    that they name themselves.
    """
    parameters = [_parameter(f"shared.{name}", numbers) for name, numbers in table["shared"].items()]
    for section in ("devices", "software"):
        priors, same = table[section], table.get("same", {}).get(section, {})
        for entry in getattr(base, section):
            local = priors.get(entry, {})
            fields = local if entry in same else {**priors["*"], **local}
            for name, numbers in fields.items():
                paths = tuple(
                    f"{section}.{follower}.{name}"
                    for follower, leader in same.items()
                    if leader == entry and name not in priors.get(follower, {})
                )
                parameters.append(_parameter(f"{section}.{entry}.{name}", numbers, paths))
    return tuple(parameters)


def _parameter(path: str, numbers: Sequence[Any], shared_by: tuple[str, ...] = ()) -> RunParameter:
    prior, spread, low, high, *others = numbers
    section, *_, field = path.split(".")
    like = f"{section}.{others[0]}.{field}" if others else ""
    return RunParameter(
        path=path, prior=prior, spread=spread, low=low, high=high, shared_by=shared_by, like=like
    )


if __name__ == "__main__":
    main()

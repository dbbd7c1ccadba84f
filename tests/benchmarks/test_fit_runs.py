"""The fit of the published calibration: folds leave whole sources out, priors cover what it fits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmarks.fit_runs import PRIORS, folds_of, held_out, parameters_of, spreads
from tests.evidence.runs import ARCHITECTURE, BASE, LAYOUTS, PARAMETERS, run

from forescale.evidence.fit import fit
from forescale.evidence.runs import logs_of, measured_of, with_logs


def test_folds_leave_whole_sources_out():
    runs = [run(LAYOUTS[0], source) for source in ("A", "B", "C", "DGXC1", "DGXC2", "A")]
    folds = folds_of(runs, 3)
    assert folds[0] == folds[5]
    assert len(set(folds.tolist())) == 3
    families = folds_of(runs, 5, families=True)
    assert families[3] == families[4]


def test_held_out_errors_are_of_fits_that_did_not_see_the_source():
    runs = [run(layout, "A") for layout in LAYOUTS] + [run(layout, "B", factor=1.2) for layout in LAYOUTS]
    fitted = fit(runs, BASE, PARAMETERS, scale=0.01)
    inside = measured_of(runs) - fitted.linear.predicted
    outside = held_out(runs, BASE, PARAMETERS, fitted, scale=0.01, folds=folds_of(runs, 2))
    assert np.median(outside[4:]) > np.median(inside[4:]) + 0.02


def test_priors_cover_the_published_calibration():
    parameters = parameters_of(BASE, json.loads(PRIORS.read_text()))
    logs = logs_of(BASE, parameters)
    assert all(np.exp(log) <= item.high * 1.001 for log, item in zip(logs, parameters, strict=True))
    again = with_logs(BASE, parameters, logs)
    assert again.devices[ARCHITECTURE].wide == pytest.approx(BASE.devices[ARCHITECTURE].wide)
    shared = next(item for item in parameters if item.path == "software.torch-eager.passes")
    assert shared.shared_by == ("software.llm-foundry.passes",)


def test_large_groups_have_a_spread_of_their_own():
    errors = np.linspace(-0.2, 0.2, 41)
    assert set(spreads([run(LAYOUTS[0]) for _ in errors], errors)) == {"all", f"{ARCHITECTURE}/16"}

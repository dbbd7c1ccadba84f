"""The fit of the published calibration: folds leave whole sources out, priors cover what it fits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.fit_runs import (
    PRIORS,
    errors_of,
    family_of,
    held_out,
    later_releases,
    parameters_of,
    seen,
    stacks,
)
from benchmarks.spreads import FEWEST
from tests.validation.runs import ARCHITECTURE, BASE, LAYOUTS, PARAMETERS, run

from forescale.catalogue.clusters import load_device
from forescale.validation.fit import fit
from forescale.validation.runs import CalibrationRun, logs_of, measured_of, with_logs


def test_held_out_errors_are_of_fits_that_did_not_see_the_source():
    runs = [run(layout, "A") for layout in LAYOUTS] + [run(layout, "B", factor=1.2) for layout in LAYOUTS]
    fitted = fit(runs, BASE, PARAMETERS, scale=0.01)
    inside = measured_of(runs) - fitted.linear.predicted
    names = [item.source for item in runs]
    outside = held_out(runs, base=BASE, parameters=PARAMETERS, fitted=fitted, scale=0.01, names=names)
    assert np.median(outside[4:]) > np.median(inside[4:]) + 0.02


def test_a_release_is_predicted_by_fits_to_earlier_ones(monkeypatch):
    dates = {"A": "", "B": "25.02", "C": "25.11"}
    runs = [run(layout, name, factor=1.2 if name == "C" else 1.0) for name in dates for layout in LAYOUTS]
    monkeypatch.setattr("benchmarks.fit_runs.released", lambda item: dates[item.source])
    fitted = fit(runs, BASE, PARAMETERS, scale=0.01)
    result = later_releases(runs, fitted, PARAMETERS, scale=0.01)
    assert [(date, spread.rows) for date, spread in result.items()] == [("25.02", 4), ("25.11", 4)]
    inside = (measured_of(runs) - fitted.linear.predicted)[-4:]
    assert result["25.11"].bias > float(np.median(inside)) + 0.002
    assert result["25.11"].coverage == 0.0


def test_releases_of_one_document_are_one_family():
    assert family_of("DGXC1") == family_of("DGXC2") != family_of("A")
    assert seen([run(LAYOUTS[0], "B"), run(LAYOUTS[0], "A")], BASE).sources == ("A", "B")


def test_priors_cover_the_published_calibration():
    parameters = parameters_of(BASE, json.loads(PRIORS.read_text()))
    logs = logs_of(BASE, parameters)
    assert all(np.exp(log) <= item.high * 1.001 for log, item in zip(logs, parameters, strict=True))
    again = with_logs(BASE, parameters, logs)
    assert again.devices[ARCHITECTURE].wide == pytest.approx(BASE.devices[ARCHITECTURE].wide)
    shared = next(item for item in parameters if item.path == "software.torch-eager.passes")
    assert shared.shared_by == ("software.llm-foundry.passes",)


def test_what_blackwell_ultra_sustains_in_8_bits_follows_what_its_boards_have_more_watts():
    """B300 and GB300 beside B200 and GB200, whose peaks in 8 bits are the same."""
    priors = json.loads(PRIORS.read_text())["devices"]["blackwell-ultra"]["narrow"]
    more = []
    for new, old in (("b300", "b200"), ("gb300", "gb200")):
        ultra, before = load_device(new), load_device(old)
        assert ultra.matrix_flops.fp8 == before.matrix_flops.fp8
        more.append((ultra.power_w / before.power_w) ** BASE.devices["blackwell-ultra"].power_exponent)
    assert more[0] < priors[0] < more[1]
    assert priors[4] == "blackwell"


def test_errors_say_what_tells_their_runs_apart():
    runs = [run(LAYOUTS[0], "DGXC1"), run(LAYOUTS[1], "A")]
    rows = errors_of(runs, np.array([0.1, -0.1]), BASE)
    assert list(rows.families) == ["DGXC", "A"]
    assert rows.groups[0] == (f"{ARCHITECTURE}/16/dense", f"{ARCHITECTURE}/16", "dense", "all")
    assert rows.core.all()
    eager = replace(runs[0].case, strategy=replace(LAYOUTS[0], graphs="none"))
    assert 0.0 <= rows.waits[0] < CalibrationRun(case=eager).waits(BASE) < 1.0


def test_stacks_of_many_runs_count_alike_ones_together_by_generation_and_width():
    """Twenty runs of a stack and those that differ only in attention are known; nineteen are few."""
    runs = [run(LAYOUTS[0], "A")] * FEWEST
    software = runs[0].software
    twin = {f"{software}-flash-2": replace(BASE.software[software], attention_kernel="flash-2")}
    other = {"slow": replace(BASE.software[software], passes=9.0)}
    base = replace(BASE, software={**BASE.software, **twin, **other})
    group = f"{ARCHITECTURE}/16"
    assert stacks(runs, base) == (f"{software}-flash-2/{group}", f"{software}/{group}")
    assert stacks(runs[1:], base) == ()
    assert seen(runs, base).stacks == stacks(runs, base)

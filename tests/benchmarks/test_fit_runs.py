"""The fit of the published calibration: folds leave whole sources out, priors cover what it fits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.fit_runs import PRIORS, family_of, held_out, parameters_of, seen, spreads
from tests.evidence.runs import ARCHITECTURE, BASE, LAYOUTS, PARAMETERS, run

from forescale.catalogue.clusters import load_device
from forescale.evidence.fit import fit
from forescale.evidence.runs import logs_of, measured_of, with_logs


def test_held_out_errors_are_of_fits_that_did_not_see_the_source():
    runs = [run(layout, "A") for layout in LAYOUTS] + [run(layout, "B", factor=1.2) for layout in LAYOUTS]
    fitted = fit(runs, BASE, PARAMETERS, scale=0.01)
    inside = measured_of(runs) - fitted.linear.predicted
    names = [each.source for each in runs]
    outside = held_out(runs, base=BASE, parameters=PARAMETERS, fitted=fitted, scale=0.01, names=names)
    assert np.median(outside[4:]) > np.median(inside[4:]) + 0.02


def test_releases_of_one_document_are_one_family():
    assert family_of("DGXC1") == family_of("DGXC2") != family_of("A")
    assert seen([run(LAYOUTS[0], "B"), run(LAYOUTS[0], "A")]).sources == ("A", "B")


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


def test_large_groups_of_two_families_have_a_spread_of_their_own():
    errors = np.linspace(-0.2, 0.2, 40)
    one = spreads([run(LAYOUTS[0], "A") for _ in errors], errors)
    assert set(one) == {"all", "core"}
    two = spreads([run(LAYOUTS[0], "AB"[index % 2]) for index in range(40)], errors)
    group = f"{ARCHITECTURE}/16"
    assert set(two) == {"all", "core", "dense", group, f"{group}/dense"}
    assert two["all"].p90 == -two["all"].p10 == pytest.approx(0.16, abs=0.006)
    assert two["all"].coverage == pytest.approx(0.8, abs=0.05)
    assert (two["all"].median_abs, two["all"].p90_abs) == pytest.approx((0.1, 0.18), abs=0.006)


def test_rows_that_leave_something_open_have_an_interval_of_their_own():
    """Core rows lie within 0.1, others within 0.3: each is judged by its like, sizes of errors are of all."""
    runs = [run(LAYOUTS[0], "AB"[index % 2]) for index in range(80)]
    runs[40:] = [replace(each, case=replace(each.case, core=False)) for each in runs[40:]]
    errors = np.concatenate([np.linspace(-0.1, 0.1, 40), np.linspace(-0.3, 0.3, 40)])
    found = spreads(runs, errors)
    assert found["all"].p90 == found["core"].p90 == pytest.approx(0.08, abs=0.004)
    assert found["all, open"].p90 == pytest.approx(0.24, abs=0.012)
    assert (found["all"].rows, found["core"].rows, found["all, open"].rows) == (80, 40, 40)
    assert found["all"].coverage == pytest.approx(0.8, abs=0.05)


def test_a_group_with_few_core_rows_has_the_interval_of_all_of_its_rows():
    runs = [run(LAYOUTS[0], "AB"[index % 2]) for index in range(40)]
    runs[10:] = [replace(each, case=replace(each.case, core=False)) for each in runs[10:]]
    found = spreads(runs, np.concatenate([np.full(10, 0.01), np.full(30, 0.3)]))
    assert found["dense"].p90 == pytest.approx(0.3)

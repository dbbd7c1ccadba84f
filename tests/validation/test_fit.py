"""A fit finds the factors that made its runs, few runs move a cluster."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from tests.errors import raises
from tests.small import cluster
from tests.validation.runs import ARCHITECTURE, BASE, LAYOUTS, PARAMETERS, WIDE, run

from forescale.cost.run_calibration import run_calibration_of
from forescale.errors import SpecError
from forescale.spec.workload import Precision
from forescale.validation.fit import (
    calibrate_cluster,
    fit,
    moves,
    rounded,
    spread_of,
)
from forescale.validation.runs import (
    RunParameter,
    measured_of,
    predict,
    weights_of,
    with_logs,
)


def slower(wide):
    return with_logs(BASE, PARAMETERS[:1], np.log([wide]))


def test_many_calibrations_at_once_equal_each_alone():
    runs = [run(layout) for layout in LAYOUTS]
    logs = np.log(np.array([[0.5, 0.8], [0.2, 0.4]]))
    together = predict(runs, with_logs(BASE, PARAMETERS, logs), 2)
    for column in range(2):
        alone = predict(runs, with_logs(BASE, PARAMETERS, logs[:, column]))
        np.testing.assert_array_equal(together[:, column], alone[:, 0])


def test_prediction_is_the_projection():
    measured = run(LAYOUTS[1])
    assert measured.log_predicted(BASE)[0] == pytest.approx(measured.log_measured, abs=1e-12)


def test_layers_that_a_recipe_leaves_in_16_bits_are_predicted_as_they_are_projected():
    narrow, mixed = (
        run(LAYOUTS[0], precision=Precision(compute="fp8", num_layers_at_end_in_bf16=count))
        for count in (0, 2)
    )
    assert mixed.log_predicted(BASE)[0] == pytest.approx(mixed.log_measured, abs=1e-12)
    assert mixed.log_measured > narrow.log_measured


def test_a_fit_finds_the_factor_that_made_the_runs():
    runs = [run(layout, calibration=slower(0.5)) for layout in LAYOUTS]
    result = fit(runs, BASE, PARAMETERS, scale=0.01)
    assert result.calibration.devices[ARCHITECTURE].wide == pytest.approx(0.5, rel=0.02)
    np.testing.assert_allclose(result.linear.predicted, measured_of(runs), atol=0.01)


def test_no_factor_leaves_its_bounds():
    runs = [run(layout, factor=0.1) for layout in LAYOUTS]
    result = fit(runs, BASE, PARAMETERS, scale=0.01, rounds=8)
    assert result.calibration.devices[ARCHITECTURE].wide == pytest.approx(1.0)


def test_what_is_learnt_of_one_number_says_what_another_is():
    """A generation without runs follows the one that its prior is stated by; one that stands alone keeps its own."""
    runs = [run(layout, calibration=slower(0.5)) for layout in LAYOUTS]
    unseen = RunParameter(path="devices.blackwell-ultra.wide", prior=1.1, spread=0.1, low=0.3, high=1.2)
    alone, follower = (
        fit(runs, BASE, (*PARAMETERS, replace(unseen, like=like)), scale=0.01).calibration.devices
        for like in ("", WIDE)
    )
    assert alone["blackwell-ultra"].wide == pytest.approx(1.1, rel=0.01)
    assert follower["blackwell-ultra"].wide == pytest.approx(1.1 * follower[ARCHITECTURE].wide, rel=0.01)


def test_large_sources_do_not_outweigh_small_ones():
    runs = [run(LAYOUTS[0], "A") for _ in range(60)] + [run(LAYOUTS[0], "B") for _ in range(3)]
    weights = weights_of(runs)
    assert weights[0] < weights[-1]
    assert weights[:60].sum() < 60 / 3 * weights[60:].sum()


def test_a_calibration_survives_its_file():
    content = rounded(asdict(BASE))
    assert run_calibration_of(content, where="memory") == BASE


def test_a_few_runs_move_a_cluster_and_narrow_its_interval():
    runs = [run(layout, factor=1.25) for layout in LAYOUTS[:3]]
    result = calibrate_cluster(runs, BASE, name="mine", date="2026-01-01", source="three runs")
    assert np.all(np.abs(result.after) < 0.5 * np.abs(result.before))
    unseen = run(LAYOUTS[3], factor=1.25)
    left = unseen.log_measured - unseen.log_predicted(result.calibration)[0]
    assert abs(left) < 0.5 * np.log(1.25)
    assert result.moves[0].after != result.moves[0].before
    device = cluster(8).device
    spread = result.calibration.spread(device, "bf16", moe=False, novelty="new family")
    assert spread == result.calibration.own[device.name]


def test_a_cluster_has_one_device():
    with raises(SpecError, "differs the device of the runs"):
        calibrate_cluster([], BASE, name="", date="", source="")


def test_reports():
    errors = np.linspace(-0.2, 0.2, 41)
    spread = spread_of(errors)
    assert (spread.bias, spread.p10, spread.p90) == pytest.approx((0.0, -0.16, 0.16), abs=0.006)
    assert moves(BASE, slower(0.4), PARAMETERS)[0].path == WIDE
    assert replace(spread, p10=0.1).low(1.0) == 1.0

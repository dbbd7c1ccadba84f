"""A fit finds the factors that made its runs, folds leave whole sources out, few runs move a cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.small import cluster, dense, workload

from forescale.cost.run_calibration import load_run_calibration, run_calibration_of
from forescale.cost.select import Costs
from forescale.errors import SpecError
from forescale.evidence.case import Case, Measured
from forescale.evidence.fit import (
    calibrate_cluster,
    content_of,
    fit,
    folds_of,
    held_out,
    moves,
    spread_of,
    spreads,
)
from forescale.evidence.runs import (
    Parameter,
    Run,
    load_priors,
    logs_of,
    measured_of,
    parameters_of,
    predict,
    weights_of,
    with_logs,
)
from forescale.project import project
from forescale.spec import Strategy

BASE = load_run_calibration()
ARCHITECTURE = cluster(8).device.architecture
WIDE = f"devices.{ARCHITECTURE}.wide"
PARAMETERS = (
    Parameter(path=WIDE, prior=0.8, spread=0.3, low=0.3, high=1.0),
    Parameter(path="shared.contention", prior=0.3, spread=0.5, low=0.01, high=0.6),
)
LAYOUTS = (
    Strategy(dp_shard=8, graphs="full"),
    Strategy(tp=4, dp_shard=2, micro_batch_size=4, graphs="full"),
    Strategy(dp_shard=8, zero=3, micro_batch_size=8, graphs="full"),
    Strategy(pp=2, dp_shard=4, micro_batch_size=2, graphs="full"),
)


def run(layout, source="A", calibration=BASE, factor=1.0):
    question = (dense(), cluster(8), layout, workload())
    seconds = project(*question, costs=Costs(calibration=calibration)).step_time_s * factor
    model, place, strategy, work = question
    case = Case(
        id=f"{source}-1",
        source=source,
        reference="",
        hardware="",
        model_name="",
        family="dense",
        schedule="",
        model=model,
        cluster=place,
        strategy=strategy,
        workload=work,
        measured=Measured(step_time_s=seconds, step_time_from="step time"),
        core=True,
    )
    return Run(case=case)


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


def test_a_fit_finds_the_factor_that_made_the_runs():
    runs = [run(layout, calibration=slower(0.5)) for layout in LAYOUTS]
    found = fit(runs, BASE, PARAMETERS, scale=0.01)
    assert found.calibration.devices[ARCHITECTURE].wide == pytest.approx(0.5, rel=0.02)
    np.testing.assert_allclose(found.linear.predicted, measured_of(runs), atol=0.01)


def test_no_factor_leaves_its_bounds():
    runs = [run(layout, factor=0.1) for layout in LAYOUTS]
    found = fit(runs, BASE, PARAMETERS, scale=0.01, rounds=8)
    assert found.calibration.devices[ARCHITECTURE].wide == pytest.approx(1.0)


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


def test_large_sources_do_not_outweigh_small_ones():
    runs = [run(LAYOUTS[0], "A") for _ in range(60)] + [run(LAYOUTS[0], "B") for _ in range(3)]
    weights = weights_of(runs)
    assert weights[0] < weights[-1]
    assert weights[:60].sum() < 60 / 3 * weights[60:].sum()


def test_priors_cover_the_published_calibration():
    parameters = parameters_of(BASE, load_priors())
    logs = logs_of(BASE, parameters)
    assert all(np.exp(log) <= item.high * 1.001 for log, item in zip(logs, parameters, strict=True))
    again = with_logs(BASE, parameters, logs)
    assert again.devices[ARCHITECTURE].wide == pytest.approx(BASE.devices[ARCHITECTURE].wide)
    shared = next(item for item in parameters if item.path == "software.torch-eager.passes")
    assert shared.shared_by == ("software.llm-foundry.passes",)


def test_a_calibration_survives_its_file():
    content = content_of(BASE)
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
    assert result.calibration.spread(device, "bf16") == result.calibration.held_out[device.name]


def test_a_cluster_has_one_device():
    with pytest.raises(SpecError, match="none"):
        calibrate_cluster([], BASE, name="", date="", source="")


def test_reports():
    errors = np.linspace(-0.2, 0.2, 41)
    spread = spread_of(errors)
    assert (spread.bias, spread.p10, spread.p90) == pytest.approx((0.0, -0.16, 0.16), abs=0.006)
    runs = [run(LAYOUTS[0]) for _ in errors]
    assert set(spreads(runs, errors)) == {"all", f"{ARCHITECTURE}/16"}
    assert moves(BASE, slower(0.4), PARAMETERS)[0].path == WIDE
    assert replace(spread, p10=0.1).low(1.0) == 1.0

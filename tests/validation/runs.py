"""Runs whose measured time is a projection of ours."""

from __future__ import annotations

from unittest import mock

from msgspec.structs import replace
from tests.small import cluster, dense, workload

from forescale.cost.run_calibration import load_run_calibration
from forescale.cost.select import Costs
from forescale.project import project
from forescale.spec import Layout
from forescale.validation.case import Case, Measured
from forescale.validation.runs import CalibrationRun, RunParameter

BASE = load_run_calibration()
ARCHITECTURE = cluster(8).device.architecture
WIDE = f"devices.{ARCHITECTURE}.wide"
PARAMETERS = (
    RunParameter(path=WIDE, prior=0.8, spread=0.3, low=0.3, high=1.0),
    RunParameter(path="shared.contention", prior=0.3, spread=0.5, low=0.01, high=0.6),
)
LAYOUTS = (
    Layout(dp_shard=8, graphs="full"),
    Layout(tp=4, dp_shard=2, micro_batch_size=4, graphs="full"),
    Layout(dp_shard=8, zero=3, micro_batch_size=8, graphs="full"),
    Layout(pp=2, dp_shard=4, micro_batch_size=2, graphs="full"),
)


def run(layout, source="A", calibration=BASE, factor=1.0, precision=None):
    work = workload() if precision is None else replace(workload(), precision=precision)
    question = (dense(), cluster(8), layout, work)
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
    return CalibrationRun(case=case)


def own_columns_only():
    """Build models from the columns of rows, whatever the catalogue has under their names."""
    return mock.patch("scripts.rows.model.catalogue_model", lambda _: None)

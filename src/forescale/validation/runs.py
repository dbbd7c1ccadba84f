"""Measured runs as data for a fit: each predicts its step time under many calibrations at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forescale.cost.mesh import order_of
from forescale.cost.run_calibration import RunCalibration, usual_software
from forescale.cost.select import Costs
from forescale.errors import ForescaleError
from forescale.graph.operator import Block
from forescale.graph.per_block import PerBlock, build_blocks
from forescale.graph.sharding import Degrees, ShardingRules, StructuralOptions, split_layout
from forescale.graph.stages import stack_plans
from forescale.inputs import pricing_of, setting_of, unpriced, with_high_precision_layers
from forescale.memory.parameters import Sharded, holdings
from forescale.numeric import Array
from forescale.project import waiting
from forescale.question import Question
from forescale.struct import Struct
from forescale.time.blocks import price_built
from forescale.time.data_parallel import data_traffic
from forescale.time.pipeline import Pipeline, lay_out
from forescale.time.step import StepSeconds, step_seconds
from forescale.validation.case import Case
from forescale.validation.entries import Left

CORE_WEIGHT = 1.0
OTHER_WEIGHT = 0.3
"""Rows whose configuration is not fully known count less; a choice."""
BALANCE = 15.0
"""Rows from which more rows of a source hardly weigh more; a choice."""


@dataclass(slots=True, kw_only=True)
class _Prepared:
    """What does not depend on the calibration, for one number of candidates."""

    size: int
    degrees: Degrees
    blocks: PerBlock[Block]
    sharded: Sharded
    pipeline: Pipeline


@dataclass(slots=True, kw_only=True)
class CalibrationRun:
    """One measured run."""

    case: Case
    costs: Costs = field(default_factory=Costs)
    """What prices kernels and collectives, under any run calibration."""
    _prepared: _Prepared | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        """The row's id."""
        return self.case.id

    @property
    def source(self) -> str:
        """The row's source."""
        return self.case.source

    @property
    def log_measured(self) -> float:
        """Logarithm of the measured step time in seconds."""
        return float(np.log(self.case.measured.step_time_s or np.nan))

    @property
    def software(self) -> str:
        """Software stack, without its release."""
        _, cluster, layout, _ = self.case.question.parts
        return (layout.software or usual_software(cluster.device)).partition("@")[0]

    def log_predicted(self, calibration: RunCalibration, size: int = 1) -> Array:
        """Return ln of the step time in seconds under `size` calibrations (arrays in one)."""
        step = self._predicted(calibration, size).total()
        result: Array = np.log(np.broadcast_to(np.asarray(step, dtype=np.float64), (size,)))
        return result

    def waits(self, calibration: RunCalibration) -> float:
        """Return the share of the projected step in which the device waits for the host."""
        parts = self._predicted(calibration, 1).parts
        return waiting({name: float(np.ravel(seconds)[0]) for name, seconds in parts.items()})

    def _predicted(self, calibration: RunCalibration, size: int) -> StepSeconds:
        question = replace(self._question, costs=replace(self.costs, calibration=calibration))
        ready, choices = self._prepare(size), self._choices
        setting = setting_of(question, choices)
        pricing = pricing_of(question, ready.degrees, choices, order_of(question.layout), run=setting.run)
        built = price_built(ready.blocks, choices, pricing)
        inputs = unpriced(
            setting,
            ready.sharded,
            traffic=data_traffic(setting, ready.sharded, pricing),
            pricing=pricing,
            pipeline=ready.pipeline,
        )
        return step_seconds(setting, inputs.under(setting, built.under(choices.recompute)))

    @property
    def _question(self) -> Question:
        return with_high_precision_layers(self.case.question)

    @property
    def _choices(self) -> StructuralOptions:
        question = self.case.question
        return split_layout(question.layout, domain=question.cluster.domain)[1]

    def _prepare(self, size: int) -> _Prepared:
        if self._prepared is None or self._prepared.size != size:
            question = self._question
            single = split_layout(question.layout)[0]
            names = Degrees.__dataclass_fields__
            degrees = Degrees(**{name: np.full(size, getattr(single, name)) for name in names})
            blocks = build_blocks(
                question.model, ShardingRules.from_workload(question.workload, degrees, self._choices)
            )
            plan, pipeline = lay_out(question.model, question.layout, question.workload)
            self._prepared = _Prepared(
                size=size,
                degrees=degrees,
                blocks=blocks,
                sharded=Sharded.from_model(
                    question.model, holdings(blocks), stack_plans([plan] * size), degrees
                ),
                pipeline=pipeline,
            )
        return self._prepared


def runs_of(
    cases: Iterable[Case], calibration: RunCalibration, costs: Costs | None = None
) -> tuple[list[CalibrationRun], list[Left]]:
    """Return the cases that have a step time and can be projected, in order, and why the others are left out."""
    calibration_runs: list[CalibrationRun] = []
    left: dict[str, list[str]] = {}
    for case in cases:
        run = CalibrationRun(case=case, costs=costs or Costs())
        reason = _unusable(run, calibration)
        if reason is None:
            calibration_runs.append(run)
        else:
            left.setdefault(reason, []).append(case.id)
    return calibration_runs, [
        Left(path=", ".join(names), rows=len(names), reason=reason) for reason, names in left.items()
    ]


def _unusable(run: CalibrationRun, calibration: RunCalibration) -> str | None:
    if run.case.skipped_reason is not None:
        return run.case.skipped_reason
    if not run.case.measured.step_time_s:
        return "no step time was measured"
    try:
        run.log_predicted(calibration)
    except ForescaleError as error:
        return str(error)
    return None


def weights_of(runs: Sequence[CalibrationRun]) -> Array:
    """Return the weight of every run: fully known ones first, no source by its number of rows alone."""
    sizes: dict[str, int] = {}
    for run in runs:
        sizes[run.source] = sizes.get(run.source, 0) + 1
    return np.array(
        [
            (CORE_WEIGHT if run.case.core else OTHER_WEIGHT) * 2.0 * BALANCE / (BALANCE + sizes[run.source])
            for run in runs
        ]
    )


def measured_of(runs: Sequence[CalibrationRun]) -> Array:
    """Return ln of every measured step time."""
    return np.array([run.log_measured for run in runs])


def predict(runs: Sequence[CalibrationRun], calibration: RunCalibration, size: int = 1) -> Array:
    """Return ln of the step times, (runs, size)."""
    return np.array([run.log_predicted(calibration, size) for run in runs])


class RunParameter(Struct, frozen=True, kw_only=True):
    """One positive number, fitted as its logarithm."""

    path: str
    """Where it stands in a run calibration, such as "devices.hopper.wide"."""
    prior: float
    spread: float
    """Standard deviation of its logarithm around the prior."""
    low: float
    high: float
    shared_by: tuple[str, ...] = ()
    """Paths that take the same value."""
    like: str = ""
    """Path of another parameter that `prior` is a multiple of: what is learnt of that says what this is."""


def logs_of(calibration: RunCalibration, parameters: Sequence[RunParameter]) -> Array:
    """Return the logarithms of the parameters' present values."""
    return np.log([value_at(calibration, item.path) for item in parameters])


def value_at(calibration: RunCalibration, path: str) -> float:
    """Return the number at `path`."""
    section, *rest = path.split(".")
    entry = getattr(calibration, section)
    if section != "shared":
        entry = entry[".".join(rest[:-1])]
    value: float = getattr(entry, rest[-1])
    return value


def with_logs(calibration: RunCalibration, parameters: Sequence[RunParameter], logs: Array) -> RunCalibration:
    """Return the calibration with other parameters: numbers, or arrays where `logs` has a second axis."""
    changes: dict[str, dict[str, dict[str, Any]]] = {}
    for item, log in zip(parameters, logs, strict=True):
        value = np.exp(log) if np.ndim(log) else float(np.exp(log))
        for path in (item.path, *item.shared_by):
            section, *rest = path.split(".")
            changes.setdefault(section, {}).setdefault(".".join(rest[:-1]), {})[rest[-1]] = value
    shared = replace(calibration.shared, **changes.get("shared", {}).get("", {}))
    tables: dict[str, Any] = {
        section: {
            name: replace(entry, **changes.get(section, {}).get(name, {}))
            for name, entry in getattr(calibration, section).items()
        }
        for section in ("devices", "software")
    }
    return replace(calibration, shared=shared, **tables)

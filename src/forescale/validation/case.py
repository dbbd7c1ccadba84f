"""A case: one measured run as the question that it asks, with what was measured, and what a projection answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from forescale.catalogue.frameworks import load_framework
from forescale.cost.select import Costs
from forescale.errors import ForescaleError
from forescale.files import packaged
from forescale.presets import project_as
from forescale.project import spread_of
from forescale.projection.result import MemorySummary, Verdict
from forescale.question import Question
from forescale.spec import Cluster, Layout, Model, Workload
from forescale.spec.framework import merged
from forescale.struct import Struct
from forescale.validation.published import Speed, StepSource

PeakMeasure: TypeAlias = Literal["allocated", "reserved", "device", "unstated"]
"""What a source means by peak memory: handed out by the allocator, held by it, or in use on the device; what
is unstated is compared with the last."""
PeakStage: TypeAlias = Literal["fullest", "first", "last"]
"""The pipeline stage whose peak is published."""


class InexpressibleError(ForescaleError):
    """A row that cannot be turned into a model, cluster, layout and workload; its text is the reason."""


class RowSpec(Struct, frozen=True, kw_only=True):
    """The plan fields that a row gives; its framework supplies the others."""

    framework: str
    """Name of the framework's record, as `--framework` takes it."""
    strategy: Mapping[str, Any]
    workload: Mapping[str, Any]
    assumed: bool = False
    """Whether the framework is assumed rather than named by the source."""

    def trained(self, model: Model, cluster: Cluster) -> tuple[Layout, Workload]:
        """Return the layout and the workload with the framework's defaults filled in."""
        framework = load_framework(self.framework)
        layout, run = framework.completed(self.strategy, self.workload, model, cluster)
        usual = Workload(seq_len=1, global_batch_size=1)
        return merged(Layout(), layout), merged(usual, run)


class Measured(Struct, frozen=True, kw_only=True):
    """What the row measured, in SI units."""

    step_time_s: float | None = None
    step_time_from: StepSource = "none"
    """The published figure that the step time follows from."""
    speed: Speed = Speed()
    """The figures as published."""
    peak_bytes: float | None = None
    peak_measure: PeakMeasure = "device"
    peak_stage: PeakStage = "fullest"


class Case(Struct, frozen=True, kw_only=True):
    """One row: the question it asks, the answer it measured, or the reason why it cannot be asked."""

    id: str
    source: str
    """Short name of the source: the id without its number."""
    reference: str
    """The source as the row cites it."""
    hardware: str
    model_name: str
    family: str
    """dense or moe."""
    schedule: str
    model: Model | None = None
    cluster: Cluster | None = None
    strategy: Layout | None = None
    workload: Workload | None = None
    stated: RowSpec | None = None
    """What the row says of strategy and workload; the rest is its framework's."""
    measured: Measured = Measured()
    core: bool = False
    skipped_reason: str | None = None
    notes: tuple[str, ...] = ()
    """What was assumed, approximated or taken from the catalogue."""
    remarks: str = ""
    """The row's own notes."""
    doubt: str = ""
    """Why what the row says does not determine its memory; empty where it does."""
    sitting: str = ""
    """What tells it apart from runs that its source says are not to be compared with it."""

    @property
    def question(self) -> Question:
        """What the row asks, priced by the usual costs.

        Raises
        ------
        InexpressibleError
            If the row cannot be expressed; the text is `skipped_reason`.
        """
        if self.model is None or self.cluster is None or self.strategy is None or self.workload is None:
            raise InexpressibleError(self.skipped_reason or "the row was not expressed")
        named = self.stated is not None and not self.stated.assumed
        return Question(
            model=self.model,
            cluster=self.cluster,
            strategy=self.strategy,
            workload=self.workload,
            framework=load_framework(self.stated.framework) if named and self.stated else None,
        )

    @property
    def tokens_per_step(self) -> float:
        """Tokens of one step over all devices."""
        workload = self.question.workload
        return workload.tokens_per_step


Projector: TypeAlias = Callable[[Case], "Prediction"]
"""Answers one case; raises a ForescaleError with the reason where it cannot."""


class Prediction(Struct, frozen=True, kw_only=True):
    """What a projection says of one case."""

    step_time_s: float
    peak_bytes: float | None = None
    """Peak by the measure and of the stage that the case published."""
    low_s: float | None = None
    high_s: float | None = None
    """Bounds of the interval of `step_time_s`, if the projector gives one."""
    peak_low_bytes: float | None = None
    peak_high_bytes: float | None = None
    """The same of `peak_bytes`."""
    verdict: Verdict | None = None
    """Whether the run fits the device."""


def projector_of(preset: str = "default", costs: Costs | None = None) -> Projector:
    """Return a projector that asks `project` under `preset`, priced by `costs`."""

    def predict(case: Case) -> Prediction:
        question = replace(case.question, preset=preset, costs=costs or Costs())
        result = project_as(question)
        spread = spread_of(question, result.time_s, case.source, left_open=not case.core)
        step = result.step_time.expected
        peak = published_peak(result.memory, case.measured)
        low, high = peak_range(peak, case.measured.peak_measure)
        return Prediction(
            step_time_s=step,
            peak_bytes=peak,
            low_s=spread.low(step),
            high_s=spread.high(step),
            peak_low_bytes=low,
            peak_high_bytes=high,
            verdict=result.memory.verdict,
        )

    return predict


def peak_range(peak_bytes: float, measure: PeakMeasure) -> tuple[float, float]:
    """Return what a tenth of measured peaks lie below, and above, by what their source means by peak memory."""
    widths = packaged("calibrations/memory/spreads")["widths"]
    factor = math.exp(widths[measure if measure in widths else "device"]["p90"])
    return peak_bytes / factor, peak_bytes * factor


def published_peak(memory: MemorySummary, measured: Measured) -> float:
    """Return the projected bytes that answer to what was measured: of its stage, by its measure."""
    stages = {"first": memory.stages[:1], "last": memory.stages[-1:], "fullest": memory.stages}
    by_measure = {"allocated": "allocated_bytes", "reserved": "reserved_bytes"}
    name = by_measure.get(measured.peak_measure, "peak_bytes")
    return max(float(getattr(stage, name)) for stage in stages[measured.peak_stage])

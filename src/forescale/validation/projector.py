"""The projector that validation uses by default: `project` under a preset."""

from __future__ import annotations

from dataclasses import replace

from forescale.cost.select import Costs
from forescale.presets import project_as
from forescale.projection.result import MemorySummary
from forescale.validation.cases import Case, Measured, Prediction, Projector


def projector_of(preset: str = "default", costs: Costs | None = None) -> Projector:
    """Return a projector that asks `project` under `preset`, priced by `costs`."""

    def predict(case: Case) -> Prediction:
        result = project_as(replace(case.question, preset=preset, costs=costs or Costs()))
        return Prediction(
            step_time_s=result.step_time.expected,
            peak_bytes=published_peak(result.memory, case.measured),
            low_s=result.step_time.low,
            high_s=result.step_time.high,
        )

    return predict


def published_peak(memory: MemorySummary, measured: Measured) -> float:
    """Return the projected bytes that answer to what was measured: of its stage, by its measure."""
    stages = {"first": memory.stages[:1], "last": memory.stages[-1:], "fullest": memory.stages}
    by_measure = {"allocated": "allocated_bytes", "reserved": "reserved_bytes"}
    name = by_measure.get(measured.peak_measure, "peak_bytes")
    return max(float(getattr(stage, name)) for stage in stages[measured.peak_stage])

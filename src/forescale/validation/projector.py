"""The projector that validation uses by default: `project` under a preset."""

from __future__ import annotations

from forescale.project import project
from forescale.validation.cases import Case, Prediction, Projector


def projector_of(preset: str = "default") -> Projector:
    """Return a projector that asks `project` under `preset`."""

    def predict(case: Case) -> Prediction:
        model, cluster, strategy, workload = case.question
        result = project(model, cluster, strategy, workload, preset=preset)
        return Prediction(
            step_time_s=result.step_time.expected,
            peak_bytes=result.memory.peak_bytes,
            low_s=result.step_time.low,
            high_s=result.step_time.high,
        )

    return predict

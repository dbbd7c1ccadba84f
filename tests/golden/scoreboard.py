"""What is frozen of the scoreboard: errors of a sample of published runs, by group, in per cent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from forescale.validation.case import Case, projector_of
from forescale.validation.cases import load_cases
from forescale.validation.metrics import ErrorSummary
from forescale.validation.scoreboard import DIMENSIONS, Scoreboard, group_of, headline_label, score

SAMPLE = Path(__file__).parents[1] / "data" / "runs" / "sample_plans.csv"
GROUPS: dict[str, Callable[[Case], str]] = {
    "all": lambda _: "all rows",
    "headline": headline_label,
    **{
        name: DIMENSIONS[name]
        for name in ("architecture", "hardware", "parallelism", "peak measure", "precision")
    },
    "software": lambda case: case.question.layout.software or "usual",
    "recompute": lambda case: case.question.layout.recompute.granularity,
    "schedule": lambda case: (
        case.question.layout.schedule or ("1f1b" if case.question.layout.pp > 1 else "none")
    ),
}


def sample() -> Scoreboard:
    """Project the sample."""
    return score(load_cases(SAMPLE), projector_of())


def pins(board: Scoreboard) -> dict[str, dict[str, Any]]:
    """Return rows, median |error| and mean error of step time and memory of every group."""
    done = [outcome for outcome in board.outcomes if outcome.skipped is None]
    values: dict[str, dict[str, Any]] = {}
    for dimension, label in GROUPS.items():
        members: dict[str, list[Any]] = {}
        for outcome in done:
            members.setdefault(label(outcome.case), []).append(outcome)
        for name, outcomes in sorted(members.items()):
            group = group_of(dimension, name, outcomes)
            values[f"{dimension}: {name}"] = {"time": _pin(group.time), "memory": _pin(group.memory)}
    return values


def _pin(errors: ErrorSummary) -> list[float | None]:
    return [
        errors.count,
        *(None if item is None else round(100.0 * item, 2) for item in (errors.median_abs, errors.bias)),
    ]

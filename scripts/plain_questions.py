"""Ask published runs as a user asks them: by `forescale.project`, with nothing of the stack but its framework's name.

The fields are those that a row marks as typed (model, cluster, degrees, batch, length, precision), a pipeline schedule
that is not 1F1B, and what is trained: trainable parameters and the length of documents that are packed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import forescale
from forescale.catalogue.frameworks import load_framework
from forescale.errors import ForescaleError
from forescale.files import Row, read_table
from forescale.struct import Struct
from forescale.validation.case import Case
from forescale.validation.cases import cell, load_cases, plan_keys, plan_of
from forescale.validation.metrics import ErrorSummary, coverage, relative_error, summarise

FRAMEWORKS = ("maxtext", "megatron-bridge", "nemo", "primus", "torchtitan")
DATA = ("workload.trainable", "workload.document_len", "strategy.schedule")
"""What a user knows besides the fields that rows mark as typed."""


class PlainOutcome(Struct, frozen=True, kw_only=True):
    """One layout, asked plainly."""

    case: Case
    """The first of its rows."""
    measured_s: float
    """Geometric mean of the step times of all its rows."""
    framework: str
    """NAME or NAME@RELEASE."""
    step_s: float
    low_s: float
    high_s: float
    fits: bool
    refused: str = ""
    """Why it cannot be projected."""

    @property
    def group(self) -> str:
        """Return dense or moe."""
        return self.case.family

    @property
    def error(self) -> float:
        """Relative error of the step time."""
        return relative_error(self.step_s, self.measured_s)


def named(framework: str) -> str:
    """Return what a user types: the framework and its release, without variants that a row states by its name.

    Empty for frameworks whose runs are not asked.
    """
    name, _, lines = framework.partition("@")
    if name not in FRAMEWORKS:
        return ""
    releases = [line.removesuffix("-eager") for line in lines.split("+") if line[:1].isdigit()]
    return f"{name}@{releases[-1]}" if releases else name


def ask_plainly(path: Path, *, with_framework: bool) -> list[PlainOutcome]:
    """Return the runs of a table that name one of the frameworks, as `forescale.project` answers them.

    A layout of a framework's release has one outcome, however often it was printed.
    """
    table, cases = read_table(path), {case.id: case for case in load_cases(path)}
    keys = plan_keys(table)
    groups: dict[str, tuple[Case, str, dict[str, Any], list[float]]] = {}
    for row in table.rows:
        case = cases[row.id]
        framework = named(case.stated.framework) if case.stated else ""
        if framework and case.skipped_reason is None and case.measured.step_time_s:
            values = typed(row, keys)
            key = json.dumps([framework, values], sort_keys=True, default=str)
            asked = values | ({"framework": framework} if with_framework else {})
            groups.setdefault(key, (case, framework, asked, []))[-1].append(case.measured.step_time_s)
    return [
        _outcome(case, framework, values, geometric_mean(times))
        for case, framework, values, times in groups.values()
    ]


def typed(row: Row, keys: dict[str, str]) -> dict[str, Any]:
    """Return the keywords of `forescale.project` that a user would type for a row."""
    names = {*cell(row.text("typed")), *DATA} - {"framework"}
    kept = {column: key for column, key in keys.items() if key in names or key.startswith(f"{DATA[0]}.")}
    plan = plan_of(row, kept)
    layout, workload = plan.pop("strategy"), plan.pop("workload")
    return {name: value for name, value in {**plan, **layout, **workload}.items() if value is not None}


def _outcome(case: Case, framework: str, values: dict[str, Any], measured_s: float) -> PlainOutcome:
    run: dict[str, Any] = {"case": case, "framework": framework, "measured_s": measured_s}
    try:
        result = forescale.project(**values)
    except ForescaleError as error:
        return PlainOutcome(**run, step_s=0.0, low_s=0.0, high_s=0.0, fits=False, refused=str(error))
    step = result.step_time
    return PlainOutcome(
        **run,
        step_s=result.step_time_s,
        low_s=step.low,
        high_s=step.high,
        fits=result.memory.verdict != "OOM",
    )


class PlainGroup(Struct, frozen=True, kw_only=True):
    """What some outcomes add up to."""

    errors: ErrorSummary
    coverage: float
    half_width: float
    """Median half width of the interval over the step time."""
    unfit: tuple[str, ...]
    """Runs that are said not to fit, or refused."""


def grouped(outcomes: Sequence[PlainOutcome]) -> PlainGroup:
    """Return errors, coverage and widths of outcomes; a run that is refused counts as wrong by its whole time."""
    asked = [item for item in outcomes if not item.refused]
    measured = [item.measured_s for item in outcomes]
    lows, highs = [item.low_s for item in outcomes], [item.high_s for item in outcomes]
    return PlainGroup(
        errors=summarise([item.error for item in outcomes]),
        coverage=coverage(measured, lows, highs) or 0.0,
        half_width=median((item.high_s - item.low_s) / 2.0 / item.step_s for item in asked) if asked else 0.0,
        unfit=tuple(item.case.id for item in outcomes if not item.fits),
    )


def by_group(outcomes: Iterable[PlainOutcome]) -> dict[tuple[str, str], PlainGroup]:
    """Return the groups by (kind, framework), those of all frameworks first."""
    members: dict[tuple[str, str], list[PlainOutcome]] = {}
    for item in outcomes:
        for framework in ("all", load_framework(item.framework).name):
            members.setdefault((item.group, framework), []).append(item)
    names = sorted(members, key=lambda name: (name[0], name[1] != "all", name[1]))
    return {name: grouped(members[name]) for name in names}

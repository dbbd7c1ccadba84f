"""Pipeline schedules and their steps as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from forescale.numeric import Array
from forescale.report.document import Column, Content, TextLine, View, line, listed, table
from forescale.schedule import CheckReport, Family, Schedule, Step
from forescale.units import counted

if TYPE_CHECKING:
    from forescale.schedule.optimise import Optimised

MOST_RANKS = 32
"""Ranks of a step that are shown."""
MOST_VIOLATIONS = 20
LEVELS, BAR = "▁▂▃▄▅▆▇█", 20
"""Heights of a rank's bar among others, and columns of a bar in a row of its own."""


def schedules_view(known: Sequence[Family]) -> View:
    """Return the schedules that have a name."""
    remark = "p ranks, v chunks, m micro-batches; tf, tb, tw of a device's full share. --json adds sources."
    return View(contents=(listed(_FAMILIES, known), line(remark)))


def steps_view(
    results: Sequence[Step], refused: Mapping[str, str] | None = None, *, counted: bool = False
) -> View:
    """Return simulated steps, what is wrong with them, and why others are not among them.

    `counted` shows the micro-batches of each instead of the end of every rank.
    """
    others = (line(f"{name}: {reason}") for name, reason in (refused or {}).items())
    columns = _COUNTED if counted else _STEPS
    return View(contents=(listed(columns, results), *_violations(results), *others))


def table_view(results: Sequence[Step]) -> View:
    """Return the simulated steps of a table, with a bar for each rank."""
    rows = [
        (item.schedule.name, *_profile(item.timing.last_end), *_profile(item.peak_activations))
        for item in results
        if item.schedule.num_ranks <= MOST_RANKS
    ]
    steps = steps_view(results)
    if not rows:
        return steps
    bars = table("<schedule", "|end by rank", "|", "|peak by rank", "|", rows=rows)
    return replace(steps, contents=(*steps.contents, bars))


def _profile(values: Array) -> tuple[str, str]:
    """Return a column of characters for the value of each rank, and their range."""
    levels = np.ceil(len(LEVELS) * values / max(float(values.max()), 1e-300)).astype(int) - 1
    low, high = (f"{value:.6g}" for value in (values.min(), values.max()))
    return "".join(
        LEVELS[level] for level in np.maximum(levels, 0)
    ), low if low == high else f"{low} to {high}"


def _bar(value: float, most: float) -> str:
    """Return a bar of up to `BAR` characters."""
    return "█" * round(BAR * value / most) if most > 0 else ""


def simulated_view(result: Step, levels: Mapping[str, float]) -> View:
    """Return one simulated step rank by rank, and how its length varies."""
    contents: list[Content] = [listed(_STEPS, [result]), *_violations([result])]
    ranks = result.schedule.num_ranks
    if ranks > MOST_RANKS:
        text = f"--json has the start, end, busy time and peak of each of the {ranks} ranks"
        contents.append(line(text))
    else:
        timing = result.timing
        columns = (timing.first_start, timing.last_end, timing.busy, result.peak_activations)
        most_busy, most_held = result.makespan, float(result.peak_activations.max())
        rows = (
            [
                str(rank),
                *(f"{value:.6g}" for value in values),
                _bar(values[2], most_busy),
                _bar(values[3], most_held),
            ]
            for rank, values in enumerate(zip(*(column.tolist() for column in columns), strict=True))
        )
        heads = ("rank", "start", "end", "busy", "peak", "|busy of the makespan", "|peak")
        contents.append(table(*heads, rows=rows))
    if levels:
        low, middle, high = (f"{value:.6g}" for value in levels.values())
        text = f"where passes vary so, the makespan is {middle}; from {low} to {high} in 8 steps of 10"
        contents.append(line(text))
    return View(contents=tuple(contents))


def checked_view(schedule: Schedule, report: CheckReport) -> View:
    """Return whether a schedule can run, or what is wrong with it."""
    if not report.valid:
        wrong = report.violations[:MOST_VIOLATIONS]
        return View(contents=tuple(line(f"{item.rule}: {item.message}") for item in wrong))
    stages = f"{counted(schedule.num_stages, 'stage')} ({schedule.placement.style})"
    passes = counted(schedule.num_microbatches, "micro-batch")
    text = f"valid: {counted(schedule.num_ranks, 'rank')}, {stages}, {passes}; free of deadlock"
    return View(contents=(line(text),))


def optimised_view(result: Step, optimised: Optimised) -> View:
    """Return the best step, and how much shorter it is than that of the library."""
    from forescale.schedule.optimise.run import NONE_FITS

    gain = 1.0 - optimised.makespan / optimised.library_makespan
    state = "proven optimal" if optimised.proven else f"no order is shorter than {optimised.bound:.6g}"
    against = "one micro-batch at a time" if optimised.library == NONE_FITS else optimised.library
    text = (
        f"{optimised.method}: {gain:.2%} shorter than {against} ({optimised.library_makespan:.6g}); {state}"
    )
    return View(contents=(listed(_STEPS, [result]), *_violations([result]), line(text)))


def _violations(results: Sequence[Step]) -> Iterator[TextLine]:
    for item in results:
        for violation in item.report.violations:
            yield line(f"{item.schedule.name}: {violation.message}")


def _vpp(family: Family) -> str:
    low, high = family.vpp
    return f"{low}" if low == high else f"{low}+" if high is None else f"{low}-{high}"


_FAMILIES: tuple[Column[Family], ...] = (
    Column("|schedule", lambda item: item.name),
    Column("<vpp", _vpp),
    Column("<constraints", lambda item: item.constraint),
    Column("<idle", lambda item: item.idle),
    Column("<peak (micro-batches)", lambda item: item.peak),
)
_STEPS: tuple[Column[Step], ...] = (
    Column("<schedule", lambda item: item.schedule.name),
    Column("vpp", lambda item: f"{item.schedule.placement.vpp:g}"),
    Column("makespan", lambda item: f"{item.makespan:.6g}"),
    Column("bubble", lambda item: f"{item.bubble_rate_makespan:.2%}"),
    Column("longest span", lambda item: f"{item.longest_span:.6g}"),
    Column("bubble of span", lambda item: f"{item.bubble_rate_span:.2%}"),
    Column("peak", lambda item: f"{item.peak_activations.max():.4g}"),
    Column("messages", lambda item: str(item.num_messages)),
    Column("valid", lambda item: "yes" if item.report.valid else "no"),
)
_COUNTED: tuple[Column[Step], ...] = (
    *_STEPS[:2],
    Column("micro-batches", lambda item: f"{item.schedule.num_microbatches:,}"),
    *_STEPS[2:4],
    *_STEPS[6:],
)

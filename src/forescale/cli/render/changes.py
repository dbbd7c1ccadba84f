"""Two profiles side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forescale.diagnose.changes import KernelChange, ProfileComparison
from forescale.report.document import Cell, Column, Content, TextLine, View, line, listed, table
from forescale.search.compare import Difference
from forescale.units import format_seconds

MOST = 15
"""Kernels that are shown; the rest are summed."""
ALIKE = 0.005
"""Share of a difference that is not shown."""
KERNELS: tuple[Column[KernelChange], ...] = (
    Column("<kernel", lambda row: row.name),
    Column("|part", lambda row: row.part),
    Column("calls A", lambda row: f"{row.calls_a:g}"),
    Column("calls B", lambda row: f"{row.calls_b:g}"),
    Column("seconds A", lambda row: f"{row.seconds_a:.4g}"),
    Column("seconds B", lambda row: f"{row.seconds_b:.4g}"),
    Column("B − A", lambda row: f"{row.difference_s:+.4g}"),
    Column("by calls", lambda row: f"{row.by_calls_s:+.4g}"),
)


def changes_view(result: ProfileComparison) -> View:
    """Return the steps, then what differs by part of the step, by kernel and by shape."""
    return View(
        contents=(
            line(("A ", "bold"), result.name_a, ("   B ", "bold"), result.name_b),
            _outcome(result),
            *_contents(result),
        )
    )


def _outcome(result: ProfileComparison) -> TextLine:
    a, b = result.step.a or 0.0, result.step.b or 0.0
    steps = f"{format_seconds(a)} → {format_seconds(b)}"
    if abs(b - a) <= ALIKE * a:
        return line(("the same step time", "bold"), f": {steps}")
    change = f" ({b / a - 1.0:+.1%})" if a else ""
    return line((f"B is {'slower' if b > a else 'faster'}", "bold"), f": {steps} per step{change}")


def _contents(result: ProfileComparison) -> Iterator[Content]:
    parts = (*result.figures, *result.parts, *_renamed(result.exposed))
    yield table("|seconds per step", "A", "B", "B − A", rows=_rows(parts))
    yield listed(KERNELS, result.kernels[:MOST])
    if rest := result.kernels[MOST:]:
        yield line(
            f"{len(rest)} more kernels: {sum(row.difference_s for row in rest):+.4g} s (all with --json)"
        )
    if rows := [row for row in _rows(result.shapes) if row[1] != row[2]]:
        yield table("|shapes per step", "A", "B", "B − A", rows=rows)


def _renamed(exposed: Sequence[Difference]) -> Iterator[Difference]:
    for item in exposed:
        yield Difference(name=f"{item.name}, exposed", a=item.a, b=item.b)


def _rows(items: Sequence[Difference]) -> Iterator[tuple[Cell, ...]]:
    for item in items:
        if item.a or item.b:
            yield (
                item.name.removesuffix("_s"),
                f"{item.a:.4g}",
                f"{item.b:.4g}",
                f"{item.difference or 0.0:+.4g}",
            )

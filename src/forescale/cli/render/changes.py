"""Two profiles side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from forescale.diagnose.changes import KernelChange, ProfileComparison
from forescale.report.document import Cell, Column, Content, TextLine, View, line, listed, table
from forescale.search.compare import Difference
from forescale.units import format_seconds

LONGEST = 56
"""Letters of a kernel's name that are shown."""
QUALIFIED = re.compile(r"^void |\b(?:at::native|cutlass|at|std)::")
MOST = 15
"""Kernels that are shown; the rest are summed."""
ALIKE = 0.005
"""Share of a difference that is not shown."""
KERNELS: tuple[Column[KernelChange], ...] = (
    Column("<kernel", lambda row: short_name(row.name)),
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
    seconds, counts = (
        [item for item in result.figures if item.name.endswith("_s") is one] for one in (True, False)
    )
    parts = (*seconds, *result.parts, *_renamed(result.exposed))
    yield table("|seconds per step", "A", "B", "B − A", rows=_rows(parts))
    yield listed(KERNELS, result.kernels[:MOST])
    if rest := result.kernels[MOST:]:
        yield line(
            f"{len(rest)} more kernels: {sum(row.difference_s for row in rest):+.4g} s (all with --json)"
        )
    if rows := [row for row in _rows([*counts, *result.shapes]) if row[1] != row[2]]:
        yield table("|counts and shapes per step", "A", "B", "B − A", rows=rows)


def short_name(name: str) -> str:
    """Return the name of a kernel without the usual namespaces, and not longer than a table takes."""
    short = QUALIFIED.sub("", name)
    return short if len(short) <= LONGEST else f"{short[: LONGEST - 1]}…"


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

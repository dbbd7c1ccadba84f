"""Two projections beside each other."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from rich.console import Group
from rich.table import Table
from rich.text import Text

from forescale.cli.render import words
from forescale.cli.render.words import table
from forescale.search.compare import Change, Comparison, Difference
from forescale.units import GIB, format_seconds

SIDES = ("A", "B", "B − A")
MAX_CHANGES = 8
"""Choices shown; the rest are counted."""


def comparison_view(result: Comparison) -> Group:
    """Return what was chosen differently, then time and memory part by part, then the outcome."""
    side_by_side = Table.grid(padding=(0, 6))
    side_by_side.add_row(_times(result), _memory(result))
    return Group(
        Text.assemble(("A ", "bold"), result.name_a, ("   B ", "bold"), result.name_b),
        *_question(result),
        *_changed(result.layout, "the layouts are the same"),
        "",
        side_by_side,
        "",
        _outcome(result),
    )


def _question(result: Comparison) -> list[Text]:
    """Return differences beyond the layout, as a warning."""
    return [
        Text(f"not only the layout differs: {_arrow(change, change.name)}", style="yellow")
        for change in result.question
    ]


def _changed(changes: tuple[Change, ...], none: str) -> list[Text]:
    if not changes:
        return [Text(none, style="dim")]
    shown = [_arrow(change, change.name.removeprefix("strategy.")) for change in changes[:MAX_CHANGES]]
    rest = len(changes) - len(shown)
    more = [f"{rest} more (all with --json)"] if rest else []
    return [Text(" · ".join([*shown, *more]), style="cyan")]


def _arrow(change: Change, name: str) -> str:
    return f"{name} {_word(change.a)} → {_word(change.b)}"


def _word(value: object) -> str:
    if isinstance(value, list):
        return "-".join(str(item) for item in value) or "none"
    return "none" if value is None else words.number(value)


def _times(result: Comparison) -> Table:
    """Return seconds by part, the largest difference first."""
    rows = table("<seconds", *SIDES)
    for part in sorted(result.time_parts, key=lambda part: -abs(part.difference or 0.0)):
        _row(rows, replace(part, name=words.time_part(part.name)), _seconds)
    _row(rows, replace(result.step_time, name="step"), _seconds, "bold")
    return rows


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _gib(value: float) -> str:
    return f"{value / GIB:.2f}"


def _memory(result: Comparison) -> Table:
    """Return GiB by part on the fullest stage of each."""
    memory = result.memory
    rows = table(f"<GiB, stage {memory.stage_a} | {memory.stage_b}", *SIDES)
    for part in memory.parts:
        if part.a or part.b:
            _row(rows, part, _gib)
    _row(rows, memory.peak, _gib, "bold")
    rows.add_row("verdict", memory.verdict_a, memory.verdict_b, "")
    rows.add_section()
    for figure in result.figures:
        if figure.name in ("mfu", "hfu"):
            _row(rows, figure, words.percent)
    return rows


def _row(rows: Table, part: Difference, text: Callable[[float], str], style: str | None = None) -> None:
    shown = ["–" if value is None else text(abs(value)) for value in (part.a, part.b, part.difference)]
    if part.difference and shown[2] != text(0.0):
        shown[2] = f"{'+' if part.difference > 0.0 else '−'}{shown[2]}"
    rows.add_row(part.name, *shown, style=style)


def _outcome(result: Comparison) -> Text:
    """Return which is faster, by how much, and what contributes most."""
    a, b = result.step_time.a or 0.0, result.step_time.b or 0.0
    if a == b:
        return Text("both take the same time")
    faster, slower, sign = ("B", "A", -1.0) if b < a else ("A", "B", 1.0)
    part = max(result.time_parts, key=lambda part: sign * (part.difference or 0.0))
    most = format_seconds(abs(part.difference or 0.0))
    share = words.percent(abs(b - a) / max(a, b))
    return Text.assemble(
        (f"{faster} is faster", "bold"),
        f" by {format_seconds(abs(b - a))} ({share} of {slower}); the largest part of it is "
        f"{words.time_part(part.name)}: {most}",
    )

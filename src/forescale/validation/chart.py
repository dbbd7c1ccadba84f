"""Pictures of the scoreboard: projected over measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forescale.struct import Struct
from forescale.validation.scoreboard import Label, RowOutcome, Scoreboard, headline_label
from forescale.view.axes import Axis, value_axis
from forescale.view.lines import Dot, Line, LineChart

BANDS = (0.8, 1.25)
"""Thin lines beside the one at 1."""
RATIOS = (0.5, 0.7, 1.0, 1.5, 2.0)
"""Named ratios; the axis always reaches from the first to the last."""


class ErrorPoint(Struct, frozen=True, kw_only=True):
    """A row: its group, what was measured, and projected over measured."""

    group: str
    measured: float
    ratio: float
    remark: str


def time_chart(board: Scoreboard) -> LineChart | None:
    """Return projected over measured step time of the core rows; None without any."""
    result = points(
        board,
        lambda outcome: outcome.error if outcome.case.core else None,
        lambda outcome: outcome.case.measured.step_time_s or 0.0,
        headline_label,
    )
    return scatter(
        "Step time", "core rows; 1 is right, above it projected too slow", "measured step (s)", result
    )


def points(
    board: Scoreboard,
    error: Callable[[RowOutcome], float | None],
    measured: Callable[[RowOutcome], float],
    label: Label,
) -> list[ErrorPoint]:
    """Return a point for every row that has an error."""
    return [
        ErrorPoint(
            group=label(outcome.case),
            measured=measured(outcome),
            ratio=1.0 + wrong,
            remark=f"{outcome.case.id}: {100.0 * wrong:+.1f} %",
        )
        for outcome in board.outcomes
        if (wrong := error(outcome)) is not None
    ]


def scatter(title: str, note: str, x_name: str, points: Sequence[ErrorPoint]) -> LineChart | None:
    """Return the points on a logarithmic scale, with lines at equality and at `BANDS`; None without any."""
    if not points:
        return None
    x = value_axis(x_name, [point.measured for point in points], log=True)
    ratios = [point.ratio for point in points]
    low, high = min(*ratios, RATIOS[0]) / 1.05, max(*ratios, RATIOS[-1]) * 1.05
    named = tuple((value, f"{value:g}") for value in RATIOS)
    groups = list(dict.fromkeys(point.group for point in points))
    dots = [
        Line(
            name=group,
            dots=tuple(
                Dot(x=point.measured, y=point.ratio, remark=point.remark)
                for point in points
                if point.group == group
            ),
            colour=index,
            joined=False,
        )
        for index, group in enumerate(sorted(groups))
    ]
    return LineChart(
        title=f"{title}: projected over measured",
        note=note,
        x=x,
        y=Axis(name="projected / measured", low=low, high=high, log=True, ticks=named),
        lines=(*dots, *(_level(x, value, len(groups)) for value in (1.0, *BANDS))),
    )


def _level(x: Axis, value: float, colour: int) -> Line:
    name = "right" if value == 1.0 else f"{100.0 * (value - 1.0):+.0f} %"
    return Line(name=name, dots=(Dot(x=x.low, y=value), Dot(x=x.high, y=value)), colour=colour, ideal=True)

"""Pictures of the scoreboard: projected over measured, for step time and peak memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from forescale.evidence.scoreboard import Label, Outcome, Scoreboard, headline_label
from forescale.struct import Struct
from forescale.units import GB
from forescale.view.axes import Axis, value_axis
from forescale.view.lines import Dot, Line, LineChart

BANDS = (0.8, 1.25)
"""Thin lines beside the one at 1."""
RATIOS = (0.5, 0.7, 1.0, 1.5, 2.0)
"""Named ratios; the axis always reaches from the first to the last."""


class _Point(Struct, frozen=True, kw_only=True):
    group: str
    measured: float
    ratio: float
    remark: str


def time_chart(board: Scoreboard) -> LineChart | None:
    """Return projected over measured step time of the core rows; None without any."""
    points = _points(
        board,
        lambda outcome: outcome.error if outcome.case.core else None,
        lambda outcome: outcome.case.measured.step_time_s or 0.0,
        headline_label,
    )
    return _scatter(
        "Step time", "core rows; 1 is right, above it projected too slow", "measured step (s)", points
    )


def memory_chart(board: Scoreboard) -> LineChart | None:
    """Return projected over measured peak memory of all rows that measured it; None without any."""
    points = _points(
        board,
        lambda outcome: outcome.memory_error,
        lambda outcome: (outcome.case.measured.peak_bytes or 0.0) / GB,
        lambda case: case.source,
    )
    return _scatter(
        "Peak memory", "all rows; 1 is right, above it projected too large", "measured peak (GB)", points
    )


PICTURES: Mapping[str, Callable[[Scoreboard], LineChart | None]] = MappingProxyType(
    {"step-time": time_chart, "memory": memory_chart}
)
"""Pictures of a scoreboard by the name of their file."""


def _points(
    board: Scoreboard,
    error: Callable[[Outcome], float | None],
    measured: Callable[[Outcome], float],
    label: Label,
) -> list[_Point]:
    return [
        _Point(
            group=label(outcome.case),
            measured=measured(outcome),
            ratio=1.0 + wrong,
            remark=f"{outcome.case.id}: {100.0 * wrong:+.1f} %",
        )
        for outcome in board.outcomes
        if (wrong := error(outcome)) is not None
    ]


def _scatter(title: str, note: str, x_name: str, points: Sequence[_Point]) -> LineChart | None:
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

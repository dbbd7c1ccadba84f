"""What the page draws beside the pictures that a result has itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forescale.projection.result import Projection
from forescale.units import format_bytes, format_seconds
from forescale.view.axes import data_axis, value_axis
from forescale.view.lines import Dot, Line, LineChart


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The layout where one quantity is multiplied by a factor."""

    what: str
    factor: float
    found: Projection
    link: str
    """Address of this question."""


def curve(points: Sequence[Point], words: str) -> LineChart | None:
    """Return tokens per second and device as one quantity changes; None where nothing can be projected."""
    if not points:
        return None
    dots = tuple(map(_dot, points))
    over = tuple(dot for each, dot in zip(points, dots, strict=True) if each.found.memory.verdict == "OOM")
    lines = (
        Line(name="this layout", dots=dots),
        *([Line(name="does not fit", dots=over, joined=False, colour=1)] if over else []),
    )
    return LineChart(
        title=f"What if: {words}",
        note="a click on a point asks it",
        x=data_axis(f"{points[0].what} ×", [dot.x for dot in dots], log=True, say="{:g}".format),
        y=value_axis("tokens/s/device", [dot.y for dot in dots], log=False, say="{:,.0f}".format, zero=True),
        lines=lines,
        height=150,
    )


def _dot(point: Point) -> Dot:
    found = point.found
    rate, memory = found.tokens_per_s_per_device, found.memory
    remark = (
        f"× {point.factor:g}: {rate:,.0f} tokens/s/device, {format_seconds(found.step_time_s)} per step, "
        f"{format_bytes(memory.peak_bytes)}, {memory.verdict}"
    )
    return Dot(x=point.factor, y=rate, remark=remark, link=point.link)

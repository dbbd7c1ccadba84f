"""What the page draws beside the pictures that a result has itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forescale.units import GIB, format_seconds
from forescale.view.axes import data_axis, value_axis
from forescale.view.lines import Dot, Line, LineChart


def curve(points: Sequence[Mapping[str, Any]], what: str, words: str) -> LineChart | None:
    """Return tokens per second and device as one quantity changes; None where nothing can be projected."""
    dots = tuple(
        Dot(
            x=each["factor"],
            y=each["tokens_per_s_per_device"],
            remark=f"× {each['factor']:g}: {each['tokens_per_s_per_device']:,.0f} tokens/s/device, "
            f"{format_seconds(each['step_time_s'])} per step, {each['peak_bytes'] / GIB:.1f} GiB",
        )
        for each in points
        if each["what"] == what
    )
    if not dots:
        return None
    heights = [dot.y for dot in dots]
    return LineChart(
        title=f"What if: {words}",
        note="",
        x=data_axis(f"{what} ×", [dot.x for dot in dots], log=True, say="{:g}".format),
        y=value_axis("tokens/s/device", heights, log=False, say="{:,.0f}".format, zero=True),
        lines=(Line(name=what, dots=dots),),
        height=150,
    )

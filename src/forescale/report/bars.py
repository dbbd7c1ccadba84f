"""Stacked bars: as a Vega-Lite specification, and as an SVG document that needs no renderer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from forescale.escaping import xml
from forescale.report.axes import CHARACTER, FAINT, GRID, INK, opening, round_step, text

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v5.json"
_LEFT, _TOP, _PLOT, _FOOT = 62.0, 76.0, 300.0, 74.0
_LIMIT = "#b3261e"
_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One colour of the stacks."""

    name: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One stack: a value per part, and a word beside its top."""

    label: str
    values: tuple[float, ...]
    remark: str = ""

    @property
    def total(self) -> float:
        """Height of the stack."""
        return sum(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Stacked bars beside each other, with one limit across them."""

    title: str
    note: str
    axis: str
    """What the bars differ in."""
    unit: str
    parts: tuple[Part, ...]
    """From the bottom of a stack upwards."""
    bars: tuple[Bar, ...]
    limit: float | None = None
    limit_name: str = ""


def to_vega_lite(chart: BarChart) -> dict[str, Any]:
    """Return the chart as a Vega-Lite specification with its data inside."""
    rows = [
        {chart.axis: bar.label, "part": part.name, "order": order, chart.unit: value}
        for bar in chart.bars
        for order, (part, value) in enumerate(zip(chart.parts, bar.values, strict=True))
    ]
    colours = {"domain": [part.name for part in chart.parts], "range": [part.colour for part in chart.parts]}
    stacked = {
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {"field": chart.axis, "type": "nominal", "sort": None, "axis": {"labelAngle": 0}},
            "y": {"field": chart.unit, "type": "quantitative", "stack": "zero"},
            "color": {"field": "part", "type": "nominal", "scale": colours, "sort": colours["domain"]},
            "order": {"field": "order", "type": "quantitative"},
        },
    }
    rule = {
        "mark": {"type": "rule", "color": _LIMIT, "strokeDash": [6, 4], "tooltip": chart.limit_name},
        "encoding": {"y": {"datum": chart.limit}},
    }
    return {
        "$schema": VEGA_LITE,
        "title": {"text": chart.title, "subtitle": chart.note},
        "width": max(240, 90 * len(chart.bars)),
        "height": int(_PLOT),
        "data": {"values": rows},
        "layer": [stacked, *([] if chart.limit is None else [rule])],
    }


def to_svg(chart: BarChart) -> str:
    """Return the chart as an SVG document."""
    pitch = max(92.0, max((CHARACTER * len(bar.label) for bar in chart.bars), default=0.0) + 14.0)
    legend = max(CHARACTER * len(part.name) for part in chart.parts) + 40.0
    texts = max(8.0 * len(chart.title), CHARACTER * len(chart.note)) + 24.0
    width = max(_LEFT + pitch * len(chart.bars) + legend, texts)
    right = width - legend
    top = max([bar.total for bar in chart.bars] + ([] if chart.limit is None else [chart.limit * 1.04]))
    step = round_step(top, _TICKS)
    ceiling = step * math.ceil(top / step)
    height = _TOP + _PLOT + _FOOT
    parts = [
        *opening(width, height, chart.title, chart.note),
        *_grid(chart, ceiling, step, right),
        *_limit(chart, ceiling, right),
        *(
            piece
            for index, bar in enumerate(chart.bars)
            for piece in _stack(chart, bar, ceiling, _LEFT + pitch * (index + 0.5), pitch * 0.56)
        ),
        *_legend(chart, right + 14.0),
        text((_LEFT + right) / 2.0, height - 14.0, chart.axis, size=12, anchor="middle"),
        "</svg>",
    ]
    return "\n".join(parts)


def _y(value: float, ceiling: float) -> float:
    return _TOP + _PLOT * (1.0 - value / ceiling)


def _grid(chart: BarChart, ceiling: float, step: float, right: float) -> list[str]:
    found = []
    for index in range(round(ceiling / step) + 1):
        y = _y(index * step, ceiling)
        found.append(
            f'<line x1="{_LEFT:g}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID if index else INK}"/>'
        )
        found.append(text(_LEFT - 8.0, y + 4.0, f"{index * step:g}", size=11, anchor="end", colour=FAINT))
    return [*found, text(_LEFT - 8.0, _TOP - 12.0, chart.unit, size=11, anchor="end", colour=FAINT)]


def _stack(chart: BarChart, bar: Bar, ceiling: float, middle: float, wide: float) -> list[str]:
    found, below = [], 0.0
    for part, value in zip(chart.parts, bar.values, strict=True):
        if value > 0.0:
            top, bottom = _y(below + value, ceiling), _y(below, ceiling)
            found.append(
                f'<rect x="{middle - wide / 2:.1f}" y="{top:.2f}" width="{wide:.1f}" height="{bottom - top:.2f}" '
                f'fill="{part.colour}"><title>{xml(f"{part.name}: {value:.2f} {chart.unit}")}</title></rect>'
            )
        below += value
    head = _y(below, ceiling)
    found.append(text(middle, head - 6.0, f"{below:.1f}", size=12, anchor="middle"))
    found.append(text(middle, _TOP + _PLOT + 18.0, bar.label, size=12, anchor="middle"))
    if bar.remark:
        found.append(text(middle, _TOP + _PLOT + 34.0, bar.remark, size=11, anchor="middle", colour=FAINT))
    return found


def _limit(chart: BarChart, ceiling: float, right: float) -> list[str]:
    if chart.limit is None:
        return []
    y = _y(chart.limit, ceiling)
    return [
        f'<line x1="{_LEFT:g}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_LIMIT}" '
        f'stroke-width="1.5" stroke-dasharray="6 4"/>',
        text(right - 4.0, y - 5.0, chart.limit_name, size=11, anchor="end", colour=_LIMIT),
    ]


def _legend(chart: BarChart, left: float) -> list[str]:
    found = []
    for row, part in enumerate(reversed(chart.parts)):
        y = _TOP + 8.0 + 20.0 * row
        found.append(f'<rect x="{left:.1f}" y="{y:.1f}" width="11" height="11" fill="{part.colour}"/>')
        found.append(text(left + 17.0, y + 10.0, part.name, size=12))
    return found

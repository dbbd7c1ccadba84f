"""Stacked bars: as a Vega-Lite specification, and as an SVG document that needs no renderer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v5.json"
_LEFT, _TOP, _PLOT, _FOOT = 62.0, 76.0, 300.0, 74.0
_INK, _FAINT, _GRID, _LIMIT = "#1b2430", "#5b6675", "#e3e6ea", "#b3261e"
_CHARACTER = 6.6
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
    pitch = max(92.0, max((_CHARACTER * len(bar.label) for bar in chart.bars), default=0.0) + 14.0)
    legend = max(_CHARACTER * len(part.name) for part in chart.parts) + 40.0
    texts = max(8.0 * len(chart.title), _CHARACTER * len(chart.note)) + 24.0
    width = max(_LEFT + pitch * len(chart.bars) + legend, texts)
    right = width - legend
    top = max([bar.total for bar in chart.bars] + ([] if chart.limit is None else [chart.limit * 1.04]))
    step = _step(top)
    ceiling = step * math.ceil(top / step)
    height = _TOP + _PLOT + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="ui-sans-serif, Helvetica, Arial, sans-serif">',
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
        _text(14.0, 22.0, chart.title, size=15),
        _text(14.0, 40.0, chart.note, size=11, colour=_FAINT),
        *_grid(chart, ceiling, step, right),
        *_limit(chart, ceiling, right),
        *(
            piece
            for index, bar in enumerate(chart.bars)
            for piece in _stack(chart, bar, ceiling, _LEFT + pitch * (index + 0.5), pitch * 0.56)
        ),
        *_legend(chart, right + 14.0),
        _text((_LEFT + right) / 2.0, height - 14.0, chart.axis, size=12, anchor="middle"),
        "</svg>",
    ]
    return "\n".join(parts)


def _step(top: float) -> float:
    """Return a round distance of grid lines: 1, 2 or 5 times a power of ten."""
    rough = max(top, 1e-12) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(factor for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)


def _y(value: float, ceiling: float) -> float:
    return _TOP + _PLOT * (1.0 - value / ceiling)


def _grid(chart: BarChart, ceiling: float, step: float, right: float) -> list[str]:
    found = []
    for index in range(round(ceiling / step) + 1):
        y = _y(index * step, ceiling)
        found.append(
            f'<line x1="{_LEFT:g}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID if index else _INK}"/>'
        )
        found.append(_text(_LEFT - 8.0, y + 4.0, f"{index * step:g}", size=11, anchor="end", colour=_FAINT))
    return [*found, _text(_LEFT - 8.0, _TOP - 12.0, chart.unit, size=11, anchor="end", colour=_FAINT)]


def _stack(chart: BarChart, bar: Bar, ceiling: float, middle: float, wide: float) -> list[str]:
    found, below = [], 0.0
    for part, value in zip(chart.parts, bar.values, strict=True):
        if value > 0.0:
            top, bottom = _y(below + value, ceiling), _y(below, ceiling)
            found.append(
                f'<rect x="{middle - wide / 2:.1f}" y="{top:.2f}" width="{wide:.1f}" height="{bottom - top:.2f}" '
                f'fill="{part.colour}"><title>{escape(f"{part.name}: {value:.2f} {chart.unit}")}</title></rect>'
            )
        below += value
    head = _y(below, ceiling)
    found.append(_text(middle, head - 6.0, f"{below:.1f}", size=12, anchor="middle"))
    found.append(_text(middle, _TOP + _PLOT + 18.0, bar.label, size=12, anchor="middle"))
    if bar.remark:
        found.append(_text(middle, _TOP + _PLOT + 34.0, bar.remark, size=11, anchor="middle", colour=_FAINT))
    return found


def _limit(chart: BarChart, ceiling: float, right: float) -> list[str]:
    if chart.limit is None:
        return []
    y = _y(chart.limit, ceiling)
    return [
        f'<line x1="{_LEFT:g}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_LIMIT}" '
        f'stroke-width="1.5" stroke-dasharray="6 4"/>',
        _text(right - 4.0, y - 5.0, chart.limit_name, size=11, anchor="end", colour=_LIMIT),
    ]


def _legend(chart: BarChart, left: float) -> list[str]:
    found = []
    for row, part in enumerate(reversed(chart.parts)):
        y = _TOP + 8.0 + 20.0 * row
        found.append(f'<rect x="{left:.1f}" y="{y:.1f}" width="11" height="11" fill="{part.colour}"/>')
        found.append(_text(left + 17.0, y + 10.0, part.name, size=12))
    return found


def _text(x: float, y: float, text: str, *, size: float, anchor: str = "start", colour: str = _INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" fill="{colour}" '
        f'stroke="#ffffff" stroke-width="3" paint-order="stroke">'
        f"{escape(text)}</text>"
    )

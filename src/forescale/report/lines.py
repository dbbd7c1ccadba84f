"""Lines over two axes: as a Vega-Lite specification, and as an SVG document that needs no renderer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forescale.escaping import xml
from forescale.report.axes import CHARACTER, FAINT, GRID, INK, SERIES, Axis, opening, text

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v5.json"
_LEFT, _TOP, _WIDE, _HIGH, _FOOT = 92.0, 76.0, 520.0, 320.0, 62.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point of a line, and what it stands for."""

    x: float
    y: float
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points that belong together, by ascending x."""

    name: str
    dots: tuple[Dot, ...]
    colour: int = 0
    """Lines of one number share a colour."""
    ideal: bool = False
    """Dashed and without marks: what would be without losses."""
    joined: bool = True
    """Whether a line joins the points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Lines over the same axes."""

    title: str
    note: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]


def to_vega_lite(chart: LineChart) -> dict[str, Any]:
    """Return the chart as a Vega-Lite specification with its data inside."""
    solid = [line for line in chart.lines if not line.ideal]
    colour = {
        "field": "line",
        "type": "nominal",
        "title": None,
        **({} if len(chart.lines) > 1 else {"legend": None}),
        "scale": {
            "domain": [line.name for line in chart.lines],
            "range": [_colour(line) for line in chart.lines],
        },
    }
    places = {"x": {"field": "x", **chart.x.vega()}, "y": {"field": "y", **chart.y.vega()}, "color": colour}
    marked = {"encoding": {**places, "tooltip": [{"field": "line"}, {"field": "remark"}]}}
    point = {"type": "point", "filled": True, "size": 46, "opacity": 1}
    layers: list[dict[str, Any]] = [
        {
            "data": _rows([line for line in chart.lines if line.ideal]),
            "mark": {"type": "line", "strokeDash": [5, 4]},
        },
        {"data": _rows([line for line in solid if line.joined]), "mark": "line"},
    ]
    return {
        "$schema": VEGA_LITE,
        "title": {"text": chart.title, "subtitle": chart.note, "anchor": "start"},
        "width": int(_WIDE),
        "height": int(_HIGH),
        "layer": [
            *({**layer, "encoding": places} for layer in layers),
            {"data": _rows(solid), "mark": point, **marked},
        ],
    }


def to_svg(chart: LineChart) -> str:
    """Return the chart as an SVG document."""
    legend = max((CHARACTER * len(line.name) for line in chart.lines), default=0.0) + 52.0
    width = max(_LEFT + _WIDE + legend, 8.0 * len(chart.title) + 28.0, CHARACTER * len(chart.note) + 28.0)
    parts = [
        *opening(width, _TOP + _HIGH + _FOOT, chart.title, chart.note),
        *_grid(chart),
        *(piece for line in chart.lines for piece in _line(chart, line)),
        *_legend(chart),
        "</svg>",
    ]
    return "\n".join(parts)


def _rows(lines: list[Line]) -> dict[str, Any]:
    values = [
        {"line": line.name, "x": dot.x, "y": dot.y, "remark": dot.remark}
        for line in lines
        for dot in line.dots
    ]
    return {"values": values}


def _colour(line: Line) -> str:
    return SERIES[line.colour % len(SERIES)]


def _at(chart: LineChart, x: float, y: float) -> tuple[float, float]:
    return _LEFT + _WIDE * chart.x.share(x), _TOP + _HIGH * (1.0 - chart.y.share(y))


def _grid(chart: LineChart) -> list[str]:
    bottom, right = _TOP + _HIGH, _LEFT + _WIDE
    found = []
    for value, label in chart.y.ticks:
        _, y = _at(chart, chart.x.low, value)
        found.append(f'<line x1="{_LEFT:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        found.append(text(_LEFT - 8.0, y + 4.0, label, size=11, anchor="end", colour=FAINT))
    for value, label in chart.x.ticks:
        x, _ = _at(chart, value, chart.y.low)
        found.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP:g}" y2="{bottom:g}" stroke="{GRID}"/>')
        found.append(text(x, bottom + 17.0, label, size=11, anchor="middle", colour=FAINT))
    found.append(f'<path d="M{_LEFT:g} {_TOP:g}V{bottom:g}H{right:g}" fill="none" stroke="{INK}"/>')
    found.append(text(_LEFT - 8.0, _TOP - 12.0, chart.y.name, size=12))
    found.append(text((_LEFT + right) / 2.0, bottom + 42.0, chart.x.name, size=12, anchor="middle"))
    return found


def _line(chart: LineChart, line: Line) -> list[str]:
    places = [_at(chart, dot.x, dot.y) for dot in line.dots]
    found = []
    if line.joined or line.ideal:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4" stroke-width="1.2"' if line.ideal else ' stroke-width="2"'
        found.append(f'<polyline points="{path}" fill="none" stroke="{_colour(line)}"{dash}/>')
    if not line.ideal:
        for dot, (x, y) in zip(line.dots, places, strict=True):
            words = xml(f"{line.name}: {dot.remark}" if dot.remark else line.name)
            found.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{_colour(line)}" stroke="#ffffff" '
                f'stroke-width="0.8"><title>{words}</title></circle>'
            )
    return found


def _legend(chart: LineChart) -> list[str]:
    """Return the names of lines; one alone is named by its axis."""
    if len(chart.lines) == 1:
        return []
    found, left = [], _LEFT + _WIDE + 16.0
    for row, line in enumerate(chart.lines):
        y = _TOP + 8.0 + 20.0 * row
        dash = ' stroke-dasharray="5 4"' if line.ideal else ""
        found.append(
            f'<line x1="{left:g}" x2="{left + 20.0:g}" y1="{y:g}" y2="{y:g}" stroke="{_colour(line)}" '
            f'stroke-width="2"{dash}/>'
        )
        found.append(text(left + 27.0, y + 4.0, line.name, size=12))
    return found

"""Heat maps with iso-lines: as a Vega-Lite specification, and as an SVG document that needs no renderer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from forescale.escaping import xml
from forescale.report.axes import CHARACTER, FAINT, INK, opening, text, word_axis

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v5.json"
_RAMP = ((247, 252, 219), (183, 226, 176), (90, 180, 172), (38, 113, 142), (33, 52, 104))
_EMPTY = "#eceef1"
_TOP, _FOOT, _CELL_HIGH, _CELL_WIDE = 76.0, 66.0, 46.0, 84.0
_DARK = 0.52
"""From this share of the ramp on, words are light."""
_KEY_STEPS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination: its value (None: nothing fits) and what it stands for."""

    value: float | None
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """A value over two parameters."""

    title: str
    note: str
    x_name: str
    y_name: str
    value_name: str
    x_labels: tuple[str, ...]
    y_labels: tuple[str, ...]
    """From the bottom upwards."""
    cells: tuple[tuple[Cell, ...], ...]
    """Rows from the bottom upwards, each from left to right."""
    levels: tuple[float, ...]
    """Values whose iso-lines are drawn."""
    say: Callable[[float], str]
    dark_is_high: bool = True

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value."""
        found = [cell.value for row in self.cells for cell in row if cell.value is not None]
        return (min(found), max(found)) if found else (0.0, 1.0)

    def shade(self, value: float) -> float:
        """Return where `value` stands on the colour ramp, 0 (light) to 1."""
        low, high = self.bounds
        share = 0.5 if high == low else (value - low) / (high - low)
        return share if self.dark_is_high else 1.0 - share

    def isolines(self) -> tuple[tuple[float, tuple[tuple[tuple[float, float], ...], ...]], ...]:
        """Return every level with its lines, in places of cells (column, row)."""
        values = [[cell.value for cell in row] for row in self.cells]
        return tuple((level, contour(values, level)) for level in self.levels)


def to_vega_lite(chart: HeatMap) -> dict[str, Any]:
    """Return the chart as a Vega-Lite specification with its data inside."""
    across, up = (
        word_axis(name, labels).vega()
        for name, labels in ((chart.x_name, chart.x_labels), (chart.y_name, chart.y_labels))
    )
    for axis in (across, up):
        axis["axis"]["grid"] = False
    place = {"x": {"field": "x", **across}, "y": {"field": "y", **up}}
    rect = {
        "x": {"field": "left", **across}, "x2": {"field": "right"},
        "y": {"field": "low", **up}, "y2": {"field": "high"},
        "color": _vega_colour(chart), "tooltip": [{"field": "label"}, {"field": "remark"}],
    }  # fmt: skip
    lines = {
        "data": {"values": _vega_lines(chart)},
        "encoding": {**place, "detail": {"field": "line"}, "order": {"field": "order"}},
    }
    ink = {"condition": {"test": "datum.light", "value": "#ffffff"}, "value": INK}
    return {
        "$schema": VEGA_LITE,
        "title": {"text": chart.title, "subtitle": chart.note, "anchor": "start"},
        "width": int(_CELL_WIDE * len(chart.x_labels)),
        "height": int(_CELL_HIGH * len(chart.y_labels)),
        "data": {"values": _vega_cells(chart)},
        "layer": [
            {"mark": {"type": "rect", "invalid": None}, "encoding": rect},
            {**lines, "mark": {"type": "line", "color": "#ffffff", "strokeWidth": 3.4, "opacity": 0.6}},
            {**lines, "mark": {"type": "line", "color": INK, "strokeWidth": 1.4}},
            {"mark": "text", "encoding": {**place, "text": {"field": "label"}, "color": ink}},
        ],
    }


def _vega_cells(chart: HeatMap) -> list[dict[str, Any]]:
    return [
        {"x": x, "y": y, "value": cell.value, "label": "–" if cell.value is None else chart.say(cell.value),
         "remark": cell.remark, "left": x - 0.5, "right": x + 0.5, "low": y - 0.5, "high": y + 0.5,
         "light": cell.value is not None and chart.shade(cell.value) > _DARK}
        for y, row in enumerate(chart.cells) for x, cell in enumerate(row)
    ]  # fmt: skip


def _vega_lines(chart: HeatMap) -> list[dict[str, Any]]:
    return [
        {"x": x, "y": y, "line": f"{level}/{index}", "order": order}
        for level, found in chart.isolines()
        for index, line in enumerate(found)
        for order, (x, y) in enumerate(line)
    ]


def _vega_colour(chart: HeatMap) -> dict[str, Any]:
    ramp = [_hex(step / 8.0) for step in range(9)]
    scale = {"domain": list(chart.bounds), "range": ramp if chart.dark_is_high else ramp[::-1]}
    return {"field": "value", "type": "quantitative", "title": chart.value_name, "scale": scale}


def to_svg(chart: HeatMap) -> str:
    """Return the chart as an SVG document."""
    left = max(CHARACTER * max(len(label) for label in chart.y_labels) + 24.0, 60.0)
    wide, high = _CELL_WIDE * len(chart.x_labels), _CELL_HIGH * len(chart.y_labels)
    key = max(
        CHARACTER * len(chart.value_name), CHARACTER * max(len(chart.say(v)) for v in chart.bounds) + 22.0
    )
    width = max(left + wide + key + 34.0, 8.0 * len(chart.title) + 28.0, CHARACTER * len(chart.note) + 28.0)
    bottom = _TOP + high
    parts = [*opening(width, bottom + _FOOT, chart.title, chart.note)]
    for y, row in enumerate(chart.cells):
        for x, cell in enumerate(row):
            parts += _cell(chart, cell, left + _CELL_WIDE * x, bottom - _CELL_HIGH * (y + 1))
    parts += _lines(chart, left, bottom)
    parts += [text(left - 8.0, bottom - _CELL_HIGH * (y + 0.5) + 4.0, label, size=11, anchor="end", colour=FAINT)
              for y, label in enumerate(chart.y_labels)]  # fmt: skip
    parts += [text(left + _CELL_WIDE * (x + 0.5), bottom + 17.0, label, size=11, anchor="middle", colour=FAINT)
              for x, label in enumerate(chart.x_labels)]  # fmt: skip
    parts.append(text(14.0, _TOP - 12.0, chart.y_name, size=12))
    parts.append(text(left + wide / 2.0, bottom + 42.0, chart.x_name, size=12, anchor="middle"))
    return "\n".join([*parts, *_key(chart, left + wide + 18.0, high), "</svg>"])


def _cell(chart: HeatMap, cell: Cell, x: float, y: float) -> list[str]:
    shade = None if cell.value is None else chart.shade(cell.value)
    fill = _EMPTY if shade is None else _hex(shade)
    words = "–" if cell.value is None else chart.say(cell.value)
    ink = "#ffffff" if shade is not None and shade > _DARK else INK
    remark = xml(f"{words} {cell.remark}".strip())
    middle, base = x + _CELL_WIDE / 2.0, y + _CELL_HIGH / 2.0 + 4.0
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_CELL_WIDE:g}" height="{_CELL_HIGH:g}" fill="{fill}" '
        f'stroke="#ffffff"><title>{remark}</title></rect>',
        f'<text x="{middle:.1f}" y="{base:.1f}" font-size="12" text-anchor="middle" fill="{ink}" '
        f'pointer-events="none">{xml(words)}</text>',
    ]


def _lines(chart: HeatMap, left: float, bottom: float) -> list[str]:
    """Return the iso-lines, each named at its end."""
    found = []
    for level, lines in chart.isolines():
        for line in lines:
            places = [(left + _CELL_WIDE * (x + 0.5), bottom - _CELL_HIGH * (y + 0.5)) for x, y in line]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            found.append(
                f'<polyline points="{path}" fill="none" stroke="#ffffff" stroke-width="3.4" opacity="0.6"/>'
            )
            found.append(
                f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.4">'
                f"<title>{xml(f'{chart.value_name} {chart.say(level)}')}</title></polyline>"
            )
            x, y = places[len(places) // 2]
            found.append(text(x, y - 6.0, chart.say(level), size=10, anchor="middle"))
    return found


def _key(chart: HeatMap, left: float, high: float) -> list[str]:
    low, top = chart.bounds
    tall = min(high, 220.0)
    found = [text(left, _TOP - 12.0, chart.value_name, size=12)]
    for step in range(_KEY_STEPS):
        value = top + (low - top) * (step + 0.5) / _KEY_STEPS
        found.append(
            f'<rect x="{left:g}" y="{_TOP + tall * step / _KEY_STEPS:.1f}" width="14" '
            f'height="{tall / _KEY_STEPS + 0.5:.1f}" fill="{_hex(chart.shade(value))}"/>'
        )
    found.append(text(left + 20.0, _TOP + 10.0, chart.say(top), size=11, colour=FAINT))
    return [*found, text(left + 20.0, _TOP + tall, chart.say(low), size=11, colour=FAINT)]


def _hex(share: float) -> str:
    """Return the colour at `share` of the ramp."""
    place = min(max(share, 0.0), 1.0) * (len(_RAMP) - 1)
    index = min(math.floor(place), len(_RAMP) - 2)
    part = place - index
    mixed = (round(a + part * (b - a)) for a, b in zip(_RAMP[index], _RAMP[index + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


Place: TypeAlias = tuple[float, float]
Segment: TypeAlias = tuple[Place, Place]
Grid: TypeAlias = Sequence[Sequence[float | None]]


def contour(values: Grid, level: float) -> tuple[tuple[Place, ...], ...]:
    """Return the lines along which `values` (rows, columns) equal `level`.

    Places are (column, row) between the numbers' own whole places, by linear interpolation; cells with a missing
    corner have no line.
    """
    segments: list[Segment] = []
    for row in range(len(values) - 1):
        for column in range(len(values[0]) - 1):
            segments += _contour_cell(values, row, column, level)
    return _joined(segments)


def _contour_cell(values: Grid, row: int, column: int, level: float) -> list[Segment]:
    """Return the segments within one cell; of two possible pairs at a saddle its mean decides."""
    around = ((column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1))
    heights: list[float] = []
    for x, y in around:
        height = values[y][x]
        if height is None:
            return []
        heights.append(height)
    crossings: list[Place] = []
    for side in range(4):
        ends = ((around[side], heights[side]), (around[(side + 1) % 4], heights[(side + 1) % 4]))
        if (ends[0][1] < level) != (ends[1][1] < level):
            # one order of the ends, so that the neighbouring cell finds the same place to the bit
            ((x0, y0), low), ((x1, y1), high) = sorted(ends)
            share = (level - low) / (high - low)
            crossings.append((x0 + share * (x1 - x0), y0 + share * (y1 - y0)))
    if len(crossings) < 4:
        return [(crossings[0], crossings[1])] if crossings else []
    a, b, c, d = crossings
    same_side = (sum(heights) / 4.0 < level) == (heights[0] < level)
    return [(a, b), (c, d)] if same_side else [(a, d), (b, c)]


def _joined(segments: list[Segment]) -> tuple[tuple[Place, ...], ...]:
    """Return segments that share an end as lines."""
    left = list(segments)
    lines = []
    while left:
        line = list(left.pop(0))
        grown = True
        while grown:
            grown = False
            for index, (start, end) in enumerate(left):
                if line[-1] in (start, end):
                    line.append(end if line[-1] == start else start)
                elif line[0] in (start, end):
                    line.insert(0, end if line[0] == start else start)
                else:
                    continue
                del left[index]
                grown = True
                break
        lines.append(tuple(line))
    return tuple(lines)

"""Heat maps with iso-lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from forescale.struct import Struct
from forescale.view.axes import INK, Spec, specification, word_axis

_RAMP = ((247, 252, 219), (183, 226, 176), (90, 180, 172), (38, 113, 142), (33, 52, 104))
_CELL_HIGH, _CELL_WIDE = 46, 84
_DARK = 0.52
"""From this share of the ramp on, words are light."""


class Cell(Struct, frozen=True, kw_only=True):
    """One combination: its value (None: nothing fits) and what it stands for."""

    value: float | None
    remark: str = ""


class HeatMap(Struct, frozen=True, kw_only=True):
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
        cells = [cell.value for row in self.cells for cell in row if cell.value is not None]
        return (min(cells), max(cells)) if cells else (0.0, 1.0)

    def shade(self, value: float) -> float:
        """Return where `value` stands on the colour ramp, 0 (light) to 1."""
        low, high = self.bounds
        share = 0.5 if high == low else (value - low) / (high - low)
        return share if self.dark_is_high else 1.0 - share

    def spec(self) -> Spec:
        """Return the Vega-Lite specification with its data inside."""
        across, up = (
            word_axis(name, labels).vega()
            for name, labels in ((self.x_name, self.x_labels), (self.y_name, self.y_labels))
        )
        for axis in (across, up):
            axis["axis"]["grid"] = False
        place = {"x": {"field": "x", **across}, "y": {"field": "y", **up}}
        rect = {
            "x": {"field": "left", **across}, "x2": {"field": "right"},
            "y": {"field": "low", **up}, "y2": {"field": "high"},
            "color": self._colour(), "tooltip": [{"field": "label"}, {"field": "remark"}],
        }  # fmt: skip
        lines = {
            "data": {"values": self._lines()},
            "encoding": {**place, "detail": {"field": "line"}, "order": {"field": "order"}},
        }
        ink = {
            "condition": [
                {"test": "datum.value === null", "value": "currentColor"},
                {"test": "datum.light", "value": "#ffffff"},
            ],
            "value": INK,
        }
        return specification(
            self.title,
            self.note,
            width=_CELL_WIDE * len(self.x_labels),
            height=_CELL_HIGH * len(self.y_labels),
            data={"values": self._cells()},
            layer=[
                {"transform": [{"filter": "datum.value !== null"}], "mark": "rect", "encoding": rect},
                {**lines, "mark": {"type": "line", "color": "#ffffff", "strokeWidth": 3.4, "opacity": 0.6}},
                {**lines, "mark": {"type": "line", "color": INK, "strokeWidth": 1.4}},
                {"mark": "text", "encoding": {**place, "text": {"field": "label"}, "color": ink}},
            ],
        )

    def _cells(self) -> list[Spec]:
        return [
            {"x": x, "y": y, "value": cell.value, "label": "–" if cell.value is None else self.say(cell.value),
             "remark": cell.remark, "left": x - 0.5, "right": x + 0.5, "low": y - 0.5, "high": y + 0.5,
             "light": cell.value is not None and self.shade(cell.value) > _DARK}
            for y, row in enumerate(self.cells) for x, cell in enumerate(row)
        ]  # fmt: skip

    def _lines(self) -> list[Spec]:
        """Return the iso-lines, in places of cells."""
        values = [[cell.value for cell in row] for row in self.cells]
        return [
            {"x": x, "y": y, "line": f"{level}/{index}", "order": order}
            for level in self.levels
            for index, line in enumerate(contour(values, level))
            for order, (x, y) in enumerate(line)
        ]

    def _colour(self) -> Spec:
        ramp = [_hex(step / 8.0) for step in range(9)]
        scale = {"domain": list(self.bounds), "range": ramp if self.dark_is_high else ramp[::-1]}
        return {"field": "value", "type": "quantitative", "title": self.value_name, "scale": scale}


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

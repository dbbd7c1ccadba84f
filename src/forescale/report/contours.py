"""Lines of equal value across a grid of numbers: marching squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

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
            segments += _cell(values, row, column, level)
    return _joined(segments)


def _cell(values: Grid, row: int, column: int, level: float) -> list[Segment]:
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

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from forescale.view.heat import contour


def test_a_plane_has_a_straight_line():
    values = [[float(x) for x in range(4)] for _ in range(3)]
    (line,) = contour(values, 1.5)
    assert sorted(line) == [(1.5, 0.0), (1.5, 1.0), (1.5, 2.0)]


def test_a_hill_has_a_closed_line():
    values = [[4.0 - (x - 3) ** 2 - (y - 3) ** 2 for x in range(7)] for y in range(7)]
    (line,) = contour(values, 1.0)
    assert line[0] == line[-1]
    assert all(abs(math.hypot(x - 3.0, y - 3.0) - math.sqrt(3.0)) < 0.2 for x, y in line)


def test_missing_corners_leave_a_gap():
    values = [[0.0, 1.0, None], [0.0, 1.0, 2.0]]
    assert contour(values, 1.5) == ()
    assert len(contour(values, 0.5)) == 1


def test_a_saddle_has_two_lines():
    assert len(contour([[0.0, 2.0], [2.0, 0.0]], 1.0)) == 2


@given(
    st.lists(st.lists(st.integers(-10, 10), min_size=4, max_size=4), min_size=3, max_size=3),
    st.integers(-9, 9).map(lambda level: level + 0.5),
)
def test_every_crossing_lies_on_an_edge_whose_ends_straddle_the_level(values, level):
    for line in contour(values, level):
        assert len(line) >= 2
        for x, y in line:
            assert float(x).is_integer() or float(y).is_integer()
            low = values[int(y)][int(x)], values[math.ceil(y)][math.ceil(x)]
            assert min(low) <= level <= max(low)

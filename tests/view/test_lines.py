from __future__ import annotations

from forescale.view.axes import value_axis
from forescale.view.lines import Dot, Line, LineChart

DOTS = (Dot(x=1.0, y=2.0, remark="first"), Dot(x=3.0, y=4.0))


def layers(*lines):
    axis = value_axis("x", [0.0, 4.0], log=False)
    return LineChart(title="t", note="n", x=axis, y=axis, lines=lines).spec()["layer"]


def values(layer):
    return [(row["line"], row["x"], row["y"]) for row in layer["data"]["values"]]


def test_each_kind_of_line_is_a_layer():
    lines = (
        Line(name="ideal", dots=DOTS, ideal=True),
        Line(name="joined", dots=DOTS),
        Line(name="held", dots=DOTS, marked=False),
        Line(name="apart", dots=DOTS, joined=False),
    )
    ideal, joined, points, kept = layers(*lines)
    assert {name for name, *_ in values(ideal)} == {"ideal"}
    assert {name for name, *_ in values(joined)} == {"joined"}
    assert {name for name, *_ in values(kept)} == {"held"}
    assert kept["mark"]["interpolate"] == "step-after"
    assert {name for name, *_ in values(points)} == {"joined", "apart"}
    assert values(points)[0] == ("joined", 1.0, 2.0)


def test_one_line_has_no_legend():
    assert layers(Line(name="a", dots=DOTS))[0]["encoding"]["color"]["legend"] is None
    assert (
        "legend" not in layers(Line(name="a", dots=DOTS), Line(name="b", dots=DOTS))[0]["encoding"]["color"]
    )

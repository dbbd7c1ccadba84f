from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from forescale.report.bars import Bar, BarChart, Part, to_svg, to_vega_lite

SVG = "{http://www.w3.org/2000/svg}"
CHART = BarChart(
    title="Memory of <a model>",
    note="fullest device",
    axis="tp",
    unit="GiB",
    parts=(Part(name="weights", colour="#111111"), Part(name="activations", colour="#222222")),
    bars=(
        Bar(label="1", values=(40.0, 60.0), remark="OOM"),
        Bar(label="2", values=(20.0, 30.0), remark="FITS"),
        Bar(label="4", values=(10.0, 0.0), remark="FITS"),
    ),
    limit=80.0,
    limit_name="device: 80 GiB",
)


def rectangles(svg: str, colour: str) -> list[tuple[float, float]]:
    """Return top and height of the bars of one colour; the legend's square has no title."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [
        (float(each.get("y")), float(each.get("height")))
        for each in found
        if each.get("fill") == colour and each.find(f"{SVG}title") is not None
    ]


def test_heights_are_in_proportion_and_stacks_have_no_gap():
    svg = to_svg(CHART)
    weights, activations = rectangles(svg, "#111111"), rectangles(svg, "#222222")
    assert [height / weights[0][1] for _, height in weights] == pytest.approx([1.0, 0.5, 0.25], rel=1e-2)
    assert len(activations) == 2  # nothing is drawn for zero
    for (below, _), (top, height) in zip(weights, activations, strict=False):
        assert top + height == pytest.approx(below, abs=0.02)


def test_the_limit_lies_at_its_height():
    svg = to_svg(CHART)
    top, height = rectangles(svg, "#111111")[0]
    floor = top + height
    (line,) = [
        each for each in ElementTree.fromstring(svg).iter(f"{SVG}line") if each.get("stroke-dasharray")
    ]
    assert floor - float(line.get("y1")) == pytest.approx(height * 80 / 40, rel=1e-2)


def test_words_are_escaped_and_complete():
    svg = to_svg(CHART)
    texts = [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    for text in (
        "Memory of <a model>",
        "GiB",
        "tp",
        "1",
        "OOM",
        "100.0",
        "50.0",
        "weights",
        "device: 80 GiB",
    ):
        assert text in texts


def test_everything_is_inside_the_picture():
    svg = to_svg(CHART)
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    for name, most in (("x", width), ("y", height)):
        assert all(0 <= float(value) <= most for value in re.findall(rf' {name}="([-0-9.]+)"', svg))


def test_without_a_limit_there_is_no_line():
    from dataclasses import replace

    bare = replace(CHART, limit=None)
    assert "stroke-dasharray" not in to_svg(bare)
    assert len(to_vega_lite(bare)["layer"]) == 1


def test_the_specification_holds_its_data_in_order():
    spec = to_vega_lite(CHART)
    assert spec["$schema"].endswith("vega-lite/v5.json")
    rows = spec["data"]["values"]
    assert rows[:2] == [
        {"tp": "1", "part": "weights", "order": 0, "GiB": 40.0},
        {"tp": "1", "part": "activations", "order": 1, "GiB": 60.0},
    ]
    encoding = spec["layer"][0]["encoding"]
    assert encoding["x"]["field"] == "tp"
    assert encoding["y"] == {"field": "GiB", "type": "quantitative", "stack": "zero"}
    assert encoding["color"]["scale"]["domain"] == ["weights", "activations"]
    assert spec["layer"][1]["encoding"]["y"]["datum"] == 80.0

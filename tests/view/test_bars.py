from __future__ import annotations

from dataclasses import replace

from forescale.view.axes import PARTS
from forescale.view.bars import Bar, BarChart

CHART = BarChart(
    title="Memory of <a model>",
    note="fullest device",
    axis="tp",
    unit="GiB",
    bars=(
        Bar(label="1", values={"weights": 40.0, "activations": 60.0, "other": 0.0}, remark="OOM"),
        Bar(label="2", values={"weights": 20.0, "activations": 30.0}, remark="FITS"),
        Bar(label="4", values={"weights": 10.0, "activations": 0.0}, remark="FITS"),
    ),
    limit=80.0,
    limit_name="device: 80 GiB",
)


def test_the_specification_holds_its_data_in_order():
    spec = CHART.spec()
    assert spec["$schema"].endswith("vega-lite/v5.json")
    assert spec["data"]["values"][:2] == [
        {"bar": "1", "part": "weights", "order": 0, "value": 40.0},
        {"bar": "1", "part": "activations", "order": 1, "value": 60.0},
    ]
    assert len(spec["data"]["values"]) == 5  # nothing is drawn for zero
    assert spec["layer"][0]["encoding"]["y"]["sort"] is None


def test_a_part_has_its_own_colour_and_an_unknown_one_that_of_its_place():
    scale = replace(CHART, bars=(Bar(label="1", values={"weights": 1.0, "what": 1.0}),)).spec()
    colours = scale["layer"][0]["encoding"]["color"]["scale"]
    assert colours["domain"] == ["weights", "what"]
    assert colours["range"][0] == PARTS["weights"] != colours["range"][1]


def test_bars_end_with_their_total_and_there_is_room_for_it():
    stacked, parts, *_ = CHART.spec()["layer"]
    assert [row["words"] for row in parts["data"]["values"]] == ["100 OOM", "50 FITS", "10 FITS"]
    assert stacked["encoding"]["x"]["scale"]["domain"][1] > 110.0


def test_without_a_limit_there_is_no_line():
    assert len(CHART.spec()["layer"]) == 4
    assert CHART.spec()["layer"][2]["encoding"]["x"]["datum"] == 80.0
    assert len(replace(CHART, limit=None).spec()["layer"]) == 2


def test_a_part_says_what_explains_it():
    rows = replace(CHART, quantities="memory.").spec()["data"]["values"]
    assert rows[0]["quantity"] == "memory.weights"


def test_many_bars_are_thin_and_have_no_words():
    many = replace(CHART, bars=tuple(Bar(label=str(place), values={"a": 1.0}) for place in range(64))).spec()
    assert many["height"]["step"] < CHART.spec()["height"]["step"]
    assert len(many["layer"]) == 3

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from tests.errors import raises
from tests.sweep.questions import grid, sweep

from forescale.errors import ForescaleError, SpecError
from forescale.sweep import Local, run
from forescale.sweep.definition import Plot
from forescale.sweep.pictures import draw, usual_plots, write_pictures
from forescale.sweep.reading import parse_plot
from forescale.sweep.result import column_names

HERE = Local(jobs=1)


def words(picture):
    """Return every text of a specification, those of its axes among them."""
    return set(re.findall(r'[^"\\]+', json.dumps(picture.chart.spec(), ensure_ascii=False)))


@pytest.fixture(scope="module")
def scaled():
    return run(grid(devices=[8, 16, 32], scaling=["strong", "weak"]), executor=HERE)


@pytest.fixture(scope="module")
def mapped():
    return run(
        grid(hbm_capacity=["8 GiB", "40 GiB", "80 GiB", "160 GiB"], nic_bandwidth=["x1", "x2", "x4", "x8"]),
        executor=HERE,
    )


def test_scaling_draws_throughput_with_its_ideal_and_what_is_left_of_it(scaled):
    curve, share = draw(scaled, [Plot(kind="scaling", by="scaling")])
    assert {"strong", "weak", "strong, ideal", "weak, ideal", "devices", "8", "16", "32"} <= set(words(curve))
    points = curve.chart.spec()["layer"][-1]["data"]["values"]
    table = {(row["vary.scaling"], row["num_devices"]): row["tokens_per_s"] for row in scaled.points}
    assert {(point["line"], point["x"]): point["y"] for point in points} == table
    ideal = [point["y"] for point in curve.chart.spec()["layer"][0]["data"]["values"]]
    assert ideal[2] == pytest.approx(4 * ideal[0])
    kept = share.chart.spec()["layer"][-1]["data"]["values"]
    assert [point["y"] for point in kept if point["x"] == 8] == [1.0, 1.0]


def test_a_map_shows_every_cell_and_leaves_empty_what_does_not_fit(mapped):
    (picture,) = draw(mapped, [Plot(kind="map", x="hbm_capacity", y="nic_bandwidth", value="step_time_s")])
    cells = picture.chart.spec()["data"]["values"]
    assert len(cells) == 16
    result = {(cell["x"], cell["y"]): cell["value"] for cell in cells}
    for index, row in enumerate(mapped.points):
        assert result[index // 4, index % 4] == row["step_time_s"]
    assert [cell["value"] for cell in cells if cell["x"] == 0] == [None] * 4
    assert {"8 GiB", "160 GiB", "×8", "step time", "–"} <= set(words(picture))


def test_iso_lines_are_drawn_where_a_level_is_crossed(mapped):
    (picture,) = draw(mapped, [Plot(kind="map", x="hbm_capacity", y="nic_bandwidth", value="step_time_s")])
    assert picture.chart.spec()["layer"][1]["data"]["values"]


def test_lines_take_the_best_over_everything_else(mapped):
    (picture,) = draw(mapped, [Plot(kind="line", x="hbm_capacity", y="mfu")])
    points = picture.chart.spec()["layer"][-1]["data"]["values"]
    assert len(points) == 3
    best = max(row["mfu"] for row in mapped.feasible if row["vary.hbm_capacity"] == 160 * 2.0**30)
    assert points[-1]["y"] == best
    assert any("every nic bandwidth" in text for text in words(picture))


def test_bars_add_up_to_the_step():
    result = run(sweep(case=[{"name": "a"}, {"name": "b & c", "flops": "x2"}]), executor=HERE)
    (plot,) = usual_plots(result)
    assert plot.kind == "bars"
    (picture,) = draw(result, [plot])
    values = picture.chart.spec()["data"]["values"]
    for row, name in zip(result.points, ("a", "b & c"), strict=True):
        height = sum(value["value"] for value in values if value["bar"] == name)
        assert height == pytest.approx(row["step_time_s"])
    assert "b & c" in words(picture)


def test_samples_are_dots_of_their_own():
    result = run(sweep(vary={"flops": {"from": "x1", "to": "x4"}}, sample={"points": 6}), executor=HERE)
    (picture,) = draw(result, usual_plots(result))
    assert len(picture.chart.spec()["layer"][-1]["data"]["values"]) == 6
    assert [layer for layer in picture.chart.spec()["layer"] if layer["mark"] == "line"] == []


def test_usual_pictures_suit_what_is_varied(scaled, mapped):
    assert [plot.kind for plot in usual_plots(scaled)] == ["scaling"]
    assert usual_plots(scaled)[0].by == "scaling"
    assert [(plot.kind, plot.x, plot.y) for plot in usual_plots(mapped)] == [
        ("map", "hbm_capacity", "nic_bandwidth")
    ]


def test_files_are_whole_documents(mapped, tmp_path):
    files = write_pictures(mapped, draw(mapped, usual_plots(mapped)), tmp_path)
    assert [file.name for file in files] == [
        "01-step_time_s-over-hbm_capacity-and-nic_bandwidth.vl.json",
        "report.html",
    ]
    assert json.loads(files[0].read_text(encoding="utf-8"))["$schema"].endswith("v5.json")
    page = files[1].read_text(encoding="utf-8")
    assert "data-spec" in page
    assert '<td class="number">no layout</td>' in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page)


def test_nothing_is_drawn_where_nothing_fits():
    result = run(grid(hbm_capacity=["1 GiB", "2 GiB"], nic_bandwidth=["x1", "x2"]), executor=HERE)
    plots = [*usual_plots(result), Plot(kind="scaling"), Plot(kind="bars", x="hbm_capacity")]
    assert draw(result, plots) == ()


def test_a_map_of_too_many_values_is_refused():
    result = run(sweep(vary={"flops": ["x1"], "devices": [8]}), executor=HERE)
    rows = tuple({**result.points[0], "vary.flops": 1e15 + value} for value in range(41))
    result = dataclasses.replace(result, points=rows)
    with raises(SpecError, "too_large a map over flops", value="41 values", allowed=40):
        draw(result, [Plot(kind="map", x="flops", y="devices")])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pie", "not_one_of a plot's kind"),
        ("line:x=devices", "required_with y"),
        ("line:x=devices,y=mfuu", "unknown_name column (--plot line:x=devices,y=mfuu, y of plot)"),
        ("map:x=devices,y=mfu,by=mfu", "unknown_key by"),
        ("line:devices", "wrong_type --plot"),
    ],
)
def test_pictures_that_cannot_be_are_refused(text, said):
    with raises(ForescaleError, said):
        parse_plot(text, column_names(grid(devices=[8]).axes))


def test_pictures_are_asked_in_one_line():
    names = column_names(grid(devices=[8], flops=["x1"]).axes)
    plot = parse_plot("map: x=flops, y=num_devices, value=mfu", names)
    assert plot == Plot(kind="map", x="flops", y="num_devices", value="mfu")

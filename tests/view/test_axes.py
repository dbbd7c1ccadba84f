from __future__ import annotations

import pytest

from forescale.view.axes import data_axis, value_axis, word_axis


def plain(value):
    return f"{value:g}"


def test_an_axis_names_its_values_in_the_specification():
    log = data_axis("x", [1.0, 10.0, 100.0], log=True, say=plain).vega()
    assert log["scale"]["type"] == "log"
    assert log["axis"]["values"] == [1.0, 10.0, 100.0]
    assert log["axis"]["labelExpr"].startswith('["1", "10", "100"]')


def test_round_numbers_are_named():
    axis = value_axis("y", [0.3, 7.1], log=False, say=plain)
    assert [label for _, label in axis.ticks] == ["0", "2", "4", "6", "8"]
    assert axis.low <= 0.3
    assert axis.high >= 7.1
    log = value_axis("y", [90.0, 4000.0], log=True, say=plain)
    assert [label for _, label in log.ticks] == ["100", "200", "500", "1000", "2000"]


def test_few_values_are_named_themselves_and_many_are_not():
    assert [label for _, label in data_axis("x", [8, 72, 576], log=True, say=plain).ticks] == [
        "8",
        "72",
        "576",
    ]
    assert len(data_axis("x", [float(v) for v in range(1, 200)], log=True, say=plain).ticks) <= 9


@pytest.mark.parametrize("log", [True, False])
def test_one_value_alone_has_room_around_it(log):
    axis = data_axis("x", [5.0], log=log, say=plain)
    assert axis.low < 5.0 < axis.high
    assert value_axis("y", [5.0], log=log, say=plain).high > 4.0


def test_words_stand_side_by_side():
    axis = word_axis("case", ["a", "b"])
    assert (axis.low, axis.high, axis.ticks) == (-0.5, 1.5, ((0.0, "a"), (1.0, "b")))

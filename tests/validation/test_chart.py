from __future__ import annotations

import pytest
from scripts.accuracy import memory_chart, peer_chart

from forescale.validation.case import Prediction
from forescale.validation.chart import time_chart
from forescale.validation.peers import compare_peers
from forescale.validation.scoreboard import score


@pytest.fixture
def board(cases):
    """Every step 10 % too slow, every peak 10 % too small."""

    def predict(case):
        return Prediction(
            step_time_s=1.1 * (case.measured.step_time_s or 1.0),
            peak_bytes=0.9 * (case.measured.peak_bytes or 1.0),
        )

    return score(list(cases.values()), predict)


def dots(chart):
    return [dot for line in chart.lines if not line.ideal for dot in line.dots]


def test_every_core_row_with_an_error_is_a_dot(board):
    chart = time_chart(board)
    result = dots(chart)
    assert len(result) == board.total(core=True).time.count
    assert [dot.y for dot in result] == pytest.approx([1.1] * len(result))
    assert all(chart.x.low < dot.x < chart.x.high and chart.y.low < dot.y < chart.y.high for dot in result)


def test_every_row_with_a_peak_is_a_dot(board):
    result = dots(memory_chart(board))
    assert len(result) == board.total(core=False).memory.count
    assert [dot.y for dot in result] == pytest.approx([0.9] * len(result))


def test_tools_stand_in_pairs(board):
    peers = compare_peers(board)
    chart = peer_chart(peers)
    assert len(chart.bars) == 2 * len(peers) > 0
    assert chart.bars[1].values == pytest.approx({"Forescale": 10.0})
    assert any(bar.label.startswith("SimuMax") for bar in chart.bars)


def test_nothing_measured_draws_nothing(row):
    from scripts.rows.cases import express

    empty = score(express([row(dp=8)]), lambda case: Prediction(step_time_s=1.0))
    assert time_chart(empty) is None
    assert memory_chart(empty) is None
    assert peer_chart(()) is None

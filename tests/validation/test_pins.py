"""The scoreboard, pinned: a cost that changes moves the errors of published runs, which shows in a diff.

After a wanted change, `python -m tests.golden.update` writes the file anew; its diff belongs into the review.
"""

from __future__ import annotations

import json

import pytest
from tests.golden.documents import GOLDEN
from tests.golden.scoreboard import pins, sample

PINNED = json.loads((GOLDEN / "scoreboard.json").read_text(encoding="utf-8"))
BAND = 0.3
"""Per cent of the measured figure."""


def test_errors_of_published_runs_stay():
    board = sample()
    assert [outcome.skipped for outcome in board.skipped] == []
    result = pins(board)
    assert result.keys() == PINNED.keys()
    moved = {
        f"{group}: {figure}": f"{PINNED[group][figure]} is now {now}"
        for group, figures in result.items()
        for figure, now in figures.items()
        if now != pytest.approx(PINNED[group][figure], abs=BAND)
    }
    assert not moved, "rows, median |error| and mean error, in per cent"

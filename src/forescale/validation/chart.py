"""Pictures of the scoreboard as Vega-Lite specifications."""

from __future__ import annotations

from typing import Any

from forescale.validation.scoreboard import Scoreboard, headline_label

_VEGA_LITE = "https://vega.github.io/schema/vega-lite/v5.json"


def error_chart(board: Scoreboard, *, core: bool = True) -> dict[str, Any]:
    """Return a Vega-Lite chart of projected over measured step time, one point a row.

    Both axes are logarithmic; a point on the line at 1 is right, one above it projected too slow.
    """
    points = [
        {
            "id": outcome.case.id,
            "group": headline_label(outcome.case),
            "measured_s": outcome.case.measured.step_time_s,
            "ratio": 1.0 + outcome.error,
        }
        for outcome in board.outcomes
        if outcome.error is not None and (outcome.case.core or not core)
    ]
    return {
        "$schema": _VEGA_LITE,
        "title": "Step time: projected over measured",
        "width": 640,
        "height": 320,
        "data": {"values": points},
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [4, 4]}, "encoding": {"y": {"datum": 1.0}}},
            {
                "mark": {"type": "point", "filled": True, "opacity": 0.6, "clip": True},
                "encoding": _encoding(),
            },
        ],
    }


def _encoding() -> dict[str, Any]:
    return {
        "x": {
            "field": "measured_s",
            "type": "quantitative",
            "scale": {"type": "log"},
            "title": "measured step time (s)",
        },
        "y": {
            "field": "ratio",
            "type": "quantitative",
            "scale": {"type": "log", "domain": [0.25, 4.0]},
            "title": "projected / measured",
        },
        "color": {"field": "group", "type": "nominal", "title": None},
        "tooltip": [{"field": "id"}, {"field": "ratio", "format": ".3f"}],
    }

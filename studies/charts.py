"""Charts of studies as Vega-Lite specifications."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from forescale.presets.subramanian2024 import Ranked

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
DEGREES = ("dp", "tp1", "tp2", "pp", "num_microbatches")
PARTS = ("compute", "memory", "tensor", "data", "pipeline", "bubble")
WIDTH = 480
RATIO = "communication / compute"
FLOOR = 0.5
"""Where bars of degrees start on their logarithmic axis."""
Chart = dict[str, Any]


def layout_chart(shown: Mapping[str, Ranked], *, axis: str, log_time: bool = False) -> Chart:
    """Return degrees and memory of configurations above, shares of their step and its seconds below."""
    order = list(shown)
    degrees = [
        {"label": label, "degree": name, "value": getattr(one.configuration, name)}
        for label, one in shown.items()
        for name in DEGREES
    ]
    shares = [
        {"label": label, "part": name, "share": seconds / one.step_time_s}
        for label, one in shown.items()
        for name, seconds in asdict(one.time_s).items()
    ]
    dots = [
        {"label": label, "GB": one.memory_bytes.total / 1e9, "step (s)": one.step_time_s}
        for label, one in shown.items()
    ]
    x = {"field": "label", "type": "ordinal", "sort": order, "title": axis, "axis": {"labelAngle": 0}}
    above = {
        "data": {"values": degrees},
        "mark": "bar",
        "encoding": {
            "x": {**x, "title": None},
            "xOffset": {"field": "degree", "type": "nominal", "sort": list(DEGREES)},
            "y": {
                "field": "value",
                "type": "quantitative",
                "scale": {"type": "log", "base": 2, "domainMin": FLOOR},
                "title": "degree",
            },
            "y2": {"datum": FLOOR},
            "color": {"field": "degree", "type": "nominal", "sort": list(DEGREES), "title": None},
        },
    }
    below = {
        "data": {"values": shares},
        "mark": "bar",
        "encoding": {
            "x": x,
            "y": {
                "field": "share",
                "type": "quantitative",
                "axis": {"format": "%"},
                "title": "share of the step",
                "scale": {"domain": [0, 1]},
            },
            "color": {"field": "part", "type": "nominal", "sort": list(PARTS), "title": None},
        },
    }
    scale = {"type": "log"} if log_time else {"zero": True}
    panels = [_dotted(above, dots, x, "GB", {"zero": True}), _dotted(below, dots, x, "step (s)", scale)]
    return {"$schema": SCHEMA, "vconcat": panels, "resolve": {"scale": {"color": "independent"}}}


def _dotted(bars: Chart, dots: Sequence[Chart], x: Chart, field: str, scale: Chart) -> Chart:
    """Return bars with black dots on an axis of their own."""
    points = {
        "data": {"values": dots},
        "mark": {"type": "point", "filled": True, "color": "black", "size": 50, "opacity": 1},
        "encoding": {
            "x": {**x, "title": bars["encoding"]["x"]["title"]},
            "y": {
                "field": field,
                "type": "quantitative",
                "axis": {"orient": "right"},
                "scale": scale,
            },
        },
    }
    return {
        "width": WIDTH,
        "height": 180,
        "layer": [bars, points],
        "resolve": {"scale": {"y": "independent"}},
    }


def line_chart(rows: Sequence[Chart], *, x: str, y: str, colour: str, dash: str) -> Chart:
    """Return lines on two logarithmic axes."""
    order = list(dict.fromkeys(row[dash] for row in rows))
    legend = {"symbolType": "stroke", "symbolFillColor": "transparent", "symbolSize": 400}
    encoding = {
        "strokeDash": {"field": dash, "type": "nominal", "sort": order, "title": None, "legend": legend}
    }
    return _plot(rows, {"type": "line", "point": True}, x, y, colour, encoding, {"type": "log"})


def point_chart(rows: Sequence[Chart], *, x: str, y: str, colour: str, shape: str) -> Chart:
    """Return points over a logarithmic axis."""
    order = list(dict.fromkeys(row[shape] for row in rows))
    encoding = {"shape": {"field": shape, "type": "nominal", "sort": order, "title": None}}
    return _plot(rows, {"type": "point", "size": 60}, x, y, colour, encoding, {"zero": False})


def _plot(
    rows: Sequence[Chart], mark: Chart, x: str, y: str, colour: str, more: Chart, scale: Chart
) -> Chart:
    ticks = sorted({row[x] for row in rows})
    generations = list(dict.fromkeys(row[colour] for row in rows))
    return {
        "$schema": SCHEMA,
        "width": WIDTH,
        "height": 300,
        "data": {"values": list(rows)},
        "mark": mark,
        "encoding": {
            "x": {
                "field": x,
                "type": "quantitative",
                "scale": {"type": "log", "base": 2},
                "axis": {"values": ticks},
            },
            "y": {"field": y, "type": "quantitative", "scale": scale},
            "color": {"field": colour, "type": "nominal", "sort": generations, "title": None},
            **more,
        },
    }


def map_chart(rows: Sequence[Chart], *, x: str, y: str, value: str) -> Chart:
    """Return a heat map with its numbers; cells in which nothing fits stay empty."""
    across = list(dict.fromkeys(row[x] for row in rows))
    places = {
        "x": {"field": x, "type": "ordinal", "sort": across, "axis": {"labelAngle": -30}},
        "y": {"field": y, "type": "ordinal", "sort": "descending"},
    }
    colour = {
        "field": value,
        "type": "quantitative",
        "scale": {"type": "log", "scheme": "yellowgreenblue"},
        "legend": {"format": ".2~g"},
    }
    text = {"field": value, "type": "quantitative", "format": ".1f"}
    values = [row[value] for row in rows if row[value] is not None]
    dark = math.sqrt(min(values) * max(values))
    ink = {"value": "black", "condition": {"test": f"datum['{value}'] > {dark!r}", "value": "white"}}
    return {
        "$schema": SCHEMA,
        "width": WIDTH,
        "height": 260,
        "data": {"values": list(rows)},
        "layer": [
            {"mark": "rect", "encoding": {**places, "color": colour}},
            {"mark": {"type": "text", "fontSize": 11}, "encoding": {**places, "text": text, "color": ink}},
        ],
    }


def ratio_chart(rows: Sequence[Chart], *, title: str, x: str, y: str = RATIO) -> Chart:
    """Return ratios over degrees on logarithmic axes, with the line where both times are equal."""
    order = list(dict.fromkeys(row["line"] for row in rows))
    lines = {
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {
                "field": "degree",
                "type": "quantitative",
                "scale": {"type": "log", "base": 2},
                "axis": {"values": sorted({row["degree"] for row in rows})},
                "title": x,
            },
            "y": {"field": "ratio", "type": "quantitative", "scale": {"type": "log"}, "title": y},
            "color": {"field": "line", "type": "nominal", "sort": order, "title": None},
        },
    }
    limit = {
        "data": {"values": [{"one": 1}]},
        "mark": {"type": "rule", "strokeDash": [4, 4]},
        "encoding": {"y": {"field": "one", "type": "quantitative", "title": y}},
    }
    return {
        "$schema": SCHEMA,
        "title": title,
        "width": WIDTH,
        "height": 260,
        "data": {"values": list(rows)},
        "layer": [lines, limit],
    }


def bar_chart(rows: Sequence[Chart], *, x: str, y: str, colour: str, stacked: bool) -> Chart:
    """Return bars, standing where they are stacked, else lying side by side."""
    of, over = (y, x) if stacked else (x, y)
    order = list(dict.fromkeys(row[over] for row in rows))
    place: Chart = {"field": over, "type": "ordinal", "sort": order, "title": over if stacked else None}
    if stacked:
        place["axis"] = {"labelAngle": 0}
    else:
        place["axis"] = {"labelLimit": 340}
    colours = list(dict.fromkeys(row[colour] for row in rows))
    encoding: Chart = {
        "x" if stacked else "y": place,
        "y" if stacked else "x": {"field": of, "type": "quantitative", "title": of},
        "color": {"field": colour, "type": "nominal", "sort": colours, "title": None},
    }
    if not stacked and len(colours) > 1:
        encoding["yOffset"] = {"field": colour, "type": "nominal", "sort": colours}
    return {
        "$schema": SCHEMA,
        "width": WIDTH,
        "data": {"values": [dict(row) for row in rows]},
        "mark": "bar",
        "encoding": encoding,
    }

"""Charts of studies as Vega-Lite specifications: one style, legible where a page is 400 pixels wide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from forescale.presets.subramanian2024 import Ranked
from forescale.view.axes import CONFIG, SCHEMA, SERIES
from forescale.view.axes import colour as part_colour

DEGREES = {
    "dp": "#59a14f",
    "tp1": "#e15759",
    "tp2": "#ff9d9a",
    "pp": "#f28e2b",
    "num_microbatches": "#9c755f",
}
PARTS = {
    "compute": "#0072b2",
    "memory": "#a0cbe8",
    "tensor": "#e15759",
    "data": "#59a14f",
    "pipeline": "#f28e2b",
    "bubble": "#bab0ac",
}
"""Colours: an axis of parallelism and what it sends have the same one."""
OWN = SERIES[1]
"""Colour of what is projected beside what was published."""
WIDTH = 320
RATIO = "communication / compute"
EQUAL: dict[str, Any] = {"log": True, "limit": 1.0, "limit_name": "as long as what hides it"}
"""Of ratios: logarithmic, with a line where both times are equal."""
FLOOR = 0.5
"""Where bars of degrees start on their logarithmic axis."""
STYLE = {**CONFIG, "background": "white", "title": {**CONFIG["title"], "fontSize": 13}}
Chart = dict[str, Any]


def titled(chart: Chart, title: str) -> Chart:
    """Return a chart in the common style, under a title that also describes it to those who cannot see it."""
    return {"$schema": SCHEMA, "title": wrap(title, 52), "description": title, "config": STYLE, **chart}


def layout_chart(shown: Mapping[str, Ranked], *, axis: str, log_time: bool = False) -> Chart:
    """Return degrees and memory of configurations above, shares of their step and its seconds below."""
    order = list(shown)
    degrees = [
        {"label": label, "degree": name, "value": getattr(one.configuration, name)}
        for label, one in shown.items()
        for name in DEGREES
    ]
    shares = [
        {"label": label, "part": name, "share": seconds / one.step_time_s, "order": place}
        for label, one in shown.items()
        for place, (name, seconds) in enumerate(asdict(one.time_s).items())
    ]
    dots = [
        {"label": label, "GB": one.memory_bytes.total / 1e9, "step (s)": one.step_time_s}
        for label, one in shown.items()
    ]
    parts = {"labelAngle": 0, "labelExpr": "split(datum.label, ' ')"}
    x = {"field": "label", "type": "ordinal", "sort": order, "title": axis, "axis": parts}
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
            "color": _coloured("degree", DEGREES),
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
            "color": _coloured("part", PARTS),
            "order": {"field": "order"},
        },
    }
    scale = {"type": "log"} if log_time else {"zero": True}
    panels = [_dotted(above, dots, x, "GB", {"zero": True}), _dotted(below, dots, x, "step (s)", scale)]
    return {"vconcat": panels, "resolve": {"scale": {"color": "independent"}}}


def _coloured(field: str, colours: Mapping[str, str]) -> Chart:
    """Return what colours the values of a field, which have a meaning in all charts."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, "title": None}


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
        "width": WIDTH,
        "height": 300,
        "data": {"values": list(rows)},
        "mark": mark,
        "encoding": {
            "x": {
                "field": x,
                "type": "quantitative",
                "scale": {"type": "log", "base": 2},
                "axis": {"values": ticks, "labelOverlap": False, "labelFlush": False, "labelFontSize": 11},
            },
            "y": {"field": y, "type": "quantitative", "scale": scale},
            "color": {"field": colour, "type": "nominal", "sort": generations, "title": None},
            **more,
        },
    }


def measured_chart(rows: Sequence[Chart], *, x: str, y: str, colour: str, of: str) -> Chart:
    """Return points of what was measured, and lines of what models say, on two logarithmic axes."""
    place = {
        "x": {"field": x, "type": "quantitative", "scale": {"type": "log"}, "axis": {"format": "~g"}},
        "y": {"field": y, "type": "quantitative", "scale": {"type": "log"}, "axis": {"format": "~g"}},
        "color": {"field": colour, "type": "nominal", "title": None, "legend": {"columns": 1}},
    }
    models = list(dict.fromkeys(row[of] for row in rows if row[of] != "measured"))
    stroke = {"symbolType": "stroke", "symbolFillColor": "transparent", "symbolSize": 400, "columns": 1}
    dash = {"field": of, "type": "nominal", "sort": models, "title": None, "legend": stroke}
    return {
        "width": WIDTH,
        "height": 260,
        "data": {"values": list(rows)},
        "layer": [
            {
                "transform": [{"filter": f"datum['{of}'] != 'measured'"}],
                "mark": "line",
                "encoding": {**place, "strokeDash": dash},
            },
            {
                "transform": [{"filter": f"datum['{of}'] == 'measured'"}],
                "mark": {"type": "point", "filled": True, "size": 40},
                "encoding": {**place, "shape": {"field": of, "type": "nominal", "title": None}},
            },
        ],
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
        "width": WIDTH,
        "height": 260,
        "data": {"values": list(rows)},
        "layer": [
            {"mark": "rect", "encoding": {**places, "color": colour}},
            {"mark": {"type": "text", "fontSize": 11}, "encoding": {**places, "text": text, "color": ink}},
        ],
    }


def degree_chart(
    rows: Sequence[Chart],
    *,
    x: str,
    y: str,
    log: bool = False,
    limit: float | None = None,
    limit_name: str = "",
) -> Chart:
    """Return values over degrees, lines by name, with a dashed line at a limit."""
    order = list(dict.fromkeys(row["line"] for row in rows))
    y_scale = {"type": "log"} if log else {"zero": True}
    lines = {
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {
                "field": "degree",
                "type": "quantitative",
                "scale": {"type": "log", "base": 2},
                "axis": {
                    "values": sorted({row["degree"] for row in rows}),
                    "format": ",d",
                    "labelFlush": False,
                },
                "title": x,
            },
            "y": {"field": "value", "type": "quantitative", "scale": y_scale, "title": y},
            "color": {"field": "line", "type": "nominal", "sort": order, "title": None},
        },
    }
    layers = [lines] if limit is None else [lines, _limit(limit, limit_name, y)]
    return {"width": WIDTH, "height": 240, "data": {"values": list(rows)}, "layer": layers}


def stack_chart(
    rows: Sequence[Chart],
    *,
    x: str,
    y: str,
    colours: Mapping[str, str],
    limit: float | None = None,
    limit_name: str = "",
) -> Chart:
    """Return standing bars of parts, which are given from the bottom up, with a dashed line at a limit."""
    order = list(dict.fromkeys(row["bar"] for row in rows))
    values = [{**row, "order": list(colours).index(row["part"])} for row in rows]
    place = {"field": "bar", "type": "ordinal", "sort": order, "title": x, "axis": {"labelAngle": 0}}
    bars = {
        "mark": "bar",
        "encoding": {
            "x": place,
            "y": {"field": "value", "type": "quantitative", "title": y},
            "color": _coloured("part", colours),
            "order": {"field": "order"},
        },
    }
    layers = [bars] if limit is None else [bars, _limit(limit, limit_name, y)]
    return {"width": WIDTH, "height": 240, "data": {"values": values}, "layer": layers}


def dot_chart(rows: Sequence[Chart], *, x: str, y: str, colour: str) -> Chart:
    """Return dots on a logarithmic axis, a line of them for every name."""
    return {
        "width": WIDTH - 60,
        "height": {"step": 34},
        "data": {"values": list(rows)},
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {
            "x": {"field": x, "type": "quantitative", "scale": {"type": "log"}, "axis": {"format": ",~d"}},
            "y": {
                "field": y,
                "type": "nominal",
                "sort": list(dict.fromkeys(row[y] for row in rows)),
                "title": None,
                "axis": {"grid": True},
            },
            "color": {"field": colour, "type": "nominal", "title": None},
        },
    }


def _limit(value: float, name: str, y: str) -> Chart:
    """Return a dashed line across a chart, and its name."""
    named = {"type": "text", "align": "left", "x": 4, "dy": -6, "fontSize": 12}
    return {
        "data": {"values": [{"limit": value, "name": name}]},
        "encoding": {"y": {"field": "limit", "type": "quantitative", "title": y}},
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [4, 4]}},
            {
                "mark": {**named, "stroke": "white", "strokeWidth": 4},
                "encoding": {"text": {"field": "name"}},
            },
            {"mark": named, "encoding": {"text": {"field": "name"}}},
        ],
    }


def cell_chart(rows: Sequence[Chart], *, x: str, y: str, value: str, top: float) -> Chart:
    """Return a map with a value and two lines of words in every cell; all such maps share one scale up to `top`."""
    across = list(dict.fromkeys(row[x] for row in rows))
    down = list(dict.fromkeys(row[y] for row in rows))
    places = {
        "x": {"field": x, "type": "ordinal", "sort": across, "axis": {"labelAngle": 0}},
        "y": {"field": y, "type": "ordinal", "sort": down},
    }
    colour = {
        "field": value,
        "type": "quantitative",
        "scale": {"scheme": "blues", "domain": [0, top]},
        "legend": None,
    }
    ink = {"value": "black", "condition": {"test": f"datum['{value}'] > {0.6 * top}", "value": "white"}}
    parts = [
        {
            "mark": {"type": "text", "dy": dy, "fontSize": size, "fontWeight": weight},
            "encoding": {**places, "text": {"field": field, "type": "nominal"}, "color": ink},
        }
        for field, dy, size, weight in (
            ("label", -13, 12, "bold"),
            ("layout", 1, 11, "normal"),
            ("more", 14, 11, "normal"),
        )
    ]
    return {
        "width": 340,
        "height": 44 * len(down),
        "data": {"values": list(rows)},
        "layer": [{"mark": "rect", "encoding": {**places, "color": colour}}, *parts],
    }


def bar_chart(rows: Sequence[Chart], *, x: str, y: str, colour: str, stacked: bool) -> Chart:
    """Return bars, standing where they are stacked, else lying side by side."""
    of, over = (y, x) if stacked else (x, y)
    order = list(dict.fromkeys(row[over] for row in rows))
    place: Chart = {"field": over, "type": "ordinal", "sort": order, "title": over if stacked else None}
    if stacked:
        place["axis"] = {"labelAngle": 0}
    else:
        place["axis"] = {"labelLimit": 200, "labelExpr": "split(datum.label, ', ')"}
    colours = list(dict.fromkeys(row[colour] for row in rows))
    encoding: Chart = {
        "x" if stacked else "y": place,
        "y" if stacked else "x": {"field": of, "type": "quantitative", "title": of},
        "color": _coloured(
            colour,
            {name: OWN if name == "projected" else part_colour(name, at) for at, name in enumerate(colours)},
        ),
    }
    if not stacked and len(colours) > 1:
        encoding["yOffset"] = {"field": colour, "type": "nominal", "sort": colours}
    return {
        "width": WIDTH if stacked else 240,
        "data": {"values": [dict(row) for row in rows]},
        "mark": "bar",
        "encoding": encoding,
    }

"""Lines and points over two axes."""

from __future__ import annotations

from forescale.struct import Struct
from forescale.view.axes import SERIES, Axis, Spec, specification


class Dot(Struct, frozen=True, kw_only=True):
    """One point of a line, and what it stands for."""

    x: float
    y: float
    remark: str = ""
    link: str = ""
    """Where a click on it leads."""


class Line(Struct, frozen=True, kw_only=True):
    """Points that belong together, by ascending x."""

    name: str
    dots: tuple[Dot, ...]
    colour: int = 0
    """Lines of one number share a colour."""
    ideal: bool = False
    """Dashed and without marks: what would be without losses."""
    joined: bool = True
    """Whether a line joins the points."""
    marked: bool = True
    """Whether its points are drawn; a line without holds each height until the next point."""


class LineChart(Struct, frozen=True, kw_only=True):
    """Lines over the same axes."""

    title: str
    note: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    height: int = 320

    def spec(self) -> Spec:
        """Return the Vega-Lite specification with its data inside."""
        solid = [line for line in self.lines if not line.ideal]
        colour = {
            "field": "line",
            "type": "nominal",
            "title": None,
            **({} if len(self.lines) > 1 else {"legend": None}),
            "scale": {
                "domain": [line.name for line in self.lines],
                "range": [SERIES[line.colour % len(SERIES)] for line in self.lines],
            },
        }
        places = {"x": {"field": "x", **self.x.vega()}, "y": {"field": "y", **self.y.vega()}, "color": colour}
        layers: list[Spec] = [
            {
                "data": _rows([line for line in self.lines if line.ideal]),
                "mark": {"type": "line", "strokeDash": [5, 4]},
                "encoding": places,
            },
            {
                "data": _rows([line for line in solid if line.joined and line.marked]),
                "mark": "line",
                "encoding": places,
            },
            {
                "data": _rows([line for line in solid if line.marked]),
                "mark": {"type": "point", "filled": True, "size": 46, "opacity": 1},
                "encoding": {**places, **_links(solid), "tooltip": [{"field": "line"}, {"field": "remark"}]},
            },
            {
                "data": _rows([line for line in solid if not line.marked]),
                "mark": {"type": "line", "interpolate": "step-after"},
                "encoding": places,
            },
        ]
        drawn = [layer for layer in layers if layer["data"]["values"]]
        return specification(self.title, self.note, width=520, height=self.height, layer=drawn)


def _links(lines: list[Line]) -> Spec:
    return {"href": {"field": "link"}} if any(dot.link for line in lines for dot in line.dots) else {}


def _rows(lines: list[Line]) -> Spec:
    values = [
        {
            "line": line.name,
            "x": dot.x,
            "y": dot.y,
            "remark": dot.remark,
            **({"link": dot.link} if dot.link else {}),
        }
        for line in lines
        for dot in line.dots
    ]
    return {"values": values}

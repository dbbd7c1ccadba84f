"""Stretches of time on rows, such as what each pipeline rank does when."""

from __future__ import annotations

from collections.abc import Mapping

from forescale.struct import Struct
from forescale.view.axes import Spec, specification

_ROW = 26
"""Height of a row in pixels."""


class Span(Struct, frozen=True, kw_only=True):
    """One stretch of a row."""

    row: str
    start: float
    end: float
    part: str
    remark: str = ""


class SpanChart(Struct, frozen=True, kw_only=True):
    """Stretches on rows over one axis."""

    title: str
    note: str
    unit: str
    spans: tuple[Span, ...]
    colours: Mapping[str, str]
    """Of each part, in the order of the legend."""

    def spec(self) -> Spec:
        """Return the Vega-Lite specification with its data inside."""
        rows = list(dict.fromkeys(span.row for span in self.spans))
        parts = [name for name in self.colours if any(span.part == name for span in self.spans)]
        colour = {
            "field": "part",
            "type": "nominal",
            "title": None,
            "scale": {"domain": parts, "range": [self.colours[name] for name in parts]},
        }
        values = [
            {"row": span.row, "start": span.start, "end": span.end, "part": span.part, "remark": span.remark}
            for span in self.spans
        ]
        encoding = {
            "x": {"field": "start", "type": "quantitative", "title": self.unit},
            "x2": {"field": "end"},
            "y": {"field": "row", "type": "nominal", "sort": rows, "title": None},
            "color": colour,
            "tooltip": [{"field": name} for name in ("row", "part", "remark", "start", "end")],
        }
        mark = {"type": "bar", "stroke": "white", "strokeWidth": 0.5}
        size = {"width": 640, "height": _ROW * len(rows)}
        return specification(
            self.title, self.note, **size, data={"values": values}, mark=mark, encoding=encoding
        )

"""Stacked bars, one below the other, so that their names are legible on a narrow screen."""

from __future__ import annotations

from collections.abc import Mapping

from forescale.struct import Struct
from forescale.view.axes import LIMIT, Spec, colour, specification

_MANY = 24
"""Bars from which on they are thin."""
_CHARACTER = 0.026
"""Share of the axis that a character beside a bar takes, about."""

_AXIS: Spec = {"tickCount": 8, "labelOverlap": True, "labelSeparation": 8, "labelFlush": False}
"""Of the lengths: round values that are far enough apart on a wide screen and on a narrow one."""


class Bar(Struct, frozen=True, kw_only=True):
    """One stack: its parts from the left, and a word behind its end."""

    label: str
    values: Mapping[str, float]
    remark: str = ""

    @property
    def total(self) -> float:
        """Length of the stack."""
        return sum(self.values.values())


class BarChart(Struct, frozen=True, kw_only=True):
    """Stacked bars on one scale, with one limit across them."""

    title: str
    note: str
    axis: str
    """What the bars differ in."""
    unit: str
    bars: tuple[Bar, ...]
    limit: float | None = None
    limit_name: str = ""
    quantities: str = ""
    """What stands before a part's name in the quantity that explains it, of bars over stages that of the stage."""
    legend: bool = True
    order: tuple[str, ...] = ()
    """Parts from the left; as the bars have them if it is empty."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that any bar has."""
        names = dict.fromkeys(name for bar in self.bars for name, value in bar.values.items() if value)
        return tuple(name for name in self.order or names if name in names)

    def spec(self) -> Spec:
        """Return the Vega-Lite specification with its data inside."""
        x = {
            "field": "value",
            "type": "quantitative",
            "title": self.unit,
            "scale": self._scale(),
            "axis": _AXIS,
        }
        y = {"field": "bar", "type": "nominal", "sort": None, "title": self.axis or None}
        stacked = {
            "mark": "bar",
            "encoding": {
                "x": {**x, "stack": "zero"},
                "y": y,
                "color": self._colour(),
                "order": {"field": "order"},
                "tooltip": [
                    {"field": "bar", "title": self.axis or "bar"},
                    {"field": "part"},
                    {"field": "value", "title": self.unit, "format": ",.4~r"},
                ],
            },
        }
        parts = {
            "data": {"values": [{"bar": bar.label, "value": bar.total, "words": _words(bar)} for bar in self.bars]},
            "mark": {"type": "text", "align": "left", "dx": 4},
            "encoding": {"x": x, "y": y, "text": {"field": "words"}},
        }  # fmt: skip
        return specification(
            self.title,
            self.note,
            width=480,
            height={"step": 24 if len(self.bars) < _MANY else 12},
            data={"values": self._rows()},
            layer=[stacked, *([] if len(self.bars) >= _MANY else [parts]), *self._limit()],
        )

    def _rows(self) -> list[Spec]:
        return [
            {"bar": bar.label, "part": part, "order": order, "value": bar.values[part],
             **self._explained(bar, part)}
            for bar in self.bars
            for order, part in enumerate(self.parts)
            if bar.values.get(part)
        ]  # fmt: skip

    def _explained(self, bar: Bar, part: str) -> Spec:
        stage = {"stage": bar.label} if self.axis == "stage" else {}
        return {"quantity": f"{self.quantities}{part}", **stage} if self.quantities else {}

    def _colour(self) -> Spec:
        return {
            "field": "part",
            "type": "nominal",
            "title": None,
            "scale": {
                "domain": list(self.parts),
                "range": [colour(part, place) for place, part in enumerate(self.parts)],
            },
            **({} if self.legend and len(self.parts) > 1 else {"legend": None}),
        }

    def _scale(self) -> Spec:
        """Return a scale with room for the words behind the bars."""
        ends = [bar.total * (1.05 + _CHARACTER * len(_words(bar))) for bar in self.bars]
        return {"domain": [0.0, max([*ends, 1.02 * (self.limit or 0.0)], default=1.0)], "nice": False}

    def _limit(self) -> list[Spec]:
        if self.limit is None:
            return []
        place = {"x": {"datum": self.limit}}
        once: Spec = {"values": [{}]}
        parts = {
            "type": "text",
            "aria": False,
            "align": "right",
            "baseline": "bottom",
            "dy": -2,
            "color": LIMIT,
        }
        return [
            {
                "data": once,
                "mark": {
                    "type": "rule",
                    "aria": False,
                    "color": LIMIT,
                    "strokeDash": [6, 4],
                    "strokeWidth": 2,
                },
                "encoding": place,
            },
            {
                "data": once,
                "mark": parts,
                "encoding": {**place, "y": {"value": 0}, "text": {"value": self.limit_name}},
            },
        ]


def _words(bar: Bar) -> str:
    return f"{bar.total:.4g} {bar.remark}".rstrip()

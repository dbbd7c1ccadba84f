"""Axes of charts: where a value stands, and which values are named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from forescale.escaping import printable
from forescale.struct import Struct

Spec: TypeAlias = dict[str, Any]
"""A Vega-Lite specification."""
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#8c6d46", "#882255")
"""Colours of what has none of its own, in order."""
LIMIT = "#d13f34"
INK = "#1b2430"
PARTS: Mapping[str, str] = {
        "weights": "#0072b2", "gradients": "#e69f00", "activations": "#d55e00", "buffers": "#cc79a7",
        "optimizer": "#009e73", "overhead": "#a09a93",
        "attention": "#0072b2", "ffn": "#56b4e9", "moe": "#009e73", "norm": "#b4d8ee", "embedding": "#d9d27a",
        "head": "#a69b00", "recompute": "#7b5ea7", "reference": "#c3b1e1", "bubble": "#e69f00",
        "tensor_comm": "#b33f00", "context_comm": "#d55e00", "expert_comm": "#f0a075", "pipeline_comm": "#882255",
        "data_comm": "#cc79a7", "host_comm": "#8c6d46",
        "feed-forward": "#56b4e9", "other layers": "#b4d8ee", "communication": "#b33f00",
        "optimizer and rest": "#a09a93",
        "gemm": "#56b4e9", "other_compute": "#cc79a7", "data": "#8c6d46", "waiting": "#e69f00", "step": "#0072b2",
    }  # fmt: skip
"""Colours of parts of memory and of a step."""
DIFFERENCE = ", difference"
"""End of the name of what one bar has more of a part than another."""
CONFIG: Spec = {
    "background": None,
    "font": "system-ui, Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor", "titleColor": "currentColor", "domainColor": "currentColor",
        "tickColor": "currentColor", "gridColor": "currentColor", "gridOpacity": 0.15,
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 160,
    },
    "legend": {
        "labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12, "titleFontSize": 12,
        "orient": "bottom", "columns": 3, "labelLimit": 280, "gradientLength": 160,
    },
    "title": {"color": "currentColor", "subtitleColor": "currentColor", "anchor": "start", "fontSize": 15},
    "text": {"color": "currentColor", "fontSize": 12},
    "range": {"category": list(SERIES)},
}  # fmt: skip
"""Of every chart: text and lines have the colour of the text around them, in the light and in the dark."""


def colour(name: str, place: int) -> str:
    """Return the colour of a part, which is its own or that of its place; of "PART, difference" a lighter one."""
    part = name.removesuffix(DIFFERENCE)
    return PARTS.get(part, SERIES[place % len(SERIES)]) + ("" if part == name else "70")


def specification(title: str, note: str, **rest: Any) -> Spec:  # noqa: ANN401 (parts of a specification)
    """Return a whole specification, in which no name steers what shows it."""
    whole: Spec = _plain({"title": {"text": title, "subtitle": note}, **rest})
    return {"$schema": SCHEMA, **whole}


def _plain(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    match value:
        case str():
            return printable(value)
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case _:
            return value


_ROUND = (1.0, 2.0, 5.0)
_MARGIN = 0.04
"""Share of an axis left free beyond its outermost values."""
MOST_TICKS = 9


class Axis(Struct, frozen=True, kw_only=True):
    """One axis with its ends and its named values."""

    name: str
    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def vega(self) -> Spec:
        """Return the part of a Vega-Lite specification with the scale, ticks and title of the axis."""
        names = json.dumps([label for _, label in self.ticks], ensure_ascii=False)
        kind = {"type": "log"} if self.log else {"type": "linear", "zero": False}
        return {
            "type": "quantitative",
            "title": self.name,
            "scale": {**kind, "domain": [self.low, self.high], "nice": False},
            "axis": {
                "values": [value for value, _ in self.ticks],
                "labelExpr": f"{names}[round(datum.index * {len(self.ticks) - 1})]",
            },
        }


def value_axis(
    name: str,
    values: Sequence[float],
    *,
    log: bool,
    say: Callable[[float], str] = "{:g}".format,
    zero: bool = False,
) -> Axis:
    """Return an axis that holds `values`, with round numbers named."""
    low, high = min(values), max(values)
    if log:
        spread = (high / low) ** _MARGIN if high > low else 1.5
        low, high = low / spread, high * spread
        return Axis(name=name, low=low, high=high, log=True, ticks=_named(_decades(low, high), say))
    step = round_step((high if zero else high - low) or abs(high) or 1.0, MOST_TICKS - 3)
    low = 0.0 if zero else step * math.floor(low / step)
    high = step * math.ceil(high / step + 1e-9)
    count = round((high - low) / step)
    ticks = [low + step * index for index in range(count + 1)]
    return Axis(name=name, low=low, high=high, log=False, ticks=_named(ticks, say))


def data_axis(name: str, values: Sequence[float], *, log: bool, say: Callable[[float], str]) -> Axis:
    """Return an axis on which the values themselves are named, as long as they are few."""
    distinct = sorted(set(values))
    if len(distinct) > MOST_TICKS:
        return value_axis(name, distinct, log=log, say=say)
    low, high = distinct[0], distinct[-1]
    if log:
        spread = (high / low) ** _MARGIN if high > low else 1.5
        low, high = low / spread, high * spread
    else:
        free = _MARGIN * (high - low) or 0.5
        low, high = low - free, high + free
    return Axis(name=name, low=low, high=high, log=log, ticks=_named(distinct, say))


def word_axis(name: str, names: Sequence[str]) -> Axis:
    """Return an axis of words, the first at 0, the next at 1 and so on."""
    return Axis(
        name=name,
        low=-0.5,
        high=len(names) - 0.5,
        log=False,
        ticks=tuple((float(place), word) for place, word in enumerate(names)),
    )


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    result = [digit * 10.0**power for power in range(first, last + 1) for digit in _ROUND]
    inside = [value for value in result if low <= value <= high]
    if len(inside) > MOST_TICKS:
        return [value for value in inside if f"{value:e}".startswith("1.0")]
    if len(inside) < 4:
        step = round_step(high - low, MOST_TICKS - 3)
        inside = [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return inside


def _named(values: Sequence[float], say: Callable[[float], str]) -> tuple[tuple[float, str], ...]:
    exact = [float(f"{value:.12g}") for value in values]  # 0.6 and not 0.6000000000000001
    return tuple((value, say(value)) for value in exact)


def round_step(top: float, most: int) -> float:
    """Return a round distance of at most `most` grid lines up to `top`: 1, 2 or 5 times a power of ten."""
    rough = max(top, 1e-12) / most
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(factor for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)

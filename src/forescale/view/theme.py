"""Colours, one meaning each, and how every chart is set."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from forescale.escaping import plain

Spec: TypeAlias = dict[str, Any]
"""A Vega-Lite specification."""
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
SERIES = ("#4e79a7", "#d9605b", "#6aa56e", "#f2a154", "#a883b8", "#3f9aa3", "#8c6d46", "#c55a91")
"""Colours of what has none of its own, in order."""
LIMIT = "#d13f34"
INK = "#1b2430"
PARTS: Mapping[str, str] = MappingProxyType(
    {
        "weights": "#4e79a7", "gradients": "#f2a154", "activations": "#d9605b", "buffers": "#a883b8",
        "optimizer": "#6aa56e", "overhead": "#a09a93",
        "attention": "#3d7ab8", "ffn": "#3f9aa3", "moe": "#2d7f6f", "norm": "#8fb8a8", "embedding": "#b3c48f",
        "head": "#8ba35c", "recompute": "#9a74bd", "bubble": "#f2a154",
        "tensor_comm": "#b8433f", "context_comm": "#d9605b", "expert_comm": "#e58a7f", "pipeline_comm": "#c55a91",
        "data_comm": "#a34a78", "host_comm": "#8c6d46",
        "feed-forward": "#3f9aa3", "other layers": "#8fb8a8", "communication": "#b8433f",
        "optimizer and rest": "#a09a93",
    }
)  # fmt: skip
"""Colours of parts of memory and of a step."""
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
    """Return the colour of a part, which is its own or that of its place."""
    return PARTS.get(name, SERIES[place % len(SERIES)])


def specification(title: str, note: str, **rest: Any) -> Spec:  # noqa: ANN401 (parts of a specification)
    """Return a whole specification, in which no name steers what shows it."""
    whole: Spec = _plain({"title": {"text": title, "subtitle": note}, **rest})
    return {"$schema": SCHEMA, **whole}


def _plain(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    match value:
        case str():
            return plain(value)
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value

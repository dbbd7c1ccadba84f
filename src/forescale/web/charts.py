"""What the page draws, as Vega-Lite specifications: data in place, colours that hold in the dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forescale.projection.result import Projection
from forescale.units import GIB

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
MEMORY = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
Spec = dict[str, Any]


def time_parts(found: Projection) -> Spec:
    """Return the parts of a step, the largest first; a click on one explains it."""
    parts = [
        {"part": part, "seconds": seconds, "quantity": f"step_time.{part}"}
        for part, seconds in found.time_s.items()
        if seconds
    ]
    return _spec(
        parts,
        mark={"type": "bar", "cursor": "pointer"},
        encoding={
            "y": {"field": "part", "type": "nominal", "sort": "-x", "title": None},
            "x": {"field": "seconds", "type": "quantitative", "title": "seconds per step"},
            "tooltip": [{"field": "part"}, {"field": "seconds", "format": ".4~g"}],
        },
        height={"step": 22},
    )


def memory_stages(found: Projection) -> Spec:
    """Return memory by pipeline stage, what it is made of, and the line of what a device has."""
    rows = [
        {"stage": stage.stage, "part": part, "gib": getattr(stage, f"{part}_bytes") / GIB, "order": order}
        for stage in found.memory.stages
        for order, part in enumerate(MEMORY)
    ]
    bars = {
        "mark": "bar",
        "encoding": {
            "y": {"field": "stage", "type": "ordinal", "title": "stage"},
            "x": {"field": "gib", "type": "quantitative", "title": "GiB per device"},
            "color": {"field": "part", "type": "nominal", "sort": list(MEMORY), "title": None},
            "order": {"field": "order"},
            "tooltip": [{"field": "stage"}, {"field": "part"}, {"field": "gib", "format": ".4~g"}],
        },
    }
    capacity = {
        "data": {"values": [{"gib": found.memory.capacity_bytes / GIB}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 2, "tooltip": "what a device has"},
        "encoding": {"x": {"field": "gib", "type": "quantitative"}},
    }
    return _spec(rows, layer=[bars, capacity], height={"step": 22 if len(found.memory.stages) < 24 else 10})


def curves(points: Sequence[Mapping[str, Any]], what: str) -> Spec:
    """Return tokens per second and device as one quantity changes."""
    rows = [point for point in points if point["what"] == what]
    return _spec(
        rows,
        mark={"type": "line", "point": True},
        encoding={
            "x": {
                "field": "factor",
                "type": "quantitative",
                "scale": {"type": "log", "base": 2},
                "title": f"{what} × ",
            },
            "y": {
                "field": "tokens_per_s_per_device",
                "type": "quantitative",
                "title": "tokens/s/device",
                "scale": {"zero": True},
            },
            "tooltip": [
                {"field": "factor"},
                {"field": "step_time_s", "format": ".4~g"},
                {"field": "tokens_per_s_per_device", "format": ",.0f"},
            ],
        },
        height=150,
    )


def layouts(best: Sequence[Mapping[str, Any]]) -> Spec:
    """Return layouts by step time and memory."""
    rows = [
        {
            "rank": place,
            "step_time_s": each["step_time_s"],
            "gib": each["memory"]["peak_bytes"] / GIB,
            "layout": short(each["strategy"]),
        }
        for place, each in enumerate(best, start=1)
    ]
    return _spec(
        rows,
        mark={"type": "point", "filled": True, "size": 70},
        encoding={
            "x": {
                "field": "gib",
                "type": "quantitative",
                "title": "GiB on the fullest device",
                "scale": {"zero": False},
            },
            "y": {
                "field": "step_time_s",
                "type": "quantitative",
                "title": "seconds per step",
                "scale": {"zero": False},
            },
            "tooltip": [{"field": "rank"}, {"field": "layout"}, {"field": "step_time_s", "format": ".4~g"}],
        },
        height=180,
    )


def short(strategy: Mapping[str, Any]) -> str:
    """Return a layout in few words, degrees of 1 left out."""
    degrees = [f"{name} {strategy[name]}" for name in ("tp", "cp", "ep", "pp", "vpp") if strategy[name] > 1]
    replicas = strategy["dp_replicate"] * strategy["dp_shard"]
    more = [f"dp {replicas}", f"zero {strategy['zero']}", f"micro-batch {strategy['micro_batch_size']}"]
    recompute = strategy["recompute"]["granularity"]
    more += [f"recompute {recompute}"] if recompute != "none" else []
    more += [strategy["schedule"]] if strategy["schedule"] else []
    return " · ".join([*degrees, *more])


def _spec(values: Sequence[Mapping[str, Any]], **rest: Any) -> Spec:  # noqa: ANN401 (parts of a specification)
    return {
        "$schema": SCHEMA,
        "data": {"values": [dict(value) for value in values]},
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": "transparent",
        **rest,
    }

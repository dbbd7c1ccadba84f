"""A projection as one flat row, for CSV and Parquet files."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from forescale.projection.result import Projection
from forescale.spec.strategy import Strategy


def projection_row(projection: Projection) -> dict[str, Any]:
    """Return the layout and then what was projected; the same columns for every projection."""
    memory = projection.memory
    return {
        **strategy_row(projection.strategy),
        "num_microbatches": projection.num_microbatches,
        "step_time_s": projection.step_time_s,
        "tokens_per_s_per_device": projection.tokens_per_s_per_device,
        "mfu": projection.mfu,
        "hfu": projection.hfu,
        "peak_bytes": memory.peak_bytes,
        "verdict": memory.verdict,
        **{f"{part}_s": seconds for part, seconds in projection.time_s.items()},
    }


def strategy_row(strategy: Strategy) -> dict[str, Any]:
    """Return the plain fields of a layout and, in words, its recompute policy and axis order."""
    values = {item.name: getattr(strategy, item.name) for item in fields(Strategy)}
    plain = {
        name: value
        for name, value in values.items()
        if isinstance(value, int | str) or (name == "schedule" and value is None)
    }
    return {
        **plain,
        "recompute": strategy.recompute.granularity,
        "recompute_modules": "+".join(strategy.recompute.modules),
        "axis_order": strategy.rank_order,
    }

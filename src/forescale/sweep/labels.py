"""Columns and their values in words: for pictures and terminals."""

from __future__ import annotations

from typing import TypeAlias

from forescale.sweep.columns import VARIED
from forescale.sweep.definition import Sweep
from forescale.sweep.draft import Factor
from forescale.units import GIB, format_count

Unit: TypeAlias = str
"""What a column is measured in: "factor", "share", "count", "text", "plain" or a unit."""
_SCALES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_TITLES = {
    "step_time_s": "step time",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_device": "tokens/s per device",
    "mfu": "MFU",
    "hfu": "HFU",
    "mfu_full_attention": "MFU, attention unmasked",
    "peak_bytes": "peak memory",
    "num_devices": "devices",
    "global_batch_size": "global batch",
    "seq_len": "sequence length",
    "training_days": "training days",
    "cost_per_million_tokens": "cost per million tokens",
    "energy_per_token_max_j": "energy per token (upper bound)",
    "communication_share": "exposed communication",
    "bubble_share": "bubble",
    "device_flops": "matrix rate",
    "scale_up_devices": "scale-up domain",
}
_SHARES = frozenset({"mfu", "hfu", "mfu_full_attention", "communication_share", "bubble_share", "efficiency"})


def title(name: str) -> str:
    """Return a column's name for people."""
    plain = name.removeprefix(VARIED)
    return _TITLES.get(plain, plain if "." in plain else plain.replace("_", " "))


def unit_of(sweep: Sweep, name: str) -> Unit:
    """Return what the values of a column, or of what is varied, are measured in."""
    axes = sweep.axes
    for axis in axes.grid:
        if axis.name == name:
            return _unit(axis.parameter.dimension, axis.parameter.kind, isinstance(axis.values[0], Factor))
    for item in axes.ranges:
        if item.name == name:
            return _unit(item.parameter.dimension, item.parameter.kind, item.factors)
    if name in _SHARES:
        return "share"
    for ending, unit in (("_bytes", "byte"), ("_bandwidth", "byte/s"), ("_flops", "FLOP/s"), ("_j", "J")):
        if name.endswith(ending):
            return unit
    if name.endswith("_s") and not name.startswith("tokens_"):
        return "second"
    return (
        "count" if name.startswith(("tokens_", "num_", "global_", "seq_", "scale_up_d", "cost")) else "plain"
    )


def say(value: object, unit: Unit) -> str:
    """Return a value in few characters."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if unit == "factor":
        return f"×{value:.3g}"
    if unit == "share":
        return f"{100.0 * value:.3g} %"
    if unit == "byte":
        return f"{value / GIB:.4g} GiB"
    if unit == "second":
        return _seconds(value)
    if unit in ("byte/s", "FLOP/s"):
        return _prefixed(value, unit.replace("byte", "B"))
    return _number(value)


def _prefixed(value: float, unit: str) -> str:
    prefix, scale = next(pair for pair in _SCALES if abs(value) >= pair[1] or pair[1] == 1.0)
    return f"{value / scale:.4g} {prefix}{unit}"


def _number(value: float) -> str:
    if abs(value) >= 1e5:
        return format_count(value)
    return f"{value:,.0f}" if abs(value) >= 1e3 or float(value).is_integer() else f"{value:.4g}"


def _unit(dimension: str | None, kind: str, factors: bool) -> Unit:
    if factors:
        return "factor"
    return dimension or {"whole": "count", "number": "plain", "text": "text"}[kind]


def _seconds(value: float) -> str:
    for name, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {name}"
    return f"{value:g} s"

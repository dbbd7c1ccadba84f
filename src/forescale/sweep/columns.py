"""The table of a sweep: its columns, and the row of one point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from forescale.errors import InfeasibleError, PhysicsError, SpecError
from forescale.project import peak_rate
from forescale.projection.rates import SECONDS_PER_DAY, SECONDS_PER_HOUR, cost_per_token, energy_per_token
from forescale.projection.result import TIME_PARTS, Projection, strategy_row
from forescale.question import Question
from forescale.search import search
from forescale.spec import Cluster, Strategy
from forescale.sweep.definition import Asked, Axes
from forescale.sweep.parameters import scale_up_tier
from forescale.whole_run import Prices
from forescale.whole_run.plans import hourly_price
from forescale.whole_run.run import MWH, energy

Row: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["whole", "number", "text", "flag"]
VARIED = "vary."
"""Columns of what is varied start with this: factors as numbers, everything else as it was set."""
REASONS = 3
"""Constraints named for a point without a legal layout."""
COMMUNICATION = tuple(part for part in TIME_PARTS if part.endswith("_comm"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column and the kind of its values; any value but `index` and `status` may be missing."""

    name: str
    kind: Kind


_ASKED: dict[str, Kind] = {
    "model": "text",
    "cluster": "text",
    "device": "text",
    "num_devices": "whole",
    "seq_len": "whole",
    "global_batch_size": "whole",
    "precision": "text",
    "device_flops": "number",
    "device_hbm_bytes": "number",
    "device_hbm_bandwidth": "number",
    "scale_up_devices": "whole",
    "scale_up_bandwidth": "number",
    "scale_up_latency_s": "number",
    "scale_out_bandwidth": "number",
    "scale_out_latency_s": "number",
}
_FOUND: dict[str, Kind] = {
    "step_time_low_s": "number",
    "step_time_high_s": "number",
    "tokens_per_s": "number",
    "mfu_full_attention": "number",
    "training_days": "number",
    "calendar_days_low": "number",
    "calendar_days": "number",
    "calendar_days_high": "number",
    "goodput": "number",
    "calendar_cost": "number",
    "calendar_mwh": "number",
    "cost_per_million_tokens": "number",
    "cost": "number",
    "energy_per_token_max_j": "number",
    "communication_share": "number",
    "bubble_share": "number",
    "dominant": "text",
}
_PROJECTED: dict[str, Kind] = {
    "num_microbatches": "whole",
    "step_time_s": "number",
    "tokens_per_s_per_device": "number",
    "mfu": "number",
    "hfu": "number",
    "peak_bytes": "number",
    "verdict": "text",
    **{f"{part}_s": "number" for part in TIME_PARTS},
}


def columns(axes: Axes) -> tuple[Column, ...]:
    """Return the columns of a sweep's table, in order; they do not depend on what is found."""
    points = axes.points()
    varied = [
        Column(name=VARIED + name, kind=_kind([point.shown[place] for point in points]))
        for place, name in enumerate(axes.names)
    ]
    layout: dict[str, Kind] = {name: _kind([value or ""]) for name, value in strategy_row(Strategy()).items()}
    fixed: dict[str, Kind] = {"status": "text", "problem": "text", **_ASKED, **_PROJECTED, **_FOUND, **layout}
    rest = [Column(name=name, kind=kind) for name, kind in fixed.items()]
    return (Column(name="index", kind="whole"), *varied, *rest)


def column_names(axes: Axes) -> tuple[str, ...]:
    """Return the names by which columns may be asked for: what is varied by its own name, then the others."""
    names = [column.name for column in columns(axes)]
    return tuple(dict.fromkeys([*axes.names, *names]))


def answer(asked: Asked, names: tuple[str, ...]) -> Row:
    """Return the row of one point: what is asked and the best layout, or why there is none.

    `names` are those of what is varied.
    """
    row: Row = {"index": asked.index}
    row |= {VARIED + name: value for name, value in zip(names, asked.shown, strict=True)}
    if asked.question is None:
        return {**row, "status": "impossible", "problem": asked.problem}
    try:
        row |= _asked(asked.question)
        found = search(asked.question, top=1)
    except InfeasibleError as error:
        return {**row, "status": "infeasible", "problem": _reason(error)}
    except SpecError as error:
        return {**row, "status": "impossible", "problem": str(error)}
    except PhysicsError as error:
        return {**row, "status": "defect", "problem": str(error)}
    best = found.best[0]
    return {**row, "status": "ok", "problem": best.endless or None, **best.rows()[0], **_found(best)}


def table_row(row: Mapping[str, Any], known: tuple[Column, ...]) -> Row:
    """Return a row with exactly the columns of its table, each value of its column's kind."""
    return {column.name: _as(column.kind, row.get(column.name)) for column in known}


def _asked(asked: Question) -> Row:
    cluster, device = asked.cluster, asked.cluster.device
    return {
        "model": asked.model.name,
        "cluster": cluster.name,
        "device": device.name,
        "num_devices": cluster.num_devices,
        "seq_len": asked.workload.seq_len,
        "global_batch_size": asked.workload.global_batch_size,
        "precision": asked.workload.precision.compute,
        "device_flops": peak_rate(cluster, asked.workload),
        "device_hbm_bytes": device.hbm_bytes,
        "device_hbm_bandwidth": device.hbm_bandwidth,
        **_network(cluster),
    }


def _network(cluster: Cluster) -> Row:
    """Return the scale-up domain and the first network beyond it."""
    tiers = [{"size": tier.size} for tier in cluster.tiers]
    index = scale_up_tier(tiers, cluster.devices_per_node)
    inner = cluster.tiers[index] if cluster.tiers[index].size else None
    outer = cluster.tiers[index + (inner is not None) :]
    return {
        "scale_up_devices": inner.size if inner else None,
        "scale_up_bandwidth": inner.bandwidth if inner else None,
        "scale_up_latency_s": inner.latency if inner else None,
        "scale_out_bandwidth": outer[0].bandwidth if outer else None,
        "scale_out_latency_s": outer[0].latency if outer else None,
    }


def _found(best: Projection) -> Row:
    """Return what a row says of the best layout beyond the projection's own figures."""
    cluster, work, step = best.cluster, best.workload, best.step_time_s
    tokens = work.tokens_per_step
    spent = {"num_devices": cluster.num_devices, "step_time": step, "tokens": tokens}
    price, power = cluster.device.price_per_hour, cluster.device.power_w
    cost = float(cost_per_token(price_per_device_hour=price, **spent)) if price else None
    return {
        "step_time_low_s": best.step_time.low,
        "step_time_high_s": best.step_time.high,
        "tokens_per_s": tokens / step,
        "mfu_full_attention": best.mfu_full_attention,
        "training_days": best.training_days,
        **_calendar(best),
        "cost_per_million_tokens": None if cost is None else cost * 1e6,
        "cost": None if cost is None or work.tokens is None else cost * work.tokens,
        "energy_per_token_max_j": float(energy_per_token(power=power, **spent)) if power else None,
        "communication_share": sum(best.time_s[part] for part in COMMUNICATION) / step,
        "bubble_share": best.time_s["bubble"] / step,
        "dominant": best.dominant_cost,
    }


def _calendar(best: Projection) -> Row:
    """Return days, money and energy on the calendar; the price of a device is its own, or else the published one."""
    if best.calendar is None:
        return {}
    cluster, days, price = best.cluster, best.calendar.days, hourly_price(best.cluster)
    seconds = cluster.num_devices * days.expected * SECONDS_PER_DAY
    (pue, _), _ = Prices().energy()
    joules = energy(power=cluster.device.power_w, num_devices=1, seconds=seconds, pue=pue)
    return {
        "calendar_days_low": days.low,
        "calendar_days": days.expected,
        "calendar_days_high": days.high,
        "goodput": best.calendar.goodput,
        "calendar_cost": None if price is None else price * seconds / SECONDS_PER_HOUR,
        "calendar_mwh": float(joules) / MWH if joules else None,
    }


def _reason(error: InfeasibleError) -> str:
    most = sorted(error.rows, key=lambda row: -row[1])[:REASONS]
    if not most or len(error.rows) == 1:
        return str(error)
    return f"{error}; refused by {', '.join(f'{name} ({count:,})' for name, count in most)}"


def _kind(values: list[Any]) -> Kind:
    """Return the kind of a column that holds `values`."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "flag"
    if kinds == {int}:
        return "whole"
    return "number" if kinds <= {int, float} else "text"


def _as(kind: Kind, value: object) -> object:
    if value is None:
        return None
    if kind == "number":
        return float(value)  # type: ignore[arg-type]
    if kind == "text" and not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value

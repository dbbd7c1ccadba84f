"""What a sweep says: its table, the best point of every value, and how the best follows what is varied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forescale.errors import InfeasibleError, PhysicsError, SpecError, UnknownNameError
from forescale.project import peak_rate
from forescale.projection.result import (
    SECONDS_PER_DAY,
    SECONDS_PER_HOUR,
    Projection,
    cost_per_token,
    energy_per_token,
    layout_row,
)
from forescale.question import Question
from forescale.results import MAIN_COLUMNS, Result
from forescale.search import search
from forescale.spec import Cluster, Layout
from forescale.struct import Struct
from forescale.sweep.columns import COMMUNICATION, FIXED, METRICS, VARIED, Kind, Row, TableColumn
from forescale.sweep.definition import AskedPoint, Axes, Sweep, varies
from forescale.sweep.parameters import scale_up_tier
from forescale.units import counted
from forescale.whole_run import Prices
from forescale.whole_run.plans import hourly_price
from forescale.whole_run.run import MWH, energy

if TYPE_CHECKING:
    from forescale.view.page import Chart

REASONS = 3
"""Constraints named for a point without a legal layout."""


def columns(axes: Axes) -> tuple[TableColumn, ...]:
    """Return the columns of a sweep's table, in order; they do not depend on what is found."""
    points = axes.points()
    varied = [
        TableColumn(name=VARIED + name, kind=_kind([point.shown[place] for point in points]))
        for place, name in enumerate(axes.names)
    ]
    layout: dict[str, Kind] = {name: _kind([value or ""]) for name, value in layout_row(Layout()).items()}
    table_columns = [TableColumn(name=name, kind="text") for name in ("status", "problem")]
    known = FIXED | {name: TableColumn(name=name, kind=kind) for name, kind in layout.items()}
    return (TableColumn(name="index", kind="whole"), *varied, *table_columns, *known.values())


def column_names(axes: Axes) -> tuple[str, ...]:
    """Return the names by which columns may be asked for: what is varied by its own name, then the others."""
    names = [column.name for column in columns(axes)]
    return tuple(dict.fromkeys([*axes.names, *names]))


def answer(asked_point: AskedPoint, names: tuple[str, ...]) -> Row:
    """Return the row of one point: what is asked and the best layout, or why there is none.

    `names` are those of what is varied.
    """
    row: Row = {"index": asked_point.index}
    row |= {VARIED + name: value for name, value in zip(names, asked_point.shown, strict=True)}
    if asked_point.question is None:
        return {**row, "status": "impossible", "problem": asked_point.problem}
    try:
        row |= _asked(asked_point.question)
        result = search(asked_point.question, top=1, gains=False)
    except InfeasibleError as error:
        return {**row, "status": "infeasible", "problem": _reason(error)}
    except SpecError as error:
        return {**row, "status": "impossible", "problem": str(error)}
    except PhysicsError as error:
        return {**row, "status": "defect", "problem": str(error)}
    best = result.best[0]
    return {**row, "status": "ok", "problem": best.endless or None, **best.rows()[0], **_found(best)}


def table_row(row: Mapping[str, Any], known: tuple[TableColumn, ...]) -> Row:
    """Return a row with exactly the columns of its table, each value of its column's kind."""
    return {column.name: _as(column.kind, row.get(column.name)) for column in known}


def _asked(question: Question) -> Row:
    cluster, device = question.cluster, question.cluster.device
    return {
        "model": question.model.name,
        "cluster": cluster.name,
        "device": device.name,
        "num_devices": cluster.num_devices,
        "seq_len": question.workload.seq_len,
        "global_batch_size": question.workload.global_batch_size,
        "precision": question.workload.precision.compute,
        "device_flops": peak_rate(cluster, question.workload),
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


SCHEMA = "forescale.sweep/1"
_EQUAL_WORK = ("model", "num_devices", "seq_len", "global_batch_size")
"""Where one of these varies, steps are different work."""


class Exponents(Struct, frozen=True, kw_only=True):
    """metric ∝ product of parameter^exponent, by least squares over the points with a layout."""

    metric: str
    of: dict[str, float]
    """Exponent by parameter; words and cases count too, but have none."""
    r_squared: float
    """Share of the variance of the metric's logarithm that this explains."""


class SweepResult(Result, Struct, frozen=True, kw_only=True):
    """The table of a sweep, one row per point by ascending index."""

    sweep: Sweep
    columns: tuple[TableColumn, ...]
    points: tuple[Row, ...]
    num_resumed: int = 0
    """Points that were known before."""
    table: Path | None = None
    """The file that holds the table."""
    asked_metric: str | None = None
    """What points are to be compared by; None for what suits the sweep."""

    def essentials(self) -> dict[str, Any]:
        """Return how many points became what, and the best of them."""
        best = self.best()
        shown = {} if best is None else {name: best[name] for name in ("index", self.metric)}
        return {"name": self.sweep.name, "counts": self.counts, "best": shown}

    @property
    def headline(self) -> str:
        """How many points have a layout, and the best of them."""
        from forescale.sweep.pictures import say, unit_of

        name, best = self.metric, self.best()
        known = f"{self.sweep.name}: {counted(len(self.points), 'point')}, {self.counts['ok']} with a layout"
        if best is None:
            return known
        varied = [(item, best[VARIED + item]) for item in self.sweep.axes.names]
        where = ", ".join(f"{item} {say(value, unit_of(self.sweep, item))}" for item, value in varied)
        return f"{known}; best {name} {say(best[name], unit_of(self.sweep, name))} at {where}"

    def rows(self) -> list[Row]:
        """Return the table, one row per point."""
        return list(self.points)

    @property
    def main_columns(self) -> frozenset[str]:
        """Columns that a notebook shows where there are too many: those of a layout, what is varied, and the metric."""
        varied = {VARIED + name for name in self.sweep.axes.names}
        return MAIN_COLUMNS | varied | {"status", self.metric}

    def pictures(self) -> Sequence[Chart]:
        """Return the charts of the sweep's file, or those that suit what is varied."""
        from forescale.sweep.pictures import draw, usual_plots

        return tuple(item.chart for item in draw(self, self.sweep.plots or usual_plots(self)))

    @property
    def counts(self) -> dict[str, int]:
        """Number of points by status, all of them named."""
        counter = Counter(row["status"] for row in self.points)
        return {status: counter[status] for status in ("ok", "infeasible", "impossible", "defect")}

    @property
    def feasible(self) -> tuple[Row, ...]:
        """Rows with a layout."""
        return tuple(row for row in self.points if row["status"] == "ok")

    @property
    def metric(self) -> str:
        """What points are compared by unless asked: step time; days if operations vary, throughput if work does."""
        if self.asked_metric is not None:
            return self.asked_metric
        if self.sweep.objective == "peak_memory":
            return "peak_bytes"
        if any(name.startswith("operations.") for name in self.sweep.axes.names):
            return "calendar_days"
        different = any(varies([row[name] for row in self.feasible]) for name in _EQUAL_WORK)
        return "tokens_per_s_per_device" if different else "step_time_s"

    def column(self, name: str) -> list[Any]:
        """Return one column: of what is varied by its own name, or as the table calls it."""
        place = self.place(name)
        return [row[place] for row in self.points]

    def place(self, name: str) -> str:
        """Return the table's name of a column."""
        if name in self.sweep.axes.names:
            return VARIED + name
        known = [column.name for column in self.columns]
        if name not in known:
            raise UnknownNameError("column", name, [*self.sweep.axes.names, *known])
        return name

    def best(self, metric: str | None = None, rows: Iterable[Row] | None = None) -> Row | None:
        """Return the best row (of `rows`) by a metric, the first of equals; None where nothing fits."""
        name = metric or self.metric
        if name not in METRICS:
            raise UnknownNameError("metric", name, METRICS)
        sign = 1.0 if METRICS[name] == "least" else -1.0
        feasible = self.feasible if rows is None else rows
        result = [row for row in feasible if row["status"] == "ok" and row[name] is not None]
        return min(result, key=lambda row: (sign * row[name], row["index"]), default=None)

    def best_by(self, axis: str, metric: str | None = None) -> list[tuple[Any, Row | None]]:
        """Return every value of what is varied with the best row that has it."""
        place = self.place(axis)
        grouped: dict[Any, list[Row]] = {}
        for row in self.points:
            grouped.setdefault(row[place], []).append(row)
        return [(value, self.best(metric, rows)) for value, rows in grouped.items()]

    def exponents(self, metric: str | None = None) -> Exponents | None:
        """Return how the metric follows the numbers varied, or None where too few points tell."""
        name = metric or self.metric
        rows = [row for row in self.feasible if row[name]]
        numbers, parts = self._varied(rows)
        design = [np.ones(len(rows))]
        design += [np.log(np.array([row[VARIED + item] for row in rows], dtype=float)) for item in numbers]
        for item in parts:
            values = list(dict.fromkeys(row[VARIED + item] for row in rows))
            design += [np.array([float(row[VARIED + item] == value) for row in rows]) for value in values[1:]]
        if not numbers or len(rows) <= len(design) + 1:
            return None
        matrix, log = np.stack(design, axis=1), np.log(np.array([row[name] for row in rows], dtype=float))
        fitted, _, rank, _ = np.linalg.lstsq(matrix, log, rcond=None)
        spread = float(np.sum((log - log.mean()) ** 2))
        if rank < matrix.shape[1] or spread == 0.0:
            return None
        left = float(np.sum((log - matrix @ fitted) ** 2))
        of = {item: float(value) for item, value in zip(numbers, fitted[1:], strict=False)}
        return Exponents(metric=name, of=of, r_squared=1.0 - left / spread)

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.sweep/1` document."""
        best, exponents = self.best(), self.exponents()
        return {
            "schema": SCHEMA,
            "name": self.sweep.name,
            "num_points": len(self.points),
            "counts": self.counts,
            "metric": self.metric,
            "best": None if best is None else best["index"],
            "axes": [{"name": name, "values": self._values(name)} for name in self.sweep.axes.names],
            "exponents": None if exponents is None else asdict(exponents),
            "columns": [{"name": column.name, "kind": column.kind} for column in self.columns],
            "rows": list(self.points),
        }

    def _values(self, axis: str) -> list[dict[str, Any]]:
        return [
            {"value": value, "best": None if row is None else row["index"]}
            for value, row in self.best_by(axis)
        ]

    def _varied(self, rows: Sequence[Row]) -> tuple[list[str], list[str]]:
        """Return the names of what differs between `rows`: positive numbers, and everything else."""
        kinds = {column.name: column.kind for column in self.columns}
        numbers: list[str] = []
        names: list[str] = []
        for name in self.sweep.axes.names:
            values = [row[VARIED + name] for row in rows]
            if not varies(values):
                continue
            numeric = kinds[VARIED + name] in ("whole", "number") and min(values) > 0
            (numbers if numeric else names).append(name)
        return numbers, names

"""What a sweep says: its table, the best point of every value, and how the best follows what is varied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forescale.brief import Brief
from forescale.errors import UnknownNameError
from forescale.sweep.columns import VARIED, Column, Row
from forescale.sweep.definition import Sweep, varies

SCHEMA = "forescale.sweep/1"
METRICS = {
    "step_time_s": "least",
    "tokens_per_s_per_device": "most",
    "tokens_per_s": "most",
    "mfu": "most",
    "hfu": "most",
    "peak_bytes": "least",
    "training_days": "least",
    "calendar_days": "least",
    "goodput": "most",
    "calendar_cost": "least",
    "calendar_mwh": "least",
    "cost_per_million_tokens": "least",
    "cost": "least",
    "energy_per_token_max_j": "least",
}
"""What points may be compared by, and which is better."""
_EQUAL_WORK = ("model", "num_devices", "seq_len", "global_batch_size")
"""Where one of these varies, steps are different work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponents:
    """metric ∝ product of parameter^exponent, by least squares over the points with a layout."""

    metric: str
    of: dict[str, float]
    """Exponent by parameter; words and cases count too, but have none."""
    r_squared: float
    """Share of the variance of the metric's logarithm that this explains."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepResult(Brief):
    """The table of a sweep, one row per point by ascending index."""

    sweep: Sweep
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
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
    def counts(self) -> dict[str, int]:
        """Number of points by status, all of them named."""
        found = Counter(row["status"] for row in self.rows)
        return {status: found[status] for status in ("ok", "infeasible", "impossible", "defect")}

    @property
    def feasible(self) -> tuple[Row, ...]:
        """Rows with a layout."""
        return tuple(row for row in self.rows if row["status"] == "ok")

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
        return [row[place] for row in self.rows]

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
        given = self.feasible if rows is None else rows
        found = [row for row in given if row["status"] == "ok" and row[name] is not None]
        return min(found, key=lambda row: (sign * row[name], row["index"]), default=None)

    def best_by(self, axis: str, metric: str | None = None) -> list[tuple[Any, Row | None]]:
        """Return every value of what is varied with the best row that has it."""
        place = self.place(axis)
        grouped: dict[Any, list[Row]] = {}
        for row in self.rows:
            grouped.setdefault(row[place], []).append(row)
        return [(value, self.best(metric, rows)) for value, rows in grouped.items()]

    def exponents(self, metric: str | None = None) -> Exponents | None:
        """Return how the metric follows the numbers varied, or None where too few points tell."""
        name = metric or self.metric
        rows = [row for row in self.feasible if row[name]]
        numbers, words = self._varied(rows)
        design = [np.ones(len(rows))]
        design += [np.log(np.array([row[VARIED + item] for row in rows], dtype=float)) for item in numbers]
        for item in words:
            values = list(dict.fromkeys(row[VARIED + item] for row in rows))
            design += [np.array([float(row[VARIED + item] == value) for row in rows]) for value in values[1:]]
        if not numbers or len(rows) <= len(design) + 1:
            return None
        matrix, wanted = np.stack(design, axis=1), np.log(np.array([row[name] for row in rows], dtype=float))
        fitted, _, rank, _ = np.linalg.lstsq(matrix, wanted, rcond=None)
        spread = float(np.sum((wanted - wanted.mean()) ** 2))
        if rank < matrix.shape[1] or spread == 0.0:
            return None
        left = float(np.sum((wanted - matrix @ fitted) ** 2))
        of = {item: float(value) for item, value in zip(numbers, fitted[1:], strict=False)}
        return Exponents(metric=name, of=of, r_squared=1.0 - left / spread)

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.sweep/1` document."""
        best, exponents = self.best(), self.exponents()
        return {
            "schema": SCHEMA,
            "name": self.sweep.name,
            "num_points": len(self.rows),
            "counts": self.counts,
            "metric": self.metric,
            "best": None if best is None else best["index"],
            "axes": [{"name": name, "values": self._values(name)} for name in self.sweep.axes.names],
            "exponents": None if exponents is None else asdict(exponents),
            "columns": [asdict(column) for column in self.columns],
            "rows": list(self.rows),
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
        words: list[str] = []
        for name in self.sweep.axes.names:
            values = [row[VARIED + name] for row in rows]
            if not varies(values):
                continue
            numeric = kinds[VARIED + name] in ("whole", "number") and min(values) > 0
            (numbers if numeric else words).append(name)
        return numbers, words

"""A projection as one flat row, for CSV and Parquet files."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescale.escaping import csv_text
from forescale.projection.result import Projection
from forescale.spec.strategy import Strategy
from forescale.written import replacing, write_text

if TYPE_CHECKING:
    from forescale.search import ParetoResult, ScanResult, SearchResult


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


def rows_of(result: SearchResult) -> list[dict[str, Any]]:
    """Return one flat row per layout: its strategy, then what was projected."""
    return [
        {"rank": place, **projection_row(projection)} for place, projection in enumerate(result.best, start=1)
    ]


def front_rows(result: ParetoResult) -> list[dict[str, Any]]:
    """Return one flat row per layout of a front, fastest first."""
    return [
        {"rank": place, "num_devices": one.cluster.num_devices, **projection_row(one)}
        for place, one in enumerate(result.front, start=1)
    ]


def scan_rows(result: ScanResult) -> list[dict[str, Any]]:
    """Return one flat row per point, with its best layout; the same columns for points without."""
    rows = []
    for point in result.points:
        figures = {name: value for name, value in point.to_json().items() if name != "best"}
        rows.append({**figures, **({} if point.best is None else projection_row(point.best))})
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def write_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as CSV with a header."""
    write_text(path, csv_text(rows, list(rows[0])))


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as Parquet, which needs pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replacing(path) as place:
        pq.write_table(pa.Table.from_pylist(rows), place)

"""Search results as flat rows in CSV and Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescale.escaping import csv_text
from forescale.report.rows import projection_row
from forescale.written import replacing, write_text

if TYPE_CHECKING:
    from forescale.search import ParetoResult, ScanResult, SearchResult


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

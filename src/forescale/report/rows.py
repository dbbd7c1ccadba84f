"""Rows of results in CSV and Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forescale.escaping import csv_text
from forescale.written import replacing, write_text


def write_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as CSV with a header."""
    write_text(path, csv_text(rows, list(rows[0])))


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as Parquet, which needs pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replacing(path) as place:
        pq.write_table(pa.Table.from_pylist(rows), place)

"""Rows of results in CSV and Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forescale.escaping import csv_text
from forescale.written import replacing, write_text

Rows = Sequence[Mapping[str, Any]]


def write_csv(rows: Rows, path: Path) -> None:
    """Write rows as CSV with a header."""
    write_text(path, csv_text(rows, list(rows[0])))


def write_parquet(rows: Rows, path: Path, *, kinds: Mapping[str, str] | None = None) -> None:
    """Write rows as Parquet, which needs pyarrow; equal rows make equal files, byte for byte.

    `kinds` says what the columns hold (whole, number, text or flag) where their values alone may not.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"whole": pa.int64(), "number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}
    schema = None if kinds is None else pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    with replacing(path) as place:
        table = pa.Table.from_pylist(list(rows), schema=schema)
        pq.write_table(table, place, compression="zstd", store_schema=False)

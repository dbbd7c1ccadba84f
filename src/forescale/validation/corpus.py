"""A corpus of measured runs: a CSV file, one run a row, every cell text until it is asked for."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forescale.errors import ReaderError, nearest

REQUIRED_COLUMNS: tuple[str, ...] = ("id", "model", "hardware", "n_gpus")
KNOWN_COLUMNS: tuple[str, ...] = (
    *REQUIRED_COLUMNS,
    *("source", "family", "layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab"),
    *(
        "num_experts",
        "topk",
        "moe_ffn",
        "n_shared_experts",
        "first_k_dense",
        "mla",
        "params_b",
        "gpus_per_node",
    ),
    *(
        "tp",
        "sp",
        "cp",
        "pp",
        "vpp",
        "ep",
        "etp",
        "dp",
        "zero_or_fsdp",
        "seq_len",
        "micro_batch",
        "global_batch",
    ),
    *("grad_accum", "recompute", "compute_dtype", "schedule", "attention", "optimizer"),
    *("measured_step_s", "measured_tflops_per_gpu", "tflops_convention", "measured_mfu_pct"),
    *(
        "measured_tokens_per_s_per_gpu",
        "measured_peak_mem_gb",
        "measured_published",
        "confidence",
        "notes",
        "core",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run as written: `line` is its line in the file, `cells` its text by column."""

    path: str
    line: int
    cells: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's identifier."""
        return self.text("id")

    def text(self, column: str) -> str:
        """Return the stripped text of `column`, empty if the row or the file lacks it."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """Return `column` as a number, or None if it is empty.

        Raises
        ------
        ReaderError
            If the cell holds something else.
        """
        text = self.text(column)
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            msg = f"line {self.line}, column {column}: {text!r} is not a number"
            raise ReaderError(self.path, msg) from None

    def integer(self, column: str) -> int | None:
        """Return `column` as a whole number, or None if it is empty; errors as `number`."""
        value = self.number(column)
        if value is None:
            return None
        if value != int(value):
            msg = f"line {self.line}, column {column}: {self.text(column)!r} is not a whole number"
            raise ReaderError(self.path, msg)
        return int(value)

    def flag(self, column: str) -> bool | None:
        """Return `column` as yes (y) or no (n), or None if it is empty."""
        text = self.text(column).lower()
        return None if not text else text in {"y", "yes", "true", "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of a CSV file of any kind, and its columns."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The rows of one file, and its columns that nothing here reads."""

    path: str
    rows: tuple[Row, ...]
    ignored_columns: tuple[str, ...] = ()


def read_corpus(path: str | Path) -> Corpus:
    """Return the rows of the CSV file at `path`.

    Raises
    ------
    ReaderError
        If the file cannot be read, lacks a required column, repeats an id, or has a row with fewer
        or more cells than there are columns.
    """
    table = read_table(path)
    _check_columns(path, table.columns)
    _check_ids(path, table.rows)
    ignored = tuple(name for name in table.columns if name not in KNOWN_COLUMNS)
    return Corpus(path=str(path), rows=table.rows, ignored_columns=ignored)


def read_table(path: str | Path) -> Table:
    """Return the rows of a CSV file, whatever its columns.

    Raises
    ------
    ReaderError
        If the file cannot be read, has no rows, or has a row with fewer or more cells than columns.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = tuple(reader.fieldnames or ())
            rows = tuple(Row(path=str(path), line=reader.line_num, cells=cells) for cells in reader)
    except OSError as error:
        raise ReaderError(path, f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ReaderError(path, f"cannot be read as a CSV file of runs: {error}") from error
    for row in rows:
        if None in row.cells or None in row.cells.values():
            raise ReaderError(path, f"line {row.line} has not as many cells as there are columns")
    return Table(columns=columns, rows=rows)


def _check_columns(path: str | Path, columns: tuple[str, ...]) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if not missing:
        return
    close = nearest(missing[0], columns)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ReaderError(path, f"is no table of runs: it lacks the column {', '.join(missing)}{hint}")


def _check_ids(path: str | Path, rows: tuple[Row, ...]) -> None:
    if not rows:
        raise ReaderError(path, "has no runs below its header")
    seen: dict[str, int] = {}
    for row in rows:
        if not row.id:
            raise ReaderError(path, f"line {row.line} has no id")
        if row.id in seen:
            raise ReaderError(path, f"line {row.line} repeats the id {row.id!r} of line {seen[row.id]}")
        seen[row.id] = row.line

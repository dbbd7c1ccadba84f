"""Why no layout qualified."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def refusals(rows: Sequence[tuple[str, int]]) -> Table:
    """Return the constraints that failed, with how many layouts each refused, most first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("constraint")
    table.add_column("layouts refused", justify="right")
    for name, count in sorted(rows, key=lambda row: -row[1]):
        table.add_row(name, f"{count:,}")
    return table


def changes(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Return what could be changed, to what, and what would come of it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("change", "to", "then"):
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    return table

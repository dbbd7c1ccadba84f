"""Run a sweep: every point answered once, kept as it comes, one table at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forescale.sweep.columns import columns, table_row
from forescale.sweep.definition import Sweep, fingerprint
from forescale.sweep.executors import Executor, Local
from forescale.sweep.result import SweepResult
from forescale.sweep.store import Format, alone, open_store


def run(
    sweep: Sweep,
    *,
    executor: Executor | None = None,
    output: str | Path | None = None,
    table_format: Format = "parquet",
    restart: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Answer every point of a sweep and return its table.

    Parameters
    ----------
    executor
        `Local()`, all cores of this machine, by default; or `Ray()`.
    output
        Folder in which finished points are kept and the table is written. If it holds points of the same sweep,
        they are not answered again.
    table_format
        "parquet", or "csv" where pyarrow is missing.
    restart
        Discard what the folder holds.
    progress
        Called with the number of points known and of all points, at the start and after every point.

    Raises
    ------
    ForescaleError
        If the folder belongs to another sweep, another process works in it, or an executor cannot be had.
    """
    known = columns(sweep.axes)
    folder = None if output is None else Path(output)
    with alone(folder):
        store = open_store(
            sweep, fingerprint(sweep.asked), known, folder=folder, kind=table_format, restart=restart
        )
        rows = store.done()
        resumed = len(rows)
        tell = progress or _silent
        tell(len(rows), len(sweep.asked))
        left = [question for question in sweep.asked if question.index not in rows]
        if left:
            for found in (executor or Local()).answers(left, sweep.axes.names):
                row = table_row(found, known)
                store.keep(row)
                rows[row["index"]] = row
                tell(len(rows), len(sweep.asked))
        ordered = tuple(rows[index] for index in sorted(rows))
        table = store.write(ordered)
    return SweepResult(sweep=sweep, columns=known, rows=ordered, num_resumed=resumed, table=table)


def _silent(_known: int, _all: int) -> None:
    pass

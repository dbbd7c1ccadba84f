"""What a calibration moved, and how far fits are from what they are fitted to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from forescale.cost.calibration import Residual
from forescale.report.document import Column, Content, Table, View, line, listed, table
from forescale.units import counted
from forescale.validation.entries import EntryFit, Left, Move
from forescale.validation.fit import ClusterCalibration
from forescale.validation.runs import CalibrationRun

SHOWN = 8
"""Runs and their moves that are printed."""
SHOWN_EACH = 3
"""Moves that are printed of every other entry."""


def calibration_view(
    runs: Sequence[CalibrationRun],
    result: ClusterCalibration | None,
    entries: Sequence[EntryFit],
    left: Sequence[Left],
    output: Path,
) -> View:
    """Return the errors before and after, what moved most, what was not used, and where the file is."""
    contents: list[Content] = []
    if entries:
        contents += [line("median |error| (bias) of fits", style="bold"), listed(_ENTRIES, entries)]
        contents += _moved([move for entry in entries for move in entry.moves[:SHOWN_EACH]])
    if result is not None:
        contents += [line(counted(len(runs), "run"), style="bold"), _runs(runs, result)]
        contents += _moved(result.moves[:SHOWN])
    for one in left:
        rows = "1 row" if one.rows == 1 else f"{one.rows} rows"
        contents.append(line(f"not used: {rows} of {one.path}, {one.reason}"))
    return View(contents=(*contents, line(f"written to {output}")))


def _moved(moves: Sequence[Move]) -> list[Content]:
    return [line("what moved most", style="bold"), listed(_MOVES, moves)]


def _runs(runs: Sequence[CalibrationRun], result: ClusterCalibration) -> Table:
    rows = (
        (run.id, f"{math.expm1(-before):+.1%}", f"{math.expm1(-after):+.1%}")
        for run, before, after in list(zip(runs, result.before, result.after, strict=True))[:SHOWN]
    )
    return table("<run", "error before", "error after", rows=rows)


def _error(residual: Residual | None) -> str:
    return "too few" if residual is None else f"{residual.median_abs:.1%} ({residual.bias:+.1%})"


_ENTRIES: tuple[Column[EntryFit], ...] = (
    Column("<entry", lambda entry: entry.path),
    Column("rows", lambda entry: str(entry.rows)),
    Column("error before", lambda entry: _error(entry.before)),
    Column("after", lambda entry: _error(entry.after)),
    Column("unseen rows", lambda entry: _error(entry.held_out)),
)
_MOVES: tuple[Column[Move], ...] = (
    Column("<factor", lambda move: move.path),
    Column("before", lambda move: f"{move.before:.4g}"),
    Column("after", lambda move: f"{move.after:.4g}"),
)

"""`forescale calibrate`: fit what a cluster's runs lose against kernels alone, and say what moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forescale.calibrate.cluster import ClusterCalibration
    from forescale.calibrate.dataset import Run

SHOWN = 8
"""Moves that are printed."""


def calibrate_command(
    runs: Annotated[
        Path,
        typer.Argument(metavar="RUNS.csv", help="Measured runs of one cluster.", show_default=False),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.json", help="Where the calibration goes.")
    ],
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="FILE.json", help="Start from this instead of published runs."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Only runs on this catalogue device.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Calibrate to a few runs of your own cluster; 3 to 5 are enough to start."""
    from datetime import date

    from forescale.calibrate.cluster import calibrate_cluster
    from forescale.calibrate.dataset import runs_of
    from forescale.calibrate.report import content_of
    from forescale.cost.run_calibration import load_run_calibration, read_run_calibration
    from forescale.validation.cases import load_cases

    start = load_run_calibration() if base is None else read_run_calibration(base)
    measured = runs_of(load_cases(runs), start)
    if device is not None:
        measured = [run for run in measured if run.case.question[1].device.name == device]
    result = calibrate_cluster(
        measured,
        start,
        name=output.stem,
        date=date.today().isoformat(),
        source=f"{len(measured)} runs of {runs.name} around calibration {start.name}",
    )
    _write(output, json.dumps(content_of(result.calibration), indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(_document(measured, result), indent=1))
    else:
        _show(measured, result, output)


def _document(runs: list[Run], result: ClusterCalibration) -> dict[str, object]:
    errors = zip(runs, result.before.tolist(), result.after.tolist(), strict=True)
    return {
        "schema": "forescale.calibration/1",
        "runs": [{"id": run.id, "before": -before, "after": -after} for run, before, after in errors],
        "moves": [{"path": move.path, "before": move.before, "after": move.after} for move in result.moves],
    }


def _show(runs: list[Run], result: ClusterCalibration, output: Path) -> None:
    import math

    from rich.table import Table

    from forescale.cli.console import console

    table = Table("run", "error before", "error after", title=f"{len(runs)} runs")
    for run, before, after in list(zip(runs, result.before, result.after, strict=True))[:SHOWN]:
        table.add_row(run.id, f"{math.expm1(-before):+.1%}", f"{math.expm1(-after):+.1%}")
    moved = Table("factor", "before", "after", title="what moved")
    for move in result.moves[:SHOWN]:
        moved.add_row(move.path, f"{move.before:.4g}", f"{move.after:.4g}")
    console().print(table, moved, f"written to {output}")


def _write(path: Path, text: str) -> None:
    from forescale.errors import ForescaleError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}"
        raise ForescaleError(msg) from error

"""`forescale validate`: project a corpus of measured runs and say how far off the projections are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forescale.atomic_write import writable
from forescale.cli.console import console, print_json
from forescale.cli.options import CostOptions, JsonFlag, grouped, option, output_option
from forescale.errors import SpecError
from forescale.positions import says_lines
from forescale.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from forescale.cost.select import Costs
    from forescale.evidence.peers import PeerGroup
    from forescale.evidence.scoreboard import Group, Scoreboard


NUMBERS = ("rows", "median", "90 %", "bias", "naive", "naive 90 %", "memory")
"""Columns of the groups."""
FEW_SKIPPED = 3
"""Skipped rows that say why on the screen."""


@grouped
def validate_command(
    *,
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS.csv",
            help="Table of measured runs, one per row (docs/runs.md).",
            show_default=False,
        ),
    ],
    preset: str = option("Named bundle of modelling choices.", "NAME", default="default"),
    cluster: str | None = option("Cluster they ran on, whatever the rows call their hardware.", "NAME|FILE"),
    by: str = option("Breakdown to print: hardware, source, scale, ...", "DIMENSION", default="headline"),
    chart: Path | None = output_option(
        "Draw it: .html, .json (Vega-Lite), .svg or .png.", "FILE", check=writable
    ),
    cost: CostOptions,
    as_json: JsonFlag = False,
) -> None:
    """Project every run of a corpus and compare with what was measured."""
    from forescale.evidence.case import projector_of
    from forescale.evidence.cases import load_cases
    from forescale.evidence.peers import compare_peers
    from forescale.evidence.report import document
    from forescale.evidence.scoreboard import check_dimension, score
    from forescale.io.named import cluster_of
    from forescale.presets import load_preset

    check_dimension(by)
    load_preset(preset)
    costs = _costs(cost)
    place = None if cluster is None else cluster_of(cluster)
    board = score(load_cases(runs, cluster=place), projector_of(preset, costs))
    peers = compare_peers(board)
    if chart is not None:
        _draw(board, runs, chart)
    if as_json:
        print_json(document(board, peers))
    else:
        _show(board, by, peers)


def _costs(options: CostOptions) -> Costs:
    """Return the cost models asked for; a corpus is of many devices, so none of its kernels are looked up."""
    from forescale.cost.select import Calibrations, Costs, read_calibrations

    if options.measurements is not None or options.compute == "measured":
        raise SpecError(
            "validate projects many devices; timed kernels are of one, so --measurements does not go with it"
        )
    if options.load_benchmark is not None or options.mode not in (None, "simulate"):
        raise SpecError("validate projects many models; --load-benchmark is of one, and does not go with it")
    clock, calibration = options.device_clock_mhz, options.calibration
    calibrations = Calibrations() if calibration is None else says_lines(read_calibrations)(calibration)
    return Costs(
        compute=options.compute or "auto",
        clock_hz=None if clock is None else clock * 1e6,
        calibration=calibrations.runs,
        kernels=calibrations.kernels,
        links=calibrations.links,
    )


def _draw(board: Scoreboard, runs: Path, chart: Path) -> None:
    """Write the picture of step times."""
    from forescale.evidence.chart import time_chart
    from forescale.view.page import write_chart

    drawing = time_chart(board)
    if drawing is None:
        raise SpecError(f"{runs} has no core row with a measured step time, so there is nothing to draw")
    write_chart(drawing, chart)


def _show(board: Scoreboard, by: str, peers: Sequence[PeerGroup]) -> None:
    from forescale.evidence.scoreboard import mean_regret, mean_spearman

    groups = board.headline() if by == "headline" else board.by(by)
    screen = console()
    screen.print(_table([*groups, board.total(core=True), board.total(core=False)], by))
    skipped = f"{len(board.skipped)} of {counted(len(board.outcomes), 'row')} skipped"
    screen.print(f"{skipped} ({_percent(board.core_skipped_share)} of the core rows)")
    for outcome in board.skipped[:FEW_SKIPPED]:
        screen.print(f"  {outcome.case.id}: {outcome.skipped}", markup=False)
    if len(board.skipped) > FEW_SKIPPED:
        screen.print(f"  and {len(board.skipped) - FEW_SKIPPED} more (all with --json)")
    for outcome in board.refused:
        screen.print(
            f"{outcome.case.id} ran, and is said OOM; {outcome.case.doubt or 'its row is not doubtful'}",
            markup=False,
        )
    if board.sweeps:
        spearman, regret = mean_spearman(board.sweeps), mean_regret(board.sweeps)
        rank = "–" if spearman is None else f"{spearman:.2f}"
        screen.print(
            f"{counted(len(board.sweeps), 'sweep')}: mean Spearman {rank}, mean regret {_percent(regret)}"
        )
    for group in peers:
        theirs, ours = (_percent(summary.median_abs) for summary in (group.time, group.our_time))
        screen.print(
            f"{group.peer}: median {theirs} on {counted(group.time.count, 'row')}, ours there {ours}"
        )
    screen.print("Every row with --json.")


def _table(groups: list[Group], by: str) -> Table:
    from rich.table import Column, Table

    right = (Column(name, justify="right") for name in NUMBERS)
    table = Table(Column("group", no_wrap=True), *right, title=f"Step time of core rows, by {by}", box=None)
    table.title_justify = "left"
    for group in groups:
        table.add_row(
            group.name,
            str(group.time.count),
            *(_percent(value) for value in (group.time.median_abs, group.time.p90_abs, group.time.bias)),
            *(_percent(value) for value in (group.naive.median_abs, group.naive.p90_abs)),
            _percent(group.memory.median_abs),
        )
    return table


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100.0 * value:.1f} %"

"""`forescale memory compare`: one model under several policies or sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast, get_args

import typer

from forescale.cli.console import console, print_json, say
from forescale.cli.options import (
    OUTPUT,
    ClusterOptions,
    JsonFlag,
    LayoutOptions,
    ModelArgument,
    PlanOptions,
    RunOptions,
    grouped,
)
from forescale.errors import SpecError
from forescale.limits import whole_of
from forescale.spec.strategy import RematPolicy
from forescale.written import writable, write_text

if TYPE_CHECKING:
    from forescale.projection.result import Projection
    from forescale.report.memory_compare import MemoryComparison

Across: TypeAlias = Literal["recompute", "seq-len", "zero", "tp", "micro-batch-size"]
PANEL = "Comparison"
USUAL = {
    "recompute": "none,selective,full",
    "seq-len": "1024,2048,4096,8192,16384",
    "zero": "0,1,2,3",
    "tp": "1,2,4,8",
    "micro-batch-size": "1,2,4,8",
}
"""Values where none are given."""
SUFFIXES = (".svg", ".html", ".json")


@grouped
def compare_command(
    *,
    model: ModelArgument = None,
    across: Annotated[
        Across, typer.Option("--across", help="What differs.", rich_help_panel=PANEL, show_default=False)
    ],
    values: Annotated[
        str | None,
        typer.Option(
            "--values",
            metavar="A,B",
            help="Its values, such as 1,2,4; of recompute also modules (core_attn+mlp) and policies.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    cluster: ClusterOptions,
    run: RunOptions,
    layout: LayoutOptions,
    plan: PlanOptions,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            callback=writable,
            metavar="FILE",
            help="Write stacked bars: .svg, .html, or .json (Vega-Lite).",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare one model's memory under several recompute policies, sequence lengths, ZeRO stages or degrees."""
    if plot is not None and plot.suffix not in SUFFIXES:
        msg = f"--plot takes a file that ends in .svg, .html or .json; got {plot}"
        raise SpecError(msg)
    wanted = [value.strip() for value in (values or USUAL[across]).split(",") if value.strip()]
    found = _compared(across, wanted, model, cluster, run, layout, plan)
    if plot is not None:
        _write(found, plot)
    if as_json:
        print_json(found.to_json())
        return
    from forescale.cli.render.memory import comparison_view

    console().print(comparison_view(found))
    if plot is not None:
        say(f"wrote {plot}")


def _compared(
    across: Across,
    values: list[str],
    model: str | None,
    cluster: ClusterOptions,
    run: RunOptions,
    layout: LayoutOptions,
    plan: PlanOptions,
) -> MemoryComparison:
    """Return the projections of all values; values that make no legal layout are refused one by one."""
    from forescale.report.memory_compare import MemoryComparison, Row

    rows: list[Row] = []
    refused: dict[str, str] = {}
    failure: SpecError | None = None
    for value in dict.fromkeys(values):
        changed_run, changed = _changed(across, value, run, layout)
        try:
            projection = _projection(model, cluster, changed_run, changed, plan)
        except SpecError as error:
            refused[value], failure = str(error), failure or error
            continue
        rows.append(Row(value=value, projection=projection))
    if failure is not None and not rows:
        raise failure
    if not rows:
        msg = f"--values must name at least one value of {across}"
        raise SpecError(msg)
    return MemoryComparison(across=across, rows=tuple(rows), refused=refused)


def _projection(
    model: str | None, cluster: ClusterOptions, run: RunOptions, layout: LayoutOptions, plan: PlanOptions
) -> Projection:
    from forescale.cli.inputs import read_question

    return read_question(model, plan, cluster, run, layout).project()


def _changed(
    across: Across, value: str, run: RunOptions, layout: LayoutOptions
) -> tuple[RunOptions, LayoutOptions]:
    """Return the options with one value of what is compared."""
    if across == "recompute":
        return run, _with_recompute(layout, value)
    if (number := whole_of(value)) is None:
        msg = f"--values of {across} are whole numbers such as {USUAL[across]}; got {value!r}"
        raise SpecError(msg)
    if across == "seq-len":
        return replace(run, seq_len=number), layout
    changed: dict[str, Any] = {across.replace("-", "_"): number}
    return run, replace(layout, **changed)


def _with_recompute(layout: LayoutOptions, value: str) -> LayoutOptions:
    bare = replace(
        layout, recompute=None, recompute_modules=None, recompute_policy=None, recompute_layers=None
    )
    if value == "selective":
        return replace(bare, recompute="selective", recompute_modules=layout.recompute_modules)
    if value == "full":
        return replace(bare, recompute="full", recompute_layers=layout.recompute_layers)
    if value == "none":
        return replace(bare, recompute="none")
    if value in get_args(RematPolicy):
        return replace(bare, recompute_policy=cast("RematPolicy", value))
    return replace(bare, recompute="selective", recompute_modules=value.replace("+", ","))


def _write(found: MemoryComparison, path: Path) -> None:
    from forescale.report.bars import to_svg, to_vega_lite
    from forescale.report.memory_compare import memory_bars, memory_page

    match path.suffix:
        case ".svg":
            text = to_svg(memory_bars(found)) + "\n"
        case ".html":
            text = memory_page(found)
        case _:
            text = json.dumps(to_vega_lite(memory_bars(found)), indent=2) + "\n"
    write_text(path, text)

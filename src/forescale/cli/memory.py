"""`forescale memory`: one layout's memory, by formulas, anchored on a measurement, over time; and comparisons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from forescale.atomic_write import writable
from forescale.cli.console import console, print_json, say
from forescale.cli.help import Commands, Group
from forescale.cli.inputs import answered, read_question, refuse_presets
from forescale.cli.options import (
    BenchOptions,
    HtmlFile,
    JsonFlag,
    LaidOut,
    LayoutOptions,
    grouped,
    option,
    output_option,
)
from forescale.errors import SpecError
from forescale.limits import whole_of
from forescale.spec.layout import RematPolicy
from forescale.view.page import SUFFIXES

if TYPE_CHECKING:
    from rich.console import Group as View

    from forescale.memory.anchored import AnchoredMemory
    from forescale.memory.timeline import MemoryTimeline
    from forescale.projection.result import Projection
    from forescale.question import Question
    from forescale.report.memory_compare import MemoryComparison


DEFAULT = "layout"
EXPORTED, SHORTEST = 64, 4
"""Micro-batches that a file holds, at least so many per pipeline rank, or groups of them; (interleaved) 1F1B repeats
itself."""


class DefaultGroup(Group):
    """Commands of which one runs where none is named, so that `forescale memory MODEL` needs no more words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (whichever click typer has)
        """Put the default command before arguments that name none."""
        if not args or args[0] not in self.commands:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


memory_app = Commands(cls=DefaultGroup, help="Project the memory of one layout, or compare layouts.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineOptions:
    """Memory over one step."""

    timeline: bool = output_option("Memory over one step of every rank.", default=False)
    export: Path | None = output_option(
        "Write the timeline: .json for Perfetto, .pickle for PyTorch's memory_viz.", "FILE", check=writable
    )

    @property
    def wanted(self) -> bool:
        """Whether there is anything to do."""
        return self.timeline or self.export is not None


@memory_app.command(
    DEFAULT, epilog="forescale memory compare sets one model under several policies side by side."
)
@grouped
def memory_command(
    *,
    asked: LaidOut,
    bench: BenchOptions,
    over_time: TimelineOptions,
    html: HtmlFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Project the memory of one layout, stage by stage."""
    question = read_question(replace(asked, cost=bench))
    result = answered(question)
    anchored = _anchored(question, result) if question.costs.benchmark_files else None
    alone = answered(question.simulated) if bench.side_by_side else None
    timeline = _timeline(question.simulated, over_time) if over_time.wanted else None
    shown = timeline if over_time.timeline else None
    if html is not None:
        from forescale.cli.render.page import write_page

        pictures = (*result.pictures()[1:], *(() if shown is None else shown.pictures()))
        write_page(html, _view(result, anchored, alone, shown), pictures)
    if as_json:
        from forescale.io.question import question_values

        more = {
            **({} if alone is None else {"simulated": alone.to_json()}),
            **({} if anchored is None else {"anchored": anchored.to_json()}),
            **({} if timeline is None else {"timeline": timeline.to_json()}),
        }
        print_json({**result.to_json(), **more, "question": question_values(question)})
        return
    console().print(_view(result, anchored, alone, shown, width=console().width))
    if over_time.export is not None:
        say(f"wrote {over_time.export}")


def _view(
    result: Projection,
    anchored: AnchoredMemory | None,
    alone: Projection | None,
    timeline: MemoryTimeline | None,
    width: int | None = None,
) -> View:
    """Return what is known of memory; without a width no curve is drawn in letters."""
    from rich.console import Group as View

    from forescale.cli.render.memory import anchored_view, deltas_view, timeline_view
    from forescale.cli.render.projection import memory_view

    views = []
    if anchored is not None:
        views.append(anchored_view(result, anchored) if alone is None else deltas_view(alone, anchored))
    if timeline is not None:
        views.append(timeline_view(result, timeline, width=width))
    return View(*(views or [memory_view(result)]))


def _anchored(question: Question, result: Projection) -> AnchoredMemory:
    from forescale.io.question import benches_of
    from forescale.memory.anchored import anchored_memory
    from forescale.restore import bench_memory

    refuse_presets(question, "--load-benchmark")
    benches = [bench for bench in benches_of(question) if bench.ranks]
    if not benches:
        files = ", ".join(question.costs.benchmark_files)
        raise SpecError(f"{files}: no peaks of a rank; anchoring memory needs ranks and their config")
    measured = bench_memory(benches[-1], question.costs)
    return anchored_memory(result, measured, safety_margin=question.costs.safety_margin)


def _timeline(question: Question, options: TimelineOptions) -> MemoryTimeline:
    from forescale.io.step_memory import write_timeline
    from forescale.project import memory_timeline
    from forescale.spec.groups import group_of

    refuse_presets(question, "--timeline")
    layout = question.layout
    timeline = memory_timeline(question)
    if options.export is not None:
        group = group_of(layout) or layout.pp
        enough = group * max(SHORTEST, -(-EXPORTED // group)) + timeline.schedule.num_microbatches % group
        written = timeline
        if layout.schedule is None and timeline.schedule.num_microbatches > enough:
            written = memory_timeline(question, most_microbatches=enough)
        write_timeline(written, options.export)
    return timeline


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


@memory_app.command("compare")
@grouped
def compare_command(
    *,
    asked: LaidOut,
    across: Across = option("What differs.", panel=PANEL, default=...),
    values: str | None = option(
        "Its values, such as 1,2,4; of recompute also modules (core_attn+mlp) and policies.",
        "A,B",
        panel=PANEL,
    ),
    plot: Path | None = output_option(
        "Write stacked bars: .html, .json (Vega-Lite), or .svg or .png.", "FILE", check=writable
    ),
    html: HtmlFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare one model's memory under several recompute policies, sequence lengths, ZeRO stages or degrees."""
    from forescale.cli.render.memory import comparison_view
    from forescale.cli.render.page import write_page
    from forescale.report.memory_compare import memory_bars
    from forescale.view.page import write_chart

    if plot is not None and plot.suffix not in SUFFIXES:
        raise SpecError(f"--plot takes a file that ends in {', '.join(SUFFIXES)}; got {plot}")
    parts = [value.strip() for value in (values or USUAL[across]).split(",") if value.strip()]
    compared = _compared(across, parts, asked)
    if plot is not None:
        write_chart(memory_bars(compared), plot)
    if html is not None:
        write_page(html, comparison_view(compared), [memory_bars(compared)])
    if as_json:
        print_json(compared.to_json())
        return
    console().print(comparison_view(compared))
    if plot is not None:
        say(f"wrote {plot}")


def _compared(across: Across, values: list[str], laid_out: LaidOut) -> MemoryComparison:
    """Return the projections of all values; values that make no legal layout are refused one by one."""
    from forescale.report.memory_compare import MemoryComparison, Row

    rows: list[Row] = []
    refused: dict[str, str] = {}
    failure: SpecError | None = None
    for value in dict.fromkeys(values):
        changed = _changed(across, value, laid_out)
        try:
            projection = answered(read_question(changed))
        except SpecError as error:
            refused[value], failure = str(error), failure or error
            continue
        rows.append(Row(value=value, projection=projection))
    if failure is not None and not rows:
        raise failure
    if not rows:
        raise SpecError(f"--values must name at least one value of {across}")
    return MemoryComparison(across=across, rows=tuple(rows), refused=refused)


def _changed(across: Across, value: str, laid_out: LaidOut) -> LaidOut:
    """Return the options with one value of what is compared."""
    if across == "recompute":
        return replace(laid_out, layout=_with_recompute(laid_out.layout, value))
    if (number := whole_of(value)) is None:
        raise SpecError(f"--values of {across} are whole numbers such as {USUAL[across]}; got {value!r}")
    if across == "seq-len":
        return replace(laid_out, run=replace(laid_out.run, seq_len=number))
    changed: dict[str, Any] = {across.replace("-", "_"): number}
    return replace(laid_out, layout=replace(laid_out.layout, **changed))


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

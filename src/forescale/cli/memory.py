"""`forescale memory`: one layout's memory, by formulas, anchored on a measurement, over time; and comparisons."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from msgspec.structs import replace

from forescale.atomic_write import writable
from forescale.cli.console import say, show
from forescale.cli.declare import CommandGroup, Group, argument, option
from forescale.cli.formats import Answer, answer_of, extended
from forescale.cli.inputs import answered, read_question, refuse_presets
from forescale.cli.options import BenchOptions, LaidOut, LayoutOptions, complete_models, output_option
from forescale.cli.output import PageOptions
from forescale.errors import SpecError, empty, not_measured, wrong_suffix, wrong_type
from forescale.limits import AMOUNT, whole_of, within
from forescale.spec.layout import RematPolicy
from forescale.units import is_count, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forescale.memory.anchored import AnchoredMemory
    from forescale.memory.timeline import MemoryTimeline
    from forescale.projection.components import ComponentBytes
    from forescale.projection.result import Projection
    from forescale.question import Question
    from forescale.report.document import Content, View
    from forescale.report.memory_compare import MemoryComparison


DEFAULT, STATES = "layout", "states"
STATE_PARTS = ("weights", "gradients", "accumulated", "optimizer", "total")
EXPORTED, SHORTEST = 64, 4
"""Micro-batches that a file holds, at least so many per pipeline rank, or groups of them; (interleaved) 1F1B repeats
itself."""


def _led(words: list[str], commands: Collection[str]) -> list[str]:
    """Return the words with the default command before those that name none, or that of states before a number."""
    if words and words[0] in commands:
        return words
    counted = words and words[0][:1].isdigit() and is_count(words[0]) and "--cluster" not in words
    return [STATES if counted else DEFAULT, *words]


memory_app = CommandGroup("Project the memory of one layout, or compare layouts.", _led)


class TimelineOptions(Group, frozen=True, kw_only=True):
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
def memory_command(
    *,
    request: LaidOut,
    bench: BenchOptions,
    over_time: TimelineOptions,
    components: bool = output_option("Exact parameters and kept bytes of every component.", default=False),
    output: PageOptions,
) -> None:
    """Project the memory of one layout, stage by stage."""
    show_memory(read_question(replace(request, cost=bench)), bench, over_time, output, components=components)


def show_memory(
    question: Question,
    bench: BenchOptions,
    over_time: TimelineOptions,
    output: PageOptions,
    *,
    components: bool = False,
    contents: Sequence[Content] = (),
) -> None:
    """Show the memory of the layout of a question, its components where asked for, and further contents."""
    result = answered(question)
    parts: Sequence[ComponentBytes] = ()
    if components:
        from forescale.cli.render.components import components_view
        from forescale.report.components import components_of

        parts = components_of(question)
        contents = (*contents, *components_view(result, parts))
    anchored = _anchored(question, result) if question.costs.benchmark_files else None
    alone = answered(question.simulated) if bench.side_by_side else None
    timeline = _timeline(question.simulated, over_time) if over_time.wanted else None
    shown = timeline if over_time.timeline else None
    more = {"simulated": alone, "anchored": anchored, "timeline": timeline}
    documents: dict[str, Any] = {name: item.to_json() for name, item in more.items() if item is not None}
    documents |= {"components": [part.to_json() for part in parts]} if parts else {}
    answer = answer_of(
        result,
        lambda result: extended(_view(result, anchored, alone, shown), contents),
        question=question,
        more=documents,
    )
    curves = () if shown is None else shown.pictures()
    show(replace(answer, pictures=lambda: (*result.pictures()[1:], *curves)), output)
    if over_time.export is not None:
        say(f"wrote {over_time.export}", error=not output.is_text)


def _view(
    result: Projection,
    anchored: AnchoredMemory | None,
    alone: Projection | None,
    timeline: MemoryTimeline | None,
) -> View:
    """Return what is known of memory."""
    from forescale.cli.render.projection import memory_view

    if timeline is None and anchored is None:
        return memory_view(result)
    from forescale.cli.render.memory import anchored_view, deltas_view, timeline_view

    over_time = None if timeline is None else timeline_view(result, timeline)
    if anchored is None:
        return over_time or memory_view(result)
    view = anchored_view(result, anchored) if alone is None else deltas_view(alone, anchored)
    return view if over_time is None else extended(view, over_time.contents)


def _anchored(question: Question, result: Projection) -> AnchoredMemory:
    from forescale.bench_transfer import bench_memory
    from forescale.io.question import benches_of
    from forescale.memory.anchored import anchored_memory

    refuse_presets(question, "--load-benchmark")
    benches = [bench for bench in benches_of(question) if bench.ranks]
    if not benches:
        files = ", ".join(question.costs.benchmark_files)
        raise not_measured(files, "the peaks of a rank", "anchoring memory needs ranks and their config")
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


@memory_app.command(STATES)
def states_command(
    *,
    sizes: list[str] = argument(
        "Parameters, such as 7B, or catalogue names or files of models.",
        "COUNT|MODEL...",
        complete=complete_models,
        default=...,
    ),
    output: PageOptions,
) -> None:
    """Print the bytes of weights, gradients and optimizer states of models by data types, before any sharding."""
    from forescale.cli.render.memory import states_view
    from forescale.presets.playbook.preset import RECIPES, bytes_per_parameter

    counts = {size: _parameters(size) for size in sizes}
    rows = [
        {
            "types": name,
            "model": size,
            "parameters": count,
            **{f"{part}_bytes": getattr(item, part) * count for part in STATE_PARTS},
            "bytes_per_parameter": item.total,
        }
        for name, item in ((name, bytes_per_parameter(types)) for name, types in RECIPES.items())
        for size, count in counts.items()
    ]
    show(
        Answer(
            view=lambda: states_view(counts),
            document=lambda: {"schema": "forescale.states/1", "rows": rows},
            rows=lambda: rows,
        ),
        output,
    )


def _parameters(text: str) -> float:
    """Return a number of parameters, or those of a model."""
    from forescale.graph.counts import count_parameters
    from forescale.io.named import model_of

    if text[:1].isdigit() and is_count(text):
        return float(within(parse(text, "token"), AMOUNT, "parameters"))
    return float(count_parameters(model_of(text)).total)


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
def compare_command(
    *,
    request: LaidOut,
    across: Across = option("What differs.", panel=PANEL, default=...),
    values: str | None = option(
        "Its values, such as 1,2,4; of recompute also modules (core_attn+mlp) and policies.",
        "A,B",
        panel=PANEL,
    ),
    plot: Path | None = output_option(
        "Write stacked bars: .html, .json (Vega-Lite), or .svg or .png.", "FILE", check=writable
    ),
    output: PageOptions,
) -> None:
    """Compare one model's memory under several recompute policies, sequence lengths, ZeRO stages or degrees."""
    from forescale.cli.render.memory import comparison_view
    from forescale.report.memory_compare import memory_bars
    from forescale.view.page import SUFFIXES, write_chart

    if plot is not None and plot.suffix not in SUFFIXES:
        raise wrong_suffix("--plot", plot, SUFFIXES)
    parts = [value.strip() for value in (values or USUAL[across]).split(",") if value.strip()]
    compared = _compared(across, parts, request)
    if plot is not None:
        write_chart(memory_bars(compared), plot)
    answer = Answer(
        view=lambda: comparison_view(compared),
        document=compared.to_json,
        rows=lambda: compared.to_json()["rows"],
        pictures=lambda: [memory_bars(compared)],
    )
    show(answer, output)
    if plot is not None and output.is_text:
        say(f"wrote {plot}")


def _compared(across: Across, values: list[str], laid_out: LaidOut) -> MemoryComparison:
    """Return the projections of all values; values that make no legal layout are refused one by one."""
    from forescale.io.recipes import alike, other_frameworks
    from forescale.report.memory_compare import ComparedValue, MemoryComparison

    questions: dict[str, Question] = {}
    refused: dict[str, str] = {}
    failure: SpecError | None = None
    asked = {value: _changed(across, value, laid_out) for value in values}
    for value, changed in asked.items():
        try:
            questions[value] = read_question(changed)
        except SpecError as error:
            refused[value], failure = str(error), failure or error
    read = [*questions]
    for at, label in other_frameworks([*questions.values()]).items():
        one = read_question(asked[read[at]], usual_framework=label)
        questions[read[at]] = alike(one, questions[read[at]])
    rows: list[ComparedValue] = []
    for value, question in questions.items():
        try:
            rows.append(ComparedValue(value=value, projection=answered(question)))
        except SpecError as error:
            refused[value], failure = str(error), failure or error
    if failure is not None and not rows:
        raise failure
    if not rows:
        raise empty("--values", f"give at least one value of {across}")
    return MemoryComparison(across=across, rows=tuple(rows), refused=refused)


def _changed(across: Across, value: str, laid_out: LaidOut) -> LaidOut:
    """Return the options with one value of what is compared."""
    if across == "recompute":
        return replace(laid_out, layout=_with_recompute(laid_out.layout, value))
    if (number := whole_of(value)) is None:
        raise wrong_type(f"--values of {across}", value, f"whole numbers such as {USUAL[across]}")
    if across == "seq-len":
        return replace(laid_out, run=replace(laid_out.run, seq_len=number))
    changed: dict[str, Any] = {across.replace("-", "_"): number}
    return replace(laid_out, layout=replace(laid_out.layout, **changed))


def _with_recompute(layout: LayoutOptions, value: str) -> LayoutOptions:
    cleared = dict.fromkeys(("recompute", "recompute_modules", "recompute_policy", "recompute_layers"))
    details = {"selective": "recompute_modules", "full": "recompute_layers"}
    chosen: dict[str, Any] = {"recompute": value}
    if value in details:
        chosen[details[value]] = getattr(layout, details[value])
    elif value in get_args(RematPolicy):
        chosen = {"recompute_policy": value}
    elif value != "none":
        chosen = {"recompute": "selective", "recompute_modules": value.replace("+", ",")}
    return replace(layout, **{**cleared, **chosen})

"""`forescale search`: the best layouts of a model on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as replace_fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from forescale.atomic_write import writable
from forescale.cli.console import show
from forescale.cli.declare import Bounded, Group, option
from forescale.cli.emit import EmitOptions, emitted, put
from forescale.cli.formats import Answer, answer_of
from forescale.cli.inputs import limited, read_question
from forescale.cli.options import Asked, CostOptions, OperationsOptions, output_option, refuse
from forescale.cli.output import PageOptions
from forescale.cli.reproduce import again, has_line
from forescale.cli.scan import ScanOptions, complete_question, front, largest_for, planned, scanned
from forescale.cli.space import SpaceOptions, asked_space, framework_of
from forescale.errors import InfeasibleError, MissingError, extra_missing, no_effect, not_one_of
from forescale.limits import SHOWN, TIME

if TYPE_CHECKING:
    from forescale.projection.result import Projection
    from forescale.question import Objective, Question
    from forescale.search import SearchResult


_search = partial(option, panel="Search")
STUDY = "subramanian2024"
"""The preset whose ranking is shown in the terms of its paper."""


class EffortOptions(Group, frozen=True, kw_only=True):
    """How long a search may take, and where it goes on."""

    time_limit: float | None = _search(
        "Stop then; say how far off the best may be.",
        "SECONDS",
        check=Bounded(TIME, whole=False),
    )
    checkpoint: Path | None = _search(
        "Keep what is settled; the same question goes on.", "FILE", check=writable
    )


def parquet_writable(path: Path | None) -> Path | None:
    """Return `path` if a Parquet file can be written there: asked before the search."""
    if path is not None and find_spec("pyarrow") is None:
        raise extra_missing("--parquet", "pyarrow", "sweep")
    return writable(path)


class AnswerOptions(Group, frozen=True, kw_only=True):
    """What a ranking says beyond the best."""

    all_variants: bool = _search("Rank every variant of a layout, not its best for all.", default=False)
    safe: bool = _search("Only layouts that fit by the upper estimate of memory.", default=False)
    relax: bool = _search("Search with each constraint relaxed too: which binds?", default=False)


class GoalOptions(Group, frozen=True, kw_only=True):
    """What is best, and how much of it is shown."""

    objective: Literal["step_time", "peak_memory"] | None = _search(
        "What to minimise; by default step_time, or as --plan."
    )
    top: int = _search("Layouts to show.", default=10, check=Bounded(SHOWN))
    max_memory: str | None = _search("Peak per device, such as 70GiB.", "SIZE")


class FileOptions(PageOptions, frozen=True, kw_only=True):
    """How a search is printed, and files of the layouts shown."""

    csv: Path | None = output_option("Write the layouts shown.", "FILE", check=writable)
    parquet: Path | None = output_option("Write the layouts shown.", "FILE", check=parquet_writable)


def search_command(
    *,
    output: FileOptions,
    goal: GoalOptions,
    request: Asked,
    answer: AnswerOptions,
    effort: EffortOptions,
    choice: SpaceOptions,
    scan: ScanOptions,
    operated: OperationsOptions,
    cost: CostOptions,
    emission: EmitOptions,
) -> None:
    """Find the best layouts: the whole legal space, ranked."""
    emission, choice = _joined(emission, choice)
    request = complete_question(scan, replace(request, cost=cost))
    read = partial(read_question, framework=framework_of(choice), operated=operated)
    try:
        question = read(request)
    except MissingError as error:
        question = largest_for(
            scan, error, lambda nodes: read(replace(request, cluster=replace(request.cluster, nodes=nodes)))
        )
    question = _limited(question, goal, safe=answer.safe)
    _refuse_unused(scan, effort, answer, emission, question.objective)
    sized = not (scan.device_counts or scan.has_target or scan.of_run)
    question = asked_space(question, choice, sized=sized, sets=request.plan.sets)
    if question.preset != "default":
        _refuse_own_engine(question.preset, scan, (effort, answer, operated), emission)
    if question.preset == STUDY and not scan.wanted:
        _write(_studied(question, goal.top), output)
    elif scan.wanted:
        _write(_scanned(question, scan, goal.top), output)
    else:
        from forescale.search import Terms

        price = Terms(price_per_device_hour=scan.price_per_device_hour).price(question.cluster)
        every = answer.all_variants
        result = ranked(
            question,
            top=goal.top,
            all_variants=every,
            effort=effort,
            answer=answer,
            jobs=scan.jobs,
            max_host_memory=scan.host_limit,
        )
        _answer(question, replace_fields(result, price_per_device_hour=price), emission, output)


def _refuse_own_engine(
    preset: str, scan: ScanOptions, groups: Sequence[Group], emission: EmitOptions
) -> None:
    """Refuse what only our own engine answers."""
    for options in groups:
        refuse(options, f"does not go with --preset {preset}")
    emission.refuse(f"does not go with --preset {preset}")
    if scan.of_run:
        raise no_effect(["--deadline", "--budget"], f"--preset {preset} has no days on the calendar")
    if scan.max_host_memory is not None:
        raise no_effect(["--max-host-memory"], f"--preset {preset} ranks by its own search")


def _studied(question: Question, top: int) -> Answer:
    """Answer in the terms of the paper: its configurations with their placement and their parts of a step."""
    from forescale.cli.render.study import study_view
    from forescale.presets import preset_of
    from forescale.presets.subramanian2024.preset import Subramanian2024Preset, ranked_study

    preset = preset_of(question, "scores")
    assert isinstance(preset, Subramanian2024Preset)
    if question.objective != "step_time":
        raise not_one_of(f"--objective of --preset {STUDY}", question.objective, ("step_time",))
    return answer_of(ranked_study(question, preset, top=top), study_view)


def _scanned(question: Question, scan: ScanOptions, top: int) -> Answer:
    """Answer a question beyond one ranking: a front, a plan of the run, a scan."""
    if scan.pareto:
        from forescale.cli.render.search import pareto_view

        return answer_of(front(question, scan), partial(pareto_view, most=top), question=question)
    if scan.of_run:
        from forescale.cli.render.run import plans_view

        return answer_of(planned(question, scan), plans_view, question=question)
    from forescale.cli.render.scan import scan_view

    return answer_of(scanned(question, scan), scan_view, question=question)


def _joined(emission: EmitOptions, choice: SpaceOptions) -> tuple[EmitOptions, SpaceOptions]:
    """Return both with the framework of --to or --emit; a place that takes no file is refused before the search."""
    if emission.output is not None:
        emission = replace(emission, emit=emission.emit or choice.limits)
    emission.check()
    if emission.emit is None or framework_of(choice) is not None:
        return emission, choice
    return emission, replace(choice, limits=emission.emit)


def _answer(question: Question, result: SearchResult, emission: EmitOptions, output: FileOptions) -> None:
    """Print a ranking and the line that asks its best again; a file for a framework is written as well, or instead."""
    from forescale.cli.render.search import search_view

    noted = {
        id(item): _with_what_cannot_run(question, item) for item in (*result.best, result.surest) if item
    }
    best, surest = tuple(noted[id(item)] for item in result.best), noted.get(id(result.surest))
    result = replace_fields(result, best=best, surest=surest)
    first = surest if surest and (surest in best or has_line(question, surest)) else best[0]
    place = best.index(first) + 1 if first in best else None
    written = None if emission.emit is None else emitted(question, first, emission)
    aside = emission.output is not None
    if written is None or aside or not output.is_text:
        line = again("project", question, first, saved="best.json", place=place)
        _write(answer_of(result, partial(search_view, again=line), question=question), output)
    if written is not None and (aside or output.is_text):
        put(written, emission.output, force=emission.force, aside=not output.is_text)


def _with_what_cannot_run(question: Question, projection: Projection) -> Projection:
    """Return the layout of a search with a note on the settings that the framework does not support."""
    from forescale.question import Note

    violation = question.violation(projection.strategy)
    if not violation or question.violation(None):  # what is wrong with the types was said of the question
        return projection
    assert question.framework is not None
    text = f"{violation}; --to {question.framework.name} searches what it can"
    return replace(projection, notes=(Note(topic="framework", text=text), *projection.notes))


def _limited(question: Question, goal: GoalOptions, *, safe: bool) -> Question:
    """Return the question with the limits that flags give; where they are silent those of the plan stay."""
    flags = {"objective": goal.objective, "safe": safe or None}
    values: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    return replace(limited(question, goal.max_memory), **values)


def _refuse_unused(
    scan: ScanOptions,
    effort: EffortOptions,
    answer: AnswerOptions,
    emission: EmitOptions,
    objective: Objective,
) -> None:
    """Refuse what a question beyond one ranking does not take."""
    if scan.wanted:
        refuse(effort, "it applies to one ranking only")
        refuse(answer, "it applies to one ranking only")
        emission.refuse("it writes the best layout of one ranking")
        if objective != "step_time":
            refuse(scan, f"it does not apply to --objective {objective}")


def ranked(
    question: Question,
    *,
    top: int,
    all_variants: bool,
    effort: EffortOptions | None = None,
    answer: AnswerOptions | None = None,
    jobs: int | None = 1,
    max_host_memory: float | None = None,
) -> SearchResult:
    """Return the best layouts under our own engine."""
    from forescale.cli.progress import SearchBar
    from forescale.search import search

    effort = effort or EffortOptions()
    with SearchBar() as bar, _remedied(question):
        return search(
            question,
            top=top,
            all_variants=all_variants,
            relax=answer is not None and answer.relax,
            surest=True,
            time_limit=effort.time_limit,
            watch=bar,
            checkpoint=effort.checkpoint,
            jobs=jobs,
            max_host_memory=max_host_memory,
        )


@contextmanager
def _remedied(question: Question) -> Iterator[None]:
    """Add to the error of a question where nothing fits what would."""
    try:
        yield
    except InfeasibleError as error:
        if [name for name, _ in error.rows] != ["memory"]:
            raise
        from forescale.cli.render.words import gib
        from forescale.question import Question
        from forescale.search import remedies
        from forescale.spec.phrases import degrees

        least = error.smallest.strategy if isinstance(error.smallest, Question) else None
        known = None if least is None else (error.smallest_bytes, least)
        result = remedies(question, known=known)
        rows = [
            (
                item.constraint,
                item.change,
                f"{'fits' if item.fits else 'too much'}: {gib(item.peak_bytes)} GiB with {degrees(item.strategy)}",
            )
            for item in result
        ]
        refused = InfeasibleError(str(error), error.rows, rows)
        refused.options = next((item.options for item in result if item.fits and item.options), ())
        raise refused from error


def _write(answer: Answer, output: FileOptions) -> None:
    """Write the tables and the page asked for, and print the answer."""
    from forescale.report.document import write_csv, write_parquet

    assert answer.rows is not None
    if output.csv is not None:
        write_csv(answer.rows(), output.csv)
    if output.parquet is not None:
        write_parquet(answer.rows(), output.parquet)
    show(answer, output)

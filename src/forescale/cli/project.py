"""`forescale project`: one layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forescale.cli.console import show
from forescale.cli.declare import option
from forescale.cli.formats import answer_of, extended
from forescale.cli.inputs import answered, read_question, refuse_presets
from forescale.cli.options import CostOptions, OperationsOptions, Priced, output_option, refuse
from forescale.cli.output import PageOptions
from forescale.cli.reproduce import again
from forescale.units import GIB, format_seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from forescale.cost.anchor import Anchor
    from forescale.projection.components import CollectiveTime
    from forescale.projection.result import Projection
    from forescale.question import Question
    from forescale.report.document import Content, View
    from forescale.view.page import Chart


IDLE = 0.2
"""Share of the step in the bubble from which other layouts are worth a look."""


def project_command(
    *,
    request: Priced,
    operated: OperationsOptions,
    measured: Path | None = option(
        "Folder of a run of this layout (pp_rank_*.json): its stages take what they took, beside the models.",
        "FOLDER",
        panel="Measurement",
    ),
    communication: bool = output_option(
        "Every collective of a step, and what the step waits for.", default=False
    ),
    output: PageOptions,
) -> None:
    """Project step time and memory of one layout."""
    question = read_question(request, operated=operated)
    show_projection(
        question, request.cost, output, operated=operated, measured=measured, communication=communication
    )


def show_projection(
    question: Question,
    cost: CostOptions,
    output: PageOptions,
    *,
    operated: OperationsOptions | None = None,
    measured: Path | None = None,
    communication: bool = False,
    contents: Sequence[Content] = (),
) -> None:
    """Show step time and memory of a question's layout, its collectives where asked for, and further contents."""
    if question.preset != "default" and operated is not None:
        refuse(
            operated, f"it works under the preset default only; {question.preset} has no days on the calendar"
        )
    result = answered(question) if measured is None else _as_run(question, measured)
    simulated = answered(question.simulated) if cost.side_by_side or measured is not None else None
    collectives: Sequence[CollectiveTime] = ()
    if communication:
        from forescale.cli.render.components import communication_view
        from forescale.report.components import collectives_of

        collectives = collectives_of(question)
        contents = (*contents, *communication_view(result, collectives))
    measured_parts = _measured_parts(question.costs.anchor, measured)
    more: dict[str, object] = {} if simulated is None else {"simulated": simulated.to_json()}
    more |= {"collectives": [item.to_json() for item in collectives]} if collectives else {}
    answer = answer_of(
        result,
        lambda result: extended(_view(question, simulated, result, measured_parts), contents),
        question=question,
        more=more,
    )
    show(replace(answer, pictures=partial(_pictures, result), drawn=partial(_drawn, question)), output)


def _view(
    question: Question, simulated: Projection | None, result: Projection, measured: Collection[str]
) -> View:
    """Return the projection, next to that of the models alone where both are asked."""
    from forescale.cli.render.projection import projection_view, sides_view

    view = projection_view(result) if simulated is None else sides_view(simulated, result, measured)
    return extended(view, changes_of(question, result))


def changes_of(question: Question, result: Projection) -> Sequence[Content]:
    """Return the command that finds changes, of a layout that does not fit or waits in its pipeline."""
    from forescale.report.document import Code

    idle = result.time_s.get("bubble", 0.0) > IDLE * result.step_time_s
    does_fit = result.memory.verdict != "OOM"
    if question.preset != "default" or (does_fit and not idle):
        return ()
    aim = _shorter(question) if does_fit else "to find changes that make it fit"
    return (Code(aim, again("fit", question, result, saved="project.json")),)


def _shorter(question: Question) -> str:
    """Return which one degree shortens the bubble most, and what the command after it is for."""
    from forescale.advise.shortest import shortest
    from forescale.io.recipes import recomputed_to_fit

    aim = "to find changes that shorten the bubble"
    found = shortest(question, recomputed_to_fit)
    if found is None:
        return aim
    change, one = found
    memory = f"{one.memory.peak_bytes / GIB:.1f} GiB"
    return f"{change.text} alone: {format_seconds(one.step_time_s)} per step, {memory}; {aim}"


def _pictures(result: Projection) -> Sequence[Chart]:
    return result.pictures() if result.step_time_s else ()


def _drawn(question: Question) -> Sequence[str]:
    from forescale.report.drawn import drawings

    return drawings(question) if question.preset == "default" else ()


def _measured_parts(anchor: Anchor | None, run: Path | None) -> Collection[str]:
    """Return what the files given measured, as `sides_view` calls it."""
    parts = {
        "step": run is not None or (anchor is not None and anchor.timed),
        "peak memory": anchor is not None and bool(anchor.residual or anchor.corrections),
    }
    return [name for name, known in parts.items() if known]


def _as_run(question: Question, folder: Path) -> Projection:
    """Return the projection whose stages take what those of a run took."""
    from forescale.project import project
    from forescale.question import Note
    from forescale.schedule.traces import read_run

    refuse_presets(question, "--measured")
    step = read_run(folder).typical
    result = project(question, stages=step)
    text = (
        f"stages take what those of {folder.name} took ({step.schedule.name}, {step.makespan_s:.4g} s); what comes "
        "once a step is as projected"
    )
    return replace(result, notes=(*result.notes, Note(topic="measured", text=text)))

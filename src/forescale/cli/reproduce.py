"""The command that repeats an answer: one line that a shell takes as it is."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forescale.cli.output import command_line

if TYPE_CHECKING:
    from forescale.projection.result import Projection
    from forescale.question import Question

TYPED: ContextVar[Sequence[str]] = ContextVar("TYPED", default=())
"""Arguments of the command that runs."""
WRITTEN = ("--html", "--csv", "--parquet", "--output")
"""Options that write a file in addition to the answer."""


def again(command: str, question: Question, one: Projection, *, saved: str, place: int | None = None) -> str:
    """Return the command line that asks `command` about a layout that was answered.

    Parameters
    ----------
    command
        A command that takes one layout, such as project.
    question
        What was asked.
    one
        The layout.
    saved
        File for what the command that runs prints with --json. It is read where the catalogue does not have the
        model or the cluster, which then have no form on a command line.
    place
        Number of the layout in that file, from 1; None if it has only one.
    """
    from forescale.io.line import project_line

    request = _alone(question, one)
    if not has_line(request):
        read = saved if place is None else f"{saved}#{place}"
        return f"{command_line(_answering())} --json > {saved} && {command_line((command, read))}"
    if command == "project":
        request = replace(request, objective="step_time", max_memory=None, safe=False)
    return f"forescale {command} {project_line(request)}"


def _alone(question: Question, one: Projection) -> Question:
    """Return the question of one layout that was answered."""
    from forescale.spec.space import Space

    layout = question.with_layout(one.strategy)
    return replace(layout, cluster=one.cluster, workload=one.workload, space=Space())


def has_line(question: Question, one: Projection | None = None) -> bool:
    """Return whether options can ask a question, of one layout that was answered if there is one."""
    from forescale.io.line import has_words
    from forescale.io.named import named_cluster, named_model

    request = question if one is None else _alone(question, one)
    name = named_model(request.model, images=request.workload.images.count)
    return name is not None and named_cluster(request.cluster) is not None and has_words(request)


def typed_without(*options: str) -> list[str]:
    """Return the arguments that were typed, without options that have a value."""
    parts, left = [], iter(TYPED.get())
    for word in left:
        name, equals, _ = word.partition("=")
        if name not in options:
            parts.append(word)
        elif not equals:
            next(left, None)
    return parts


def _answering() -> list[str]:
    """Return the arguments that were typed, without files that they write; what --emit limits to is kept by --to."""
    parts, left = [], iter(typed_without(*WRITTEN))
    for word in left:
        name, equals, value = word.partition("=")
        if name == "--emit":
            parts += ["--to", value if equals else next(left, "")]
        elif name != "--force":
            parts.append(word)
    return parts

"""What every writer keeps to, as one check to call from a test of a framework."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import PurePath
from typing import Any

from forescale.export import Export, export
from forescale.export.export import read_back
from forescale.frameworks.readers import reader_of
from forescale.frameworks.writers import writer_of
from forescale.frameworks.writing import Files
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question

ASKED = ("model", "cluster", "strategy", "workload", "preset", "notes", "costs")


def figures(projection: Projection) -> dict[str, Any]:
    """Every number of a projection, without what was asked."""
    return {
        item.name: getattr(projection, item.name) for item in fields(projection) if item.name not in ASKED
    }


def without_comments(text: str) -> str:
    """A text whose comments start with # after a space or a line's start."""
    lines = (re.sub(r"(^|\s)#(?!!).*", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def check_writer(questions: Sequence[Question], *, unsaid: Sequence[str] = ()) -> list[Export]:
    """Assert of each plan that what is written reads back to the bit but for the words that may be unsaid.

    Returns
    -------
    list of Export
        What was written, for a test to look into.
    """
    return [_checked(question, set(unsaid)) for question in questions]


def _checked(question: Question, unsaid: set[str]) -> Export:
    assert question.framework is not None
    result = export(question)
    message = {item.word for item in result.unsaid}
    assert message <= unsaid, f"{message - unsaid} could not be said of {question.layout}"
    writer = writer_of(question.framework)
    files = writer.write(question)
    ends = [end for start, end in writer.endings.items() if question.framework.release.startswith(start)]
    assert ends == [PurePath(files.main).suffix] if ends else len(files.texts) > 1, (
        "a search refuses other names"
    )
    assert writer.several or len(files.texts) == 1, "a search refuses folders"
    main = result.texts[files.main]
    assert reader_of(main, "") is reader_of(files.texts[files.main], ""), "its head makes it another format"
    stripped = replace(files, texts={name: _bare(files, name, text) for name, text in result.texts.items()})
    read, explicit = read_back(stripped, question), result.read_back
    alike = read.parts == (explicit.model, explicit.cluster, explicit.strategy, explicit.workload)
    again = explicit if alike else project(read)
    assert figures(again) == figures(explicit), "comments say nothing"
    if not message:
        assert figures(again) == figures(result.projection), "what is said is said to the bit"
    return result


def _bare(files: Files, name: str, text: str) -> str:
    return without_comments(text) if files.comment == "#" and not name.endswith((".json", ".md")) else text


def lines_of(text: str) -> Iterator[str]:
    """The lines of a text that are no comments."""
    yield from without_comments(text).splitlines()

"""What to set against a cause, in the words of the configuration that the question is from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from forescale.advise.changes import Change
from forescale.diagnose.causes import CAUSES
from forescale.diagnose.diagnosis import Diagnosis
from forescale.errors import SpecError
from forescale.frameworks.trainers.patch import edits, text_of
from forescale.frameworks.writers import has_writer, writer_of
from forescale.question import Question

KINDS = {
    "recompute": "recompute",
    "no_recompute": "recompute",
    "unfused_attention": "flash_attention",
    "small_micro_batches": "micro_batch_size",
    "more_micro_batches": "micro_batch_size",
    "large_micro_batches": "micro_batch_size",
}
"""Fields of the layout that causes contradict."""
MOST = 3
"""Settings that are named."""


def with_settings(
    result: Diagnosis, question: Question, remedies: Mapping[str, Mapping[str, Any]]
) -> Diagnosis:
    """Return a diagnosis whose remedies name the settings of the framework.

    Parameters
    ----------
    remedies
        Keys of the trainer's file that was read, by kind and value; of other files and of flags the framework's own
        configuration of the question is compared with that of the cause.
    """
    explanations = tuple(
        replace(item, remedy=f"{item.remedy}: {words}")
        if (words := _of_file(question, item.name, remedies) if remedies else _written(question, item.name))
        else item
        for item in result.explanations
    )
    return replace(result, explanations=explanations)


def _of_file(question: Question, name: str, remedies: Mapping[str, Mapping[str, Any]]) -> str:
    if (kind := KINDS.get(name)) is None:
        return ""
    change = Change(kind=kind, text="", overrides={kind: getattr(question.layout, kind)})
    keys = edits(change, remedies, question.layout, question.workload)
    return "" if keys is None else text_of(keys)


def _written(question: Question, name: str) -> str:
    cause = next((item for item in CAUSES if item.name == name and len(item.grades) == 1), None)
    framework = question.framework
    changed = None if cause is None else cause.change(question, 1.0)
    if changed is None or framework is None or not has_writer(framework):
        return ""
    try:
        wanted, unwanted = ([*_lines(writer_of(framework).write(item).texts)] for item in (question, changed))
    except SpecError:
        return ""
    for word, lines, others in (("set", wanted, unwanted), ("without", unwanted, wanted)):
        if differing := [line for line in dict.fromkeys(lines) if line not in others]:
            return f"{word} {' and '.join(f'`{line}`' for line in differing[:MOST])}"
    return ""


def _lines(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings of a configuration, one by line."""
    for text in texts.values():
        for line in text.splitlines():
            if (words := line.strip(" \t\\,")) and not words.startswith(("#", "from ", "import ")):
                yield words

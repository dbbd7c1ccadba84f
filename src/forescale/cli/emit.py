"""What `search --emit` and `export` write for a training framework."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forescale.cli.console import say
from forescale.cli.declare import Group
from forescale.cli.options import complete_frameworks, output_option
from forescale.cli.output import command_line
from forescale.cli.reproduce import TYPED
from forescale.errors import missing, no_effect, required_with
from forescale.files import is_folder
from forescale.question import IGNORED
from forescale.report.document import Bullets, Code, Section, View
from forescale.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forescale.export import Export, Unsaid
    from forescale.projection.result import Projection
    from forescale.question import Question

NAMED = 3
"""Words that an export cannot say and that are named where it is written."""


class EmitOptions(Group, frozen=True, kw_only=True):
    """What becomes of the best layout of a search."""

    emit: str | None = output_option(
        "Deprecated: --to NAME with --output.",
        "NAME[@RELEASE]",
        complete=complete_frameworks,
    )
    output: Path | None = output_option(
        "Write the best layout there, for --to NAME.", "FILE|FOLDER", flag="--output -o"
    )
    force: bool = output_option("Replace what is there.", default=False)

    def check(self) -> None:
        """Refuse a place that takes no file, or that nothing is written to, before anything is searched."""
        if self.emit is None and self.output is not None:
            raise required_with("--to", "--output", fix="give the framework, such as --to megatron")
        refuse_idle_force(self.output, force=self.force)
        if self.emit is not None and self.output is not None:
            from forescale.export import check_place

            check_place(self.output, force=self.force, to=self.emit)

    def refuse(self, why: str) -> None:
        """Refuse it where there is no one best layout."""
        if self.emit is not None:
            raise no_effect("--output" if self.output is not None else "--emit", why)


def emitted(question: Question, best: Projection, options: EmitOptions) -> Export:
    """Return the best layout of a search for the framework that is asked for."""
    from forescale.export import export, file_name

    assert options.emit is not None
    request = replace(question, strategy=best.strategy, workload=best.workload)
    return export(request, options.emit, name=file_name(options.output, options.emit))


def refuse_idle_force(output: Path | None, *, force: bool) -> None:
    """Raise if --force has nothing to replace."""
    if force and output is None:
        raise required_with("--output", "--force")


def put(result: Export, output: Path | None, *, force: bool, aside: bool = False) -> None:
    """Print the one file of an export, or write it where it is asked for and say what comes next.

    It is said on standard error where a document stands on standard output, `aside`.
    """
    from forescale.export import place
    from forescale.frameworks.writing import PLACEHOLDER

    if output is None:
        if len(result.texts) > 1:
            files = f"{len(result.texts)} files ({', '.join(result.texts)})"
            again = command_line((*TYPED.get(), "--output", "launch"))
            raise missing("--output", f"give a folder for {files}, for example: {again}")
        say(result.texts[result.main].rstrip("\n"))
        return
    place(result, output, force=force)
    folder = output if is_folder(output) else output.parent
    written = output / result.main if is_folder(output) and len(result.texts) == 1 else output
    left = any(note.topic == IGNORED for note in result.projection.notes)
    apart = "; hyperparameters and paths of the source are not carried over" if left else ""
    text = f"wrote {written} ({_lost(result.unsaid)}{apart}{_read_with(result.options)}; its head says more)"
    lines = [row for content in result.texts.values() for row in content.splitlines() if PLACEHOLDER in row]
    if marked := sum(f"marked {PLACEHOLDER}" not in row for row in lines):  # which is said in the head
        text += f"; {counted(marked, 'line')} marked {PLACEHOLDER} to fill in"
    there = "" if folder == Path() else f"cd {folder} && "
    say(f"{text}; on every node: {there}{result.launch}", error=aside)


def export_view(result: Export) -> View:
    """Return the files of an export as a view: the text of each, and what it cannot say."""
    from forescale.export.text import words_of

    unsaid = (
        f"{item.word} {words_of(item.wanted)} runs with {words_of(item.read)}" for item in result.unsaid
    )
    files = (Code(name, text) for name, text in result.texts.items())
    return View(
        contents=(*files, Section("Settings that the framework cannot express", (Bullets(tuple(unsaid)),)))
    )


def _read_with(options: Sequence[str]) -> str:
    """Return the options that the files are read back with, if they need some."""
    return f"; read it back with {shlex.join(options)}" if options else ""


def _lost(unsaid: Sequence[Unsaid]) -> str:
    """Return what an export cannot say, the first few words by name."""
    from forescale.export.text import words_of

    if not unsaid:
        return "everything could be said"
    named = [
        f"{item.word} {words_of(item.wanted)} runs with {words_of(item.read)}" for item in unsaid[:NAMED]
    ]
    more = [f"{len(unsaid) - NAMED} more"] if len(unsaid) > NAMED else []
    return f"{counted(len(unsaid), 'word')} could not be said: {', '.join(named + more)}"

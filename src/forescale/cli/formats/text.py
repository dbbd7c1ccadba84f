"""Lines and tables of the terminal: in colour and at its width with rich, else as plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forescale.cli.console import PLAIN_WIDTH, is_plain
from forescale.cli.formats import Answer
from forescale.cli.formats.plain import plain
from forescale.question import FOREMOST, Note, by_rank
from forescale.report.document import Content, Section, TextLine, View, line


def write(answer: Answer) -> str:
    """Return the view of an answer."""
    return to_text((answer.short or answer.view)(), verbose=answer.verbose)


def to_text(view: View, *, verbose: bool = False, error: bool = False) -> str:
    """Return a view for the terminal of standard output (or error): at its width, in colour where it has colours."""
    details = view.details if verbose else ()
    contents = [*_spaced((*_head(view), *view.contents, *details, *notes(view.notes, verbose=verbose)))]
    text = plain(contents, PLAIN_WIDTH) if is_plain(error=error) else None
    if text is not None:
        return text
    from forescale.cli.formats.styled import styled_text

    return styled_text(contents, error=error)


def _head(view: View) -> list[TextLine]:
    rest = f" · {view.lead}" if view.lead else ""
    first = [line((view.title, "bold"), rest)] if view.title else []
    return [
        *first,
        *(line(f"{note.topic}: {note.text}", style="bold yellow") for note in view.notes if not note.rank),
    ]


def notes(value: Iterable[Note], *, verbose: bool) -> list[TextLine]:
    """Return the notes that change the figures most, or all of them; those of rank 0 are below the title."""
    ranked = [note for note in by_rank(value) if note.rank]
    shown = ranked if verbose else ranked[:FOREMOST]
    more = len(ranked) - len(shown)
    rest = f"{more} more note{'s' if more > 1 else ''}: --verbose shows all"
    lines = [line(f"note ({note.topic}): {note.text}", style="yellow") for note in shown]
    return [*lines, *([line(rest, style="dim")] if more else [])]


def _spaced(contents: Iterable[Content]) -> Iterator[Content | None]:
    """Yield contents, with None for an empty line before and after everything but lines of text; sections opened."""
    previous: Content | None = None
    for content in contents:
        if previous is not None and not (isinstance(content, TextLine) and isinstance(previous, TextLine)):
            yield None
        if isinstance(content, Section):
            yield line((content.title, "bold"))
            yield from _spaced(content.contents)
        else:
            yield content
        previous = content

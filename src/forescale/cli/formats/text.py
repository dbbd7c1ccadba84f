"""Tables and lines of the terminal, with rich."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text
from rich.tree import Tree

from forescale.cli.console import console
from forescale.cli.formats import Answer
from forescale.cli.formats.fitting import fitting
from forescale.cli.terminal import Terminal
from forescale.question import Note, by_rank
from forescale.report.document import (
    Beside,
    Bullets,
    Cell,
    ChartBlock,
    Code,
    Content,
    Section,
    Sketch,
    Table,
    TextLine,
    TreeNode,
    View,
    line,
)

NOTES = 2
"""Notes that are shown unless all are asked for."""
APART = 4
"""Spaces between tables that are side by side."""


def write(answer: Answer) -> str:
    """Return the view of an answer."""
    return to_text((answer.short or answer.view)(), verbose=answer.verbose)


def to_text(view: View, *, verbose: bool = False, error: bool = False) -> str:
    """Return a view for the terminal of standard output (or error): at its width, in colour where it has colours."""
    screen = console(error=error)
    with screen.capture() as shown:
        for block in _spaced((*_head(view), *view.contents, *notes(view.notes, verbose=verbose))):
            _print(screen, block)
    return shown.get()


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
    shown = ranked if verbose else ranked[:NOTES]
    more = len(ranked) - len(shown)
    rest = f"{more} more note{'s' if more > 1 else ''}: --verbose shows all"
    lines = [line(f"note ({note.topic}): {note.text}", style="yellow") for note in shown]
    return [*lines, *([line(rest, style="dim")] if more else [])]


def _spaced(contents: Iterable[Content]) -> Iterator[Content | None]:
    """Yield contents, with None for an empty line before and after everything but lines of text."""
    previous: Content | None = None
    for content in contents:
        if previous is not None and not (isinstance(content, TextLine) and isinstance(previous, TextLine)):
            yield None
        yield content
        previous = content


def _print(screen: Terminal, content: Content | None) -> None:
    if isinstance(content, Section):
        screen.print(Text(content.title, style="bold"))
        for block in _spaced(content.contents):
            _print(screen, block)
    elif isinstance(content, Code):
        screen.print(f"{content.label}: {content.text}", soft_wrap=True)
    elif not isinstance(content, ChartBlock):
        screen.print(*_shown(content, screen.width), sep="\n")


def _shown(
    content: TextLine | Table | Beside | Bullets | Sketch | TreeNode | None, width: int
) -> list[RenderableType]:
    match content:
        case None:
            return [""]
        case TextLine():
            return [_text(content)]
        case Table():
            shown = fitting(content, width)
            below = [Text(content.caption, style="dim")] if content.caption else []
            return [*(_grid(item) if isinstance(item, Table) else _text(item) for item in shown), *below]
        case Beside(tables=tables):
            grid = Grid.grid(padding=(0, APART, 0, 0))
            grid.add_row(*map(_grid, tables))
            return [grid]
        case Bullets(items=items):
            return [f"- {item}" for item in items]
        case Sketch(lines=lines):
            return [_text(item) for item in lines(width)]
        case TreeNode():
            return [_tree(content)]


def _text(cell: Cell) -> Text:
    return Text(cell) if isinstance(cell, str) else Text.assemble(*cell.parts)


def _grid(table: Table) -> RenderableType:
    heads = table.headings
    rows = Grid(
        box=None,
        pad_edge=False,
        padding=(0, table.gap, 0, 0),
        header_style="bold",
        show_header=bool(heads),
    )
    for heading in heads:
        rows.add_column(heading.text, justify=heading.align, no_wrap=not heading.wraps, overflow="fold")
    for row in table.rows:
        rows.add_row(*map(_text, row))
    return rows


def _tree(branch: TreeNode, above: Tree | None = None) -> Tree:
    text = _text(branch.line)
    if branch.cropped:
        text.no_wrap, text.overflow = True, "ellipsis"
    tree = Tree(text, guide_style="dim") if above is None else above.add(text)
    for item in branch.below:
        _tree(item, tree)
    return tree

"""What the terminal shows as one page: what is asked, the pictures, the same tables and sentences, the command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile

from rich.console import Group, RenderableType
from rich.table import Table

from forescale.atomic_write import write_text
from forescale.cli.options import PageFile
from forescale.escaping import xml
from forescale.view.page import Chart, figure, gallery, page, table

CROWDED = 12
"""Columns from which on a table is set smaller."""


def write_page(file: PageFile, view: Group, charts: Sequence[Chart], drawn: Sequence[str] = ()) -> None:
    """Write a view as a page.

    Parameters
    ----------
    file
        Where to, and the command that was asked.
    view
        What the terminal shows; its first line is the title, up to the first dot between words.
    charts, drawn
        Pictures, as charts and as figures that are drawn already; they stand before the first table.
    """
    title, *parts = _parts(view)
    if isinstance(title, Table):
        title, parts = file.command, [title, *parts]
    title, _, rest = title.partition(" · ")
    lead = list(takewhile(lambda part: isinstance(part, str), parts))
    shown = [
        *_written([rest, *lead], title),
        gallery([*map(figure, charts), *drawn]),
        *_written(parts[len(lead) :], title),
    ]
    write_text(file.path, page(title, *shown, command=file.command))


def _parts(shown: RenderableType) -> Iterator[str | Table]:
    """Yield the lines and the tables of a view, in their order; what stands side by side comes one by one."""
    match shown:
        case Group(renderables=several):
            for item in several:
                yield from _parts(item)
        case Table(columns=columns) if any(
            isinstance(cell, Table) for column in columns for cell in column.cells
        ):
            for column in columns:
                for cell in column.cells:
                    yield from _parts(cell)
        case Table():
            yield shown
        case _:
            yield str(shown).strip()


def _written(parts: Sequence[str | Table], title: str) -> Iterator[str]:
    """Yield tables, and lines that follow each other as a paragraph."""
    for kind, several in groupby(parts, key=lambda part: part if isinstance(part, Table) else bool(part)):
        if isinstance(kind, Table):
            yield _table(kind, title)
        elif kind:
            yield f"<p>{'<br>'.join(xml(str(line)) for line in several)}</p>"


def _table(rows: Table, title: str) -> str:
    left = [place for place, column in enumerate(rows.columns) if column.justify == "left"]
    headings = [str(column.header) for column in rows.columns] if rows.show_header else []
    cells = list(zip(*([str(cell) for cell in column.cells] for column in rows.columns), strict=True))
    name = next(filter(None, headings), title)
    return table(name, headings, cells, words=left, crowded=len(headings) >= CROWDED)

"""One HTML page: what the terminal shows, with pictures, and the command that asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from forescale.cli.formats import Answer
from forescale.cli.formats.blocks import Blocks
from forescale.escaping import xml
from forescale.question import Note
from forescale.report.document import ChartBlock, Section, Table, TextLine, TreeNode, View
from forescale.view.page import bullets, figure, gallery, page, table

CROWDED = 12
"""Columns from which on a table is set smaller and never wraps."""


def write(answer: Answer) -> str:
    """Return the page; its pictures are before the first table."""
    drawn = [*map(figure, answer.pictures()), *answer.drawn()]
    return to_html(answer.view(), command=answer.command, figures=drawn)


def to_html(view: View, *, command: str = "", figures: Sequence[str] = ()) -> str:
    """Return a view as a page, which ends with the command line that asks for it, where there is one."""
    return _Page(view).page(view, command, figures)


class _Page(Blocks):
    def __init__(self, view: View) -> None:
        self._name = view.title
        sections = [content for content in view.contents if isinstance(content, Section)]
        self._places = {id(section): place for place, section in enumerate(sections)}
        self._links = "".join(
            f'<a href="#s{place}">{xml(section.title)}</a> '
            for place, section in enumerate(sections)
            if section.level == 1
        )

    def page(self, view: View, command: str, figures: Sequence[str]) -> str:
        lead = list(takewhile(lambda item: isinstance(item, TextLine), view.contents))
        texts = [
            *([view.lead] if view.lead else []),
            *(item.text for item in lead if isinstance(item, TextLine)),
        ]
        parts = [
            *([f"<nav>{self._links}</nav>"] if self._links else []),
            *([self.paragraph(texts)] if texts else []),
            *([gallery(figures)] if figures else []),
            *self.blocks((*view.contents[len(lead) :], *view.details)),
            *self.notes(view.notes),
        ]
        return page(view.title or command, *parts, command=command)

    def notes(self, notes: Iterable[Note]) -> Iterator[str]:
        if lines := [f"note ({note.topic}): {note.text}" for note in notes]:
            yield self.paragraph(lines)

    def title(self, text: str, level: int) -> str:
        return f"<h{level + 1}>{xml(text)}</h{level + 1}>"

    def section(self, section: Section) -> Iterator[str]:
        tag, place = f"h{section.level + 1}", self._places.get(id(section), 0)
        body = "\n".join(self.blocks(section.contents))
        yield f'<section><{tag} id="s{place}">{xml(section.title)}</{tag}>\n{body}</section>'

    def paragraph(self, lines: Sequence[str]) -> str:
        return f"<p>{'<br>'.join(map(xml, lines))}</p>"

    def bullets(self, items: Sequence[str]) -> str:
        return bullets(items)

    def table(self, rows: Table) -> str:
        labels = rows.labels
        name = next(filter(None, labels), self._name)
        return table(name, labels, rows.texts, words=rows.left, crowded=len(labels) >= CROWDED)

    def tree(self, node: TreeNode) -> str:
        return f"<ul>{_item(node)}</ul>"

    def code(self, label: str, text: str) -> str:
        return f'<p>{xml(label)}</p><pre tabindex="0">{xml(text)}</pre>'

    def chart(self, block: ChartBlock) -> Iterator[str]:
        yield figure(block.chart)


def _item(node: TreeNode) -> str:
    below = f"<ul>{''.join(map(_item, node.below))}</ul>" if node.below else ""
    return f"<li>{xml(node.line.text)}{below}</li>"

"""The order in which a format writes a view: block by block, lines that follow each other as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from forescale.question import Note
from forescale.report.document import (
    Beside,
    Bullets,
    ChartBlock,
    Code,
    Content,
    Section,
    Sketch,
    Table,
    TextLine,
    TreeNode,
    View,
)


class Blocks(ABC):
    """Base of formats of text: how each kind of content is written."""

    @abstractmethod
    def title(self, text: str, level: int) -> str:
        """Return a title; level 0 is that of the view."""

    @abstractmethod
    def paragraph(self, lines: Sequence[str]) -> str:
        """Return lines that follow each other."""

    @abstractmethod
    def bullets(self, items: Sequence[str]) -> str:
        """Return a list of statements."""

    @abstractmethod
    def table(self, rows: Table) -> str:
        """Return a table, without its caption."""

    @abstractmethod
    def tree(self, node: TreeNode) -> str:
        """Return a tree."""

    @abstractmethod
    def code(self, label: str, text: str) -> str:
        """Return text to copy."""

    def chart(self, block: ChartBlock) -> Iterator[str]:
        """Yield a chart; most formats have none, for its numbers are in tables."""
        del block
        yield from ()

    def section(self, section: Section) -> Iterator[str]:
        """Yield a titled part."""
        yield self.title(section.title, section.level)
        yield from self.blocks(section.contents)

    def head(self, view: View) -> Iterator[str]:
        """Yield the title of a view and the rest of its first line."""
        if view.title:
            yield self.title(view.title, 0)
        if view.lead:
            yield self.paragraph([view.lead])

    def notes(self, notes: Iterable[Note]) -> Iterator[str]:
        """Yield all notes."""
        if items := [f"{note.topic}: {note.text}" for note in notes]:
            yield self.bullets(items)

    def view(self, view: View) -> str:
        """Return a view."""
        parts = [*self.head(view), *self.blocks((*view.contents, *view.details)), *self.notes(view.notes)]
        return "\n\n".join(parts) + "\n"

    def blocks(self, contents: Iterable[Content]) -> Iterator[str]:
        """Yield contents."""
        for _, several in groupby(contents, key=lambda item: isinstance(item, TextLine) or id(item)):
            group = list(several)
            lines = [item.text for item in group if isinstance(item, TextLine)]
            yield from [self.paragraph(lines)] if lines else self.block(group[0])

    def block(self, content: Content) -> Iterator[str]:
        """Yield one block other than a line of text."""
        match content:
            case Section():
                yield from self.section(content)
            case Bullets(items=items):
                yield self.bullets(items)
            case Table():
                yield self.table(content)
                yield from map(self.paragraph, ([line] for line in content.caption.splitlines()))
            case Beside(tables=tables):
                yield from map(self.table, tables)
            case Sketch(lines=lines):
                yield from self.blocks(lines(0))
            case TreeNode():
                yield self.tree(content)
            case Code(label=label, text=text):
                yield self.code(label, text)
            case ChartBlock():
                yield from self.chart(content)

"""Markdown, with tables of the GitHub flavour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forescale.cli.formats import Answer
from forescale.cli.formats.blocks import Blocks
from forescale.escaping import markdown
from forescale.report.document import Table, TreeNode, View


def write(answer: Answer) -> str:
    """Return the view of an answer."""
    return to_markdown(answer.view())


def to_markdown(view: View) -> str:
    """Return a view as Markdown."""
    return _Markdown().view(view)


class _Markdown(Blocks):
    def title(self, text: str, level: int) -> str:
        return f"{'#' * (level + 1)} {markdown(text)}"

    def paragraph(self, lines: Sequence[str]) -> str:
        return "\\\n".join(map(markdown, lines))

    def bullets(self, items: Sequence[str]) -> str:
        return "\n".join(f"- {markdown(item)}" for item in items)

    def table(self, rows: Table) -> str:
        rule = ["---" if place in rows.left else "---:" for place in range(rows.width)]
        lines = [rows.labels or [""] * rows.width, rule, *rows.texts]
        return "\n".join(f"| {' | '.join(map(markdown, cells))} |" for cells in lines)

    def tree(self, node: TreeNode) -> str:
        return "\n".join(_branches(node, 0))

    def code(self, label: str, text: str) -> str:
        lines = "\n".join(f"    {line}" for line in text.splitlines())
        return f"{markdown(label)}:\n\n{lines}"


def _branches(node: TreeNode, depth: int) -> Iterator[str]:
    yield f"{'  ' * depth}- {markdown(node.line.text)}"
    for item in node.below:
        yield from _branches(item, depth + 1)

"""LaTeX, with tables of the package booktabs, to be included in a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forescale.cli.formats import Answer
from forescale.cli.formats.blocks import Blocks
from forescale.escaping import printable
from forescale.report.document import Table, TreeNode

ESCAPED = {ord(mark): f"\\{mark}" for mark in "&%$#_{}"} | {
    ord("\\"): "\\textbackslash{}",
    ord("~"): "\\textasciitilde{}",
    ord("^"): "\\textasciicircum{}",
    ord("<"): "\\textless{}",
    ord(">"): "\\textgreater{}",
    ord("|"): "\\textbar{}",
}


def write(answer: Answer) -> str:
    """Return the view of an answer."""
    return _Latex().view(answer.view())


def latex(text: str) -> str:
    """Return text in which nothing is a command."""
    return printable(text).translate(ESCAPED)


class _Latex(Blocks):
    def title(self, text: str, level: int) -> str:
        return f"\\{'sub' * min(level, 2)}section*{{{latex(text)}}}"

    def paragraph(self, lines: Sequence[str]) -> str:
        return "\n\n".join(map(latex, lines))

    def bullets(self, items: Sequence[str]) -> str:
        return _list(f"\\item {latex(item)}" for item in items)

    def table(self, rows: Table) -> str:
        kinds = "".join("l" if place in rows.left else "r" for place in range(rows.width))
        head = [_row(rows.labels), "\\midrule"] if rows.headings else []
        body = ["\\toprule", *head, *map(_row, rows.texts), "\\bottomrule"]
        return "\n".join([f"\\begin{{tabular}}{{{kinds}}}", *body, "\\end{tabular}"])

    def tree(self, node: TreeNode) -> str:
        return _list([_item(node)])

    def code(self, label: str, text: str) -> str:
        return f"{latex(label)}:\n\\begin{{verbatim}}\n{text}\n\\end{{verbatim}}"


def _row(cells: Sequence[str]) -> str:
    return f"{' & '.join(map(latex, cells))} \\\\"


def _list(items: Iterable[str]) -> str:
    return "\n".join(["\\begin{itemize}", *items, "\\end{itemize}"])


def _item(node: TreeNode) -> str:
    below = [_list(map(_item, node.below))] if node.below else []
    return "\n".join([f"\\item {latex(node.line.text)}", *below])

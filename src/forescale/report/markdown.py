"""A report as Markdown."""

from __future__ import annotations

from forescale.report.document import Bullets, Content, Paragraph, Report, Table


def to_markdown(report: Report) -> str:
    """Return the report as Markdown with tables of the GitHub flavour."""
    parts = [f"# {_plain(report.title)}"]
    for section in report.sections:
        parts.append(f"{'#' * (section.level + 1)} {_plain(section.title)}")
        parts += [_content(content) for content in section.contents]
    return "\n\n".join(parts) + "\n"


def _content(content: Content) -> str:
    match content:
        case Paragraph(text=text):
            return _plain(text)
        case Bullets(items=items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Table():
            return _table(content)


def _table(table: Table) -> str:
    rule = ["---:" if heading.align == "right" else "---" for heading in table.headings]
    rows = [[heading.text for heading in table.headings], rule, *table.rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Return text in which nothing is markup: names such as save_out_proj stay whole."""
    for mark in ("\\", "`", "*", "<"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")

"""A report as Markdown."""

from __future__ import annotations

from forescale.escaping import markdown
from forescale.report.document import Bullets, Content, Paragraph, Report, Table


def to_markdown(report: Report) -> str:
    """Return the report as Markdown with tables of the GitHub flavour."""
    parts = [f"# {markdown(report.title)}"]
    for section in report.sections:
        parts.append(f"{'#' * (section.level + 1)} {markdown(section.title)}")
        parts += [_content(content) for content in section.contents]
    return "\n\n".join(parts) + "\n"


def _content(content: Content) -> str:
    match content:
        case Paragraph(text=text):
            return markdown(text)
        case Bullets(items=items):
            return "\n".join(f"- {markdown(item)}" for item in items)
        case Table():
            return _table(content)


def _table(table: Table) -> str:
    rule = ["---:" if heading.align == "right" else "---" for heading in table.headings]
    rows = [[heading.text for heading in table.headings], rule, *table.rows]
    return "\n".join(f"| {' | '.join(markdown(cell) for cell in row)} |" for row in rows)

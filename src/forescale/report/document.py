"""A report as a value: sections of text, lists and tables, written as Markdown or as one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from forescale.escaping import markdown, xml

E = TypeVar("E")
SCHEMA = "forescale.report/1"
Alignment: TypeAlias = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Heading:
    """Top of a column."""

    text: str
    align: Alignment = "right"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under headings."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of short statements."""

    items: tuple[str, ...]


Content: TypeAlias = Table | Paragraph | Bullets


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part; `level` 1 stands directly below the report's title."""

    title: str
    contents: tuple[Content, ...]
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Title and sections in reading order."""

    title: str
    sections: tuple[Section, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.report/1` document."""
        return {"schema": SCHEMA, "title": self.title, "sections": [asdict(item) for item in self.sections]}


@dataclass(frozen=True, slots=True)
class Column(Generic[E]):
    """One figure of every entry of a ranking: how it is headed, what it means, how it is written."""

    heading: str
    meaning: str
    show: Callable[[E], str]
    align: Alignment = "right"


def ranking(columns: Sequence[Column[E]], entries: Sequence[E]) -> Table:
    """Return one numbered row per entry."""
    return Table(
        (Heading("#"), *(Heading(column.heading, column.align) for column in columns)),
        tuple(
            (str(place), *(column.show(entry) for column in columns))
            for place, entry in enumerate(entries, start=1)
        ),
    )


def legend(columns: Sequence[Column[E]]) -> Table:
    """Return what each column means; neighbours with one meaning share a row."""
    rows: list[tuple[str, str]] = []
    for column in columns:
        if rows and rows[-1][1] == column.meaning:
            rows[-1] = (f"{rows[-1][0]} / {column.heading}", column.meaning)
        else:
            rows.append((column.heading, column.meaning))
    return Table((Heading("Column", "left"), Heading("Meaning", "left")), tuple(rows))


def properties(rows: Sequence[tuple[str, str]], *, name: str = "Property") -> Table:
    """Return a table of names and values."""
    return Table((Heading(name, "left"), Heading("Value", "left")), tuple(rows))


def to_markdown(report: Report) -> str:
    """Return the report as Markdown with tables of the GitHub flavour."""
    parts = [f"# {markdown(report.title)}"]
    for section in report.sections:
        parts.append(f"{'#' * (section.level + 1)} {markdown(section.title)}")
        parts += [_written(content) for content in section.contents]
    return "\n\n".join(parts) + "\n"


def _written(content: Content) -> str:
    match content:
        case Paragraph(text=text):
            return markdown(text)
        case Bullets(items=items):
            return "\n".join(f"- {markdown(item)}" for item in items)
        case Table():
            return _pipe_table(content)


def _pipe_table(table: Table) -> str:
    rule = ["---:" if heading.align == "right" else "---" for heading in table.headings]
    rows = [[heading.text for heading in table.headings], rule, *table.rows]
    return "\n".join(f"| {' | '.join(markdown(cell) for cell in row)} |" for row in rows)


_STYLE = """
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5b6673;--line:#dfe3e8;--band:#f5f7f9;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ed;--soft:#9aa5b1;--line:#343c46;--band:#20262d;--paper:#171b20}}
body{font:14px/1.5 ui-sans-serif,system-ui,Helvetica,Arial,sans-serif;color:var(--ink);background:var(--paper);
margin:0 auto;padding:24px;max-width:1600px}
h1{font-size:24px}h2{font-size:18px;margin-top:36px}h3{font-size:15px;margin-top:28px}
h4{font-size:14px;margin:18px 0 6px;color:var(--soft)}p,ul{max-width:80ch}
nav{color:var(--soft)}nav a{color:inherit;margin-right:14px}
.wide{overflow-x:auto;margin:10px 0}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 9px;text-align:left;white-space:nowrap}.r{text-align:right}
.few td{white-space:normal}thead th{border-bottom:2px solid var(--line)}
tbody tr+tr td{border-top:1px solid var(--line)}tbody tr:nth-child(even){background:var(--band)}
.many{font-size:11.5px}.many th,.many td{padding:3px 5px}
.many th:first-child,.many td:first-child{position:sticky;left:0;background:var(--paper)}
""".strip()
_MANY = 12
"""Columns from which a table is set smaller and never wraps."""


def to_html(report: Report) -> str:
    """Return the report as a page with a table of contents; wide tables scroll by themselves."""
    parts = [
        f"<a href='#s{number}'>{xml(section.title)}</a>"
        for number, section in enumerate(report.sections)
        if section.level == 1
    ]
    body = "\n".join(_section(number, section) for number, section in enumerate(report.sections))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{xml(report.title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{xml(report.title)}</h1>\n<nav>{''.join(parts)}</nav>\n{body}\n</body></html>\n"
    )


def _section(number: int, section: Section) -> str:
    tag = f"h{section.level + 1}"
    inner = "\n".join(_content(content) for content in section.contents)
    return f'<section><{tag} id="s{number}">{xml(section.title)}</{tag}>\n{inner}</section>'


def _content(content: Content) -> str:
    match content:
        case Paragraph(text=text):
            return f"<p>{xml(text)}</p>"
        case Bullets(items=items):
            return "<ul>" + "".join(f"<li>{xml(item)}</li>" for item in items) + "</ul>"
        case Table():
            return _table(content)


def _table(table: Table) -> str:
    kinds = [' class="r"' if heading.align == "right" else "" for heading in table.headings]
    head = "".join(
        f'<th scope="col"{kind}>{xml(heading.text)}</th>'
        for kind, heading in zip(kinds, table.headings, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{xml(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    size = "many" if len(table.headings) >= _MANY else "few"
    return (
        f'<div class="wide"><table class="{size}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )

"""A report as a value: sections of text, lists and tables, written as Markdown or as one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from forescale.atomic_write import replacing, write_text
from forescale.escaping import csv_text, markdown, xml
from forescale.struct import Struct
from forescale.view.page import Chart, bullets, figure, page, table

Rows = Sequence[Mapping[str, Any]]


def write_csv(rows: Rows, path: Path) -> None:
    """Write rows as CSV with a header."""
    write_text(path, csv_text(rows, list(rows[0])))


def write_parquet(rows: Rows, path: Path, *, kinds: Mapping[str, str] | None = None) -> None:
    """Write rows as Parquet, which needs pyarrow; equal rows make equal files, byte for byte.

    `kinds` says what the columns hold (whole, number, text or flag) where their values alone may not.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"whole": pa.int64(), "number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}
    schema = None if kinds is None else pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    with replacing(path) as place:
        table = pa.Table.from_pylist(list(rows), schema=schema)
        pq.write_table(table, place, compression="zstd", store_schema=False)


E = TypeVar("E")
SCHEMA = "forescale.report/1"
Alignment: TypeAlias = Literal["left", "right"]


class Heading(Struct, frozen=True):
    """Top of a column."""

    text: str
    align: Alignment = "right"


class Table(Struct, frozen=True):
    """Rows of text under headings."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[str, ...], ...]


def headed(*headings: str, rows: Sequence[tuple[str, ...]]) -> Table:
    """Return rows under headings; words under a heading with `<` stand left, numbers right."""
    tops = (
        Heading(heading.removeprefix("<"), "left" if heading[:1] == "<" else "right") for heading in headings
    )
    return Table(tuple(tops), tuple(rows))


class Paragraph(Struct, frozen=True):
    """Running text."""

    text: str


class Bullets(Struct, frozen=True):
    """A list of short statements."""

    items: tuple[str, ...]


class Picture(Struct, frozen=True):
    """A chart, which a page shows; Markdown leaves it out, for its numbers stand in tables."""

    chart: Chart


Content: TypeAlias = Table | Paragraph | Bullets | Picture


class Section(Struct, frozen=True):
    """A titled part; `level` 1 stands directly below the report's title."""

    title: str
    contents: tuple[Content, ...]
    level: int = 1


class Report(Struct, frozen=True, kw_only=True):
    """Title and sections in reading order."""

    title: str
    sections: tuple[Section, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.report/1` document."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "sections": [
                {
                    "title": section.title,
                    "contents": [
                        asdict(content) for content in section.contents if not isinstance(content, Picture)
                    ],
                    "level": section.level,
                }
                for section in self.sections
            ],
        }


class Column(Struct, Generic[E], frozen=True):
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
    return headed("<Column", "<Meaning", rows=rows)


def properties(rows: Sequence[tuple[str, str]], *, name: str = "Property") -> Table:
    """Return a table of names and values."""
    return headed(f"<{name}", "<Value", rows=rows)


def to_markdown(report: Report) -> str:
    """Return the report as Markdown with tables of the GitHub flavour."""
    parts = [f"# {markdown(report.title)}"]
    for section in report.sections:
        parts.append(f"{'#' * (section.level + 1)} {markdown(section.title)}")
        parts += [_written(content) for content in section.contents if not isinstance(content, Picture)]
    return "\n\n".join(parts) + "\n"


def _written(content: Table | Paragraph | Bullets) -> str:
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


_MANY = 12
"""Columns from which a table is set smaller and never wraps."""


def to_html(report: Report, *, command: str = "") -> str:
    """Return the report as a page with a table of contents; wide tables scroll by themselves.

    It ends with the command line that asks for it, where there is one.
    """
    links = "".join(
        f'<a href="#s{number}">{xml(section.title)}</a> '
        for number, section in enumerate(report.sections)
        if section.level == 1
    )
    sections = (_section(number, section) for number, section in enumerate(report.sections))
    return page(report.title, f"<nav>{links}</nav>", *sections, command=command)


def _section(number: int, section: Section) -> str:
    tag = f"h{section.level + 1}"
    inner = "\n".join(_content(content, section.title) for content in section.contents)
    return f'<section><{tag} id="s{number}">{xml(section.title)}</{tag}>\n{inner}</section>'


def _content(content: Content, title: str) -> str:
    match content:
        case Paragraph(text=text):
            return f"<p>{xml(text)}</p>"
        case Bullets(items=items):
            return bullets(items)
        case Picture(chart=chart):
            return figure(chart)
        case Table(headings=headings, rows=rows):
            left = (place for place, heading in enumerate(headings) if heading.align == "left")
            heads = [heading.text for heading in headings]
            return table(title, heads, rows, words=left, crowded=len(heads) >= _MANY)

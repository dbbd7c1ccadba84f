"""A report as a value: sections of text, lists and tables, written as Markdown or as one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

E = TypeVar("E")
SCHEMA = "forescale.report/1"
Alignment: TypeAlias = Literal["left", "right"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Top of a column."""

    text: str
    align: Alignment = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under headings."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """A list of short statements."""

    items: tuple[str, ...]


Content: TypeAlias = Table | Paragraph | Bullets


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[E]):
    """One figure of every entry of a ranking: how it is headed, what it means, how it is written."""

    heading: str
    meaning: str
    show: Callable[[E], str]
    align: Alignment = "right"


def ranking(columns: Sequence[Column[E]], entries: Sequence[E]) -> Table:
    """Return one numbered row per entry."""
    return Table(
        headings=(
            Heading(text="#"),
            *(Heading(text=column.heading, align=column.align) for column in columns),
        ),
        rows=tuple(
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
    return Table(
        headings=(Heading(text="Column", align="left"), Heading(text="Meaning", align="left")),
        rows=tuple(rows),
    )


def properties(rows: Sequence[tuple[str, str]], *, name: str = "Property") -> Table:
    """Return a table of names and values."""
    return Table(
        headings=(Heading(text=name, align="left"), Heading(text="Value", align="left")), rows=tuple(rows)
    )

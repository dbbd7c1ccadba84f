"""What an answer shows: lines, tables, lists and pictures. Every output format is written from these values alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from forescale.escaping import csv_text
from forescale.question import Note
from forescale.struct import Struct

if TYPE_CHECKING:
    from forescale.view.page import Chart

Rows = Sequence[Mapping[str, Any]]
E = TypeVar("E")
SCHEMA = "forescale.report/1"
Alignment: TypeAlias = Literal["left", "right"]


class TextLine(Struct, frozen=True):
    """One line of text: its parts, each with a style of the terminal."""

    parts: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The line without styles."""
        return "".join(text for text, _ in self.parts)


def line(*parts: str | tuple[str, str], style: str = "") -> TextLine:
    """Return a line; a part is text in `style`, or text with its own style."""
    return TextLine(tuple((part, style) if isinstance(part, str) else part for part in parts))


Cell: TypeAlias = str | TextLine


def styled(style: str, cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the cells of a row, all in one style."""
    return tuple(line(text_of(cell), style=style) for cell in cells)


def text_of(cell: Cell) -> str:
    """Return the text of a table cell, without the styles of the terminal."""
    return cell if isinstance(cell, str) else cell.text


class Heading(Struct, frozen=True):
    """Top of a column."""

    text: str
    align: Alignment = "right"
    wraps: bool = False
    """Whether its cells may take several lines where there is little room."""
    spare: bool = False
    """Whether the column is left out first where there is no room for all."""


class Table(Struct, frozen=True):
    """Rows under headings; without headings a list of names and values."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    """Lines directly below it."""
    gap: int = 2
    """Spaces between columns of the terminal."""

    @property
    def labels(self) -> list[str]:
        """Texts of the headings."""
        return [heading.text for heading in self.headings]

    @property
    def texts(self) -> list[list[str]]:
        """Cells without styles."""
        return [[text_of(cell) for cell in row] for row in self.rows]

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.headings) or max(map(len, self.rows), default=0)

    @property
    def left(self) -> list[int]:
        """Columns aligned to the left."""
        if not self.headings:
            return list(range(self.width))
        return [place for place, heading in enumerate(self.headings) if heading.align == "left"]


def table(*headings: str, rows: Iterable[Sequence[Cell]], gap: int = 2, caption: str = "") -> Table:
    """Return rows under headings.

    `<` before a heading aligns its column to the left and lets it wrap; `|` aligns it to the left in one line. Other
    columns are numbers: aligned to the right, in one line. `?` before that marks a column that is left out first where
    there is no room.
    """
    return Table(tuple(map(_heading, headings)), tuple(tuple(row) for row in rows), caption, gap)


def _heading(text: str) -> Heading:
    spare, text = text[:1] == "?", text.removeprefix("?")
    align: Alignment = "left" if text[:1] in ("<", "|") else "right"
    return Heading(text.lstrip("<|"), align, text[:1] == "<", spare)


def facts(rows: Iterable[tuple[str, Cell]]) -> Table:
    """Return names and values without headings."""
    return Table((), tuple((line(name, style="bold"), value) for name, value in rows))


class Bullets(Struct, frozen=True):
    """A list of short statements."""

    items: tuple[str, ...]


class ChartBlock(Struct, frozen=True):
    """A chart of a page. Other formats leave it out: its numbers are in tables."""

    chart: Chart


class Sketch(Struct, frozen=True):
    """Lines with curves of characters, which are drawn for a number of columns; 0 columns draw none."""

    lines: Callable[[int], Sequence[TextLine]]


class Beside(Struct, frozen=True):
    """Tables that the terminal shows side by side."""

    tables: tuple[Table, ...]


class TreeNode(Struct, frozen=True):
    """A line of a tree, with the lines below it; `cropped` lines end at the edge of the terminal."""

    line: TextLine
    below: tuple[TreeNode, ...] = ()
    cropped: bool = False


class Code(Struct, frozen=True):
    """A command line to copy, after a few words on what it does."""

    label: str
    text: str


class Section(Struct, frozen=True):
    """A titled part; `level` 1 is directly below the title of the view."""

    title: str
    contents: tuple[Content, ...]
    level: int = 1


Content: TypeAlias = TextLine | Table | Bullets | ChartBlock | Sketch | Beside | TreeNode | Code | Section


class View(Struct, frozen=True, kw_only=True):
    """What an answer shows, in reading order."""

    title: str = ""
    lead: str = ""
    """The rest of the first line: the run and its assumptions."""
    contents: tuple[Content, ...]
    details: tuple[Content, ...] = ()
    """What the terminal shows with --verbose only, below the contents."""
    notes: tuple[Note, ...] = ()

    @property
    def tables(self) -> Iterator[Table]:
        """All tables, in reading order."""
        return _tables(self.contents)


def _tables(contents: Iterable[Content]) -> Iterator[Table]:
    for content in contents:
        match content:
            case Table():
                yield content
            case Beside(tables=several):
                yield from several
            case Section(contents=inner):
                yield from _tables(inner)


class Report(View, frozen=True, kw_only=True):
    """A view of sections, which has a document of its own."""

    contents: tuple[Section, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.report/1` document."""
        sections = [
            {
                "title": section.title,
                "contents": [
                    _document(content)
                    for content in section.contents
                    if isinstance(content, Table | TextLine | Bullets)
                ],
                "level": section.level,
            }
            for section in self.contents
        ]
        return {"schema": SCHEMA, "title": self.title, "sections": sections}


def _document(content: Table | TextLine | Bullets) -> dict[str, Any]:
    match content:
        case Table(headings=headings):
            tops = [{"text": heading.text, "align": heading.align} for heading in headings]
            return {"headings": tops, "rows": content.texts}
        case TextLine():
            return {"text": content.text}
        case Bullets(items=items):
            return {"items": list(items)}


class Column(Struct, Generic[E], frozen=True):
    """One figure of every entry of a table: its heading (as `table` takes it), how it is written, what it means."""

    heading: str
    show: Callable[[E], Cell]
    meaning: str = ""


def listed(columns: Sequence[Column[E]], entries: Iterable[E], *, gap: int = 2) -> Table:
    """Return one row per entry."""
    rows = ([column.show(entry) for column in columns] for entry in entries)
    return table(*(column.heading for column in columns), rows=rows, gap=gap)


def ranking(columns: Sequence[Column[E]], entries: Sequence[E], *, gap: int = 2) -> Table:
    """Return one numbered row per entry."""
    rows = (
        (str(place), *(column.show(entry) for column in columns)) for place, entry in enumerate(entries, 1)
    )
    return table("#", *(column.heading for column in columns), rows=rows, gap=gap)


def legend(columns: Sequence[Column[E]]) -> Table:
    """Return what each column means; neighbours with one meaning share a row."""
    rows: list[tuple[str, str]] = []
    for column in columns:
        name = column.heading.lstrip("?<|")
        if rows and rows[-1][1] == column.meaning:
            rows[-1] = (f"{rows[-1][0]} / {name}", column.meaning)
        else:
            rows.append((name, column.meaning))
    return table("<Column", "<Meaning", rows=rows)


def properties(rows: Sequence[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    return table("<Property", "<Value", rows=rows)


def write_csv(rows: Rows, path: Path) -> None:
    """Write rows as CSV with a header."""
    from forescale.atomic_write import write_text

    write_text(path, csv_text(rows, list(rows[0])))


def write_parquet(rows: Rows, path: Path, *, kinds: Mapping[str, str] | None = None) -> None:
    """Write rows as Parquet, which needs pyarrow; equal rows make equal files, byte for byte.

    `kinds` says what the columns hold (whole, number, text or flag) where their values alone may not.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from forescale.atomic_write import replacing

    types = {"whole": pa.int64(), "number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}
    schema = None if kinds is None else pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    with replacing(path) as place:
        rows_table = pa.Table.from_pylist(list(rows), schema=schema)
        pq.write_table(rows_table, place, compression="zstd", store_schema=False)

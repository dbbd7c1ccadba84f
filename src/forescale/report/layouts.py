"""A report on ranked layouts: headers, rankings with legend, details, slowest, summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from forescale.report.document import (
    Bullets,
    Column,
    Content,
    Paragraph,
    Report,
    Section,
    legend,
    ranking,
)

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Generic[E]):
    """Layouts in order, under a title."""

    title: str
    entries: Sequence[E]
    lead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Generic[E]):
    """What a search of any kind found, and how its layouts are shown."""

    title: str
    headers: tuple[Section, ...]
    columns: tuple[Column[E], ...]
    best: tuple[Ranking[E], ...]
    """Rankings, fastest first; the first of them is detailed."""
    slowest: Ranking[E]
    name: Callable[[E], str]
    """A layout in one line."""
    details: Callable[[E], Sequence[Section]]
    num_detailed: int
    summary: tuple[str, ...]
    legend: tuple[Content, ...] = ()
    """What stands below the legend of columns."""
    notes: tuple[str, ...] = ()


def layouts_report(found: Layouts[E]) -> Report:
    """Return the report; a ranking without entries and details of none are left out."""
    detailed = [
        section
        for place, entry in enumerate(found.best[0].entries[: found.num_detailed], start=1)
        for section in (
            Section(title=f"#{place}: {found.name(entry)}", contents=(), level=2),
            *found.details(entry),
        )
    ]
    rankings = [_ranked(item, found.columns) for item in found.best if item.entries]
    legends = Section(title="Column legend", contents=(legend(found.columns), *found.legend), level=2)
    slowest = [_ranked(found.slowest, found.columns)] if found.slowest.entries else []
    notes = [Section(title="Notes", contents=(Bullets(items=found.notes),))] if found.notes else []
    return Report(
        title=found.title,
        sections=(
            *found.headers,
            *rankings[:1],
            legends,
            *rankings[1:],
            *([Section(title="Detailed layouts", contents=()), *detailed] if detailed else []),
            *slowest,
            Section(title="Summary", contents=(Bullets(items=found.summary),)),
            *notes,
        ),
    )


def _ranked(item: Ranking[E], columns: Sequence[Column[E]]) -> Section:
    lead: list[Content] = [Paragraph(text=item.lead)] if item.lead else []
    return Section(title=item.title, contents=(*lead, ranking(columns, item.entries)))

"""Steps as one self-contained HTML page: canvas, zoom, hover, bubble and memory strips, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from forescale.escaping import script
from forescale.schedule.actions import Kind
from forescale.schedule.draw.timeline import Bar, Timeline, fill, ink


def to_html(
    pictures: Sequence[Timeline],
    *,
    title: str = "Pipeline schedules",
    notes: Sequence[str] = (),
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[str | float]] = (),
) -> str:
    """Return a page that shows steps above each other on one time axis; it loads nothing from elsewhere.

    Parameters
    ----------
    pictures
        The steps.
    notes
        Sentences above them.
    columns, rows
        A table below them, of text and numbers, sorted by a click on a column's head.
    """
    panels = [_panel(each) for each in pictures]
    page = (resources.files("forescale.schedule.draw") / "viewer.html").read_text(encoding="utf-8")
    table = {"columns": list(columns), "rows": [list(row) for row in rows]}
    data = script({"title": title, "panels": panels, "notes": list(notes), "table": table})
    return page.replace("__DATA__", data)


def _panel(timeline: Timeline) -> dict[str, Any]:
    return {
        "title": timeline.title,
        "note": timeline.note,
        "ranks": timeline.num_ranks,
        "makespan": timeline.makespan,
        "bubble": [round(timeline.bubble(rank), 6) for rank in range(timeline.num_ranks)],
        "memory": timeline.memory,
        "bars": [_bar(bar) for bar in timeline.bars],
        "messages": timeline.messages,
        "shades": [[each.rank, each.start, each.end] for each in timeline.shades],
    }


def _bar(bar: Bar) -> list[Any]:
    """Return a bar as the viewer's script reads it."""
    return [
        bar.rank,
        bar.start,
        bar.end,
        bar.microbatch,
        fill(bar.kind, bar.chunk),
        ink(bar.chunk),
        bar.name,
        int(bar.overlapped),
        int(bar.kind > Kind.W),
    ]

"""Steps as one self-contained HTML page: canvas, zoom, hover, bubble and memory strips, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from forescale.escaping import script, xml
from forescale.schedule.actions import Kind
from forescale.schedule.draw.timeline import FILL, KINDS, LOST, Bar, Timeline, fill, ink
from forescale.view.page import bullets, page, table

STRIPS = "later chunks are lighter; strips: memory held; right: idle share"


def to_html(
    pictures: Sequence[Timeline],
    *,
    title: str = "Pipeline schedules",
    notes: Sequence[str] = (),
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[str | float]] = (),
    command: str = "",
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
    command
        The command line that draws them.
    """
    steps = "".join(_canvas(each) for each in pictures)
    cells = [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return page(
        title,
        f"<p>{HELP}</p>",
        _legend(pictures),
        bullets(notes) if notes else "",
        steps,
        table("Passes", columns, cells, words=(1,)) if cells else "",
        '<div id="tip" hidden></div><p id="told" class="unseen" role="status"></p>',
        f'<script type="application/json" id="data">{script([_panel(each) for each in pictures])}</script>',
        f"<script>{_viewer()}</script>",
        command=command,
    )


HELP = (
    "Wheel, two fingers or + and - zoom; drag moves; double click or Home shows all; arrow keys go from pass to pass. "
    "A pass that is pointed at says when it runs and where its input comes from."
)


def _viewer() -> str:
    return (resources.files("forescale.schedule.draw") / "viewer.js").read_text(encoding="utf-8")


def _canvas(step: Timeline) -> str:
    words = f"{step.title}: {step.num_ranks} ranks, {step.note}. Arrow keys go from pass to pass."
    return (
        f'<figure class="whole"><figcaption>{xml(step.title)} <small>{xml(step.note)}</small></figcaption>'
        f'<canvas tabindex="0" role="application" aria-label="{xml(words)}"></canvas></figure>'
    )


def _legend(steps: Sequence[Timeline]) -> str:
    """Return what the colours that are used mean."""
    used = {bar.kind for each in steps for bar in each.bars}
    colours = {name: FILL[kind][0] for kind, name in KINDS.items() if kind in used}
    colours |= {"lost against the simulation": LOST} if any(each.shades for each in steps) else {}
    keys = "".join(
        f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in colours.items()
    )
    return f'<p class="legend">{keys}<span>{STRIPS}</span></p>'


def _panel(timeline: Timeline) -> dict[str, Any]:
    return {
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

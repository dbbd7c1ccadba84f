"""Steps as SVG, without script, and as one self-contained HTML page: canvas, zoom, hover, bubble and memory strips."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from forescale.escaping import script, xml
from forescale.schedule.actions import Kind
from forescale.schedule.draw.timeline import FILL, KINDS, LOST, Bar, Timeline, fill, ink
from forescale.view.page import bullets, page, table

_LEFT, _TOP, _ROW, _STRIP, _GAP = 64.0, 44.0, 22.0, 8.0, 5.0
_RIGHT = 52.0


def to_svg(*timelines: Timeline, width: float = 1100.0, memory: bool = True) -> str:
    """Return steps below each other on one time axis as an SVG document `width` pixels wide."""
    scale = (width - _LEFT - _RIGHT) / (max(timeline.makespan for timeline in timelines) or 1.0)
    body: list[str] = []
    top = 0.0
    for timeline in timelines:
        parts, height = _step(timeline, top, scale, memory=memory)
        body, top = [*body, *parts], top + height
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{top:g}" '
            f'viewBox="0 0 {width:g} {top:g}" '
            'font-family="ui-sans-serif, Helvetica, Arial, sans-serif" color="#1b2430" fill="currentColor">',
            f'<rect class="paper" width="{width:g}" height="{top:g}" fill="#ffffff"/>',
            *body,
            "</svg>",
        ]
    )


def _step(timeline: Timeline, top: float, scale: float, *, memory: bool) -> tuple[list[str], float]:
    """Return one step's shapes from `top` on, and its height."""
    strip = _STRIP if memory and any(timeline.memory) else 0.0
    pitch = _ROW + strip + _GAP
    height = _TOP + pitch * timeline.num_ranks + 26.0
    parts = [
        f'<text x="{_LEFT:g}" y="{top + 16:g}" font-size="13">{xml(timeline.title)}</text>',
        f'<text x="{_LEFT:g}" y="{top + 32:g}" font-size="11" opacity="0.8">{xml(timeline.note)}</text>',
    ]
    for rank in range(timeline.num_ranks):
        parts += _row(timeline, rank, top + _TOP + pitch * rank, scale, strip)
    return [*parts, *_named_colours(timeline, top + height - 8.0)], height


def _row(timeline: Timeline, rank: int, top: float, scale: float, strip: float) -> list[str]:
    span = timeline.makespan * scale
    parts = [
        f'<text x="{_LEFT - 8:g}" y="{top + 15:g}" font-size="11" text-anchor="end">rank {rank}</text>',
        f'<rect x="{_LEFT:g}" y="{top:g}" width="{span:.2f}" height="{_ROW:g}" fill-opacity="0.08"/>',
        f'<text x="{_LEFT + span + 6:.2f}" y="{top + 15:g}" font-size="10" opacity="0.8">'
        f"{timeline.bubble(rank):.1%}</text>",
    ]
    for bar in timeline.bars:
        if bar.rank == rank:
            parts += _drawn(bar, top, scale)
    parts += [
        f'<rect x="{_LEFT + shade.start * scale:.2f}" y="{top + _ROW - 5:g}" '
        f'width="{(shade.end - shade.start) * scale:.2f}" height="5" fill="{LOST}"/>'
        for shade in timeline.shades
        if shade.rank == rank
    ]
    if strip:
        parts.append(_memory(timeline, rank, top + _ROW, scale, strip))
    return parts


def _drawn(bar: Bar, top: float, scale: float) -> list[str]:
    left, wide = _LEFT + bar.start * scale, (bar.end - bar.start) * scale
    copies = bar.kind in (Kind.OFFLOAD, Kind.RELOAD)
    height = 3.0 if copies else _ROW
    edge = "#1b2430" if bar.overlapped else "#ffffff"
    parts = [
        f'<rect x="{left:.2f}" y="{top:g}" width="{max(wide, 0.3):.2f}" height="{height:g}" '
        f'fill="{fill(bar.kind, bar.chunk)}" stroke="{edge}" stroke-width="0.6">'
        f"<title>{xml(bar.name)}: {bar.start:.6g} to {bar.end:.6g}</title></rect>"
    ]
    text = str(bar.microbatch)
    if not copies and wide >= 6.5 * len(text):
        parts.append(
            f'<text x="{left + wide / 2:.2f}" y="{top + 15:g}" font-size="11" text-anchor="middle" '
            f'fill="{ink(bar.chunk)}" pointer-events="none">{text}</text>'
        )
    return parts


def _memory(timeline: Timeline, rank: int, top: float, scale: float, strip: float) -> str:
    peak = max((kept for row in timeline.memory for _, kept in row), default=0.0) or 1.0
    points = [f"{_LEFT:.2f},{top + strip:.2f}"]
    before = 0.0
    for when, kept in timeline.memory[rank]:
        x = _LEFT + when * scale
        points += [f"{x:.2f},{top + strip * (1 - v / peak):.2f}" for v in (before, kept)]
        before = kept
    points.append(f"{_LEFT + timeline.makespan * scale:.2f},{top + strip * (1 - before / peak):.2f}")
    points.append(f"{_LEFT + timeline.makespan * scale:.2f},{top + strip:.2f}")
    return f'<polygon points="{" ".join(points)}" fill="#d9a441" opacity="0.75"/>'


def _named_colours(timeline: Timeline, y: float) -> list[str]:
    used = {bar.kind for bar in timeline.bars}
    parts, x = [], _LEFT
    for kind, name in KINDS.items():
        if kind in used:
            parts.append(f'<rect x="{x:g}" y="{y - 9:g}" width="10" height="10" fill="{FILL[kind][0]}"/>')
            parts.append(f'<text x="{x + 14:g}" y="{y:g}" font-size="11">{name}</text>')
            x += 26 + 6.4 * len(name)
    more = "later chunks are lighter; right: idle share"
    if timeline.shades:
        more += "; red: lost against the simulation"
    if any(timeline.memory):
        more += "; strips: memory held"
    parts.append(f'<text x="{x:g}" y="{y:g}" font-size="11" opacity="0.8">{more}</text>')
    return parts


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
    steps = "".join(_canvas(picture) for picture in pictures)
    cells = [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return page(
        title,
        f"<p>{HELP}</p>",
        _legend(pictures),
        bullets(notes) if notes else "",
        steps,
        table("Passes", columns, cells, words=(1,)) if cells else "",
        '<div id="tip" hidden></div><p id="told" class="unseen" role="status"></p>',
        f'<script type="application/json" id="data">{script([_panel(picture) for picture in pictures])}</script>',
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
    text = f"{step.title}: {step.num_ranks} ranks, {step.note}. Arrow keys go from pass to pass."
    return (
        f'<figure class="whole"><figcaption>{xml(step.title)} <small>{xml(step.note)}</small></figcaption>'
        f'<canvas tabindex="0" role="application" aria-label="{xml(text)}"></canvas></figure>'
    )


def _legend(steps: Sequence[Timeline]) -> str:
    """Return what the colours that are used mean."""
    used = {bar.kind for step in steps for bar in step.bars}
    colours = {name: FILL[kind][0] for kind, name in KINDS.items() if kind in used}
    colours |= {"lost against the simulation": LOST} if any(step.shades for step in steps) else {}
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
        "shades": [[shade.rank, shade.start, shade.end] for shade in timeline.shades],
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

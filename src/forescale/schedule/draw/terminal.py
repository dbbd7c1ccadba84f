"""A step as text: one line per rank, one cell per action where the width allows."""

from __future__ import annotations

from forescale.escaping import plain
from forescale.schedule.actions import Kind
from forescale.schedule.draw.timeline import ANSI, Bar, Timeline

_IDLE = "·"


def to_terminal(timeline: Timeline, *, width: int = 110, colour: bool = False) -> str:
    """Return a step as text at most `width` columns wide.

    Each action shows its letter (lower case for later chunks) and, where it fits, its micro-batch. With
    `colour`, ANSI colours mark the kinds instead of letters.
    """
    label = len(f"rank {timeline.num_ranks - 1} ")
    columns = max(20, width - label - 7)
    shortest = min(
        (b.end - b.start for b in timeline.bars if b.kind <= Kind.W and b.end > b.start), default=1.0
    )
    wanted = len(str(max((b.microbatch for b in timeline.bars), default=0))) + (0 if colour else 1)
    exact = wanted * timeline.makespan / shortest
    for fitting in (exact, timeline.makespan / shortest):
        if fitting <= columns:
            columns = round(fitting)
            break
    scale = columns / (timeline.makespan or 1.0)
    lines = [plain(timeline.title), plain(timeline.note)]
    for rank in range(timeline.num_ranks):
        row = _row([b for b in timeline.bars if b.rank == rank], columns, scale, colour)
        lines.append(f"{f'rank {rank}':<{label}}{row} {timeline.bubble(rank):>6.1%}")
    return "\n".join(lines)


def _row(bars: list[Bar], columns: int, scale: float, colour: bool) -> str:
    cells = [_IDLE] * columns
    for bar in bars:
        if bar.kind > Kind.W:
            continue
        low, high = round(bar.start * scale), min(columns, round(bar.end * scale))
        text = _text(bar, max(1, high - low), colour)
        for offset in range(high - low):
            cells[low + offset] = _painted(text[offset], bar, colour, first=offset == 0)
    return "".join(cells)


def _text(bar: Bar, width: int, colour: bool) -> str:
    letter = bar.kind.name.lower() if bar.chunk else bar.kind.name
    number = str(bar.microbatch)
    text = number if colour else letter + number
    if len(text) > width:
        text = letter
    return text[:width].ljust(width, " " if colour else "-")


def _painted(character: str, bar: Bar, colour: bool, *, first: bool) -> str:
    if not colour:
        return character
    bright = 100 if bar.chunk else 40
    ink = "30" if bar.chunk else "97"
    style = ";4" if first else ""
    return f"\x1b[{bright + ANSI[bar.kind]};{ink}{style}m{character}\x1b[0m"

"""A step as text: one line per rank, one cell per action where the width allows."""

from __future__ import annotations

from forescale.escaping import plain
from forescale.schedule.actions import Kind
from forescale.schedule.draw.timeline import ANSI, Bar, Timeline

_IDLE, _LOST = "·", "!"


def to_terminal(*timelines: Timeline, width: int = 110, colour: bool = False) -> str:
    """Return steps below each other on one scale as text at most `width` columns wide.

    Each action shows its letter (lower case for later chunks) and, where it fits, its micro-batch. With
    `colour`, ANSI colours mark the kinds instead of letters. Idle time that is marked is `!`.
    """
    label = len(f"rank {max(each.num_ranks for each in timelines) - 1} ")
    columns = max(20, width - label - 7)
    bars = [bar for each in timelines for bar in each.bars]
    longest = max(each.makespan for each in timelines)
    shortest = min((b.end - b.start for b in bars if b.kind <= Kind.W and b.end > b.start), default=1.0)
    wanted = len(str(max((b.microbatch for b in bars), default=0))) + (0 if colour else 1)
    exact = wanted * longest / shortest
    for fitting in (exact, longest / shortest):
        if fitting <= columns:
            columns = round(fitting)
            break
    scale = columns / (longest or 1.0)
    pictures = []
    for each in timelines:
        lines = [plain(each.title), plain(each.note)]
        for rank in range(each.num_ranks):
            row = _row(each, rank, round(each.makespan * scale), scale, colour)
            lines.append(f"{f'rank {rank}':<{label}}{row} {each.bubble(rank):>6.1%}")
        pictures.append("\n".join(lines))
    return "\n\n".join(pictures)


def _row(timeline: Timeline, rank: int, columns: int, scale: float, colour: bool) -> str:
    cells = [_IDLE] * columns
    for shade in timeline.shades:
        if shade.rank == rank:
            low, high = max(0, round(shade.start * scale)), min(columns, round(shade.end * scale))
            cells[low:high] = [_LOST] * (high - low)
    for bar in timeline.bars:
        if bar.rank != rank or bar.kind > Kind.W:
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

"""What every picture draws: bars on ranks, memory steps and messages, in one unit of time, and their colours."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from forescale.escaping import printable
from forescale.schedule.actions import Kind
from forescale.struct import Struct

_IDLE, _LOST = "·", "!"


def to_terminal(*timelines: Timeline, width: int = 110, colour: bool = False) -> str:
    """Return steps below each other on one scale as text at most `width` columns wide.

    Each action shows its letter (lower case for later chunks) and, where it fits, its micro-batch. With
    `colour`, ANSI colours mark the kinds instead of letters. Idle time that is marked is `!`.
    """
    label = len(f"rank {max(timeline.num_ranks for timeline in timelines) - 1} ")
    columns = max(20, width - label - 7)
    bars = [bar for timeline in timelines for bar in timeline.bars]
    longest = max(timeline.makespan for timeline in timelines)
    shortest = min((b.end - b.start for b in bars if b.kind <= Kind.W and b.end > b.start), default=1.0)
    requested = len(str(max((b.microbatch for b in bars), default=0))) + (0 if colour else 1)
    exact = requested * longest / shortest
    for fitting in (exact, longest / shortest):
        if fitting <= columns:
            columns = round(fitting)
            break
    scale = columns / (longest or 1.0)
    pictures = []
    for timeline in timelines:
        lines = [printable(timeline.title), printable(timeline.note)]
        for rank in range(timeline.num_ranks):
            row = _row(timeline, rank, round(timeline.makespan * scale), scale, colour)
            lines.append(f"{f'rank {rank}':<{label}}{row} {timeline.bubble(rank):>6.1%}")
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


FILL: dict[Kind, tuple[str, str]] = {
    Kind.F: ("#3b6fd4", "#a9c4f5"),
    Kind.B: ("#2f9e62", "#a5dfbf"),
    Kind.I: ("#1f9aa8", "#9fdde4"),
    Kind.W: ("#8e5bc7", "#d3b9ef"),
    Kind.OFFLOAD: ("#b7791f", "#efd39a"),
    Kind.RELOAD: ("#b7791f", "#efd39a"),
}
"""First chunk (white text), later chunks (dark text)."""
KINDS: dict[Kind, str] = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
    Kind.OFFLOAD: "offload, reload",
}
"""What their colours are called."""
ANSI: dict[Kind, int] = {Kind.F: 4, Kind.B: 2, Kind.I: 6, Kind.W: 5, Kind.OFFLOAD: 3, Kind.RELOAD: 3}


LOST = "#d6336c"
"""Time lost against another step."""


class Bar(Struct, frozen=True, kw_only=True):
    """One action on a rank."""

    rank: int
    start: float
    end: float
    kind: Kind
    microbatch: int
    chunk: int
    """Which of the rank's chunks, 0 first."""
    name: str
    """Torch's notation."""
    overlapped: bool = False
    """Part of an F+B block; the block's bars share its time in proportion to their own."""


class Shade(Struct, frozen=True):
    """A stretch of a rank's row that is marked: time lost against another step."""

    rank: int
    start: float
    end: float


class Timeline(Struct, frozen=True, kw_only=True):
    """A step as a picture shows it."""

    title: str
    num_ranks: int
    makespan: float
    bars: tuple[Bar, ...]
    memory: tuple[tuple[tuple[float, float], ...], ...]
    """Per rank, (time, held) at each change; empty where unknown."""
    messages: tuple[tuple[int, int], ...] = ()
    """Pairs (index of the sending bar, index of the receiving bar)."""
    note: str = ""
    shades: tuple[Shade, ...] = ()

    def shaded(self, shades: Iterable[Shade]) -> Timeline:
        """Return the same step with stretches marked."""
        return replace(self, shades=tuple(shades))

    def busy(self, rank: int) -> float:
        """Return the time a rank computes."""
        return sum(b.end - b.start for b in self.bars if b.rank == rank and b.kind <= Kind.W)

    def bubble(self, rank: int) -> float:
        """Return a rank's idle share of the makespan."""
        return 1.0 - self.busy(rank) / self.makespan if self.makespan else 0.0


def fill(kind: Kind, chunk: int) -> str:
    """Return the colour of an action."""
    return FILL[kind][min(chunk, 1)]


def ink(chunk: int) -> str:
    """Return the colour of an action's text."""
    return "#ffffff" if chunk == 0 else "#1b2430"

"""What every picture draws: bars on ranks, memory steps and messages, in one unit of time, and their colours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from forescale.schedule.actions import Kind

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
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


@dataclass(frozen=True, slots=True)
class Shade:
    """A stretch of a rank's row that is marked: time lost against another step."""

    rank: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
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

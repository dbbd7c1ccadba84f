"""One colour per kind of action, in every picture."""

from __future__ import annotations

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
ANSI: dict[Kind, int] = {Kind.F: 4, Kind.B: 2, Kind.I: 6, Kind.W: 5, Kind.OFFLOAD: 3, Kind.RELOAD: 3}


def fill(kind: Kind, chunk: int) -> str:
    """Return the colour of an action."""
    return FILL[kind][min(chunk, 1)]


def ink(chunk: int) -> str:
    """Return the colour of an action's text."""
    return "#ffffff" if chunk == 0 else "#1b2430"

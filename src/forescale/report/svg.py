"""Pieces of SVG documents that all charts share."""

from __future__ import annotations

import math

from forescale.escaping import xml

INK, FAINT, GRID = "#1b2430", "#5b6675", "#e3e6ea"
CHARACTER = 6.6
"""Width of a character at 12 pixels, about."""
SERIES = ("#4e79a7", "#d9605b", "#6aa56e", "#f2a154", "#a883b8", "#3f9aa3", "#8c6d46", "#c55a91")
"""Colours of lines, in order."""


def opening(width: float, height: float, title: str, note: str) -> list[str]:
    """Return the start of a document: its size, a white ground, title and note."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="ui-sans-serif, Helvetica, Arial, sans-serif">',
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
        text(14.0, 22.0, title, size=15),
        text(14.0, 40.0, note, size=11, colour=FAINT),
    ]


def round_step(top: float, most: int) -> float:
    """Return a round distance of at most `most` grid lines up to `top`: 1, 2 or 5 times a power of ten."""
    rough = max(top, 1e-12) / most
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(factor for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)


def text(x: float, y: float, words: str, *, size: float, anchor: str = "start", colour: str = INK) -> str:
    """Return words that stay legible on any ground."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" fill="{colour}" '
        f'stroke="#ffffff" stroke-width="3" paint-order="stroke">'
        f"{xml(words)}</text>"
    )

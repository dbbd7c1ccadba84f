"""What kind of work a kernel does, by its name; the patterns are data (catalogue/kernel_parts.json)."""

from __future__ import annotations

import re
from functools import cache

from forescale.files import packaged

OTHER = "other"


@cache
def _patterns() -> tuple[tuple[str, bool, re.Pattern[str]], ...]:
    content = packaged("kernel_parts")
    return tuple(
        (name, kind == "communication", re.compile(text, re.IGNORECASE))
        for kind in ("communication", "compute")
        for name, text in content[kind]
    )


@cache
def part_of(name: str) -> tuple[str, bool]:
    """Return the kind of work of a kernel by its name, and whether it communicates; "other" if none is known."""
    for part, communicates, pattern in _patterns():
        if pattern.search(name):
            return part, communicates
    return OTHER, False

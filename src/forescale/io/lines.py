"""Where in a TOML text a key stands: the standard library's reader does not say."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TABLE = re.compile(r"^\s*\[(\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line, counted from 1, where the key at `path` or the table nearest around it is given.

    Tables of a list are counted: ("case", 1, "name") is in the second [[case]].
    """
    wanted = tuple(path)
    best: tuple[int, int] | None = None
    table: tuple[str | int, ...] = ()
    counts: dict[tuple[str | int, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = _parts(header[2])
            if header[1]:
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found = table
        elif key := _KEY.match(line):
            found = (*table, *_parts(key[1]))
        else:
            continue
        shared = len(found) if found == wanted[: len(found)] else 0
        if shared and (best is None or shared > best[0]):
            best = (shared, number)
    return best[1] if best else None


def _parts(text: str) -> tuple[str | int, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(text))

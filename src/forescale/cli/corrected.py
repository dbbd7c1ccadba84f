"""The command that an error suggests: what was typed, with the nearest value that is allowed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from forescale.errors import ForescaleError, UnknownNameError, nearest
from forescale.synonyms import spelling

LONGEST = 400
"""Characters of a command that an error shows."""
PICTURE = ".svg"
"""Suffix of a picture whose format is not written."""
_MULTIPLE = re.compile(r"(?:.*, )?(\w+) (\d+) must be a multiple of .*; try (?:\d+ or )?(\d+)", re.DOTALL)


def corrected(error: ForescaleError, typed: Sequence[str]) -> str:
    """Return the command line that was `typed` with the nearest allowed value, for an error's text; empty if open."""
    words = _with_fix(error, typed)
    text = "" if words is None else shlex.join(("forescale", *words))
    return f"For example: {text}" if text and len(text) <= LONGEST else ""


def _with_fix(error: ForescaleError, typed: Sequence[str]) -> list[str] | None:
    if isinstance(error, UnknownNameError) and error.suggestions:
        return _replaced(typed, error.name, error.suggestions[0])
    if (multiple := _MULTIPLE.fullmatch(str(error))) is not None:
        name, value, fix = multiple.groups()
        return _replaced(typed, value, fix, f"--{name.replace('_', '-')}")
    if error.code not in ("not_one_of", "wrong_suffix") or not isinstance(error.value, str | Path):
        return None
    value = str(error.value)
    if "--output" in error.key and isinstance(error.allowed, str) and PICTURE in error.allowed:
        path = next((word for word in typed if value[:1] == "." and word.endswith(value)), None)
        return None if path is None else _replaced(typed, path, f"{path.removesuffix(value)}{PICTURE}")
    if isinstance(error.allowed, str) or not isinstance(error.allowed, Collection):
        return None
    like = spelling(value, error.allowed) or next(iter(nearest(value, map(str, error.allowed))), None)
    return None if like is None else _replaced(typed, value, like)


def _replaced(typed: Sequence[str], value: str, other: str, flag: str = "") -> list[str] | None:
    """Return the words with another value in the one place that has it, behind `flag` if given; None if none has.

    A word has a value if it is that, ends in it behind =, or lists it between commas.
    """
    words = list(typed)
    places = []
    for place, word in enumerate(words):
        head, equals, tail = word.rpartition("=")
        is_of_flag = not flag or head == flag or (place and words[place - 1] == flag)
        items = tail.split(",")
        if is_of_flag and value in items:
            kept = [other if item == value else item for item in items]
            places.append((place, f"{head}{equals}{','.join(kept)}"))
    if len(places) != 1:
        return None
    words[places[0][0]] = places[0][1]
    return words

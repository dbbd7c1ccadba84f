"""One JSON document."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from forescale.cli.formats import Answer
from forescale.errors import PhysicsError


def write(answer: Answer) -> str:
    """Return the document of an answer."""
    return to_json(answer.document())


def to_json(document: Mapping[str, Any]) -> str:
    """Return a document as text.

    Raises
    ------
    PhysicsError
        If a number in it is not finite.
    """
    try:
        return json.dumps(document, indent=2, allow_nan=False) + "\n"
    except ValueError as error:
        place, value = next(_endless(document, ""), ("the answer", error))
        raise PhysicsError(f"{place} is {value}, which is no finite number; please report this") from error


def _endless(value: object, place: str) -> Iterator[tuple[str, object]]:
    """Yield the numbers of a document that are not finite, with where they are."""
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _endless(inside, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for index, inside in enumerate(value):
            yield from _endless(inside, f"{place}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, value

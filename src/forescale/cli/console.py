"""Where output goes: a console of stable width, JSON, and errors as one sentence."""

from __future__ import annotations

import codecs
import json
import math
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from io import TextIOWrapper
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from forescale.errors import PhysicsError
from forescale.escaping import printable

if TYPE_CHECKING:
    from rich.console import Console, Group

    from forescale.cli.options import PageFile
    from forescale.question import Question
    from forescale.results import Result

R = TypeVar("R", bound="Result")
PLAIN_WIDTH = 110
"""Columns where there is no terminal."""
LEAST_WIDTH = 80
"""Columns that tables are laid out for: in fewer, numbers would be cut off."""


def console(*, error: bool = False, least: int = LEAST_WIDTH) -> Console:
    """Return the console of standard output (or error); a terminal narrower than `least` wraps lines itself."""
    from forescale.cli.terminal import Terminal

    stream = sys.stderr if error else sys.stdout
    screen = Terminal(file=stream, width=None if stream.isatty() else PLAIN_WIDTH)
    screen.width = max(screen.width, least)
    return screen


def say(text: str, *, error: bool = False) -> None:
    """Write lines to standard output (or error)."""
    (sys.stderr if error else sys.stdout).write(f"{printable(text)}\n")


def print_json(document: Mapping[str, Any]) -> None:
    """Write one JSON document to standard output.

    Raises
    ------
    PhysicsError
        If a number in it is not finite.
    """
    try:
        text = json.dumps(document, indent=2, allow_nan=False)
    except ValueError as error:
        place, value = next(_endless(document, ""), ("the answer", error))
        raise PhysicsError(f"{place} is {value}, which is no finite number; please report this") from error
    sys.stdout.write(text + "\n")


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


def show(
    result: R,
    view: Callable[[R], Group],
    *,
    as_json: bool,
    html: PageFile | None = None,
    question: Question | None = None,
) -> None:
    """Write the page asked for, and print the document, with the question that it answers, or the view."""
    if html is not None:
        from forescale.cli.render.page import write_page

        write_page(html, view(result), result.pictures())
    if not as_json:
        console().print(view(result))
        return
    from forescale.io.question import question_values

    print_json({**result.to_json(), **({} if question is None else {"question": question_values(question)})})


SPELT = MappingProxyType(
    dict(zip("×·−–─│├└▶→✓█▇▆▅▄▃▂▁", "x.---||`>>*87654321", strict=True))
    | {"≥": ">=", "≤": "<=", "µ": "u", "√": "sqrt", "∝": "~", "∂": "d", "Σ": "sum", "Ψ": "psi", "τ": "tau"}
    | {"η": "eta", "⌈": "ceil(", "⌉": ")"}
)
"""What stands for the characters of our own texts where they cannot be shown."""
HANDLER = "forescale"


def readied() -> None:
    """Let closed streams lead nowhere, and all of them spell out what their encoding cannot show."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    codecs.register_error(HANDLER, _spelt)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  (for as long as we run)
            setattr(sys, name, stream)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def dropped() -> None:
    """Let standard output and error lead nowhere: nobody reads on, so nothing may fail at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _spelt(error: UnicodeError) -> tuple[str, int]:
    """Return words in ASCII for characters that cannot be encoded, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_word, error.object[error.start : error.end])), error.end


def _word(character: str) -> str:
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return SPELT.get(character) or plain or character.encode("ascii", "backslashreplace").decode()

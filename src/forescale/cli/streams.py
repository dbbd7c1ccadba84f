"""Standard output and error as they are: closed, cut off, or of few characters."""

from __future__ import annotations

import codecs
import os
import sys
import unicodedata
from io import TextIOWrapper
from types import MappingProxyType

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

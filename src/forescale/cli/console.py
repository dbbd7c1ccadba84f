"""Where output goes: a console of stable width, JSON, and errors as one sentence."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 110
"""Columns where there is no terminal."""


def console(*, error: bool = False) -> Console:
    """Return the console of standard output (or error); numbers are not coloured by themselves."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def print_json(document: dict[str, Any]) -> None:
    """Write one JSON document to standard output."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")

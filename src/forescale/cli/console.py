"""Where output goes: a console of stable width, JSON, and errors as one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forescale.escaping import plain

if TYPE_CHECKING:
    from rich.console import Console

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
    (sys.stderr if error else sys.stdout).write(f"{plain(text)}\n")


def print_json(document: Mapping[str, Any]) -> None:
    """Write one JSON document to standard output."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")

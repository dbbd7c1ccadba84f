"""The command line: `forescale`."""

from __future__ import annotations

import gc
import sys

from forescale.cli.codes import INTERRUPTED

COLLECTED = (100_000, 50, 50)
"""When Python looks for garbage: seldom, as what a command loads is none, and it ends soon."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 for an answer, 2 for a question that has none, 130 after an interrupt."""
    gc.set_threshold(*COLLECTED)
    try:
        from forescale.cli.app import run
        from forescale.cli.console import readied

        readied()
        code = run(arguments)
    except KeyboardInterrupt:  # while it loads, too
        code = INTERRUPTED
    sys.exit(code)


__all__ = ["main"]

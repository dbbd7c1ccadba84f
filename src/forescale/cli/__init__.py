"""The command line: `forescale`."""

from __future__ import annotations

import gc
import os
import sys

from forescale.cli.codes import INTERRUPTED

COLLECTED = (100_000, 50, 50)
"""When Python looks for garbage: seldom, as what a command loads is none, and it ends soon."""
THREADS = "OPENBLAS_NUM_THREADS"
"""How many threads the linear algebra that comes with numpy starts when it is loaded."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 for an answer, 2 for a question that has none, 130 after an interrupt."""
    gc.set_threshold(*COLLECTED)
    try:
        _load_numpy()
        from forescale.cli.app import run
        from forescale.cli.console import readied

        readied()
        code = run(arguments)
    except KeyboardInterrupt:  # while it loads, too
        code = INTERRUPTED
    sys.exit(code)


def _load_numpy() -> None:
    """Load numpy without threads: nothing here needs them, and they take as long to start as all else of it.

    What a command starts finds the environment as it was.
    """
    if THREADS in os.environ:
        return
    os.environ[THREADS] = "1"
    import numpy as np

    del os.environ[THREADS], np


__all__ = ["main"]

"""The command line: `forescale`."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys

from forescale.cli.codes import INTERRUPTED

COLLECTED = (400_000, 50, 50)
"""When Python looks for garbage: seldom, as what a command loads is none, and it ends soon."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 for an answer, 2 for a question that has none, 130 after an interrupt."""
    from forescale.cli.front import front

    gc.set_threshold(*COLLECTED)
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # its threads take a third of NumPy's start; products are small
    if arguments is None and (text := front(sys.argv[1:])) is not None:
        from contextlib import suppress

        with suppress(BrokenPipeError):
            sys.stdout.write(text)
            sys.stdout.flush()
        sys.exit(0)
    local = arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if local:  # an exception may be lost in the middle of an import
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        code = _ran(arguments, local=local)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if local:  # all is said: Python would end by the signal while it shuts down
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _ran(arguments: list[str] | None, *, local: bool) -> int:
    """Return the exit code of a command; an option that it does not have is refused before the command is loaded."""
    from forescale.cli.console import readied, refused, say
    from forescale.cli.misspelt import misspelt, translated

    readied()
    if arguments is None and (words := translated(sys.argv[1:])) is not None:
        arguments, note = words
        say(note, error=True)
    elif arguments is None and (text := misspelt(sys.argv[1:])) is not None:
        return refused(text)
    from forescale.cli.app import run

    if local:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run(arguments)


def command() -> None:
    """Run the command line and end the process without freeing what it loaded."""
    from contextlib import suppress

    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    threading = sys.modules.get("threading")
    if not isinstance(code, int) or (threading is not None and threading.active_count() > 1):
        sys.exit(code)  # type: ignore[arg-type]
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


__all__ = ["command", "main"]

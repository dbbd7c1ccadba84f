"""The application: the one place where a command runs, and where errors become sentences and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from forescale.cli.codes import INTERRUPTED, Exit
from forescale.cli.console import dropped, refused
from forescale.cli.front import COMMANDS, completes, front
from forescale.cli.reproduce import TYPED
from forescale.cli.words import parsed
from forescale.errors import ForescaleError, InfeasibleError, UnknownNameError


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    argv = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # nobody reads on
        code = 0
    except SystemExit as ended:  # typer's word for the same
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        code = 0
    except OSError as error:
        code = refused(f"{error.filename or 'standard output'}: {error.strerror or error}")
    dropped()
    return code


def _run(names: Sequence[str]) -> int:
    if (text := front(names)) is not None:
        sys.stdout.write(text)
        return 0
    TYPED.set(tuple(names))
    try:
        call = parsed(names) if names and names[0] in COMMANDS and not completes() else None
        if call is None:
            from forescale.cli.typed import run

            return run(names)
        call()
    except Exit as ended:
        return ended.code
    except ForescaleError as error:
        return _refuse(error)
    return 0


def _refuse(error: ForescaleError) -> int:
    from forescale.cli.corrected import corrected
    from forescale.cli.misspelt import started

    text, example = _with_option(error), corrected(error, TYPED.get())
    if error.code == "missing" and "For example" not in text:
        example = started(TYPED.get())
    code = refused(f"{text}{'' if text[-1:] in '.?' else '.'} {example}" if example else text)
    if isinstance(error, InfeasibleError) and error.rows:
        from forescale.cli.formats.text import to_text
        from forescale.cli.render.search import infeasible_view

        sys.stderr.write(to_text(infeasible_view(error.rows, error.remedies), error=True))
    return code


def _with_option(error: ForescaleError) -> str:
    """Return the text of an error, in which a value out of its range has the name of the option that gave it."""
    from forescale.cli.advice import flags_of
    from forescale.cli.misspelt import command_in

    text, flag = str(error), f"--{error.key.replace('_', '-')}"
    is_typed = any(word.partition("=")[0] == flag for word in TYPED.get())
    is_of_option = error.code == "out_of_range" and is_typed and text.startswith(f"{error.key} ")
    if isinstance(error, UnknownNameError) and error.fix.startswith("save "):  # of a model on huggingface.co
        has_option = "--download" in flags_of(command_in(TYPED.get())[0] or "")
        return f"{text}, or add --download" if has_option else text
    return f"{flag}{text.removeprefix(error.key)}" if is_of_option else text

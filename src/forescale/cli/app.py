"""The application: all commands, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

import typer
from typer.main import get_command

from forescale.cli.codes import INTERRUPTED
from forescale.cli.console import dropped, refused, say
from forescale.cli.front import COMMANDS, MODULES, TEXT, front
from forescale.cli.help import Commands
from forescale.cli.misspelt import instead, no_command, options_of
from forescale.cli.reproduce import TYPED
from forescale.errors import ForescaleError, InfeasibleError, nearest
from forescale.version import __version__

_COMMAND = re.compile(r"No such command '([^']*)'")
_EXTRA = re.compile(r"unexpected extra argument\S* \((.*)\)")
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""Base of all errors in how a command was written, whichever click typer comes with."""


def application(names: Sequence[str] = tuple(COMMANDS)) -> typer.Typer:
    """Return the application with the named commands; modules of others are not loaded."""
    app = Commands(
        name="forescale",
        help=TEXT,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        command = command_of(name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def command_of(name: str) -> Any:  # noqa: ANN401  (a function, or a group of commands)
    """Return the command of a name: `NAME_app`, a group, or the function `NAME_command` of its module."""
    module = import_module(f"forescale.cli.{MODULES.get(name, name)}")
    return getattr(module, f"{name}_app", None) or getattr(module, f"{name}_command")


def _version(flag: bool) -> None:
    if flag:
        say(f"forescale {__version__}")
        raise typer.Exit


def _root(
    *,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Project memory and step time of a training run and find its best layout, before running it."""
    del version


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    argv = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(argv)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
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
        command = entry_point(_needed(names))
        code = command(names, prog_name="forescale", standalone_mode=False, obj=tuple(names))
    except _UsageError as error:
        return _usage(error)
    except ForescaleError as error:
        return _refuse(error)
    return code if isinstance(code, int) else 0


def _needed(names: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that an invocation can reach: all of them, unless it starts with one."""
    return (names[0],) if names and names[0] in COMMANDS else tuple(COMMANDS)


@lru_cache
def entry_point(names: tuple[str, ...]) -> Any:  # noqa: ANN401  (whichever click typer has)
    """Return the parser of the named commands, built once in a process: a hundred options take longer than answers."""
    return get_command(application(names))


def _usage(error: Exception) -> int:
    """Say what is wrong with the command as it was written, and where to look."""
    context = getattr(error, "ctx", None)
    text = getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(text)
        return 0
    text = text.replace("Value error, ", "")
    path = context.command_path if context is not None else "forescale"
    if (name := getattr(error, "option_name", None)) and context is not None:
        text = f"No such option: {name}{instead(name, path[len('forescale ') :])}"
    elif context is not None and (extra := _EXTRA.search(text)):
        text = f"unexpected argument {extra[1]!r}{_taken(extra[1], path[len('forescale ') :])}"
    elif path == "forescale" and (word := _COMMAND.match(text)):
        text = no_command(word[1])
    return refused(f"{text.rstrip('.')} (see {path} --help)")


def _taken(text: str, path: str) -> str:
    """Return the option of a command that takes a name, before one that was written without it."""
    from forescale.catalogue.clusters import cluster_names
    from forescale.schedule import families

    word = text.split(maxsplit=1)[0]
    named = {"--schedule": [family.name for family in families()], "--cluster": cluster_names()}
    local = (
        ""
        if word.replace(".", "").isdigit()
        else next(
            (flag for flag, all_of in named.items() if flag in options_of(path) and nearest(word, all_of)),
            "",
        )
    )
    return f"; write {local} {word}" if local else ""


def _refuse(error: ForescaleError) -> int:
    code = refused(str(error))
    if isinstance(error, InfeasibleError) and error.rows:
        from forescale.cli.formats.text import to_text
        from forescale.cli.render.search import infeasible_view

        sys.stderr.write(to_text(infeasible_view(error.rows, error.remedies), error=True))
    return code

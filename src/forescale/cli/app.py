"""The application: all commands, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import cast

import typer

from forescale.cli.codes import INTERRUPTED, USAGE_ERROR
from forescale.cli.console import dropped, say
from forescale.cli.help import Commands
from forescale.errors import ForescaleError, InfeasibleError
from forescale.version import __version__

LONGEST = 2_000
"""Characters of an error that are shown."""
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""Base of all errors in how a command was written, whichever click typer comes with."""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "project": ("project", "project_command"),
    "memory": ("memory", "memory_app"),
    "search": ("search", "search_command"),
    "export": ("export", "export_command"),
    "advise": ("advise", "advise_command"),
    "fit": ("fit", "fit_command"),
    "run": ("run", "run_command"),
    "sites": ("run", "sites_command"),
    "sweep": ("sweep", "sweep_command"),
    "compare": ("compare", "compare_command"),
    "explain": ("explain", "explain_command"),
    "report": ("report", "report_command"),
    "bench": ("bench", "bench_command"),
    "validate": ("validate", "validate_command"),
    "calibrate": ("calibrate", "calibrate_command"),
    "catalogue": ("catalogue", "catalogue_app"),
    "pipeline": ("pipeline", "app"),
    "network": ("network", "network_command"),
    "serve": ("serve", "serve_command"),
}
"""Module and name of every command or group of commands, in the order of the help."""


def application(names: Sequence[str] = tuple(COMMANDS)) -> typer.Typer:
    """Return the application with the named commands; modules of others are not loaded."""
    app = Commands(
        name="forescale",
        help="Project memory and step time of a training run and find its best layout, before running it.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        module, attribute = COMMANDS[name]
        command = getattr(import_module(f"forescale.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
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
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(given)
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
        code = _say(f"{error.filename or 'standard output'}: {error.strerror or error}")
    dropped()
    return code


def _run(given: Sequence[str]) -> int:
    try:
        code = application(_needed(given))(
            given, prog_name="forescale", standalone_mode=False, obj=tuple(given)
        )
    except _UsageError as error:
        return _usage(error)
    except ForescaleError as error:
        return _refuse(error)
    return code if isinstance(code, int) else 0


def _needed(given: Sequence[str]) -> Sequence[str]:
    """Return the commands that an invocation can reach: all of them, unless it starts with one."""
    return given[:1] if given and given[0] in COMMANDS else tuple(COMMANDS)


def _usage(error: Exception) -> int:
    """Say what is wrong with the command as it was written, and where to look."""
    context = getattr(error, "ctx", None)
    text = getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(text)
        return 0
    text = text.replace("Value error, ", "")
    path = context.command_path if context is not None else "forescale"
    return _say(f"{text.rstrip('.')} (see {path} --help)")


def _refuse(error: ForescaleError) -> int:
    code = _say(str(error))
    if isinstance(error, InfeasibleError) and error.rows:
        from forescale.cli.console import console
        from forescale.cli.render.search import changes, refusals

        console(error=True).print(refusals(error.rows))
        if error.remedies:
            console(error=True).print("", changes(error.remedies), sep="\n")
    return code


def _say(text: str) -> int:
    sentence = " ".join(text.split())
    with suppress(OSError):  # nobody reads that either
        say(f"error: {sentence if len(sentence) <= LONGEST else sentence[:LONGEST] + '…'}", error=True)
    return USAGE_ERROR

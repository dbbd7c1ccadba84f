"""The application: all commands, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

import os
import sys
from typing import cast

import typer

from forescale import __version__
from forescale.cli.advise import advise_command
from forescale.cli.calibrate import calibrate_command
from forescale.cli.catalogue import catalogue_app
from forescale.cli.compare import compare_command
from forescale.cli.explain import explain_command
from forescale.cli.memory import memory_app
from forescale.cli.pipeline import app as pipeline_app
from forescale.cli.project import project_command
from forescale.cli.report import report_command
from forescale.cli.search import search_command
from forescale.cli.sweep import sweep_command
from forescale.cli.validate import validate_command
from forescale.errors import ForescaleError, InfeasibleError

USAGE_ERROR = 2
INTERRUPTED = 130
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""Base of all errors in how a command was written, whichever click typer comes with."""

app = typer.Typer(
    name="forescale",
    help="Project memory and step time of a training run and find its best layout, before running it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"forescale {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Project memory and step time of a training run and find its best layout, before running it."""
    del version


app.command("project")(project_command)
app.add_typer(memory_app, name="memory")
app.command("search")(search_command)
app.command("advise")(advise_command)
app.command("sweep")(sweep_command)
app.command("compare")(compare_command)
app.command("explain")(explain_command)
app.command("report")(report_command)
app.command("validate")(validate_command)
app.command("calibrate")(calibrate_command)
app.add_typer(catalogue_app, name="catalogue")
app.add_typer(pipeline_app, name="pipeline")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 for an answer, 2 for a question that has none."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = app(arguments, prog_name="forescale", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ForescaleError as error:
        return _refuse(error)
    except OSError as error:
        return _refuse(error)
    return code if isinstance(code, int) else 0


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


def _refuse(error: Exception) -> int:
    code = _say(str(error))
    if isinstance(error, InfeasibleError) and error.rows:
        from forescale.cli.console import console
        from forescale.cli.render.infeasible import refusals

        console(error=True).print(refusals(error.rows))
    return code


def _say(text: str) -> int:
    typer.echo(f"error: {' '.join(text.split())}", err=True)
    return USAGE_ERROR

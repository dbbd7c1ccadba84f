"""The parser of typer, made of what commands declare: for help, completion and errors."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Annotated, Any, cast, get_args, get_type_hints

import typer
from typer.main import get_command

from forescale.cli.advice import instead, options_of, without_value
from forescale.cli.console import refused, say
from forescale.cli.declare import Bounded, CommandGroup, Declaration, Group
from forescale.cli.front import COMMANDS, TEXT
from forescale.cli.help import CommandGroup as TyperGroup
from forescale.cli.help import Commands
from forescale.cli.misspelt import command_in, no_command, started
from forescale.cli.options import described_options
from forescale.cli.reproduce import TYPED
from forescale.cli.words import command_of
from forescale.errors import nearest
from forescale.synonyms import is_slip
from forescale.version import __version__

Hint = Any
"""A type as annotations write it."""
EMPTY = inspect.Parameter.empty
_COMMAND = re.compile(r"No such command '([^']*)'")
_VALUE = re.compile(r"Option '(--\S+)' requires an argument")
_EXTRA = re.compile(r"unexpected extra argument\S* \((.*)\)")
JOINING = frozenset(("on", "with", "for", "using", "of", "and", "gpus", "devices", "x"))
"""Words between the parts of a question that was written as a sentence."""
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""Base of all errors in how a command was written, whichever click typer comes with."""


def run(names: Sequence[str]) -> int:
    """Run a command line that is not plain, or explain what is wrong with it, and return the exit code."""
    try:
        command = entry_point(_needed(names))
        code = command(names, prog_name="forescale", standalone_mode=False, obj=tuple(names))
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except _UsageError as error:
        return _usage(error)
    return code if isinstance(code, int) else 0


def _needed(names: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that an invocation can reach: all of them, unless it starts with one."""
    return (names[0],) if names and names[0] in COMMANDS else tuple(COMMANDS)


@lru_cache
def entry_point(names: tuple[str, ...]) -> Any:  # noqa: ANN401  (whichever click typer has)
    """Return the parser of the named commands, built once in a process: a hundred options take longer than answers."""
    return get_command(application(names))


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
        command = typed(command_of(name))
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def typed(command: CommandGroup | Callable[..., None]) -> typer.Typer | Callable[..., None]:
    """Return a command, or commands behind one name, as typer registers it."""
    if not isinstance(command, CommandGroup):
        return _function(command)
    app = Commands(cls=_group(command), help=command.text, no_args_is_help=command.lead is None)
    for name, function in command.commands.items():
        app.command(name, epilog=command.epilogs.get(name))(_function(function))
    return app


def _group(command: CommandGroup) -> type[TyperGroup]:
    """Return typer's class of a group, which completes a command line before it is parsed."""

    class Led(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (whichever click typer has)
            words = args if command.lead is None else command.lead(args, self.commands)
            return super().parse_args(ctx, words)

    return Led


def _function(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function of the fields of all groups that one takes."""
    hints = get_type_hints(function)
    names = inspect.signature(function).parameters
    parameters = [one for name, item in names.items() for one in _parameters(name, hints[name], item.default)]

    @wraps(function)
    def call(**given: object) -> None:
        function(**{name: _built(name, hints[name], given) for name in names})

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def members(kind: type[Group]) -> Iterator[tuple[str, Hint, object]]:
    """Yield name, type and declaration of the fields of a group, except groups that its commands do not take."""
    if (described := getattr(kind, "described", None)) is not None:
        yield from ((name, hint, declared) for name, hint, declared, _ in described_options(described))
        return
    hints = get_type_hints(kind)
    for name in kind.__struct_fields__:
        if not any(map(is_group, get_args(hints[name]))):
            yield name, hints[name], kind.declared.get(name)


def is_group(hint: Hint) -> bool:
    """Return whether a type is a group of options."""
    return isinstance(hint, type) and issubclass(hint, Group)


def _parameters(name: str, hint: Hint, value: object) -> list[inspect.Parameter]:
    """Return what typer makes options of: of a group all that is in it, and in groups within."""
    if not is_group(hint):
        return [_parameter(name, hint, value)]
    return [one for item, kind, default in members(hint) for one in _parameters(item, kind, default)]


def _built(name: str, hint: Hint, values: Mapping[str, object]) -> object:
    """Return the value of a parameter, a group of what was given for its options."""
    if not is_group(hint):
        return values[name]
    return hint(**{item: _built(item, kind, values) for item, kind, _ in members(hint)})


def flags_of(name: str, hint: Hint, declared: Declaration) -> list[str]:
    """Return how an option is written, after a slash how it is turned off."""
    usual = f"--{name.replace('_', '-')}"
    if hint in (bool, bool | None) and declared.default is not False:
        usual += f"/--no-{usual[2:]}"
    return declared.flag.split() or [usual]


def _parameter(name: str, hint: Hint, value: object) -> inspect.Parameter:
    """Return what typer makes an option or an argument of."""
    assert isinstance(value, Declaration), name
    settings: dict[str, Any] = dict(value.settings)
    if value.is_argument:
        hint = Annotated[hint, typer.Argument(**settings)]
    else:
        if hint in (int, int | None):
            settings["metavar"] = settings["metavar"] or "N"
        parse = settings.pop("parser")
        hint = hint if parse is None else str | None  # its errors are ours: typer rewords those of a parser
        settings["callback"] = _callback(settings["callback"], parse)
        hint = Annotated[hint, typer.Option(*flags_of(name, hint, value), **settings)]
    default = EMPTY if value.default is ... else value.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _callback(
    check: Bounded | Callable[[Any], Any] | None, parse: Callable[[str], Any] | None
) -> Callable[..., Any] | None:
    """Return what reads and checks a value as typer calls it."""
    if check is None and parse is None:
        return None

    def callback(param: typer.CallbackParam, value: Any) -> Any:  # noqa: ANN401
        if parse is not None and value is not None:
            value = parse(value)
        if check is None:
            return value
        return check.of(value, param.opts[0]) if isinstance(check, Bounded) else check(value)

    callback.__annotations__ = {"param": typer.CallbackParam, "value": Any}
    return callback


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
    elif (option := _VALUE.match(text)) and (name := command_in(TYPED.get())[0]):
        path, text = f"forescale {name}", without_value(option[1], name)
    elif path == "forescale" and (word := _COMMAND.match(text)):
        text = no_command(word[1])
    lacked = getattr(getattr(error, "param", None), "opts", ()) if text.startswith("Missing option") else ()
    example = started(TYPED.get(), lacked)
    return refused(f"{text.rstrip('.')}. {example}" if example else f"{text.rstrip('.')} (see {path} --help)")


def _taken(text: str, path: str) -> str:
    """Return the options of a command that take the words of `text`, which were written without them."""
    typed_words, extra = list(TYPED.get()), text.split()
    named = [word for word in extra if word.lower() not in JOINING]
    said = [_option_for(word, path, typed_words) for word in named]
    if not all(said):
        return ""
    options = [word for words in said for word in words]
    if any(typed_words.count(word) != 1 for word in extra):
        return f"; write {' '.join(options)}"
    kept = [word for word in typed_words if word not in extra]
    return f"; write {' '.join(options)}: {shlex.join(('forescale', *kept, *options))}"


def _option_for(word: str, path: str, typed_words: Sequence[str]) -> tuple[str, ...]:
    """Return the options of a command for a number, a cluster or a schedule; nothing where it has none."""
    from forescale.catalogue.clusters import cluster_names, counted_cluster
    from forescale.schedule import families

    options = options_of(path)
    if word.isdigit() and not {"--devices", "--nodes"} & {*typed_words}:
        return ("--devices", word) if "--devices" in options else ()
    if (counted := counted_cluster(word)) is not None and all(counted) and "--devices" in options:
        return ("--cluster", counted[0], "--devices", counted[1])
    if not word.replace(".", "").isdigit():
        for option, names in (
            ("--schedule", [family.name for family in families()]),
            ("--cluster", cluster_names()),
        ):
            like = nearest(word, names, 1)
            if option in options and like and (word.lower() in like[0] or is_slip(word, like[0])):
                return option, word
    return ()

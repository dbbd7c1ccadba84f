"""What `--help` prints: plain text for 80 columns, options by group, rare groups by name only until `--help-all`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from forescale.cli.declare import Rare
from forescale.cli.front import continued
from forescale.cli.misspelt import EVERYTHING, examples_of
from forescale.errors import no_value, not_one_of, wrong_type
from forescale.limits import whole_of
from forescale.spec.space import DEGREE_NAMES
from forescale.synonyms import spelling

F = TypeVar("F", bound=Callable[..., Any])
MOST = 29
"""Columns of an option with its values; longer lists of values go into the text."""
KINDS = {
    "<int>": "N",
    "<int range>": "N",
    "<float>": "X",
    "<float range>": "X",
    "<path>": "FILE",
    "<str>": "TEXT",
}
"""Short words for kinds of values that have no name of their own."""
_SIZED = re.compile(r"(\d+(?:\.\d+)?) ?([kKmMbB]?) ?(tok(?:ens?)?)?")
"""A number with a unit: digits, thousands, tokens."""
NUMBERS = {int: "a whole number", float: "a number"}
"""Kinds of values that a text may fail to be, in words."""


class Command(TyperCommand):
    """A command whose help never cuts a name."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401  (whichever click typer has)
        """Return the parameters, which take plain values as they are."""
        return _hastened(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (whichever click typer has)
        """Take `--help-all` for `--help` with nothing folded; every option that takes a value has one."""
        ctx.meta[EVERYTHING] = EVERYTHING in args
        _refuse_empty(args)
        _refuse_options_as_values(args, self.get_params(ctx))
        return super().parse_args(ctx, ["--help"] if ctx.meta[EVERYTHING] else args)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write options group by group, and the names of those that are folded."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            names, text = parameter.get_help_record(ctx) or ("", "")
            if "--help" in parameter.opts and self.params:  # who reads this knows it
                continue
            if parameter.param_type_name == "argument":
                groups.setdefault("Arguments", []).append((names.split()[0], text))
            else:
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(panel, []).append(_short(names, text))
        rare = () if ctx.meta[EVERYTHING] else [name for name in groups if isinstance(name, Rare)]
        folded = {name: groups.pop(name) for name in rare}
        for name, records in groups.items():
            _section(formatter, name, records)
        if folded:
            with formatter.section(f"More ({EVERYTHING} describes them)"):
                for name, records in folded.items():
                    flags = ", ".join(flag for names, _ in records for flag in _flags(names))
                    _paragraph(formatter, f"{name}: {flags}")
        _examples(formatter, examples_of(ctx.command_path.partition(" ")[2]))


class CommandGroup(TyperGroup):
    """A group of commands that says of each what it does, at length."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        """Return the parameters, which take plain values as they are."""
        return _hastened(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the commands."""
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, (item.help or "").partition("\n\n")[0]) for name, item in known if item is not None]
        _section(formatter, "Commands", rows)
        path = ctx.command_path.partition(" ")[2]
        _examples(formatter, [shown for name, _ in known for shown in examples_of(f"{path} {name}")[:1]])


class Commands(typer.Typer):
    """A group of such commands."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  (as typer.Typer)
        super().__init__(rich_markup_mode=None, **{"cls": CommandGroup, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:  # noqa: ANN401
        """Register a command."""
        return super().command(name, cls=Command, **settings)


def _examples(formatter: Any, shown: Sequence[tuple[str, str]]) -> None:  # noqa: ANN401
    """Write questions and the commands that answer them."""
    if shown:
        with formatter.section("Examples"):
            for question, command in shown:
                _paragraph(formatter, question)
                formatter.write("\n".join(continued(f"forescale {command}", formatter.width)) + "\n")


def _refuse_empty(args: list[str]) -> None:
    """Refuse an option without a letter, which would count as not given."""
    for word, following in zip(args, [*args[1:], "-"], strict=False):
        name, equals, value = word.partition("=")
        if name[:1] == "-" and not (value if equals else following).strip():
            raise no_value(name)


def _refuse_options_as_values(args: list[str], parameters: list[Any]) -> None:
    """Refuse an option of the command in the place of another one's value."""
    options = [parameter for parameter in parameters if parameter.param_type_name == "option"]
    known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    valued = {name for option in options if not option.is_flag for name in option.opts}
    for word, following in pairwise(args):
        if word in valued and following in known and following.startswith("--"):
            raise no_value(word, f"got the option {following}")


def _hastened(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if "process_value" not in vars(parameter):
            _hasten(parameter)
    return parameters


def _hasten(parameter: Any) -> None:  # noqa: ANN401  (whichever click typer has)
    """Take what is plainly right as it is: typer's own check loads pydantic, which takes as long as many an answer."""
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    usual = parameter.process_value

    def process(ctx: Any, value: Any) -> Any:  # noqa: ANN401
        if kind is int and isinstance(value, str) and value[-1:] in ("k", "K"):
            from forescale.units import in_thousands

            value = next(filter(None, (in_thousands(flag, value) for flag in parameter.opts)), value)
        if value is None and not parameter.required:
            plain: Any = () if parameter.multiple or parameter.nargs == -1 else None
        elif (plain := _plain(kind, value)) is None:
            try:
                return usual(ctx, value)
            except typer.BadParameter as error:
                name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
                if get_origin(kind) is Literal and isinstance(value, str):
                    raise not_one_of(name, value, get_args(kind), _fix(name, value)) from error
                if kind not in NUMBERS or "unable to parse" not in str(error):
                    raise
                raise wrong_type(name, value, NUMBERS[kind], _fix(name, value)) from error
        return plain if parameter.callback is None else parameter.callback(ctx, parameter, plain)

    parameter.process_value = process


def _fix(name: str, text: str) -> str:
    """Return how to write a value that an option does not take: a number with a unit, an optimizer of 8 bits."""
    number = _SIZED.fullmatch(text.strip())
    if number and (name == "--global-batch-size" and (number[3] or number[2] not in "kK")):
        return "give sequences: the tokens of a batch divided by those of a sequence, such as 1024 for 4M at 4,096"
    if number and number[2] in ("k", "K") and float(number[1]).is_integer():
        thousands = int(float(number[1]))
        return f"write {1024 * thousands} or {1000 * thousands}"
    if name == "--optimizer" and "adam" in text.lower() and "8" in text:
        return "write --optimizer adamw --moment-dtype fp8, which has one byte for each moment"
    if "," not in text or name == "--microbatches":
        return ""
    if name == "--devices":
        return f"to try several: forescale compare MODEL --devices {text.replace(' ', '')}"
    from forescale.cli.advice import options_of, rows_of, table
    from forescale.cli.misspelt import command_in
    from forescale.cli.reproduce import TYPED

    field, values = name[2:].replace("-", "_"), text.replace(" ", "")
    path = command_in(TYPED.get())[0] or ""
    if (of_stages := f"--stage-{name[2:]}") in options_of(path):
        return f"for one of each stage, write {of_stages} {values}"
    if name not in options_of("compare") or "model" not in dict(rows_of(table()["commands"].get(path, {}))):
        return ""
    of_search = f", or forescale search --fix {field}={values}" if field in DEGREE_NAMES else ""
    return f"to try several: forescale compare MODEL --vary {field}={values}{of_search}"


def _plain(kind: Any, value: object) -> object:  # noqa: ANN401  (an annotation)
    """Return text, a flag, a word of a list, a path or a whole number as what it is; None if it is none of these."""
    if kind is not None and (kind in (str, bool, int) and type(value) is kind):
        return value
    if get_origin(kind) is Literal and isinstance(value, str):
        return value if value in get_args(kind) else spelling(value, get_args(kind))
    if isinstance(value, str) and value:
        return Path(value) if kind is Path else whole_of(value) if kind is int else None
    return None


def _flags(names: str) -> list[str]:
    """Return how an option is written, without what stands for its value and without what turns it off."""
    return [word.rstrip(",") for word in names.partition(" / ")[0].split() if word.startswith("-")]


def _short(names: str, text: str) -> tuple[str, str]:
    """Move a long list of values from an option's name into its text; name other values in a word."""
    for kind, word in KINDS.items():
        names = names.replace(kind, word)
    flags, _, values = names.rpartition(" ")
    if len(names) <= MOST or "|" not in values or values[0] not in "<[":
        return names, text
    listed = values.strip("<>[]").replace("|", ", ")
    message, bracket, default = text.partition("  [")
    return f"{flags} WORD", f"{message} One of {listed}.{bracket}{default}"


def _paragraph(formatter: Any, text: str) -> None:  # noqa: ANN401
    """Write a text in lines, further ones indented."""
    indent, width = " " * formatter.current_indent, max(20, formatter.width)
    indents = {"initial_indent": indent, "subsequent_indent": f"{indent}  "}
    lines = wrap(text, width, **indents, break_on_hyphens=False, break_long_words=False)
    formatter.write("\n".join(lines) + "\n")


def _section(formatter: Any, title: str, rows: Iterable[tuple[str, str]]) -> None:  # noqa: ANN401
    """Write names and what they mean, which starts below names that are long; no word is broken."""
    rows = list(rows)
    column = min(max(len(name) for name, _ in rows), MOST) + 2
    with formatter.section(title):
        indent = formatter.current_indent
        for name, text in rows:
            lines = wrap(text, max(20, formatter.width - column - indent), break_on_hyphens=False)
            beside = lines[:1] if len(name) + 2 <= column else []
            formatter.write(f"{'':{indent}}{name:{column}}{''.join(beside)}".rstrip() + "\n")
            for line in lines[len(beside) :]:
                formatter.write(f"{'':{indent + column}}{line}\n")

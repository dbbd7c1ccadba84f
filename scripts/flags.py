"""Write src/forescale/cli/flags.json: the options of every command, for plain command lines and misspelt options.

`python -m scripts.flags` writes the file; a test compares it with what this script would write.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from forescale.cli import misspelt
from forescale.cli.declare import Bounded, CommandGroup, Declaration
from forescale.cli.front import COMMANDS
from forescale.cli.options import described_options, price_of, sequence_length
from forescale.cli.typed import flags_of, is_group, members
from forescale.cli.words import command_of
from forescale.limits import Interval
from forescale.spec.space import NAMES, SETTING_NAMES

TABLE = Path(misspelt.__file__).with_name("flags.json")
KINDS = {str: "text", int: "whole", float: "number", bool: "switch", Path: "file"}
"""Types of values that a plain word is one of."""


def commands() -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield all commands with their names."""
    for name in COMMANDS:
        command = command_of(name)
        if isinstance(command, CommandGroup):
            yield from ((f"{name} {item}", function) for item, function in command.commands.items())
        else:
            yield name, command


def bare(hint: Any) -> Any:  # noqa: ANN401  (a type)
    """Return a type without None."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    (part,) = (item for item in parts if item is not NoneType)
    return part


def row(name: str, hint: Any, declared: Declaration) -> dict[str, Any]:  # noqa: ANN401  (a type)
    """Return an option or an argument: its kind, how it is written, its default, and what its value must be."""
    kind, parse, check = bare(hint), declared.settings.get("parser"), declared.settings.get("callback")
    many = get_origin(kind) is list
    if many:
        (kind,) = get_args(kind)
    values: dict[str, Any] = {"kind": get_args(kind) if get_origin(kind) is Literal else KINDS[kind]}
    if parse is not None:
        values["kind"] = _parsed_as(parse)
    if not declared.is_argument:
        on, _, off = " ".join(flags_of(name, hint, declared)).partition("/")
        values["on"] = on.split()
        values |= {"off": off.split()} if off else {}
    if check is not None:
        values["check"] = _bounds(check.interval) if isinstance(check, Bounded) else None
    values |= {"many": True} if many else {}
    values |= {"required": True} if declared.default is ... else {}
    return values | ({} if declared.default in (None, ...) else {"default": declared.default})


def _parsed_as(parse: Callable[[str], Any]) -> str:
    """Return the kind of the values that a parser of an option reads."""
    if isinstance(parse, partial) and parse.func is price_of:
        return f"money/{parse.keywords['unit']}"
    return "length" if isinstance(parse, partial) and parse.func is sequence_length else "other"


def _bounds(interval: Interval) -> dict[str, float]:
    """Return the ends that an interval has."""
    usual = Interval()._asdict()
    return {name: value for name, value in interval._asdict().items() if value != usual[name]}


def parameter(name: str, hint: Any, declared: Any, groups: dict[str, Any]) -> Any:  # noqa: ANN401  (a type)
    """Return a parameter of a command: an option, or the name of a group, which is added to the groups."""
    if not is_group(hint):
        return row(name, hint, declared)
    place = f"{hint.__module__}:{hint.__name__}"
    if place not in groups:
        groups[place] = {item: parameter(item, kind, one, groups) for item, kind, one in members(hint)}
        if (described := getattr(hint, "described", None)) is not None:
            for item, _, _, path in described_options(described):
                groups[place][item]["path"] = path
    return place


def written() -> str:
    """Return the file, a command or group a line."""
    groups: dict[str, Any] = {}
    rows = {}
    for path, function in commands():
        hints = get_type_hints(function)
        rows[path] = {
            name: parameter(name, hints[name], item.default, groups)
            for name, item in inspect.signature(function).parameters.items()
        }
    parts = [f'"{title}": {{\n{_lines(one)}\n}}' for title, one in (("groups", groups), ("commands", rows))]
    return ",\n".join((f'{{"held_by_fix": {json.dumps([*NAMES, *SETTING_NAMES])}', *parts)) + "}\n"


def _lines(rows: dict[str, Any]) -> str:
    return ",\n".join(
        f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in rows.items()
    )


if __name__ == "__main__":
    TABLE.write_text(written(), encoding="utf-8")

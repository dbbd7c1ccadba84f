"""Parse a plain command line by the table of options, which takes a fraction of the time of a parser of typer.

What is not plain is left to typer: help, completion, and everything that it answers with an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from forescale.cli.advice import rows_of, table
from forescale.cli.declare import CommandGroup
from forescale.cli.front import MODULES
from forescale.errors import ForescaleError, not_one_of, wrong_type
from forescale.limits import Interval, whole_of, within
from forescale.struct import Struct
from forescale.synonyms import spelling

Options = TypeVar("Options", bound=Struct)
SWITCHED = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
KINDS = {
    "whole": "a whole number",
    "number": "a number",
    "length": "a number of tokens",
    "money/h": "an amount",
    "money/kWh": "an amount",
    "switch": "on or off",
}
PRICES = ("money/h", "money/kWh")
"""Kinds of amounts of money, by their dimension."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


class _UnusualError(Exception):
    """What is written is not plain."""


def command_of(name: str) -> CommandGroup | Callable[..., None]:
    """Return the command of a name: `NAME_app`, a group, or the function `NAME_command` of its module."""
    module = import_module(f"forescale.cli.{MODULES.get(name, name)}")
    found: CommandGroup | Callable[..., None] | None = getattr(module, f"{name}_app", None)
    return getattr(module, f"{name}_command") if found is None else found


def parsed(words: Sequence[str]) -> Callable[[], None] | None:
    """Return the call of the command that the words of a command line name; None if they are not plain."""
    name, *rest = words
    command = command_of(name)
    if isinstance(command, CommandGroup):
        rest = rest if command.lead is None else command.lead(rest, command.commands)
        if not rest or rest[0] not in command.commands:
            return None
        name, command, rest = f"{name} {rest[0]}", command.commands[rest[0]], rest[1:]
    values = values_of(name, rest)
    return None if values is None else partial(command, **values)


def values_of(path: str, words: Sequence[str]) -> dict[str, object] | None:
    """Return the values of the parameters of a command, such as `pipeline draw`; None if the words are not plain."""
    rows = table()["commands"][path]
    try:
        values = _values(words, rows)
        return {parameter: _built(row, parameter, values) for parameter, row in rows.items()}
    except (_UnusualError, ForescaleError):
        return None


def _values(words: Sequence[str], rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are given by name."""
    known = dict(rows_of(rows))
    named: dict[str, tuple[str, Mapping[str, Any], Any]] = {
        flag: (name, row, key == "on")
        for name, row in known.items()
        for key in ("on", "off")
        for flag in row.get(key, ())
    }
    places = [(name, row) for name, row in known.items() if "on" not in row]
    texts: dict[str, list[Any]] = {}
    left, free = iter(words), []
    for word in left:
        if word[:1] != "-" or word == "-":
            free.append(word)
            continue
        flag, equals, text = word.partition("=")
        if flag not in named or (equals and flag[:2] != "--"):
            raise _UnusualError
        name, row, value = named[flag]
        if row["kind"] != "switch":
            value = text if equals else next(left, "")
        if (row["kind"] == "switch" and equals) or str(value)[:2] == "--":
            raise _UnusualError
        texts.setdefault(name, []).append(value)
    for name, row in places:
        taken = len(free) if row.get("many") else 1
        texts[name], free = free[:taken], free[taken:]
    if free or not all(map(str.strip, words)):
        raise _UnusualError
    return {name: _value(known[name], items) for name, items in texts.items() if items}


def _value(row: Mapping[str, Any], texts: Sequence[Any], name: str = "") -> object:
    """Return the value of an option that is given: of several times the last, if it is not of many."""
    if row.get("many"):
        return [_read(row, text, name) for text in texts]
    return _read(row, texts[-1], name)


def _read(row: Mapping[str, Any], text: Any, name: str) -> object:  # noqa: ANN401  (text, or whether a switch is on)
    """Return one value; raises if a text is not plainly one."""
    kind = row["kind"]
    value: Any = text
    if isinstance(kind, list):
        value = text if text in kind else spelling(text, kind, (row.get("path") or [""])[-1])
    elif kind == "whole":
        value = whole_of(text)
        if value is None and name and text:
            from forescale.units import in_thousands

            value = in_thousands(name, text)
    elif kind == "number":
        percent = text.endswith("%") and row.get("check", {}).get("le") == 1
        number = text.removesuffix("%") if percent else text
        value = float(number) / (100.0 if percent else 1.0) if _NUMBER.fullmatch(number) else None
    elif kind == "file":
        value = Path(text)
    elif kind == "length":
        from forescale.units import length_of

        value = length_of(text)
    elif kind in PRICES:
        from forescale.units import parse

        value = parse(text, kind)
    elif kind not in ("text", "switch"):
        value = None
    if value in (None, "") or ("check" in row and row["check"] is None):
        raise _UnusualError
    if bounds := row.get("check"):
        value = within(value, Interval(**bounds), name, whole=kind == "whole")
    return value


def option_value(row: Mapping[str, Any], name: str, text: str) -> object:
    """Return the value of an option, a row of the table, as the command line reads its text; a switch is on or off.

    Raises
    ------
    SpecError
        If the option does not take it; `name` is what the error calls it.
    """
    kind = row["kind"]
    try:
        return _value(row, [SWITCHED.get(text) if kind == "switch" else text], name)
    except _UnusualError:
        if isinstance(kind, list):
            raise not_one_of(name, text, kind) from None
        raise wrong_type(name, text, KINDS.get(kind, kind)) from None


def with_option(options: Options, group: str, name: str, value: object) -> Options:
    """Return the options of a group of the table with another value of one of them, wherever in it."""
    for item, row in table()["groups"][group].items():
        if item == name and not isinstance(row, str):
            return replace(options, **{name: value})
        if isinstance(row, str) and name in dict(rows_of(table()["groups"][row])):
            return replace(options, **{item: with_option(getattr(options, item), row, name, value)})
    raise KeyError(name)


def _built(row: Any, name: str, values: Mapping[str, Any]) -> object:  # noqa: ANN401  (a row, or the name of a group)
    """Return the value of a parameter: as given, its default, or a group of such."""
    if not isinstance(row, str):
        if name not in values and row.get("required"):
            raise _UnusualError
        return values.get(name, row.get("default"))
    module, _, kind = row.rpartition(":")
    rows = table()["groups"][row]
    return getattr(import_module(module), kind)(
        **{item: _built(one, item, values) for item, one in rows.items()}
    )

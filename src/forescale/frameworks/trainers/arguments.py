"""Arguments of Python programs: what argparse and Transformers' HfArgumentParser make of a command."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from typing import Any, Final

from forescale.frameworks.python.calls import Caller
from forescale.frameworks.python.module import Class, World
from forescale.frameworks.python.values import MISSING, Call, Opaque
from forescale.frameworks.trainers.configured import folder_of, loaded

PARSERS: Final = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
"""Parsers whose arguments are the fields of dataclasses."""
PARSES: Final = ("parse_args_into_dataclasses", "parse_args_and_config", "parse")
"""Methods that return one object for each of these dataclasses."""
TABLES: Final = ("parse_dict", "parse_yaml_file", "parse_json_file")
"""Methods that do so for a table, or for that of a file."""
SHORTEST: Final = 10
"""Letters of a name that is completed."""
SHORT: Final = 2
"""Letters of an option that has a name of one letter."""
LENGTHS: Final = ("max_seq_length", "model_max_length", "max_length", "max_seq_len")
"""Arguments that programs have for the tokens of a sequence."""


class Fields(dict[str, Any]):
    """Values of arguments, which keep the names that the program asks for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.used: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return the value of an argument."""
        self.used.add(name)
        return super().get(name, default)


class Arguments:
    """What a command gives a program, and the defaults that the program declares for the rest."""

    def __init__(self, given: Mapping[str, Any], names: Collection[str], words: Sequence[str] = ()) -> None:
        self.given = {name: number(value) for name, value in given.items()}
        self.options = {
            before: after for before, after in pairwise(words) if len(before) == SHORT and before[0] == "-"
        }
        """Words after options of one letter."""
        self.words = list(takewhile(lambda word: not word.startswith("-"), words))
        """Words of the command before its first option."""
        self.places: list[str] = []
        """Names of the arguments that these give, in their order."""
        self.names = names
        """Arguments of TrainingArguments, which a command may shorten."""
        self.defaults: dict[str, Any] = {}
        """Defaults of arguments of argparse, by name."""
        self.declared: dict[str, Any] = {}
        """Defaults of a dataclass that is, or builds on, TrainingArguments."""
        self.own: set[str] = set()
        """Names of arguments that the program declares itself, whose meaning is what its calls make of them."""
        self.required: set[str] = set()
        """Names of arguments without which the program does not start."""
        self.usual: dict[str, Any] = {}
        """Defaults of these."""
        self.laid: set[str] = set()
        """Names of the parameters of a command's function, which it gives them as options."""
        self.made: list[Call] = []
        """The objects that the parser returns."""

    @property
    def used(self) -> set[str]:
        """Names of arguments that the program asks for."""
        asked = {name for call in self.made if isinstance(call.fields, Fields) for name in call.fields.used}
        return asked | self.laid

    @property
    def length(self) -> int | None:
        """The tokens of a sequence, if the program has an argument of its own for them and asks for it."""
        values = ({**self.usual, **self.given}.get(name) for name in LENGTHS if name in self.own & self.used)
        return next((value for value in values if isinstance(value, int) and value > 0), None)

    def answer(self, call: Call, owner: object, world: World | None) -> Any:  # noqa: ANN401
        """Return what a call on a parser makes; MISSING for any other call."""
        last = call.name.rpartition(".")[2]
        if last == "add_argument" and call.args:
            return self._declare(call, owner)
        if last == "add_subparsers":
            self.places.append(str(call.fields.get("dest", "")))
        if last in ("parse_args", "parse_known_args") and last != call.name:
            placed = dict(zip(self.places, map(number, self.words), strict=False))
            made = self._made(Call("Namespace", call.place, fields={**self.defaults, **self.given, **placed}))
            return made if last == "parse_args" else (made, [])
        if call.name == "vars" and call.args and isinstance(space := call.args[0], Call):
            self._all_used(space)
            return space.table()
        if last == "set_defaults" and last != call.name:
            unknown = dict.fromkeys(self.defaults, Opaque(call.open, call.place)) if call.open else {}
            self.defaults |= unknown | call.fields
            return None
        parses = isinstance(owner, Call) and owner.name in PARSERS and last in (*PARSES, *TABLES)
        if not parses or world is None:
            return MISSING
        if last in TABLES:
            first = next(iter((*call.args, *call.fields.values())), None)
            table = first if isinstance(first, dict) else loaded(first, folder_of(call), call)
            if not isinstance(table, dict):
                return MISSING
            self.given |= {str(name): value for name, value in table.items() if _plain(value)}
        objects = self._objects(owner, world)  # type: ignore[arg-type]
        return objects[0] if last == "parse" and len(objects) == 1 else objects

    def _declare(self, call: Call, owner: object) -> None:
        """Keep the default of an argument of argparse, or of the parser of one of its commands."""
        is_part = isinstance(owner, Call) and ".add_parser(" in owner.name and bool(self.words)
        if is_part and owner.args[:1] and owner.args[0] not in self.words:  # type: ignore[attr-defined]
            return
        names = [str(arg) for arg in call.args if isinstance(arg, str)] or [""]
        name = next((name for name in names if name.startswith("--")), names[0])
        name = str(call.fields.get("dest") or name.lstrip("-").replace("-", "_"))
        switches = call.fields.get("action") == "store_false"
        short = next((short for short in names if short in self.options), "")
        if short and "action" not in call.fields:
            self.given[name] = number(self.options[short])
        self.own.add(name)
        self.places += [name] * bool(names[0] and not names[0].startswith("-"))
        self.required |= {name} if call.fields.get("required") is True else set()
        if "default" in call.fields or ("action" in call.fields and name not in self.defaults):
            self.defaults[name] = self.usual[name] = call.fields.get("default", switches)
        elif self.given and names[0].startswith("-") and name not in self.required:
            self.defaults.setdefault(
                name, None
            )  # of a command: a program that is given alone may be started otherwise

    def _objects(self, parser: Call, world: World) -> tuple[Call, ...]:
        """Return the objects of a parser's dataclasses, in their order."""
        kinds = next(iter((*parser.args, *parser.fields.values())), ())
        kinds = kinds if isinstance(kinds, list | tuple) else (kinds,)
        made = [_object(kind, world) for kind in kinds]
        own = {name for call in made for name in call.defaults}
        self.given = _completed(self.given, own, self.names)
        for kind, call in zip(kinds, made, strict=True):
            opens, declared = _opens(call), {k: v for k, v in call.defaults.items() if _plain(v)}
            taken = {k: v for k, v in self.given.items() if k in call.defaults or (opens and k not in own)}
            if opens:
                self.declared |= declared
            else:
                self.own |= call.defaults.keys()
                self.usual |= declared
            set_later = _object(kind, world, taken).fields if call.of is not None else {}
            call.fields = {**declared, **taken, **set_later}
            self._made(call)
        return tuple(made)

    def _made(self, call: Call) -> Call:
        call.fields = Fields(call.fields)
        self.made.append(call)
        return call

    @staticmethod
    def _all_used(space: Call) -> None:
        if isinstance(space.fields, Fields):
            space.fields.used |= space.fields.keys()


def _object(kind: object, world: World, given: Mapping[str, Any] | None = None) -> Call:
    """Return an object of a dataclass that is `given` values, with its defaults where it can be read."""
    if not isinstance(kind, Class):
        name = kind.text.rpartition(".")[2] if isinstance(kind, Opaque) else "Arguments"
        return Call(name, str(kind.place) if isinstance(kind, Opaque) else "", kinds=("", name))
    frame = world.frame(kind.module, {}, {})
    words = [ast.keyword(name, ast.Constant(value)) for name, value in (given or {}).items()]
    node = ast.Call(ast.Name(kind.node.name, ast.Load()), [], words)
    ast.fix_missing_locations(ast.copy_location(node, kind.node))
    return Caller(frame, node).build(kind)


def table_of(value: object, world: World) -> Any:  # noqa: ANN401
    """Return a structured configuration, a dataclass or an object of one, as tables in tables."""
    made = _object(value, world) if isinstance(value, Class) else value
    made = made.table() if isinstance(made, Call) and made.of is not None else made
    return {key: table_of(item, world) for key, item in made.items()} if isinstance(made, dict) else made


def _opens(call: Call) -> bool:
    """Whether a dataclass has fields that are not read: it is, or builds on, one of Transformers or TRL."""
    kinds = (call.name, *call.kinds)
    return call.kinds != (call.name,) and any(
        kind.endswith(("TrainingArguments", "Config")) for kind in kinds
    )


def _plain(value: object) -> bool:
    """Whether the default of a field is a value."""
    return value is not None and not isinstance(value, Call | Opaque)


def number(value: Any) -> Any:  # noqa: ANN401
    """Return a word of a command as the number that it is."""
    if not isinstance(value, str):
        return [number(item) for item in value] if isinstance(value, list) else value
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


def _completed(values: Mapping[str, Any], own: Collection[str], names: Collection[str]) -> dict[str, Any]:
    """Return arguments with the names that argparse completes: those that begin exactly one name."""
    result = {}
    for key, value in values.items():
        full = {name for name in names if name.startswith(key)} if len(key) >= SHORTEST else set()
        result[full.pop() if len(full) == 1 and key not in (*own, *names) else key] = value
    return result

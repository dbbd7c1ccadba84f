"""Functions and methods of Python itself that configurations are made with, on values that are known."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final

from forescale.frameworks.python.values import LONGEST, MISSING, Accepted, Call, checked, known

TYPES: Final[Mapping[str, type]] = {
    item.__name__: item for item in (str, int, bool, float, list, dict, tuple, set)
}


def listed(value: object) -> list[Any] | None:
    """Return what a loop over a value goes through; None where that is not known."""
    if isinstance(value, range) and value[LONGEST:]:
        return None
    return list(value) if isinstance(value, list | tuple | dict | set | range | str) else None


def copied(value: Any, seen: dict[int, Any] | None = None) -> Any:  # noqa: ANN401
    """Return a copy of a value and of all configurations, lists and tables in it."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, Call):
        made = seen[id(value)] = Call(value.name, value.place, list(value.args), known=value.known)
        made.kinds, made.of = value.kinds, value.of
        made.fields = {name: copied(item, seen) for name, item in value.fields.items()}
        made.defaults = {name: copied(default, seen) for name, default in value.defaults.items()}
        made.places = dict(value.places)
        return made
    if isinstance(value, list):
        listing = seen[id(value)] = list[Any]()
        listing += [copied(item, seen) for item in value]
        return listing
    if isinstance(value, dict):
        table = seen[id(value)] = dict[Any, Any]()
        table |= {name: copied(item, seen) for name, item in value.items()}
        return table
    return value


def _pairs(*given: Any) -> list[Any]:  # noqa: ANN401
    return list(zip(*map(_items, given), strict=False))


def _items(value: object) -> list[Any]:
    result = listed(value)
    if result is None:
        raise TypeError(value)
    return result


def _whole(value: Any = 0) -> int:  # noqa: ANN401
    return int(value) if not isinstance(value, str) or len(value) < LONGEST_NUMBER else _items(None)  # type: ignore[return-value]


LONGEST_NUMBER = 20
"""Digits of a number that is written as text."""


def _text(value: Any = "") -> str:  # noqa: ANN401
    if not isinstance(value, str | int | float | bool | None):
        raise TypeError(value)
    return str(value)


def _rounded(value: Any, digits: Any = None) -> Any:  # noqa: ANN401
    if digits is not None and abs(digits) > LONGEST_NUMBER:
        raise ValueError(digits)
    return round(value, digits)


def _table(value: Any = (), **words: Any) -> dict[Any, Any]:  # noqa: ANN401
    return dict(value, **words)


BUILTINS: Final[Mapping[str, Callable[..., Any]]] = {
    "int": _whole,
    "float": float,
    "str": _text,
    "bool": bool,
    "abs": abs,
    "round": _rounded,
    "len": lambda value: len(_items(value)),
    "min": min,
    "max": max,
    "sum": lambda value, start=0: sum(_items(value), start),
    "divmod": divmod,
    "range": range,
    "list": lambda value=(): _items(value),
    "tuple": lambda value=(): tuple(_items(value)),
    "set": lambda value=(): value if isinstance(value, Accepted) else set(_items(value)),
    "dict": _table,
    "sorted": lambda value: sorted(_items(value)),
    "reversed": lambda value: _items(value)[::-1],
    "enumerate": lambda value, start=0: list(enumerate(_items(value), start)),
    "zip": _pairs,
    "os.path.join": posixpath.join,
    "os.path.dirname": posixpath.dirname,
    "os.path.basename": posixpath.basename,
    **dict.fromkeys(("os.path.abspath", "os.path.realpath", "os.path.expanduser"), _text),
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.gcd": math.gcd,
    "math.lcm": math.lcm,
    "math.prod": lambda value: math.prod(_items(value)),
}
_OF_TEXT = frozenset(
    (
        "lower",
        "upper",
        "strip",
        "startswith",
        "endswith",
        "split",
        "rsplit",
        "partition",
        "rpartition",
        "removeprefix",
        "removesuffix",
        "isdigit",
    )
)
_OF_LIST = frozenset(("append", "insert", "pop", "index", "count", "copy", "remove", "reverse", "clear"))
_OF_TABLE = frozenset(("get", "items", "keys", "values", "pop", "setdefault", "copy", "clear"))
_OF_SET = frozenset(("add", "discard", "union"))
PATHS: Final[Mapping[str, Callable[..., str]]] = {
    **dict.fromkeys(("resolve", "absolute", "expanduser", "as_posix"), _text),
    "joinpath": posixpath.join,
}
"""Methods of a path, which stands for its text."""
METHODS: Final[Mapping[type, frozenset[str]]] = {
    str: _OF_TEXT | PATHS.keys(), list: _OF_LIST, tuple: frozenset(("index", "count")), dict: _OF_TABLE, set: _OF_SET,
    Accepted: frozenset(("keys",)),
}  # fmt: skip


def built_in(name: str, args: list[Any], values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return what one of Python's functions makes; MISSING where that is not known."""
    if not all(known(arg) and not isinstance(arg, Call) for arg in args):
        return MISSING
    if name in ("any", "all"):
        return _any_all(name, args)
    try:
        return checked(BUILTINS[name](*args, **values))
    except (TypeError, ValueError, ArithmeticError):
        return MISSING


def _any_all(name: str, args: list[Any]) -> Any:  # noqa: ANN401
    items = listed(args[0]) if args else None
    if items is None or not all(known(item) for item in items):
        return MISSING
    return any(items) if name == "any" else all(items)


def method(owner: Any, name: str, args: list[Any], values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return what a method of a text, a list or a table makes; MISSING where that is not known."""
    if name == "extend" and isinstance(owner, list):
        items = listed(args[0]) if args else None
        return MISSING if items is None or len(owner) + len(items) > LONGEST else owner.extend(items)
    if name == "join" and isinstance(owner, str):
        parts = listed(args[0]) if args else None
        if (
            parts is None
            or not all(isinstance(part, str) for part in parts)
            or sum(map(len, parts)) > LONGEST
        ):
            return MISSING
        return owner.join(parts)
    kind = dict if isinstance(owner, dict) else type(owner)
    if name not in METHODS.get(kind, ()) or (isinstance(owner, str) and not all(map(known, args))):
        return MISSING
    try:
        of_path = isinstance(owner, str) and name in PATHS
        result = PATHS[name](owner, *args) if of_path else getattr(owner, name)(*args, **values)
    except (TypeError, ValueError, LookupError):
        return MISSING
    return list(result) if isinstance(owner, dict) and name in ("items", "keys", "values") else result


def path_part(owner: str, name: str) -> Any:  # noqa: ANN401
    """Return a part of a path by its text; MISSING of another name."""
    if name == "parents":
        above = [posixpath.dirname(owner)]
        while above[-1] not in ("", "/") and len(above) < LONGEST_NUMBER:
            above.append(posixpath.dirname(above[-1]))
        return above
    stem, suffix = posixpath.splitext(posixpath.basename(owner))
    parts = {"parent": posixpath.dirname(owner), "name": stem + suffix, "stem": stem, "suffix": suffix}
    return parts.get(name, MISSING)

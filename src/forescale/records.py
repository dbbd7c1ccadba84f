"""Frozen values from plain tables (TOML, JSON, YAML), checked against their annotations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache, wraps
from marshal import dumps
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from forescale import wording
from forescale.errors import ReaderError, SpecError, UnknownKeyError, nearest
from forescale.limits import Interval, outside
from forescale.struct import Struct, annotated, hint_of
from forescale.synonyms import spelling
from forescale.units import parse

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Hint: TypeAlias = Any
"""A type as annotations write it (unions and `Annotated` included), or a value of one."""
Units: TypeAlias = Mapping[type, Mapping[str, str]]
"""By dataclass, the fields that text such as "450 GB/s" may give, and what each is measured in."""
_NO_UNITS: Units = MappingProxyType({})
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
CLASS = ("ClassVar", "typing.ClassVar")
"""How annotations of what is no field begin."""
_NUMBERS = {int: "a whole number", float: "a number", bool: "true or false"}
PLAIN = 2
"""Version of marshal's format in which equal tables of plain values have equal bytes: it refers to none twice."""
LARGEST_TABLE = 1 << 14
"""Bytes of a table up to which what a function makes of it is kept."""


def kept_by_value(function: F) -> F:
    """Return a pure function that keeps what it made last of equal arguments; equal tables have values of one type."""

    @lru_cache(maxsize=512)
    def known(call: _Call) -> object:
        return function(*call.args)

    @wraps(function)
    def call(*args: object) -> object:
        try:
            key = tuple([dumps(arg, PLAIN) if type(arg) is dict else arg for arg in args])
            hash(key)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return function(*args)
        if any(type(part) is bytes and len(part) > LARGEST_TABLE for part in key):
            return function(*args)
        return known(_Call(key, args))

    call.__dict__["cache_clear"] = known.cache_clear
    return cast("F", call)


class _Call:
    """Arguments that are compared by a key."""

    __slots__ = ("args", "key")

    def __init__(self, key: tuple[object, ...], args: tuple[object, ...]) -> None:
        self.key, self.args = key, args

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.key == other.key


def record(kind: type[T], content: object, key: str, where: object, units: Units = _NO_UNITS) -> T:
    """Return the `kind` that a table of a file describes.

    Parameters
    ----------
    kind
        A dataclass of numbers, text, choices, and tuples, tables or dataclasses of these.
    content
        The table.
    key, where
        Where it stands in which file, for messages.
    units
        Fields that may be text with a unit.

    Raises
    ------
    ReaderError
        If a key is unknown or missing, or a value is of the wrong kind or out of bounds.
    """
    walk = Walk("", units)
    built = walk.visit(kind, content, (key,) if key else ())
    if walk.problems:
        raise ReaderError(where, walk.problems[0])
    return built  # type: ignore[no-any-return]


def same(value: T, where: str, key: str) -> T:
    """Return a dataclass as it is if its fields hold what they are annotated with.

    Raises
    ------
    SpecError
        If one does not; the message says which, and what it may hold.
    """
    walk, kind = Walk(where, respells=False), cast("Hint", type(value))
    for name, form in _forms(kind).items():
        walk.read(form, getattr(value, name), (key, name) if key else (name,))
    if walk.problems:
        raise walk.problems[0].at(where)
    return value


def refuse_values(kind: type, values: Mapping[str, object]) -> None:
    """Refuse arguments of a dataclass that are not what its fields are annotated with.

    Raises
    ------
    SpecError
        For the first of them; the message says what the field may hold.
    """
    for name, value in values.items():
        walk, form = Walk(kind.__name__, respells=False), _forms(kind)[name]
        walk.read(form, value, (name,))
        if form.kinds and (walk.problems or isinstance(value, Mapping)):
            requested = " or ".join(f"{kind.__name__}(...)" for kind in form.kinds)
            raise wording.wrong_type(name, value, requested).at(kind.__name__)
        if walk.problems:
            raise walk.problems[0].at(kind.__name__)


class Walk:
    """One pass over plain values: collects problems instead of stopping at the first."""

    def __init__(self, where: str, units: Units = _NO_UNITS, *, respells: bool = True) -> None:
        self.where, self.units, self.respells = where, units, respells
        self.problems: list[SpecError] = []

    def visit(self, hint: Hint, value: object, path: tuple[str, ...]) -> Hint:
        """Return `value` as what `hint` asks for; on problems anything, after noting them."""
        return self.read(_form(hint), value, path)

    def read(self, form: _Form, value: object, path: tuple[str, ...]) -> Hint:
        """Do the same by an annotation that was taken apart."""
        if value is None and form.optional:
            return None
        if isinstance(value, float | int | str):  # most are
            return self._scalar(form, value, path)
        if isinstance(value, Mapping):
            if form.kinds:
                kind = max(form.kinds, key=lambda kind: len(value.keys() & _forms(kind).names.keys()))
                return self._dataclass(kind, value, path)
            if form.inside is not None:
                inside = form.inside
                return {name: self.read(inside, item, (*path, str(name))) for name, item in value.items()}
        elif isinstance(value, list | tuple) and form.items:
            return self._tuple(form.items, value, path)
        elif isinstance(value, form.kinds):
            return value
        return self._scalar(form, value, path)

    def _tuple(
        self, items: tuple[_Form | None, ...], value: list[Any] | tuple[Any, ...], path: tuple[str, ...]
    ) -> Hint:
        entry = (items[0],) * len(value) if items[-1] is None else items
        if len(entry) != len(value):
            return self._refuse(wording.wrong_type, path, value, f"a list of {len(entry)}")
        pairs = enumerate(zip(entry, value, strict=True))
        return tuple(self.read(cast("_Form", one), item, (*path, str(place))) for place, (one, item) in pairs)

    def _dataclass(self, kind: Hint, values: Mapping[str, Any], path: tuple[str, ...]) -> Hint:
        before = len(self.problems)
        values = kind.renewed(values) if hasattr(kind, "renewed") else values
        forms, clean, units = _forms(kind), {}, self.units.get(kind, {})
        for key, value in values.items():
            if key not in forms:
                place = ", ".join(filter(None, (self.where, ".".join(path)))) or "it"
                self.problems.append(
                    UnknownKeyError(str(key), place, forms, home_of(str(key), list(_inside(kind))))
                )
                continue
            dimension = units.get(key)
            quantity = self._quantity(value, dimension, (*path, key)) if dimension else value
            noted = len(self.problems)
            clean[key] = self.read(forms[key], quantity, (*path, key)) if quantity is not MISSING else None
            if dimension and quantity is not MISSING:
                self.problems[noted:] = [
                    violation.worded(f"{violation} {dimension}")
                    if violation.code == "out_of_range"
                    else violation
                    for violation in self.problems[noted:]
                ]
        for name in required(kind):
            if name not in values:
                self.problems.append(wording.missing(".".join((*path, name))))
        if len(self.problems) > before:
            return None
        try:
            return kind(**clean)
        except SpecError as error:
            self.problems.append(error)

    def _quantity(self, value: object, dimension: str, path: tuple[str, ...]) -> object:
        """Return text as a number of SI units, MISSING where it is none; what is no text stays."""
        if not isinstance(value, str):
            return value
        try:
            return parse(value, dimension)
        except SpecError as error:
            self.problems.append(error.worded(f"{'.'.join(path)} = {error}"))
            return MISSING

    def _scalar(self, form: _Form, value: object, path: tuple[str, ...]) -> Hint:
        """Return a plain value; what would pass by silent conversion is refused: text, or true, for a number."""
        bare, choices = form.bare, form.choices
        if choices and any(type(value) is type(choice) and value == choice for choice in choices):
            return value
        if (
            choices
            and self.respells
            and isinstance(value, str)
            and (meant := spelling(value, choices, path[-1]))
        ):
            return meant
        if type(value) in (str, bool) and type(value) in bare:
            return value
        numbers = float in bare or int in bare
        if numbers and isinstance(value, int | float) and not isinstance(value, bool):
            return self._number(bare, value, path)
        allowed, hint = _wanted(bare, choices), _like(value, choices)
        if numbers and isinstance(value, str) and _NUMBER.fullmatch(value):
            hint = "write it without quotes"
        return self._refuse(wording.not_one_of if choices else wording.wrong_type, path, value, allowed, hint)

    def _number(self, bare: Mapping[Hint, Interval], value: float, path: tuple[str, ...]) -> Hint:
        whole = int in bare and float not in bare
        finite = isinstance(value, int) or math.isfinite(value)
        if not finite or (whole and value != int(value)):
            return self._refuse(wording.wrong_type, path, value, _NUMBERS[int if whole else float])
        if violation := outside(value, bare[int if whole else float]):
            return self._refuse(wording.out_of_range, path, value, violation)
        return int(value) if whole else float(value)

    def _refuse(
        self,
        wording: Callable[..., SpecError],
        path: tuple[str, ...],
        value: object,
        allowed: str,
        fix: str = "",
    ) -> None:
        self.problems.append(wording(".".join(path) or "it", value, allowed, fix))


def _wanted(bare: Mapping[Hint, Interval], choices: Sequence[Any]) -> str:
    """Return what is allowed, in words."""
    parts = [word for kind, word in _NUMBERS.items() if kind in bare]
    if choices:
        *others, last = (*map(repr, choices), *parts)
        return f"{', '.join(others)} or {last}" if others else last
    if parts:
        return parts[0]
    if any(is_dataclass(kind) or issubclass(_class(kind), Mapping) for kind in bare):
        return "a table"
    return "text" if str in bare else "a list"


def _like(value: object, choices: Sequence[Any]) -> str:
    """Return the choice that a word is most like, as a hint."""
    close = (
        nearest(value, filter(str.isidentifier, map(str, choices)), count=1) if isinstance(value, str) else ()
    )
    return wording.did_you_mean(map(repr, close))


class _Form(Struct, frozen=True, eq=False):
    """What an annotation allows, taken apart once for all values that are read by it."""

    optional: bool
    """Whether nothing is a value."""
    kinds: tuple[Hint, ...]
    """Dataclasses that a table may describe."""
    items: tuple[_Form | None, ...]
    """What a list holds, place by place, or everywhere where the second is None; empty where it is not a value."""
    inside: _Form | None
    """What a table holds by any key, where it may be one."""
    bare: dict[Hint, Interval]
    """All types that it may be, without their bounds, and these."""
    choices: tuple[Any, ...]
    """Words or numbers that stand for themselves."""


@cache
def _form(hint: Hint) -> _Form:
    hint = _unmarked(hint)
    parts = get_args(hint) if _origin(hint) in (Union, UnionType) else (hint,)
    inner = [(_class(part), get_args(part)) for part in parts]
    lists = next((args for kind, args in inner if kind is tuple), ())
    tables = next((args for kind, args in inner if issubclass(kind, Mapping)), ())
    bare = dict(_bare(part) for part in parts if part is not NoneType)
    return _Form(
        optional=NoneType in parts,
        kinds=tuple(part for part in parts if is_dataclass(part)),
        items=tuple(None if item is Ellipsis else _form(item) for item in lists),
        inside=_form(tables[1]) if tables else None,
        bare=bare,
        choices=tuple(arg for kind in bare if _origin(kind) is Literal for arg in get_args(kind)),
    )


def _unmarked(hint: Hint) -> Hint:
    """Return an annotation with its interval alone: other metadata does not say what a value may be."""
    kind, *metadata = get_args(hint) if _origin(hint) is Annotated else (hint,)
    return next((Annotated[kind, item] for item in metadata if isinstance(item, Interval)), kind)


def _origin(hint: Hint) -> Hint:
    return get_origin(hint)


def _class(hint: Hint) -> type:
    """Return the class that a generic type is of, as tuple of `tuple[int, ...]`."""
    origin = _origin(hint)
    return origin if isinstance(origin, type) else object


def _bare(hint: Hint) -> tuple[Hint, Interval]:
    """Return a type without its bounds, and these."""
    if _origin(hint) is not Annotated:
        return hint, Interval(ge=-1e24, le=1e24)
    kind, bounds = get_args(hint)
    return kind, bounds


class _Forms(Mapping[str, _Form]):
    """What the fields of a dataclass allow, by name; each annotation is evaluated when it is asked for."""

    def __init__(self, kind: type) -> None:
        texts = {name: owner.__annotations__[name] for name, owner in annotated(kind).items()}
        self.kind = kind
        self.names = {name: None for name, text in texts.items() if not str(text).startswith(CLASS)}

    def __getitem__(self, name: str) -> _Form:
        if name not in self.names:
            raise KeyError(name)
        return _form(hint_of(self.kind, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names


@cache
def _forms(kind: type) -> _Forms:
    return _Forms(kind)


def _inside(kind: Hint) -> Iterator[tuple[str, Hint]]:
    """Yield the dataclasses within one, with the field that holds one or a list of them."""
    for name, form in _forms(kind).items():
        for item in (form, *filter(None, form.items)):
            yield from ((name, kind) for kind in item.kinds)


def home_of(key: str, tables: Sequence[tuple[str, Hint]]) -> str:
    """Return which of some tables, by dotted name, has a key, the outermost first; empty where none does."""
    seen: set[Hint] = set()
    while tables:
        if result := next((name for name, kind in tables if key in _forms(kind)), ""):
            return result
        seen.update(kind for _, kind in tables)
        inside = [(f"{name}.{field}", item) for name, kind in tables for field, item in _inside(kind)]
        tables = [(name, kind) for name, kind in inside if kind not in seen]
    return ""


@cache
def required(kind: Hint) -> tuple[str, ...]:
    """Return the required fields."""
    return tuple(
        item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING
    )

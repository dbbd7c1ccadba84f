"""Frozen values: msgspec's structs, made in a fortieth of a dataclass's time, that answer as dataclasses do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, asdict, field, fields, is_dataclass, make_dataclass
from functools import cache
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import NODEFAULT


class _Fields:
    """The fields of a struct in the form of dataclasses, made when `fields`, `asdict` or `replace` asks."""

    def __get__(self, value: object, kind: type[msgspec.Struct]) -> dict[str, Field[Any]]:
        return _fields(kind)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Field[Any]]:
    """Return the fields of a struct as dataclasses describe them, by name in the order of the constructor."""
    hints: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        hints |= get_annotations(each)
    names, usual = kind.__struct_fields__, kind.__struct_defaults__
    required = len(names) - len(usual)
    known = {name: usual[place - required] for place, name in enumerate(names) if place >= required}
    described = [(name, hints[name], _described(known.get(name, NODEFAULT))) for name in names]
    made = make_dataclass(kind.__name__, described, init=False, repr=False, eq=False, kw_only=True)
    return {each.name: each for each in fields(made)}


def _described(default: Any) -> Any:  # noqa: ANN401  (a field, which dataclasses type as its value)
    """Return the field with a struct's default: a value, what makes one, or none."""
    if default is NODEFAULT:
        return field()
    factory = getattr(default, "factory", None)
    return field(default=default) if factory is None else field(default_factory=factory)


class Struct(msgspec.Struct, frozen=True):
    """Base of values: `dataclasses.fields`, `replace`, `asdict` and `is_dataclass` hold for it."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    else:
        __dataclass_fields__ = _Fields()


def jsonable(value: Any) -> Any:  # noqa: ANN401  (whatever a result holds)
    """Return a value as a document has it: by its `to_json`, other structs as tables, arrays and tuples as lists."""
    for way in ("to_json", "tolist"):
        if hasattr(value, way):
            return getattr(value, way)()
    if isinstance(value, tuple | list):
        return [jsonable(each) for each in value]
    if isinstance(value, Mapping):
        return dict(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def attributes(value: object, *names: str) -> dict[str, Any]:
    """Return attributes of a value by name, as a document has them."""
    return {name: jsonable(getattr(value, name)) for name in names}

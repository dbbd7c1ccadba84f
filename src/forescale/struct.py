"""Frozen values: msgspec's structs, made in a fortieth of a dataclass's time, that answer as dataclasses do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import _FIELD, Field, field, fields, is_dataclass  # type: ignore[attr-defined]
from functools import cache
from importlib import import_module
from inspect import get_annotations
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import NODEFAULT

from forescale.errors import ForescaleError, UnknownKeyError, listed, required_with, wrong_type
from forescale.repr import told


class _Fields:
    """The fields of a struct in the form of dataclasses, made when `fields`, `asdict` or `replace` asks."""

    def __get__(self, value: object, kind: type[msgspec.Struct]) -> dict[str, Field[Any]]:
        return _fields(kind)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Field[Any]]:
    """Return the fields of a struct as dataclasses describe them, by name in the order of the constructor."""
    hints: dict[str, Any] = {}
    for item in reversed(kind.__mro__):
        hints |= get_annotations(item)
    names, usual = kind.__struct_fields__, kind.__struct_defaults__
    defaults = (NODEFAULT,) * (len(names) - len(usual)) + tuple(usual)
    described = {}
    for name, default in zip(names, defaults, strict=True):
        described[name] = item = _described(default)
        item.name, item.type, item._field_type, item.kw_only = name, hints[name], _FIELD, True  # noqa: SLF001
    return described


def _described(default: Any) -> Any:  # noqa: ANN401  (a field, which dataclasses type as its value)
    """Return the field with a struct's default: a value, what makes one, or none."""
    if default is NODEFAULT:
        return field()
    factory = getattr(default, "factory", None)
    return field(default=default) if factory is None else field(default_factory=factory)


@cache
def annotated(kind: type) -> dict[str, type]:
    """Return the annotated names of a class and its bases, with the class that has each."""
    return {name: item for item in reversed(kind.__mro__) for name in get_annotations(item)}


@cache
def hint_of(kind: type, name: str) -> Any:  # noqa: ANN401  (a type)
    """Return the type of one field with its metadata: to evaluate those of all takes as long as a short answer.

    A module names in LATE_TYPES the types of fields that it does not load itself, with their modules.
    """
    owner = annotated(kind)[name]
    alone = {"__annotations__": {name: owner.__annotations__[name]}, "__module__": owner.__module__}
    bare = type(owner.__name__, (), alone)
    try:
        return get_annotations(bare, eval_str=True)[name]
    except NameError:
        module = import_module(owner.__module__)
        for kind_name, place in module.LATE_TYPES.items():
            setattr(module, kind_name, getattr(import_module(place), kind_name))
        return get_annotations(bare, eval_str=True)[name]


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass or struct; None of any other type."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else None


_ATOMIC = frozenset({str, int, float, bool, type(None)})


def asdict(value: Any) -> dict[str, Any]:  # noqa: ANN401  (of any dataclass)
    """Return a value as nested tables, as `dataclasses.asdict` does in four times the time before Python 3.12."""
    names = _names(type(value))  # type: ignore[arg-type]
    if names is None:
        raise TypeError(f"asdict() takes a dataclass or a struct, got {type(value).__name__}")
    return {name: _nested(getattr(value, name)) for name in names}


def _nested(value: Any) -> Any:  # noqa: ANN401  (of any type)
    kind = type(value)
    if kind in _ATOMIC:
        return value
    if kind is tuple or kind is list:
        return kind([_nested(item) for item in value])
    if isinstance(value, dict):
        return kind((_nested(key), _nested(item)) for key, item in value.items())
    return deepcopy(value) if _names(kind) is None else asdict(value)  # type: ignore[arg-type]


class Struct(msgspec.Struct, frozen=True):
    """Base of values: `dataclasses.fields`, `replace`, `asdict` and `is_dataclass` hold for it."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    else:
        __dataclass_fields__ = _Fields()

    def __repr__(self) -> str:
        """Return the class with the fields that are not at their defaults."""
        shown = ", ".join(f"{name}={value!r}" for name, value in told(self).items())
        return f"{type(self).__name__}({shown})"


class StrictMeta(msgspec.StructMeta):
    """Makes values; refuses a wrong keyword with the nearest that the class has, and a value of a wrong type."""

    def __call__(cls, *args: Any, **given: Any) -> Any:  # noqa: ANN401, N805  (any value; a metaclass)
        """Return a new value, or raise SpecError that names the wrong keyword or type."""
        try:
            return super().__call__(*args, **given)
        except ForescaleError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            refuse_call(cls.__name__, cls.__struct_fields__, cls.__struct_defaults__, args, given)
            import_module("forescale.records").refuse_values(
                cls, given
            )  # loaded for the error's message only
            raise error from None


if TYPE_CHECKING:

    class SpecStruct(Struct, frozen=True):
        """Base of values that people make: a wrong keyword is refused with the class and the nearest name."""

else:

    class SpecStruct(Struct, frozen=True, metaclass=StrictMeta):
        """Base of values that people make: a wrong keyword is refused with the class and the nearest name."""


def refuse_call(
    name: str, names: Sequence[str], usual: Sequence[Any], args: Collection[object], values: Collection[str]
) -> None:
    """Refuse arguments that a struct with these fields, the last of which have defaults, does not take, or lacks.

    Raises
    ------
    SpecError
        If there are any.
    """
    if args:
        raise wrong_type(f"the arguments of {name}", args, f"keywords, such as {name}({names[0]}=...)")
    for key in values:
        if key not in names:
            raise UnknownKeyError(key, name, names)
    defaults = (NODEFAULT,) * (len(names) - len(usual)) + tuple(usual)
    required = [key for key, value in zip(names, defaults, strict=True) if value is NODEFAULT]
    if missing := [key for key in required if key not in values]:
        raise required_with(missing, name, fix=f"got {listed(values) or 'nothing'}")


def jsonable(value: Any) -> Any:  # noqa: ANN401  (whatever a result holds)
    """Return a value as a document has it: by its `to_json`, other structs as tables, arrays and tuples as lists."""
    for way in ("to_json", "tolist"):
        if hasattr(value, way):
            return getattr(value, way)()
    if isinstance(value, tuple | list):
        return [jsonable(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def attributes(value: object, *names: str) -> dict[str, Any]:
    """Return attributes of a value by name, as a document has them; `key=path` names one that is further inside."""
    pairs = (name.partition("=") for name in names)
    return {key: jsonable(attrgetter(path or key)(value)) for key, _, path in pairs}

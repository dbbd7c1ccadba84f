"""Frozen dataclasses from the tables of a JSON file, checked against their annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Le

from forescale.errors import LISTED, ReaderError, SpecError, nearest, shown
from forescale.limits import within

T = TypeVar("T")
ANY = Interval(ge=-1e24, le=1e24)


def record(kind: type[T], content: object, key: str, where: object) -> T:
    """Return the `kind` that a table of JSON describes.

    Parameters
    ----------
    kind
        A dataclass of numbers, text, choices, and tuples, tables or dataclasses of these.
    content
        The table.
    key, where
        Where it stands in which file, for messages.

    Raises
    ------
    ReaderError
        If a key is unknown or missing, or a value is of the wrong kind or out of bounds.
    """
    if not isinstance(content, Mapping):
        raise ReaderError(where, f"{key or 'it'} must be a table, got {shown(content)}")
    hints = _hints(kind)  # type: ignore[arg-type]
    for name in content:
        if name not in hints:
            close = nearest(name, hints)
            allowed = ", ".join(list(hints)[:LISTED])
            hint = f"did you mean {' or '.join(close)}?" if close else f"allowed are {allowed}"
            raise ReaderError(where, f"unknown key {shown(name)} in {key or 'it'}; {hint}")
    missing = [
        item.name
        for item in fields(kind)  # type: ignore[arg-type]
        if item.name not in content and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        raise ReaderError(where, f"{key or 'it'} is incomplete: it lacks {', '.join(missing)}")
    inside = f"{key}." if key else ""
    values = {name: _value(hints[name], value, f"{inside}{name}", where) for name, value in content.items()}
    try:
        return kind(**values)
    except SpecError as error:
        raise ReaderError(where, str(error)) from error


def _value(hint: Any, value: object, key: str, where: object) -> Any:  # noqa: ANN401 (what annotations say)
    """Return `value` as what `hint` asks for."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and type(None) in parts:
        return None
    hint, bounds = _bare(_meant([part for part in parts if part is not type(None)], value))
    origin = get_origin(hint)
    if hint in (int, float):
        try:
            return within(value, bounds, key, whole=hint is int)
        except SpecError as error:
            raise ReaderError(where, str(error)) from error
    if is_dataclass(hint) and isinstance(hint, type):
        return record(hint, value, key, where)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = get_args(hint)
        each = (kinds[0],) * len(value) if kinds[-1] is Ellipsis else kinds
        if len(each) == len(value):
            return tuple(_value(one, item, key, where) for one, item in zip(each, value, strict=True))
    elif isinstance(value, Mapping) and origin is not None and issubclass(_class(origin), Mapping):
        return {name: _value(get_args(hint)[1], item, f"{key}.{name}", where) for name, item in value.items()}
    elif (hint in (str, bool) and isinstance(value, hint)) or (origin is Literal and value in get_args(hint)):
        return value
    raise ReaderError(where, f"{key} must be {_wanted(hint)}, got {shown(value)}")


def _meant(parts: list[Any], value: object) -> Any:  # noqa: ANN401
    """Return the part of a union that `value` is of: a choice it lists, or the dataclass that shares most keys."""
    for part in parts[1:]:
        if get_origin(part) is Literal and value in get_args(part):
            return part
    kinds = [part for part in parts if is_dataclass(part)]
    if len(kinds) > 1 and isinstance(value, Mapping):
        return max(kinds, key=lambda kind: len(value.keys() & _hints(kind).keys()))  # type: ignore[arg-type]
    return parts[0]


def _class(origin: Any) -> type:  # noqa: ANN401
    return origin if isinstance(origin, type) else object


@cache
def _bare(hint: Any) -> tuple[Any, Interval]:  # noqa: ANN401
    """Return a type without its bounds, and these."""
    if get_origin(hint) is not Annotated:
        return hint, ANY
    kind, *marks = get_args(hint)
    return kind, Interval(
        gt=next((mark.gt for mark in marks if isinstance(mark, Gt)), None),
        ge=next((mark.ge for mark in marks if isinstance(mark, Ge)), None),
        le=next((mark.le for mark in marks if isinstance(mark, Le)), None),
    )


def _wanted(hint: Any) -> str:  # noqa: ANN401
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    return {str: "text", bool: "true or false"}.get(
        hint, "a table" if get_origin(hint) is not tuple else "a list"
    )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)

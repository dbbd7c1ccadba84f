"""Arguments of public functions: each is converted to what its annotation allows, or refused with one error."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

from forescale.arrays import is_numpy
from forescale.errors import SpecError, nearest, not_one_of, wrong_type
from forescale.limits import DEVICES, PRICE, PUE, SEED, STAGES, TIME, Interval, whole_of, within
from forescale.patterns import pattern
from forescale.units import in_days, parse
from forescale.wording import did_you_mean

Hint: TypeAlias = Any
"""A type as annotations write it."""
_COMMAND = pattern(r"(\bforescale [a-z][^;,]*)")
_OPTION = pattern(r"(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)(?: (?P<value>\d[\w.]*))?")
LISTS = (list, tuple, range, set, frozenset)
"""Values that are lists of others."""
_WORDS: Mapping[Hint, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a file name",
}


class Rule(NamedTuple):
    """What a keyword takes beyond its annotation."""

    interval: Interval | None = None
    read: Callable[[str], float] | None = None
    """Returns the number that a text with a unit is."""


def _quantity(dimension: str, interval: Interval) -> Rule:
    return Rule(interval, lambda text: parse(text, dimension))


RULES: Mapping[str, Rule] = {
    "days": Rule(TIME, in_days),
    "price": _quantity("money/h", PRICE),
    "price_per_device_hour": _quantity("money/h", PRICE),
    "electricity_price": _quantity("money/kWh", PRICE),
    "max_host_memory": _quantity("byte", Interval(ge=0, le=1e24)),
    "pue": Rule(PUE),
    "seed": Rule(SEED),
    "stage": Rule(STAGES),
    "fail_below": Rule(Interval(gt=0, le=1)),
    **dict.fromkeys(("devices", "pp", "microbatches", "vpp", "group_size"), Rule(DEVICES)),
    **dict.fromkeys(("forward", "input_grad", "weight_grad", "comm"), Rule(Interval(ge=0, le=1e12))),
    "memory_limit": Rule(Interval(gt=0, le=1e12)),
}
"""By keyword, which means the same in every function."""


def checked_arguments(
    function: Callable[..., Any], values: Mapping[str, Any], where: str, apart: Collection[str] = ()
) -> dict[str, Any]:
    """Return the arguments of a function as its annotations allow; those `apart` and defaults are left as they are.

    Raises
    ------
    SpecError
        For the first that is of another type or out of range, with the keyword, the value and what is allowed.
    """
    parameters = _parameters(function)
    result = dict(values)
    for name, value in values.items():
        if name in apart or name not in parameters or value is parameters[name].default:
            continue
        try:
            result[name] = converted(_hint(function, name), value, name)
        except SpecError as error:
            raise error.at(where) from None
    return result


def in_python(text: str, known: Collection[str]) -> str:
    """Return the text of an error in which options of the command line are the `known` keywords; commands stay."""

    def keyword(match: re.Match[str]) -> str:
        name, value = match["name"].replace("-", "_"), match["value"]
        if name not in known:
            return match[0]
        if value is None:
            return name
        return f"{name}={value if value.replace('.', '', 1).isdecimal() else repr(value)}"

    parts = _COMMAND.split(text)
    return "".join(part if at % 2 else _OPTION.sub(keyword, part) for at, part in enumerate(parts))


def number(value: float | str | None) -> float | None:
    """Return an argument that may be text and was converted."""
    assert not isinstance(value, str), value
    return value


@cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


@cache
def _hint(function: Callable[..., Any], name: str) -> Hint:
    """Return the annotation of one parameter: those of others may name what is not loaded."""
    bare = type("Bare", (), {"__annotations__": {name: function.__annotations__[name]}})
    return inspect.get_annotations(bare, globals=function.__globals__, eval_str=True)[name]


def converted(hint: Hint, value: Any, key: str) -> Any:  # noqa: ANN401 (any argument)
    """Return a value as an annotation allows it.

    Numbers of numpy are Python's, and text with a unit is the number that the rule of `key` reads.
    """
    parts = list(_parts(hint))
    plain = value.tolist() if is_numpy(value) else value
    rule = RULES.get(key.partition("[")[0], Rule())
    if plain is None and NoneType in parts:
        return None
    if rule.read is not None and isinstance(plain, str):
        try:
            plain = rule.read(plain)
        except SpecError as error:
            raise SpecError(error, key=key, value=value).worded(f"{key}: {error}") from error
    for part in parts:
        if _is(part, plain):
            return _inside(part, plain, key, rule)
    raise _refusal(parts, value, key)


def _parts(hint: Hint) -> Iterator[Hint]:
    """Yield the types that a value may be of, without their metadata."""
    origin = _class(hint)
    if origin in (Union, UnionType):
        for part in get_args(hint):
            yield from _parts(part)
    elif origin is Annotated:
        yield from _parts(get_args(hint)[0])
    else:
        yield hint


def _class(part: Hint) -> Any:  # noqa: ANN401 (a type)
    """Return the class of a type, as list of `list[int]`."""
    return get_origin(part) or part


def _is(part: Hint, value: object) -> bool:
    """Return whether a value is of a type; whether what is in it is, `_inside` says."""
    origin = _class(part)
    if part is Any:
        return True
    if origin is Literal:
        return any(type(value) is type(item) and value == item for item in get_args(part))
    if origin in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if origin is Callable or getattr(origin, "__name__", "") == "Callable":
        return callable(value)
    if origin in (Sequence, Collection, list, tuple):
        return isinstance(value, LISTS)
    if getattr(origin, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(origin) if name[:1] != "_")
    return isinstance(origin, type) and isinstance(value, origin)


def _inside(part: Hint, value: Any, key: str, rule: Rule) -> Any:  # noqa: ANN401 (any argument)
    """Return a value whose type was checked, with what is in it and its range checked too."""
    origin, inner = _class(part), get_args(part)
    if origin in (int, float):
        whole = origin is int
        bounds = rule.interval or Interval(ge=-1e24, le=1e24)
        return within(value, bounds, key, whole=whole)
    if origin in (Sequence, Collection, list, tuple) and inner:
        return [converted(inner[0], item, f"{key}[{place}]") for place, item in enumerate(value)]
    return value


def _refusal(parts: Sequence[Hint], value: object, key: str) -> SpecError:
    """Return the error of a value that is of none of the types."""
    choices = [item for part in parts if _class(part) is Literal for item in get_args(part)]
    others = [part for part in parts if _class(part) is not Literal and part is not NoneType]
    if choices and not others:
        close = nearest(value, map(str, choices), 1) if isinstance(value, str) else ()
        return not_one_of(key, value, choices, did_you_mean(map(repr, close)))
    words = list(dict.fromkeys([*map(repr, choices), *map(_called, others)]))
    allowed = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    is_number = isinstance(value, str) and {int, float} & {*others} and _number(value)
    return wrong_type(key, value, allowed, "write it without quotes" if is_number else "")


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return whole_of(text) is not None
    return True


def _called(part: Hint) -> str:
    """Return what messages call a type."""
    origin = _class(part)
    if part in _WORDS:
        return _WORDS[part]
    if origin is Mapping or origin is dict:
        return "a dictionary"
    if origin in (Sequence, Collection, list, tuple):
        return "a list"
    if getattr(origin, "__name__", "") == "Callable":
        return "a function"
    name = getattr(origin, "__name__", str(origin))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"

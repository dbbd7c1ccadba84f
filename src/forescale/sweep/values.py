"""Values of parameters as people write them: numbers, quantities with units, factors, lists and ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from forescale.errors import SpecError, UnknownKeyError
from forescale.sweep.axes import Axis, Range
from forescale.sweep.draft import Factor, Value
from forescale.sweep.parameters import Parameter
from forescale.units import parse

POINTS = 10_000
"""Steps of one range, and samples."""
RANGE_KEYS = ("from", "to", "steps", "scale", "multiple")
_FACTOR = re.compile(r"^\s*[x×]\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*$")


def factor_of(value: object) -> Factor | None:
    """Return the factor that text such as "x2" or "×0.5" is, or None if it is none."""
    match = _FACTOR.match(value) if isinstance(value, str) else None
    return None if match is None else Factor(by=float(match[1]))


def value_of(parameter: Parameter, given: object, *, where: str) -> Value:
    """Return one value of a parameter.

    Raises
    ------
    SpecError
        If the parameter cannot have it; the message says what it can.
    """
    factor = factor_of(given) if parameter.takes_factors else None
    if factor is not None:
        if factor.by <= 0.0:
            msg = f"{where}: {parameter.name} = {given!r}: a factor must be greater than 0"
            raise SpecError(msg)
        return factor
    if not parameter.takes_values:
        msg = f"{where}: {parameter.name} takes factors such as 'x2'; got {given!r} (one type has a value: flops.bf16)"
        raise SpecError(msg)
    if parameter.kind == "text":
        return _word(parameter, given, where)
    if isinstance(given, str) and parameter.dimension is not None:
        try:
            return parse(given, parameter.dimension)
        except SpecError as error:
            msg = f"{where}: {parameter.name}: {error}; or a factor such as 'x2'"
            raise SpecError(msg) from error
    number = float(given) if isinstance(given, int | float) and not isinstance(given, bool) else None
    if number is None or (parameter.kind == "whole" and not number.is_integer()):
        wanted = "a whole number" if parameter.kind == "whole" else "a number"
        msg = f"{where}: {parameter.name} must be {wanted} or a factor such as 'x2', got {given!r}"
        raise SpecError(msg)
    return int(number) if parameter.kind == "whole" else number


def axis_of(parameter: Parameter, given: object, *, where: str) -> Axis | Range:
    """Return what `given` makes of a parameter: a list is a grid, a table a range, anything else one value."""
    if isinstance(given, Mapping):
        return _range(parameter, given, where)
    listed = given if isinstance(given, list | tuple) else [given]
    values = tuple(value_of(parameter, item, where=where) for item in listed)
    if not values:
        msg = f"{where}: {parameter.name} has no values"
        raise SpecError(msg)
    if len({isinstance(value, Factor) for value in values}) > 1:
        msg = f"{where}: {parameter.name} mixes values and factors; give one or the other"
        raise SpecError(msg)
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        msg = f"{where}: {parameter.name} has the value {listed[values.index(twice[0])]!r} twice"
        raise SpecError(msg)
    return Axis(parameter=parameter, values=values)


def _word(parameter: Parameter, given: object, where: str) -> Value:
    if parameter.name.startswith("space.") and isinstance(given, list | tuple) and given:
        return words_of(given)
    if not isinstance(given, str | int | bool):
        msg = f"{where}: {parameter.name} must be one word or number, got {given!r}"
        raise SpecError(msg)
    return given


def words_of(given: object) -> tuple[str, ...]:
    """Return one or several values of a dimension of the search as words."""
    listed = given if isinstance(given, list | tuple) else [given]
    return tuple(str(item).lower() if isinstance(item, bool) else str(item) for item in listed)


def _range(parameter: Parameter, given: Mapping[str, Any], where: str) -> Axis | Range:
    for key in given:
        if key not in RANGE_KEYS:
            raise UnknownKeyError(key, f"{where}, {parameter.name}", RANGE_KEYS)
    if parameter.kind == "text":
        msg = f"{where}: {parameter.name} has no range; list its values"
        raise SpecError(msg)
    missing = [key for key in ("from", "to") if key not in given]
    if missing:
        msg = f"{where}: the range of {parameter.name} needs {' and '.join(missing)}"
        raise SpecError(msg)
    low, high = (value_of(parameter, given[key], where=where) for key in ("from", "to"))
    if isinstance(low, Factor) != isinstance(high, Factor):
        msg = f"{where}: {parameter.name} goes from a value to a factor; give two of one kind"
        raise SpecError(msg)
    return _built(parameter, given, _number(low), _number(high), isinstance(low, Factor), where)


def _built(
    parameter: Parameter, given: Mapping[str, Any], low: float, high: float, factors: bool, where: str
) -> Axis | Range:
    scale, multiple, steps = given.get("scale", "log"), given.get("multiple", 1), given.get("steps")
    problem = None
    if scale not in ("log", "linear"):
        problem = f"scale must be log or linear, got {scale!r}"
    elif not low < high:
        problem = f"from must be less than to, got {given['from']!r} and {given['to']!r}"
    elif scale == "log" and low <= 0.0:
        problem = "a logarithmic range starts above 0; say scale = 'linear'"
    elif type(multiple) is not int or multiple < 1:
        problem = f"multiple must be a whole number of 1 or more, got {multiple!r}"
    elif multiple > 1 and (parameter.kind != "whole" or factors):
        problem = "multiple is for ranges of whole numbers"
    elif steps is not None and (type(steps) is not int or not 2 <= steps <= POINTS):
        problem = f"steps must be a whole number from 2 to {POINTS:,}, got {steps!r}"
    if problem is not None:
        msg = f"{where}, {parameter.name}: {problem}"
        raise SpecError(msg)
    found = Range(
        parameter=parameter, low=low, high=high, factors=factors, log=scale == "log", multiple=multiple
    )
    return found if steps is None else Axis(parameter=parameter, values=found.spread(steps))


def _number(value: Value) -> float:
    found = value.by if isinstance(value, Factor) else value
    assert isinstance(found, int | float)
    return float(found)

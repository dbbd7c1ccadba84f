"""From plain mappings (TOML, JSON, YAML, a web form) to specifications, with every error at once.

`build` checks what a person wrote: keys that do not exist, text where a number belongs, quantities with the
wrong unit, values out of bounds and choices that do not exist. pydantic does the bounds and choices from the
annotations of the dataclasses; it is imported only when something is built.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from forescale.catalogue.clusters import DEVICE_DIMENSIONS, LINK_DIMENSIONS, TIER_DIMENSIONS
from forescale.errors import SpecError, UnknownKeyError, nearest, shown
from forescale.limits import written
from forescale.spec import Device, LinkParameters, MatrixRates, Model, Tier, Workload
from forescale.units import parse

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
Hint: TypeAlias = Any
"""A type as annotations write it (unions and `Annotated` included), or a value of one."""

_DIMENSIONS: Mapping[type, Mapping[str, str]] = {
    Device: DEVICE_DIMENSIONS,
    Tier: TIER_DIMENSIONS,
    LinkParameters: LINK_DIMENSIONS,
    MatrixRates: {field.name: "FLOP/s" for field in fields(MatrixRates)},
    Workload: {"tokens": "token"},
}
_NUMBER_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def build(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Return a `kind` (a specification dataclass) from plain `values`.

    Parameters
    ----------
    kind
        `Model`, `Cluster`, `Strategy`, `Workload` or any dataclass that they are made of.
    values
        Fields by name; tables inside are mappings, tuples are lists, and a field measured in SI units may be
        text with a unit such as "450 GB/s".
    where
        What `values` are, for messages, such as "plan.toml, strategy".

    Raises
    ------
    UnknownKeyError
        If the one thing wrong is a key that `kind` does not have.
    SpecError
        If anything else is wrong; its text names every problem with its path.
    """
    walk = _Walk(where)
    built = walk.visit(kind, values, ())
    if not walk.problems:
        return built  # type: ignore[no-any-return]
    if len(walk.problems) == 1 and isinstance(walk.problems[0], UnknownKeyError):
        raise walk.problems[0]
    raise SpecError(f"{where}: " + "; ".join(str(problem) for problem in walk.problems))


def checked_model(model: Model, *, where: str) -> Model:
    """Return a model that a reader made, if `build` would make it from its fields."""
    values = {item.name: getattr(model, item.name) for item in fields(Model)}
    values["layers"] = [asdict(kind) for kind in model.layer_kinds]
    values["patches"] = None if model.patches is None else asdict(model.patches)
    build(Model, values, where=where)
    return model


def problems(kind: Hint, values: Mapping[str, Any], *, where: str) -> tuple[str, ...]:
    """Return every problem that `build` would find, one sentence each; empty if there is none."""
    walk = _Walk(where)
    walk.visit(kind, values, ())
    return tuple(str(problem) for problem in walk.problems)


def json_schema(kind: Hint) -> dict[str, Any]:
    """Return the JSON Schema of `kind`: what a form or an editor may offer.

    Descriptions come from the docstrings under the fields; fields with a unit also take text.
    """
    schema: dict[str, Any] = _adapter(kind).json_schema()
    by_name = {found.__name__: found for found in _dataclasses_within(kind)}
    definitions = {**schema.get("$defs", {}), kind.__name__: schema}
    for name, definition in definitions.items():
        if name in by_name:
            _complete(definition, by_name[name])
    return schema


class _Walk:
    """One pass over plain values: collects problems instead of stopping at the first."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[str | SpecError] = []

    def visit(self, hint: Hint, value: object, path: tuple[str, ...]) -> Hint:
        """Return `value` as what `hint` asks for; on problems anything, after noting them."""
        if _origin(hint) is Annotated:
            hint = get_args(hint)[0]
        choices: list[Any] = [part for part in _union_of(hint) if is_dataclass(part)]
        if choices and isinstance(value, Mapping):
            return self._dataclass(_best(choices, value), value, path)
        if choices and not any(isinstance(value, choice) for choice in choices):
            if value is None and NoneType in _union_of(hint):
                return None
            return self._refuse(path, f"must be a table, got {shown(value)}")
        item = _item_hint(hint)
        if item is not None and isinstance(value, list | tuple):
            return tuple(self.visit(item, part, (*path, str(at))) for at, part in enumerate(value))
        return self._scalar(hint, value, path)

    def _dataclass(self, kind: Hint, values: Mapping[str, Any], path: tuple[str, ...]) -> Hint:
        hints = _hints(kind)
        clean, failed = {}, set()
        for key, value in values.items():
            before = len(self.problems)
            if key not in hints:
                place = ", ".join(filter(None, (self.where, ".".join(path))))
                self.problems.append(UnknownKeyError(str(key), place, hints))
            elif isinstance(value, str) and (dimension := _DIMENSIONS.get(kind, {}).get(key)):
                clean[key] = self._quantity(value, dimension, (*path, key))
            else:
                clean[key] = self.visit(hints[key], value, (*path, key))
            if len(self.problems) > before:
                failed.add(key)
        return self._validate(kind, clean, path, failed)

    def _validate(
        self, kind: Hint, clean: Mapping[str, Any], path: tuple[str, ...], failed: set[str]
    ) -> Hint:
        if not (clean or failed or _required(kind)):
            return kind()  # what checks it takes long to build
        from pydantic import ValidationError

        try:
            return _adapter(kind).validate_python(clean)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                if not detail["loc"] or detail["loc"][0] not in failed:
                    place = _dotted((*path, *(str(part) for part in detail["loc"])))
                    self.problems.append(_sentence(place, detail))
        return None

    def _quantity(self, text: str, dimension: str, path: tuple[str, ...]) -> Hint:
        try:
            return parse(text, dimension)
        except SpecError as error:
            return self._refuse(path, f"= {error}")

    def _scalar(self, hint: Hint, value: object, path: tuple[str, ...]) -> Hint:
        """Refuse what would pass by silent conversion: text, or true, where a number belongs."""
        kinds = {get_args(part)[0] if _origin(part) is Annotated else part for part in _union_of(hint)}
        wanted = [word for kind, word in _NUMBER_WORDS.items() if kind in kinds]
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse(path, f"must be {wanted[0] if wanted else 'something else'}, got {value}")
        if wanted and not kinds & {str} and type(value) not in kinds:
            whole = isinstance(value, float) and value.is_integer() and int in kinds
            number = type(value) is int and float in kinds
            literal = any(value in get_args(part) for part in kinds if _origin(part) is Literal)
            if whole and not number:
                return int(value)  # type: ignore[call-overload]
            if not (number or literal):
                return self._refuse(path, f"must be {wanted[0]}, got {shown(value)}")
        return value

    def _refuse(self, path: tuple[str, ...], text: str) -> None:
        self.problems.append(f"{_dotted(path)} {text}")


def _sentence(place: str, detail: Mapping[str, Any]) -> str:
    """Return one pydantic error as what a person reads."""
    got, context = detail["input"], detail.get("ctx", {})
    bounds: dict[str, Callable[[], str]] = {
        "greater_than": lambda: f"must be greater than {context['gt']}, got {shown(got)}",
        "greater_than_equal": lambda: f"must be {context['ge']} or more, got {shown(got)}",
        "less_than_equal": lambda: f"must be {written(context['le'])} or less, got {shown(got)}",
        "missing": lambda: "must be given",
        "literal_error": lambda: (
            f"must be {context['expected']}, got {shown(got)}{_hint(got, context['expected'])}"
        ),
    }
    if detail["type"] in bounds:
        return f"{place} {bounds[detail['type']]()}"
    text = str(detail["msg"]).removeprefix("Value error, ")
    return text if detail["type"] == "value_error" else f"{place} is not valid ({text}), got {shown(got)}"


def _hint(got: object, expected: str) -> str:
    close = nearest(str(got), [word for word in expected.split("'") if word.isidentifier()], count=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path) or "value"


def _best(choices: list[Any], value: Mapping[str, Any]) -> Hint:
    """Return the dataclass of a union that shares most keys with `value` and lacks fewest."""
    return max(choices, key=lambda kind: len(value.keys() & _hints(kind).keys()))


def _origin(hint: Hint) -> Hint:
    return get_origin(hint)


def _union_of(hint: Hint) -> tuple[Any, ...]:
    return get_args(hint) if _origin(hint) in (Union, UnionType) else (hint,)


def _item_hint(hint: Hint) -> Hint:
    """Return the type of the items of a `tuple[X, ...]`, alone or beside None."""
    for part in _union_of(hint):
        if _origin(part) is tuple:
            return get_args(part)[0]
    return None


@cache
def _hints(kind: Hint) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _required(kind: Hint) -> bool:
    """Return whether `kind` has a field that must be given."""
    return any(item.default is MISSING and item.default_factory is MISSING for item in fields(kind))


@cache
def _adapter(kind: Hint) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _dataclasses_within(hint: Hint) -> set[type[Any]]:
    """Return every dataclass that `hint` is made of."""
    if is_dataclass(hint) and isinstance(hint, type):
        inner = [found for part in _hints(hint).values() for found in _dataclasses_within(part)]
        return {hint, *inner}
    return {found for part in get_args(hint) for found in _dataclasses_within(part)}


def _complete(schema: dict[str, Any], kind: Hint) -> None:
    """Close `schema` to other keys, describe its fields, and let quantities be text with a unit."""
    schema["additionalProperties"] = False
    described = field_docs(kind)
    for name, entry in schema.get("properties", {}).items():
        if name in described:
            entry["description"] = described[name]
        dimension = _DIMENSIONS.get(kind, {}).get(name)
        if dimension:
            entry.setdefault("anyOf", [{key: entry.pop(key) for key in list(entry) if key in _TYPE_KEYS}])
            entry["anyOf"].append({"type": "string", "description": f"a quantity in {dimension}"})


_TYPE_KEYS = frozenset({"type", "exclusiveMinimum", "minimum", "maximum"})


@cache
def field_docs(kind: Hint) -> Mapping[str, str]:
    """Return the docstring under each field of dataclass `kind` that has one."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return found

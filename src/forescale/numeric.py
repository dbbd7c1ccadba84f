"""The one numeric type: a number, or a float64 array over candidate layouts, or a column of one layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache, reduce
from itertools import repeat
from operator import add, and_, eq, ge, gt, le, lt, mod, mul, ne, or_, sub, truediv
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from forescale.arrays import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]
    Booleans: TypeAlias = NDArray[np.bool_]
    Integers: TypeAlias = NDArray[np.int64]
else:  # fields of values are described without NumPy
    Array = Booleans = Integers = Any
Numeric: TypeAlias = float | Array
"""A scalar or an array over candidates; every formula takes and returns either. A `Column` counts as an array."""
Condition: TypeAlias = bool | Booleans
Select: TypeAlias = Callable[[Numeric], Numeric]
"""Takes some candidates' numbers."""
T = TypeVar("T")


def _operators(operation: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return an operator of columns and its reflection."""

    def forward(self: Column, other: Any) -> Any:  # noqa: ANN401  (a number, a column or an array)
        if type(other) is Column:
            return Column(map(operation, self.values, other.values))
        if isinstance(other, (float, int)):
            return Column(map(operation, self.values, repeat(other)))
        return operation(np.asarray(self), other)

    def reflected(self: Column, other: Any) -> Any:  # noqa: ANN401  (a number or an array)
        if isinstance(other, (float, int)):
            return Column(map(operation, repeat(other), self.values))
        return operation(other, np.asarray(self))

    return forward, reflected


class Column:
    """Numbers of one layout, such as one for each stage: what an array (stages, 1) holds, without NumPy.

    Arithmetic is elementwise and rounds as that of arrays does; with an array it is an array.
    """

    __slots__ = ("values",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: Iterable[Any]) -> None:
        """Take the numbers, or truth values."""
        self.values = tuple(values)

    __add__, __radd__ = _operators(add)
    __sub__, __rsub__ = _operators(sub)
    __mul__, __rmul__ = _operators(mul)
    __truediv__, __rtruediv__ = _operators(truediv)
    __mod__, __rmod__ = _operators(mod)
    __and__, __rand__ = _operators(and_)
    __or__, __ror__ = _operators(or_)
    __gt__, __lt__ = _operators(gt)[0], _operators(lt)[0]
    __ge__, __le__ = _operators(ge)[0], _operators(le)[0]
    __eq__, __ne__ = _operators(eq)[0], _operators(ne)[0]

    def __neg__(self) -> Column:
        """Return the negative numbers."""
        return Column([-value for value in self.values])

    def __pow__(self, exponent: float) -> Column:
        """Return powers; squares are products, as those of arrays are."""
        return Column([value * value if exponent == 2 else value**exponent for value in self.values])

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **keywords: Any) -> Any:  # noqa: ANN401
        """Return what a universal function of NumPy says of arrays."""
        return getattr(function, method)(*_as_arrays(inputs), **keywords)

    def __array_function__(self, function: Any, _: Any, arguments: Any, keywords: Any) -> Any:  # noqa: ANN401
        """Return what another function of NumPy says of arrays."""
        return function(*_as_arrays(arguments), **keywords)

    def __bool__(self) -> bool:
        """Return whether the only number is not 0; of several there is no answer, as of arrays."""
        (value,) = self.values
        return bool(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: ANN401
        """Return the array."""
        return np.array(self.values, dtype=dtype)[:, None]

    def __repr__(self) -> str:
        """Return the numbers."""
        return f"Column({list(self.values)})"


def _as_arrays(values: Any) -> Any:  # noqa: ANN401  (arguments of NumPy)
    """Return arrays where columns are, also in lists."""
    if isinstance(values, (list, tuple)):
        return type(values)(map(_as_arrays, values))
    return np.asarray(values) if type(values) is Column else values


def is_column(values: object) -> bool:
    """Return whether numbers are those of one layout."""
    return type(values) is Column


def column(values: Iterable[float]) -> Array:
    """Return numbers of one layout as formulas take them."""
    return cast("Array", Column(values))


def _paired(first: Any, second: Any, operation: Callable[[Any, Any], Any], of_arrays: str) -> Any:  # noqa: ANN401
    """Return an operation on two numbers or elementwise; that of NumPy under a name where one is an array."""
    if isinstance(first, (float, int)) and isinstance(second, (float, int)):
        return operation(first, second)
    if type(first) is Column:
        if type(second) is Column:
            return Column(map(operation, first.values, second.values))
        if isinstance(second, (float, int)):
            return Column(map(operation, first.values, repeat(second)))
        first = np.asarray(first)
    elif type(second) is Column:
        if isinstance(first, (float, int)):
            return Column(map(operation, repeat(first), second.values))
        second = np.asarray(second)
    return getattr(np, of_arrays)(first, second)


_OTHERS = (float, int, Column)


def _goes_to_numpy(first: Any, second: Any) -> bool:  # noqa: ANN401
    """Return whether one of two numbers is an array, or recorded, and the other no column."""
    if type(first) is float:
        return not isinstance(second, _OTHERS)
    return not isinstance(first, _OTHERS) and type(second) is not Column


def maximum(first: Numeric, second: Numeric) -> Numeric:
    """Return the elementwise maximum, which of two numbers takes a tenth of numpy's time; neither is NaN."""
    if type(first) is float and type(second) is float:
        return first if first >= second else second
    if _goes_to_numpy(first, second):
        return cast("Numeric", np.maximum(first, second))
    return cast("Numeric", _paired(first, second, max, "maximum"))


def minimum(first: Numeric, second: Numeric) -> Numeric:
    """Return the elementwise minimum, which of two numbers takes a tenth of numpy's time; neither is NaN."""
    if type(first) is float and type(second) is float:
        return first if first <= second else second
    if _goes_to_numpy(first, second):
        return cast("Numeric", np.minimum(first, second))
    return cast("Numeric", _paired(first, second, min, "minimum"))


def lcm(first: Any, second: Any) -> Any:  # noqa: ANN401  (numbers or arrays, of integers too)
    """Return the least common multiples of whole numbers."""
    if isinstance(first, float) and isinstance(second, float):
        return float(math.lcm(int(first), int(second)))
    if isinstance(first, int) and isinstance(second, int):
        return math.lcm(first, second)
    whole = np.lcm(np.asarray(first).astype(np.int64), np.asarray(second).astype(np.int64))
    return whole.astype(np.result_type(first, second))


def _each(values: Any, operation: Callable[[Any], Any], of_arrays: str) -> Any:  # noqa: ANN401
    """Return an operation on a number or elementwise; that of NumPy under a name on an array."""
    if isinstance(values, (float, int)):
        return operation(values)
    return Column(map(operation, values.values)) if type(values) is Column else getattr(np, of_arrays)(values)


def ceil(values: Numeric) -> Numeric:
    """Return the least whole numbers that are not below."""
    return cast("Numeric", _each(values, _ceil, "ceil"))


def floor(values: Numeric) -> Numeric:
    """Return the largest whole numbers that are not above."""
    return cast("Numeric", _each(values, _floor, "floor"))


def _ceil(value: float) -> float:
    return float(math.ceil(value)) if math.isfinite(value) else value


def _floor(value: float) -> float:
    return float(math.floor(value)) if math.isfinite(value) else value


def square_root(values: Numeric) -> Numeric:
    """Return the square roots, correctly rounded."""
    return cast("Numeric", _each(values, math.sqrt, "sqrt"))


def binary_exponent(values: Numeric) -> Numeric:
    """Return the least whole numbers e with values below 2^e; 0 of 0."""
    return float(math.frexp(values)[1]) if isinstance(values, float) else np.frexp(values)[1] * 1.0


def power_of_two(values: Numeric) -> Numeric:
    """Return the least powers of 2 that are not below."""
    if isinstance(values, float):
        mantissa, exponent = math.frexp(values)
        return math.ldexp(1.0, exponent - (mantissa == 0.5))
    mantissas, exponents = np.frexp(values)
    result: Numeric = np.ldexp(1.0, np.where(mantissas == 0.5, exponents - 1, exponents))
    return result


def where(condition: Condition, value: Numeric, otherwise: Numeric) -> Numeric:
    """Return `value` if the condition holds, else `otherwise`; elementwise of many, at once of one."""
    if isinstance(condition, bool):
        return value if condition else otherwise
    if is_column(condition):
        holding: Any = condition
        kept, left = (spread(item, len(holding.values)) for item in (value, otherwise))
        return column(
            item if holds else other for holds, item, other in zip(holding.values, kept, left, strict=True)
        )
    if isinstance(condition, np.bool_):
        return value if condition else otherwise
    return np.where(condition, value, otherwise)


def spread(values: Numeric, size: int) -> list[float]:
    """Return `size` numbers: those of a column, or one number as often."""
    result = numbers(values)
    return result if len(result) == size else result * size


def any_true(values: Any) -> bool:  # noqa: ANN401  (numbers or truth values)
    """Return whether one of them holds, or is not 0."""
    if type(values) is Column:
        return any(values.values)
    return bool(values) if isinstance(values, (float, int)) else bool(np.any(values))


def all_true(values: Any) -> bool:  # noqa: ANN401  (numbers or truth values)
    """Return whether all of them hold, or are not 0."""
    if values is True:
        return True
    if type(values) is Column:
        return all(values.values)
    return bool(values) if isinstance(values, (float, int)) else bool(np.all(values))


def truth(values: Any) -> Any:  # noqa: ANN401  (numbers or truth values)
    """Return whether numbers are not 0, elementwise of many."""
    return bool(values) if isinstance(values, int) else np.asarray(values).astype(bool)


def highest(values: Any) -> float:  # noqa: ANN401  (numbers)
    """Return the largest of numbers, 1 at least."""
    return max(float(values), 1.0) if isinstance(values, (float, int)) else float(np.max(values, initial=1.0))


def numbers(values: Any) -> list[float]:  # noqa: ANN401  (numbers of one layout)
    """Return the numbers of one layout as Python's, one for each stage where stages differ."""
    if isinstance(values, (float, int)):
        return [float(values)]
    if type(values) is Column:
        return list(map(float, values.values))
    return list(np.asarray(values, dtype=np.float64).reshape(-1).tolist())


def summed(values: Iterable[Numeric]) -> Numeric:
    """Return the sum, one after the other: `sum` of floats rounds otherwise than that of arrays from Python 3.12 on."""
    return reduce(add, values, 0.0)


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of `number`, ascending."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))


def mapped(value: T, of: Select) -> T:
    """Return `value` with every number in it passed through `of`, such as the choice of some candidates.

    Numbers are the floats, arrays and recorded terms in fields of dataclasses and items of tuples and dicts, at any
    depth. All else stays, and a dataclass that occurs twice is one still.
    """
    return cast("T", _mapped(value, of, {}))


def _mapped(value: Any, of: Select, known: dict[int, Any]) -> Any:  # noqa: ANN401  (of any type)
    kind: Any = type(value)
    form = _form(kind)
    if form == "number":
        return of(value)
    if form == "other":
        return value
    if form == "tuple":
        return tuple([_mapped(item, of, known) for item in value])
    if form == "dict":
        return {key: _mapped(item, of, known) for key, item in value.items()}
    result = known.get(id(value))
    if result is None:
        items = {}
        for name in _field_names(kind):  # most fields are numbers, which need no call of their own
            item = getattr(value, name)
            kind_of_item: Any = type(item)
            items[name] = of(item) if _form(kind_of_item) == "number" else _mapped(item, of, known)
        result = known[id(value)] = kind(**items)
    return result


@cache
def _form(kind: Hashable) -> str:
    """Return what `mapped` and `joined` take values of a type for."""
    if not isinstance(kind, type):
        return "other"
    if issubclass(kind, float) or hasattr(kind, "__array_ufunc__"):
        return "number"
    for parent, form in ((tuple, "tuple"), (dict, "dict")):
        if issubclass(kind, parent):
            return form
    return "fields" if _field_names(kind) else "other"  # type: ignore[arg-type]


@cache
def _field_names(kind: Hashable) -> tuple[str, ...]:
    """Return the fields of a dataclass; none of any other type."""
    if (names := getattr(kind, "__struct_fields__", None)) is not None:
        return cast("tuple[str, ...]", names)
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else ()


def joined(values: Sequence[T], size: int) -> T:
    """Return values of one form as one, whose numbers are of `size` candidates of each, one after the other.

    Numbers are as in `mapped`, and 0 under a key that a dictionary lacks; all else is the first's.
    """
    return cast("T", _joined(values, size, {}))


def _joined(values: Sequence[Any], size: int, known: dict[Any, Any]) -> Any:  # noqa: ANN401  (of any type)
    first = values[0]
    kind: Any = type(first)
    form = _form(kind)
    if form == "other":
        return first
    if form == "number":
        rows = np.empty((len(values), size))
        for row, item in zip(rows, values, strict=True):
            row[...] = item
        return rows.reshape(-1)
    if form == "tuple":
        return tuple(_joined(item, size, known) for item in zip(*values, strict=True))
    if form == "dict":
        most = sorted(values, key=len, reverse=True)  # what others lack keeps its place among the summands
        keys = dict.fromkeys(key for item in most for key in item)
        return {key: _joined([item.get(key, 0.0) for item in values], size, known) for key in keys}
    if (which := tuple(map(id, values))) not in known:
        fields_of = {name: [getattr(item, name) for item in values] for name in _field_names(kind)}
        known[which] = kind(**{name: _joined(item, size, known) for name, item in fields_of.items()})
    return known[which]


def taking(candidates: Integers) -> Select:
    """Return what takes some candidates' numbers from the last axis; a number, or one column, stands for all."""

    def taken(values: Numeric) -> Numeric:
        if type(values) is np.ndarray:
            return values.take(candidates, axis=-1) if values.ndim and values.shape[-1] != 1 else values
        if isinstance(values, float) or np.ndim(values) == 0 or np.shape(values)[-1] == 1:
            return values
        return values.take(candidates, axis=-1)

    return taken


def indicator(condition: Condition) -> Numeric:
    """Return 1 where `condition` holds and 0 elsewhere, for scalars, arrays and recorded terms."""
    result: Numeric = 1.0 * condition  # type: ignore[assignment]
    return result

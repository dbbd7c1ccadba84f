"""Named, sourced, unit-bearing pure functions, and the terms they leave behind when someone asks why.

A function under `@formula` takes keyword arguments only, each a number or an array over candidates, and
returns the same. Called with plain numbers it is just that function. Called with at least one `Term` it
computes the same value and returns a `Term` that remembers formula, inputs, unit and source; arithmetic on
terms outside formulas is remembered too. So one definition serves a layout, a million layouts and the
explanation of any of them: `term.at(i)` is exactly the number that was ranked.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from forescale.arrays import np
from forescale.numeric import Numeric, numbers
from forescale.results import Result
from forescale.struct import Struct
from forescale.units import format_quantity

P = ParamSpec("P")
R = TypeVar("R")
_SYMBOLS = {
    "add": ("+", "sum"),
    "subtract": ("-", "difference"),
    "multiply": ("×", "product"),
    "divide": ("/", "quotient"),
    "maximum": ("max", "largest"),
    "minimum": ("min", "smallest"),
    "power": ("^", "power"),
    "floor_divide": ("//", "rounded down"),
    "ceil": ("ceil", "rounded up"),
    "floor": ("floor", "rounded down"),
    "negative": ("-", "negative"),
}
"""Symbol and word of the arithmetic that terms remember."""
_LABELS = ("0", "1", "2")
"""Names of its operands."""

SCHEMA = "forescale.explanation/1"
JSON_DEPTH = 4
"""Levels of inputs that an explanation in JSON has where nobody says."""


class Formula(Struct, frozen=True, kw_only=True):
    """What the registry knows of one formula."""

    name: str
    unit: str
    source: str
    function: Callable[..., Any]

    @property
    def summary(self) -> str:
        """First paragraph of the docstring: the formula in words or symbols."""
        return _summary(self.function)


@functools.cache
def _summary(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")


REGISTRY: dict[str, Formula] = {}
"""Every formula by name; filled at import by the decorator, read by the documentation and its tests."""


def formula(*, unit: str, source: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a pure keyword-only function with the unit of its result and the source of its equation."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__
        entry = Formula(name=name, unit=unit, source=source, function=function)
        REGISTRY[name] = entry

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for value in kwargs.values():  # a loop takes half the time of `in map(...)`
                if type(value) is Term:
                    return cast("R", _recorded(entry, kwargs))
            return function(*args, **kwargs)

        call.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Unit: {unit}. Source: {source}."
        return call

    return decorate


def _recorded(entry: Formula, arguments: Mapping[str, Any]) -> Term:
    plain, inputs = {}, {}
    for key, argument in arguments.items():
        if type(argument) is Term:
            plain[key], inputs[key] = argument.value, argument
        else:
            plain[key], inputs[key] = argument, Term(argument, name=key)
    return Term(
        entry.function(**plain),
        name=entry.name,
        unit=entry.unit,
        source=entry.source,
        text=entry.summary,
        inputs=inputs,
    )


_OF_ONE_UNIT = frozenset({"+", "-", "max", "min"})
"""Arithmetic whose result has the unit of its operands."""
_Operator: TypeAlias = Callable[["Term", Any], "Term"]


def _operators(name: str) -> tuple[_Operator, _Operator]:
    """Return an operator of terms and its reflection: what `__array_ufunc__` does, in a third of the time."""
    symbol, word = _SYMBOLS[name]
    keeps_unit = symbol in _OF_ONE_UNIT

    def applied(left: Term, right: Term) -> Term:
        unit = (left.unit or right.unit) if keeps_unit else ""
        value = getattr(np, name)(left.value, right.value)
        return Term(value, name=symbol, unit=unit, text=word, inputs={"0": left, "1": right})

    def forward(self: Term, other: Any) -> Term:
        return applied(self, other if type(other) is Term else Term(other, name=""))

    def reflected(self: Term, other: Any) -> Term:
        return applied(other if type(other) is Term else Term(other, name=""), self)

    return forward, reflected


def _answers(other: Any) -> bool:
    """Return whether a value leaves no operation with it to NumPy."""
    return getattr(other, "__array_ufunc__", True) is None


def _ufunc(name: str) -> tuple[_Operator, _Operator]:
    """Return the operator of terms that NumPy has under a name, and its reflection."""

    def forward(self: Term, other: Any) -> Term:
        return NotImplemented if _answers(other) else cast("Term", getattr(np, name)(self, other))

    def reflected(self: Term, other: Any) -> Term:
        return NotImplemented if _answers(other) else cast("Term", getattr(np, name)(other, self))

    return forward, reflected


class Term:
    """A value that knows where it came from. Behaves as its value in arithmetic."""

    __slots__ = ("index", "inputs", "name", "source", "text", "unit", "value")

    def __init__(
        self,
        value: Any,
        *,
        name: str,
        unit: str = "",
        source: str = "",
        text: str = "",
        inputs: Mapping[str, Term] | None = None,
        index: Any = None,
    ) -> None:
        self.value, self.name, self.unit, self.source, self.text = value, name, unit, source, text
        self.inputs: Mapping[str, Term] = inputs or {}
        self.index = index
        """Of a term that is a selection from its one input: what was selected."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Apply `ufunc` to the values and remember it."""
        if method != "__call__":
            return NotImplemented
        value = ufunc(*[item.value if type(item) is Term else item for item in inputs], **kwargs)
        symbol, word = _SYMBOLS.get(ufunc.__name__, (ufunc.__name__, ufunc.__name__))
        terms = [item if type(item) is Term else Term(item, name="") for item in inputs]
        unit = ""
        if symbol in _OF_ONE_UNIT:
            unit = next((part.unit for part in terms if part.unit), "")
        parts = dict(zip(_LABELS, terms, strict=False))
        return Term(value, name=symbol, unit=unit, text=word, inputs=parts)

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("subtract")
    __mul__, __rmul__ = _operators("multiply")
    __truediv__, __rtruediv__ = _operators("divide")
    __floordiv__, __rfloordiv__ = _ufunc("floor_divide")
    __mod__, __rmod__ = _ufunc("remainder")
    __pow__, __rpow__ = _ufunc("power")
    __and__, __rand__ = _ufunc("bitwise_and")
    __or__, __ror__ = _ufunc("bitwise_or")
    __gt__, __lt__ = _ufunc("greater")
    __ge__, __le__ = _ufunc("greater_equal")
    __eq__, __ne__ = _ufunc("equal")[0], _ufunc("not_equal")[0]  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Term:
        """Return the negative."""
        return cast("Term", np.negative(self))

    def __getitem__(self, index: Any) -> Term:
        """Return the term of the selected candidates, or of one stage of each."""
        return Term(
            self.value[index],
            name=self.name,
            unit=self.unit,
            source=self.source,
            text=self.text,
            inputs={"": self},
            index=index,
        )

    def renamed(
        self, name: str, *, unit: str | None = None, text: str | None = None, source: str | None = None
    ) -> Term:
        """Return the same term under a name of its own."""
        return Term(
            self.value,
            name=name,
            unit=self.unit if unit is None else unit,
            source=self.source if source is None else source,
            text=self.text if text is None else text,
            inputs=self.inputs,
            index=self.index,
        )

    def at(self, candidate: int = 0, *, depth: int | None = None) -> TermNode:
        """Return the tree of plain numbers for one candidate; equal subtrees are one object.

        With `depth`, it ends where a tidy explanation of as many levels needs no more.
        """
        return _node(self, candidate, None, _Limit(depth=depth), {})


SHOWN_VALUES = 4
"""Values of a quantity of stages in a headline."""
SHOWN_LINES = 24
"""Lines of details beyond which it is what the number is made of alone."""


class TermNode(Result, Struct, frozen=True, kw_only=True):
    """One node of an explanation: a number, where it comes from, and the numbers it was made of.

    A quantity that every pipeline stage has is a tuple, unless one stage was picked: then `stage` says which.
    """

    name: str
    value: Any
    unit: str
    source: str
    text: str
    inputs: tuple[tuple[str, TermNode], ...]
    stage: int | None = None

    def essentials(self) -> dict[str, Any]:
        """Return the number and the names of what it was made of."""
        inputs = tuple(label for label, _ in self.inputs)
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "text": self.text,
            "inputs": inputs,
        }

    @property
    def headline(self) -> str:
        """The number with its unit, of the first of several, and its formula."""
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        shown = ", ".join(format_quantity(value, self.unit) for value in values[:SHOWN_VALUES])
        more = ", …" if len(values) > SHOWN_VALUES else ""
        return f"{self.name} = {shown}{more}{f': {self.text}' if self.text else ''}"

    @property
    def details(self) -> tuple[str, ...]:
        """What it is made of, and that again, as far as it is a quantity with a name."""
        lines: list[str] = []
        for label, node in self.inputs:
            lines.append(f"  {replace(node, name=_called(node, label)).headline}")
            lines += [f"    {replace(item, name=_called(item, name)).headline}" for name, item in node.inputs]
        return tuple(lines if len(lines) <= SHOWN_LINES else (one for one in lines if one[2] != " "))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for the number and each that it was made of."""
        nodes = [(self.name, self), *self.inputs]
        return [
            {
                "name": _called(node, label),
                "value": node.value,
                "unit": node.unit or "1",
                "formula": node.text,
            }
            | {"source": node.source}
            for label, node in nodes
        ]

    def to_json(self, *, depth: int = JSON_DEPTH) -> dict[str, Any]:
        """Return the `forescale.explanation/1` document, `depth` levels of inputs deep."""
        return {
            "schema": SCHEMA,
            "quantity": self.name,
            "sources": list(self.sources),
            "tree": _plain(self, "", depth),
        }

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source behind the number once, in the order of the tree."""
        values: dict[str, None] = {}
        seen: set[int] = set()
        waiting = [self]
        while waiting:
            current = waiting.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            if current.source:
                values[current.source] = None
            waiting.extend(part for _, part in reversed(current.inputs))
        return tuple(values)

    def walk(self) -> Iterator[TermNode]:
        """Yield this node and all below it, depth first."""
        yield self
        for _, node in self.inputs:
            yield from node.walk()


ARITHMETIC = frozenset({"+", "-", "×", "/", "^", "//", "max", "min", "ceil", "floor"})
"""Names of terms that are plain arithmetic, not a quantity."""
OPERATIONS = {"sum": "+", "sum of its parts": "+", "product": "×", "quotient": "/", "difference": "-"}
"""Operation of terms by what they say of their formula, whatever their name."""


class _Limit(Struct, frozen=True, kw_only=True):
    """How much of a tree is needed."""

    depth: int | None = None
    """Levels of inputs that are needed; all where it is None."""
    above: frozenset[str] = frozenset()
    """Operations into which a node of the same operation may be merged."""

    def below(self, term: Term, value: object, merges: Callable[[], bool]) -> _Limit | None:
        """Return the limit of the inputs of a term, None where they are not needed; it may merge with one of them."""
        if self.depth is None:
            return self
        if value == 0.0 or (isinstance(value, tuple) and not any(value)):  # what makes a zero is not shown
            return None
        operation = OPERATIONS.get(term.text, "")
        is_merged = operation != "" and merges()
        if is_merged or (operation == term.name and operation in self.above):
            return _Limit(depth=self.depth, above=self.above | {operation} if is_merged else self.above)
        if self.depth > 0 or (not term.unit and (operation or term.name in ARITHMETIC)):
            return _Limit(depth=max(self.depth - 1, 0), above=frozenset({operation}))
        return None


_Seen: TypeAlias = dict[tuple[int, int, int | None, _Limit], TermNode]


def _node(term: Term, candidate: int, stage: int | None, limit: _Limit, seen: _Seen) -> TermNode:
    """Return the node of `term` for one candidate, and for one stage if one was picked above it."""
    key = (id(term), candidate, stage, limit)
    if key not in seen:
        origin, at, row = term, candidate, stage
        while origin.index is not None:
            at, row = _origin(origin.index, at, row, np.shape(origin.inputs[""].value)[-1])
            origin = origin.inputs[""]
        value = _value_at(np.asarray(origin.value), at, row)
        parts = origin.inputs
        below = limit.below(
            term,
            value,
            lambda: any(_value_at(np.asarray(part.value), at, row) == value for part in parts.values()),
        )
        seen[key] = TermNode(
            name=term.name,
            value=value,
            unit=term.unit,
            source=term.source,
            text=term.text,
            inputs=()
            if below is None
            else tuple((label, _node(part, at, row, below, seen)) for label, part in parts.items()),
            stage=row if np.ndim(origin.value) > 1 else None,
        )
    return seen[key]


def _origin(index: Any, candidate: int, stage: int | None, size: int) -> tuple[int, int | None]:
    """Return where a selected candidate stood before: its number there, and the stage picked."""
    match index:
        case (np.ndarray() as rows, columns):
            return int(columns[candidate]), int(rows[candidate])
        case (_, columns):
            return int(columns[candidate]), stage
        case _:
            return int(np.atleast_1d(np.arange(size)[index])[candidate]), stage


def _value_at(value: Any, candidate: int, stage: int | None) -> Any:
    if value.ndim == 0:
        return value.item()
    column = value[..., candidate if value.shape[-1] > 1 else 0]
    if value.ndim == 1 or stage is not None:
        return (column if value.ndim == 1 else column[stage if len(column) > 1 else 0]).item()
    return tuple(column.tolist())


def value_of(item: Any) -> Any:
    """Return the plain value of a term or of anything else."""
    return item.value if isinstance(item, Term) else item


def number_of(item: Any) -> float:
    """Return the plain number of one candidate, the first if there are several: Python's, not numpy's."""
    if type(item) is float:
        return item
    plain = value_of(item)
    return float(plain) if isinstance(plain, float) else numbers(plain)[0]


def as_term(item: Any, *, name: str = "", unit: str = "", source: str = "") -> Term:
    """Return `item` as a term; a term stays itself."""
    return item if isinstance(item, Term) else Term(item, name=name, unit=unit, source=source)


def named(item: Numeric, name: str, *, unit: str = "") -> Numeric:
    """Give a recorded value a name in the explanation; a plain value passes through."""
    return cast("Numeric", item.renamed(name, unit=unit)) if isinstance(item, Term) else item


def total(parts: Mapping[str, Numeric], *, name: str, unit: str) -> Numeric:
    """Return the sum of named parts; recorded, it keeps each part under its own name."""
    if Term not in map(type, parts.values()):
        return functools.reduce(operator.add, parts.values()) if parts else 0.0
    result = functools.reduce(operator.add, map(value_of, parts.values()))
    inputs = {key: as_term(part, name=key, unit=unit) for key, part in parts.items()}
    return cast("Numeric", Term(result, name=name, unit=unit, text="sum of its parts", inputs=inputs))


def _plain(node: TermNode, label: str, depth: int) -> dict[str, Any]:
    shown = node.inputs if depth > 0 else ()
    return {
        "name": _called(node, label),
        "value": _finite(node.value),
        "unit": node.unit or "1",
        "stage": node.stage,
        "formula": node.text,
        "source": node.source,
        "inputs": [_plain(part, key, depth - 1) for key, part in shown],
    }


def _called(node: TermNode, label: str) -> str:
    return label if label and not label.isdigit() else node.name


def _finite(value: Any) -> Any:
    """Return numbers as they are; infinity, which JSON lacks, as text."""
    if isinstance(value, tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and value in {float("inf"), float("-inf")} else value

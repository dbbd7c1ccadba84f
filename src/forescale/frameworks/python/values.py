"""What the syntax of Python stands for where it is not a plain value, and what plain values make together."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from posixpath import join
from typing import Any, Final

from forescale.frameworks.shell.expressions import ORDER

LARGEST: Final = 2**63
"""Numbers that arithmetic goes on with."""
LONGEST: Final = 20_000
"""Entries of a list, those of lists and tables inside it included; letters of a text."""
DEEPEST: Final = 64
"""Lists and tables inside each other."""
MISSING: Final = object()
"""What stands for a name or a field that nothing sets."""


@dataclass(slots=True, eq=False)
class Opaque:
    """A value that only running the file would show, or a name of what is not read (torch.bfloat16)."""

    text: str
    place: str
    """File and line."""
    origin: str = ""
    """Module that a name is imported from."""
    every: int = 0
    """Of a condition on a remainder: the turns of a loop of which it is met in one."""


@dataclass(slots=True, eq=False)
class Tensor(Opaque):
    """A tensor with its sizes, or a list or a batch of tensors; a size that is not known is None."""

    sizes: tuple[int | None, ...] = ()
    is_batch: bool = False
    """Whether it may be a tuple or a table of tensors, which have the same first sizes."""


@dataclass(slots=True, eq=False)
class Stream(Opaque):
    """What a loop goes through and only running the file shows, of which one item stands for all."""

    item: Any = None


class Table(dict[str, Any]):
    """A table of a configuration's file, whose entries are its fields as well."""


@dataclass(slots=True, eq=False)
class Call:
    """What a class or a function that is not read was called with: a configuration, whose fields are set later."""

    name: str
    place: str
    args: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """Where each field was set."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that are not set."""
    kinds: tuple[str, ...] = ()
    """Names of its class and of those that it builds on, where these can be read."""
    open: str = ""
    """What is unpacked into it (`**config`) and not known."""
    of: Any = None
    """The class that it is an object of, where that can be read (`module.Class`)."""
    origin: str = ""
    """Module that what is called is imported from, where that is not read."""
    known: bool = True
    """False: a part that nothing made, or what a function returned that is not read."""

    def table(self) -> dict[str, Any]:
        """Return all fields, of which a change is one of the object."""
        for name, value in self.defaults.items():
            self.fields.setdefault(name, value)
        return self.fields

    @property
    def idle(self) -> bool:
        """Whether nothing is known of it."""
        return not self.known and not self.fields


class Stopped(Exception):  # noqa: N818 (it is what the file raises)
    """The file raises here."""

    def __init__(self, place: str, kind: str, text: str) -> None:
        self.place, self.kind, self.text = place, kind, text
        super().__init__(text)


def known(value: object) -> bool:
    """Whether a value is known as such; what it holds need not be."""
    return not isinstance(value, Opaque) and not (isinstance(value, Call) and not value.known)


def truth(value: object) -> bool | None:
    """Return whether a value counts as true; None where it is not known."""
    if not known(value):
        return None
    plain = isinstance(value, str | int | float | list | tuple | dict | set | range | None)
    return bool(value) if plain else True


def same(left: object, right: object) -> bool:
    """Whether two values are known to be the same."""
    if left is right:
        return True
    return known(left) and type(left) is type(right) and not isinstance(left, Call) and left == right


def _power(base: Any, exponent: Any) -> Any:  # noqa: ANN401
    """Return a power; of an exponent that no configuration has, an error that leaves it unknown."""
    if abs(exponent) > POWER:
        raise OverflowError
    return base**exponent


def _quotient(left: Any, right: Any) -> Any:  # noqa: ANN401
    """Return a quotient; of two texts, which are paths then, the path that they join to."""
    return join(left, right) if isinstance(left, str) and isinstance(right, str) else left / right


POWER: Final = 64
"""Largest exponent."""
_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Pow: _power,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: _quotient,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
}
_COMPARED: Mapping[type, Callable[[Any, Any], Any]] = {
    **ORDER,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: lambda left, right: left is right or same(left, right),
    ast.IsNot: lambda left, right: not (left is right or same(left, right)),
}


class Accepted(set[str]):
    """Names of the arguments that a library's function takes, which is not at hand: any may be one."""

    def __contains__(self, name: object) -> bool:
        """Whether a name may be one."""
        return isinstance(name, str)

    def keys(self) -> Accepted:
        """Return the names."""
        return self


def computed(op: ast.operator, left: Any, right: Any) -> Any:  # noqa: ANN401
    """Return a sum, a product or the like of numbers, lists, texts or tables; MISSING where there is none."""
    made = _BINARY.get(type(op))
    pair = (left, right)
    if made is None or not all(known(item) and not isinstance(item, Call) for item in pair):
        return MISSING
    if isinstance(op, ast.Mult) and any(isinstance(item, list | tuple | str) for item in pair):
        sizes = [len(item) if isinstance(item, list | tuple | str) else item for item in pair]
        if not isinstance(sizes[0], int) or not isinstance(sizes[1], int) or sizes[0] * sizes[1] > LONGEST:
            return MISSING
    if isinstance(op, ast.Mod) and isinstance(left, str):
        return MISSING
    try:
        return checked(made(left, right))
    except (TypeError, ValueError, ArithmeticError):
        return MISSING


def compared(op: ast.cmpop, left: Any, right: Any) -> Any:  # noqa: ANN401
    """Return whether a comparison holds; MISSING where that is not known."""
    if isinstance(op, ast.Is | ast.IsNot) and right is None and isinstance(left, Opaque) and left.origin:
        return isinstance(op, ast.IsNot)  # what is imported is there
    if isinstance(op, ast.Is | ast.IsNot) and known(left) and getattr(right, "text", "").endswith("MISSING"):
        return isinstance(op, ast.IsNot)  # what a dataclass has for a field without a default
    if not (known(left) and known(right)):
        return MISSING
    try:
        result = _COMPARED[type(op)](left, right)
    except TypeError:
        return MISSING
    inside = right if isinstance(right, list | tuple | set | dict) else ()
    sure = result is isinstance(op, ast.In) or all(known(item) for item in inside)
    return result if sure or not isinstance(op, ast.In | ast.NotIn) else MISSING


def checked(value: Any) -> Any:  # noqa: ANN401
    """Return a value; MISSING where it is larger than a file that people write has it."""
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        return MISSING
    if isinstance(value, str) and len(value) > LONGEST:
        return MISSING
    return MISSING if size_of(value) > LONGEST else value


def size_of(value: object) -> int:
    """Return the entries of a list, set or table, those inside its entries counted at each place; 0 of other values.

    It is more than `LONGEST` where there are more, or where they nest deeper than `DEEPEST`, as a list that contains
    itself does.
    """
    level: list[Any] = [value] if isinstance(value, list | tuple | dict | set) else []
    size = depth = 0
    while level:
        depth += 1
        inside = [item for entry in level for item in (entry.values() if isinstance(entry, dict) else entry)]
        inside += [key for item in level if isinstance(item, dict) for key in item if isinstance(key, tuple)]
        size += len(inside) if depth <= DEEPEST else LONGEST + 1
        if size > LONGEST:
            break
        level = [item for item in inside if isinstance(item, list | tuple | dict | set)]
    return size

"""Parts of Python's syntax that `run` evaluates: patterns, targets, signs, entries and sets."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from forescale.frameworks.python.module import source_of
from forescale.frameworks.python.values import MISSING, known, truth

EXITS: Final = re.compile(r"raise (?:\w+\.)?(?:SystemExit|exit)\(\w+\(")
"""A line that ends a program with what a function of it returns."""
TURNS: Final = 100
"""Turns of a loop over numbers that are run one by one where classes are followed; one stands for more."""


def tested(subject: ast.expr, pattern: ast.pattern) -> ast.expr:
    """Return the condition under which a value is of a pattern; a name that none has where it is of another kind."""
    match pattern:
        case ast.MatchValue(value=value):
            test: ast.expr = ast.Compare(subject, [ast.Eq()], [value])
        case ast.MatchSingleton(value=value):
            test = ast.Compare(subject, [ast.Is()], [ast.copy_location(ast.Constant(value), subject)])
        case ast.MatchOr(patterns=patterns):
            test = ast.BoolOp(ast.Or(), [tested(subject, inner) for inner in patterns])
        case ast.MatchAs(pattern=None, name=None):
            test = ast.Constant(value=True)
        case _:
            test = ast.Name(source_of(pattern), ast.Load())
    return ast.copy_location(test, subject)


def loaded(target: ast.expr) -> ast.expr:
    """Return what a line adds to, as it is read."""
    match target:
        case ast.Attribute(value=owner, attr=name):
            return ast.copy_location(ast.Attribute(owner, name, ast.Load()), target)
        case ast.Subscript(value=owner, slice=key):
            return ast.copy_location(ast.Subscript(owner, key, ast.Load()), target)
        case _:
            return target


def signed(op: ast.unaryop, value: Any) -> Any:  # noqa: ANN401
    """Return a number with its sign, or the opposite of a condition; MISSING where that is not known."""
    if isinstance(op, ast.Not):
        selected = truth(value)
        return MISSING if selected is None else not selected
    if not isinstance(value, int | float):
        return MISSING
    return -value if isinstance(op, ast.USub) else +value if isinstance(op, ast.UAdd) else MISSING


def entry(owner: Any, key: Any) -> Any:  # noqa: ANN401
    """Return an entry of a list, a table or a text; MISSING where that is not known."""
    if not isinstance(owner, list | tuple | dict | str) or not known(key):
        return MISSING
    try:
        return owner[key]
    except (LookupError, TypeError, ValueError):
        return MISSING


def is_key(value: object) -> bool:
    """Whether a table may have an entry by that name."""
    try:
        hash(value)
    except TypeError:
        return False
    return isinstance(value, str | int | float | bool | tuple)


def set_of(items: Any) -> Any:  # noqa: ANN401
    """Return a set; MISSING of entries that none can have."""
    try:
        return set(items)
    except TypeError:
        return MISSING


def _terms(node: ast.expr, *, is_less: bool = False) -> Iterator[tuple[ast.expr, bool]]:
    """Yield what an expression adds up, each with whether it is taken away."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _terms(node.left, is_less=is_less)
        yield from _terms(node.right, is_less=is_less is not isinstance(node.op, ast.Sub))
    else:
        yield node, is_less


def distance(lower: ast.expr, upper: ast.expr, value: Callable[[ast.expr], Any]) -> Any:  # noqa: ANN401
    """Return how much larger one expression is than another where what is not known is in both; MISSING elsewhere."""
    count, rest = 0, Counter[str]()
    for sign, end in ((1, upper), (-1, lower)):
        for term, is_less in _terms(end):
            size, turned = value(term), -sign if is_less else sign
            if type(size) is int:
                count += turned * size
            else:
                rest[source_of(term)] += turned
    return MISSING if any(rest.values()) or count <= 0 else count

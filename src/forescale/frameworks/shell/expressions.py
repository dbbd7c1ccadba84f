"""Arithmetic and tests of the shell."""

from __future__ import annotations

import ast
import fnmatch
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_UNSET = re.compile(r"\$\{\w+\}")


def is_unset(word: str) -> bool:
    """Whether `word` is nothing but a variable that has no value."""
    return _UNSET.fullmatch(word) is not None


_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LARGEST: Final = 2**63
_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: (
        int(math.copysign(1, left) * math.copysign(1, right)) * (abs(left) // abs(right))
    ),
    ast.Mod: lambda left, right: int(math.copysign(1, left)) * (abs(left) % abs(right)),
    ast.Pow: lambda base, exponent: base ** min(exponent, _LARGEST.bit_length()) if exponent >= 0 else 0,
}
"""Operators of the shell's arithmetic; division rounds towards zero."""


def _arithmetic(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value):
            result = value
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            result = -_arithmetic(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result = _BINARY[type(op)](_arithmetic(left), _arithmetic(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in ORDER:
            result = int(ORDER[type(op)](_arithmetic(left), _arithmetic(right)))
        case ast.BoolOp(op=op, values=values):
            combine = all if isinstance(op, ast.And) else any
            result = int(combine(_arithmetic(item) for item in values))
        case _:
            raise ValueError(ast.dump(node))
    if not -_LARGEST <= result < _LARGEST:
        raise OverflowError(result.bit_length())
    return result


def integer_of(text: str) -> int:
    """Return the value of an arithmetic expression without variables, division rounding towards zero.

    Raises
    ------
    ValueError, SyntaxError, ZeroDivisionError, OverflowError, RecursionError, MemoryError
        If it has none.
    """
    question, mark, branches = text.partition("?")
    if mark and ":" in branches:
        left, _, right = branches.partition(":")
        return integer_of(left if integer_of(question) else right)
    joined = text.replace("&&", " and ").replace("||", " or ").strip()
    return int(_arithmetic(ast.parse(joined, mode="eval").body))


def holds(names: Sequence[str]) -> bool:
    """Say whether a test holds; what cannot be known (files) does not, and what nothing sets is empty."""
    names = ["" if is_unset(word) else word for word in names]
    for joint, combine in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
        if joint in names:
            at = names.index(joint)
            return combine((holds(names[:at]), holds(names[at + 1 :])))
    match names:
        case ["!", *rest]:
            return not holds(rest)
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case [left, ("=" | "=="), right]:
            return fnmatch.fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatch.fnmatchcase(left, right)
        case [left, compare, right] if compare in _COMPARE:
            return _COMPARE[compare](_integer(left), _integer(right))
    return False


_CUTS: Final = re.compile(
    r"(##?|%%?)(.*)|(//?[#%]?)((?:\\.|[^/])+)(?:/(.*))?|(,,?|\^\^?)|:\s*(-?\d+)(?::(\d+))?", re.DOTALL
)
"""What stands behind the name of a variable that changes its value: ${x#…}, ${x%…}, ${x/…/…}, ${x,,}, ${x:2:3}."""
_LONGEST: Final = 4096
"""Characters of a value that is changed."""


def changed(value: str, form: str) -> str | None:
    """Return a value of a variable as ${NAMEform} changes it; None of forms that are not followed."""
    match = _CUTS.fullmatch(form)
    if match is None or len(value) > _LONGEST:
        return None
    cut, ends, every, old, new, case, start, count = match.groups()
    size = len(value)
    if cut:
        places = range(size + 1) if cut in ("#", "%%") else range(size, -1, -1)
        parts = ((value[:at], value[at:]) for at in places)
        kept = (right if cut[0] == "#" else left for left, right in parts if _fits(cut, left, right, ends))
        return next(kept, value)
    if every:
        pattern = fnmatch.translate(old.replace("\\/", "/")).removesuffix(r"\Z").removesuffix(r"\z")
        anchored = {"#": rf"\A{pattern}", "%": rf"{pattern}\Z"}.get(every[-1], pattern)
        return re.sub(anchored, lambda _: new or "", value, count=0 if every.startswith("//") else 1)
    if case:
        change = str.lower if case[0] == "," else str.upper
        return change(value) if len(case) > 1 else change(value[:1]) + value[1:]
    at = int(start) if int(start) >= 0 else max(0, size + int(start))
    return value[at : at + int(count) if count else size]


def _fits(cut: str, left: str, right: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(left if cut[0] == "#" else right, pattern)


def is_certain(names: Sequence[str]) -> bool:
    """Whether the result of a test is known: no file, command, open variable or empty word decides it."""
    for joint in ("||", "-o", "&&", "-a"):
        if joint in names:
            at = names.index(joint)
            return is_certain(names[:at]) and is_certain(names[at + 1 :])
    if any(not word or "$" in word or "`" in word for word in names):
        return False
    match names:
        case ["!", *rest]:
            return is_certain(rest)
        case [("-z" | "-n"), _] | [_]:
            return names[-1] not in ("-z", "-n")
        case [_, compare, _]:
            return compare in ("=", "==", "!=", *_COMPARE)
    return False


def _integer(text: str) -> float:
    return float(text) if re.fullmatch(r"-?\d{1,18}", text) else 0.0

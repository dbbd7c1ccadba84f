"""Results on a line: what `repr` shows of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

MOST = 80
"""Characters of a value that is shown whole."""


class ReprMixin:
    """Base of results: their repr names the essentials, not every field of every layout within.

    A dataclass takes it with `repr=False`, and overrides `essentials` where not all fields are.
    """

    __slots__ = ()

    def essentials(self) -> Mapping[str, Any]:
        """Return what the repr shows, by name: what is not at its default."""
        return told(self)

    def __repr__(self) -> str:
        """Return the class with its essentials."""
        shown = ", ".join(f"{name}={one_line(value)}" for name, value in self.essentials().items())
        return f"{type(self).__name__}({shown})"


def told(value: Any) -> dict[str, Any]:  # noqa: ANN401  (any dataclass)
    """Return the fields of a dataclass that are not at their defaults."""
    explicit = {item.name: getattr(value, item.name) for item in fields(value) if item.repr}
    usual = {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(value)
    }
    return {name: item for name, item in explicit.items() if not _same(item, usual[name])}


def _same(value: Any, usual: Any) -> bool:  # noqa: ANN401  (any values)
    """Return whether a value is a default; an array is none."""
    equal = value is usual or value == usual
    return bool(equal) if getattr(equal, "ndim", 0) == 0 else False


def one_line(value: Any) -> str:  # noqa: ANN401
    """Return a value in few characters: a name, what differs from the usual, or the first of many."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, ReprMixin):
        return repr(value)
    if is_dataclass(value) and isinstance(name := getattr(value, "name", None), str):
        return name
    if is_dataclass(value):
        inner = ", ".join(f"{name}={one_line(item)}" for name, item in told(value).items())
        return f"{type(value).__name__}({inner})"
    if isinstance(value, tuple | list) and ((value and is_dataclass(value[0])) or len(repr(value)) > MOST):
        first = one_line(value[0])
        return f"({first})" if len(value) == 1 else f"({first}, … {len(value) - 1} more)"
    whole = repr(value)
    return whole if len(whole) <= MOST else f"<{type(value).__name__}>"

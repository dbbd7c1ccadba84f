"""Megatron's settings by key, wherever they were written, with typed access that remembers what was used."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NoReturn, overload

from forescale.errors import ReaderError
from forescale.units import counted


class Settings:
    """Values by Megatron's own key (`num_layers`); getters convert, and note the key as used.

    Parameters
    ----------
    values
        What was written; None counts as not given.
    where
        The file or text, for messages.
    spelling
        How a key was written (`--num-layers`), where that is not the key itself.
    """

    def __init__(
        self, values: Mapping[str, object], where: str, spelling: Mapping[str, str] | None = None
    ) -> None:
        self.where = where
        self.notes: list[str] = []
        self._values = dict(values)
        self._spelling = dict(spelling or {})
        self._used: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str) -> object:
        """Return the value as written, or None."""
        if key in self._values:
            self._used[key] = None
        return self._values.get(key)

    @overload
    def count(self, key: str, default: int) -> int: ...
    @overload
    def count(self, key: str, default: None = None) -> int | None: ...
    def count(self, key: str, default: int | None = None) -> int | None:
        """Return a whole number of 0 or more, or `default` if the key is not given."""
        value = self.get(key)
        if value is None:
            return default
        text = str(value).replace("_", "")
        whole = isinstance(value, float) and value.is_integer()
        number = int(value) if whole else int(text) if text.isdigit() else None  # type: ignore[call-overload]
        if number is None or isinstance(value, bool):
            self.refuse(f"{self.spell(key)} must be a whole number of 0 or more, got {value!r}")
        return int(number)

    def size(self, key: str) -> int:
        """Return a whole number of 1 or more that must be given."""
        value = self.count(key)
        if not value:
            given = "" if value is None else f", got {value}"
            self.refuse(f"{self.spell(key)} must be given as a whole number of 1 or more{given}")
        return value

    def degree(self, key: str) -> int:
        """Return a whole number of 1 or more; 1 if it is not given."""
        value = self.count(key, 1)
        if value < 1:
            self.refuse(f"{self.spell(key)} must be 1 or more, got {value}")
        return value

    def number(self, key: str) -> float | None:
        """Return a number, or None if it is not given."""
        value = self.get(key)
        try:
            return None if value is None else float(str(value))
        except ValueError:
            self.refuse(f"{self.spell(key)} must be a number, got {value!r}")

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        value = self.get(key)
        if value is None:
            return default
        known = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
        if known is None:
            self.refuse(f"{self.spell(key)} must be true or false, got {value!r}")
        return known

    def choice(self, key: str, default: str, choices: Mapping[str, str]) -> str:
        """Return what `choices` makes of the value; `default` (a key of it) if it is not given."""
        value = str(self.get(key) or default)
        if value not in choices:
            self.refuse(f"{self.spell(key)} must be one of {', '.join(choices)}, got {value!r}")
        return choices[value]

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of words, written as a list, as "[a b]" or as "a,b"."""
        value = self.get(key)
        if value is None:
            return ()
        listed = value if isinstance(value, list | tuple) else [value]
        return tuple(word for item in listed for word in str(item).strip("[]() ").replace(",", " ").split())

    def pattern(self, key: str, length: int) -> tuple[int, ...] | int | None:
        """Return Megatron's "every N" (an int), or a list of `length` numbers such as "([0]*3+[1]*58)"."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, list):
            found: object = [int(str(item)) for item in value]
        else:
            found = self._evaluate(key, str(value))
        if isinstance(found, int):
            if found < 1:
                self.refuse(f"{self.spell(key)} must be 1 or more, got {found}")
            return found
        assert isinstance(found, list)
        if len(found) != length:
            self.refuse(f"{self.spell(key)} lists {counted(len(found), 'layer')}, but the model has {length}")
        return tuple(found)

    def _evaluate(self, key: str, text: str) -> int | list[int]:
        try:
            return _sum_of_lists(ast.parse(text.strip(), mode="eval").body)
        except (ValueError, SyntaxError, TypeError):
            self.refuse(
                f"{self.spell(key)} must be a whole number or a list such as ([0]*3+[1]*58), got {text!r}"
            )

    def spell(self, key: str) -> str:
        """Return the key as the configuration writes it."""
        return self._spelling.get(key, key)

    def note(self, text: str) -> None:
        """Keep a remark for the reader of the result."""
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, problem: str) -> NoReturn:
        """Raise: the configuration cannot be, or cannot be expressed."""
        raise ReaderError(self.where, problem)

    def used(self) -> tuple[str, ...]:
        """Return the keys that were given and read, as they are spelled."""
        return tuple(sorted(self.spell(key) for key in self._used))

    def unread(self) -> tuple[str, ...]:
        """Return the keys that were given and not read, as they are spelled."""
        return tuple(sorted(self.spell(key) for key in self._values if key not in self._used))


def _sum_of_lists(node: ast.expr) -> int | list[int]:
    """Return the value of an expression of whole numbers, lists of them, + and *; nothing else is run."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.List(elts=items):
            return [found for item in items if isinstance(found := _sum_of_lists(item), int)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum_of_lists(left) + _sum_of_lists(right)  # type: ignore[operator]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            parts = _sum_of_lists(left), _sum_of_lists(right)
            times = next((part for part in parts if isinstance(part, int)), 0)
            if times > 10_000:
                raise ValueError(times)
            return parts[0] * parts[1]  # type: ignore[operator]
        case _:
            raise ValueError(ast.dump(node))

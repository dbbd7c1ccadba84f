"""Checks that all getters of configurations share; the sentence of each error is made here."""

from __future__ import annotations

from typing import NoReturn

from forescale.errors import ReaderError, shown


class Getters:
    """Base of the views of a configuration by key."""

    where: str
    """The file, for messages."""

    def refuse(self, problem: str) -> NoReturn:
        """Raise: the configuration is invalid, or cannot be expressed."""
        raise ReaderError(self.where, problem)

    def whole(
        self, key: str, number: int | None, value: object, *, least: int, most: float, hint: str = ""
    ) -> int:
        """Return a whole number within bounds; `number` is None if `value` is no whole number."""
        if number is None or number < least:
            values = shown(value if number is None else number)
            self.refuse(f"{key} must be a whole number of {least} or more, got {values}{hint}")
        if number > most:
            self.refuse(f"{key} must be {most:,} or less, got {number}")
        return number

    def boolean(self, key: str, known: bool | None, value: object) -> bool:
        """Return true or false; `known` is None if `value` is neither."""
        if known is None:
            self.refuse(f"{key} must be true or false, got {shown(value)}")
        return known

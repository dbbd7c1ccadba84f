"""Checks that all getters of configurations share; the sentence of each error is made here."""

from __future__ import annotations

from typing import NoReturn

from forescale import wording
from forescale.errors import ForescaleError, ReaderError


class Getters:
    """Base of the views of a configuration by key."""

    where: str
    """The file, for messages."""

    def refuse(self, violation: str | ForescaleError) -> NoReturn:
        """Raise: the configuration is invalid, or cannot be expressed."""
        raise ReaderError(self.where, violation)

    def whole(
        self, key: str, number: int | None, value: object, *, least: int, most: float, hint: str = ""
    ) -> int:
        """Return a whole number within bounds; `number` is None if `value` is no whole number."""
        if number is None:
            self.refuse(wording.wrong_type(key, value, wording.whole_from(least), hint))
        if number < least:
            self.refuse(wording.out_of_range(key, number, wording.whole_from(least), hint))
        if number > most:
            self.refuse(wording.out_of_range(key, number, f"{most:,} or less"))
        return number

    def boolean(self, key: str, known: bool | None, value: object) -> bool:
        """Return true or false; `known` is None if `value` is neither."""
        if known is None:
            self.refuse(wording.wrong_type(key, value, "true or false"))
        return known

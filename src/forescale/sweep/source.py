"""A sweep file while it is being read: its values, and where each stands, for messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from annotated_types import Interval

from forescale.errors import ForescaleError, SpecError, UnknownKeyError
from forescale.io.lines import line_of
from forescale.limits import within

T = TypeVar("T")
_SUBJECT = re.compile(r"unknown key '([\w.]+)'|(?:^|[:;,] )([\w.]+) (?:must be|= )")
_BASE_SECTIONS = ("workload", "precision", "cost", "cluster", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The content of a sweep file."""

    values: Mapping[str, Any]
    where: str
    """Its name, for messages."""
    folder: Path | None
    """Folder that relative paths start from."""
    text: str
    """What the values were read from, for line numbers."""

    def at(self, *path: str | int) -> str:
        """Return file and line of a key, for messages."""
        line = line_of(self.text, path)
        return self.where if line is None else f"{self.where}, line {line}"

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a table, empty where it is not given."""
        found: Mapping[str, Any] = self.values.get(name, {})
        return found

    def tables(self, name: str) -> list[Mapping[str, Any]]:
        """Return the tables of a list, in order."""
        return list(self.values.get(name, []))

    def load(self, load: Callable[[], T], path: tuple[str | int, ...]) -> T:
        """Return what `load` reads; its errors say where it was asked for."""
        try:
            return load()
        except ForescaleError as error:
            msg = f"{self.at(*path)}: {error}"
            raise SpecError(msg) from error

    def count(self, section: str, key: str, *, least: int, most: int, default: int | None = None) -> int:
        """Return a whole number of a section."""
        value = self.values[section].get(key, default)
        what = f"{self.at(section, key)}: {section}.{key}"
        return within(value, Interval(ge=least, le=most), what, whole=True)  # type: ignore[no-any-return]

    def located(self, error: ForescaleError) -> ForescaleError:
        """Return an error of a section with the line of the key that it is about."""
        name = error.key if isinstance(error, UnknownKeyError) else None
        if name is None:
            match = _SUBJECT.search(str(error).removeprefix(f"{self.where}, ").removeprefix(self.where))
            name = (match[1] or match[2]) if match else None
        if name is None:
            return error
        for section in _BASE_SECTIONS:
            for path in ((section, *name.split(".")), (section, *name.split(".")[1:])):
                line = line_of(self.text, path)
                if len(path) > 1 and line is not None and line != line_of(self.text, path[:-1]):
                    text = str(error).replace(self.where, f"{self.where}, line {line}", 1)
                    return SpecError(text)
        line = line_of(self.text, (name,))
        if line is None:
            return error
        return SpecError(str(error).replace(self.where, f"{self.where}, line {line}", 1))

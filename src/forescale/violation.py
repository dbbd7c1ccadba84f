"""The base of all errors, with the fields that tests, the page and programs read: code, key, value, allowed, fix."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

from forescale.patterns import pattern

E = TypeVar("E", bound="ForescaleError")
_PLACE = pattern(
    r"(?P<file>.*?)(?:[,:] line (?P<line>\d+))?(?:, (?:column )?(?P<path>[\w.\[\]]+))?", re.DOTALL
)
"""A place as messages write it: a file, a line of it, and the path of a key."""


class Location(NamedTuple):
    """Location of an error: a file, a line of it (0 if unknown) and the dotted path of a key."""

    file: str
    line: int = 0
    path: str = ""

    @classmethod
    def of(cls, place: object, inside: Location | None = None) -> Location:
        """Return the location of a place such as "plan.toml, line 4, layout", or of a line (`inside`) of a file."""
        parts = _PLACE.fullmatch(str(place))
        file, line, path = (
            (parts["file"], int(parts["line"] or 0), parts["path"] or "") if parts else ("", 0, "")
        )
        return cls(file, line, path) if inside is None else inside._replace(file=inside.file or file)


class ForescaleError(ValueError):
    """Base of all errors caused by input; its text is a single sentence.

    Attributes
    ----------
    code
        The kind of error: a function of `forescale.wording`, such as "out_of_range"; empty for other text.
    key, value
        The key, option or column at fault, and its value.
    allowed
        The values that are allowed: a description, or all of them.
    fix
        What to change.
    location
        File, line and path of the key, if known.
    nearest
        The allowed values that are most like `value`, the best first; empty if unknown.
    causes
        The errors that this one consists of, each with fields of its own.
    """

    code: str = ""
    key: str = ""
    value: Any = None
    allowed: Any = None
    fix: str = ""
    location: Location | None = None
    nearest: tuple[Any, ...] = ()
    causes: tuple[ForescaleError, ...] = ()

    def __init__(self, text: str | ForescaleError = "", **fields: Any) -> None:  # noqa: ANN401  (any value)
        """Make an error with a text, or with the text and the fields of another one."""
        super().__init__(str(text))
        self.adopt(text)
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)

    def adopt(self, other: object) -> None:
        """Copy the fields of `other` if it is a Forescale error; return nothing."""
        if isinstance(other, ForescaleError):
            fields = ("code", "key", "value", "allowed", "fix", "location", "nearest", "causes")
            self.__dict__.update({name: getattr(other, name) for name in fields})

    def at(self: E, where: object) -> E:
        """Return the error with a place before its text; a file becomes its location."""
        if PurePath(str(where).partition(",")[0]).suffix:
            self.location = Location.of(where, self.location)
        return self.worded(f"{where}: {self}") if where else self

    def worded(self: E, text: str) -> E:
        """Return the error with another text."""
        self.args = (text,)
        return self


def _restored(kind: type[E], args: tuple[str, ...], state: dict[str, Any]) -> E:
    """Return the error of another process, without a call of the constructor of its class."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class SpecError(ForescaleError):
    """A specification that is invalid."""

"""A framework's settings by key, wherever they were written, with typed access that remembers what was used."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar, overload

from forescale import wording
from forescale.errors import ForescaleError, MissingError, ReaderError, UnknownKeyError, UnknownNameError
from forescale.frameworks.getters import Getters
from forescale.frameworks.reading import unknown_of
from forescale.frameworks.shell import is_unset
from forescale.limits import COUNT, EXTENT, LAYERS, whole_of
from forescale.struct import Struct
from forescale.units import counted

T = TypeVar("T")
P = ParamSpec("P")
LARGE_COUNTS = frozenset(
    ("seq_length", "global_batch_size", "train_samples", "train_iters", "max_position_embeddings")
)
"""Counts that may be larger than a model's extents."""
_MANY = {"train_samples": 10**12}
MOST = 1e24
MISSING: Final = object()
"""What stands for a value that was left out; it matters only where the key is read."""


class Unread(Struct, frozen=True):
    """A value that cannot be read; it matters only where the key is."""

    where: str
    problem: str | ForescaleError


LONGEST = 10_000
"""Characters of a list that are read."""


class Settings(Getters):
    """Values by the framework's own key (`num_layers`); getters convert, and note the key as used.

    Parameters
    ----------
    values
        What was written; None counts as not given.
    where
        The file or text, for messages.
    spelling
        How a key was written (`--num-layers`), where that is not the key itself.
    lines
        Line of the file that a key stands on, for messages; of another file its name and line.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        where: str,
        spelling: Mapping[str, str] | None = None,
        lines: Mapping[str, int | str] | None = None,
    ) -> None:
        self.where = where
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.phase = ""
        self._values = dict(values)
        self._spelling = dict(spelling or {})
        self._lines = dict(lines or {})
        self._used: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def written(self, key: str) -> bool:
        """Whether a key is there, even without a value."""
        return key in self._values

    def get(self, key: str) -> object:
        """Return the value as written, or None."""
        if key in self._values:
            self._used[key] = None
        value = self._values.get(key)
        if value is MISSING:
            self.refuse_key(wording.no_value, key)
        if isinstance(value, Unread):
            raise ReaderError(value.where, value.problem)
        return value

    def raw(self, key: str) -> object:
        """Return the value as written, or None, without a note of its use."""
        return self._values.get(key)

    def override(self, fields: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
        """Set keys to the fields of a plan that they mean, and return the keys and their values."""
        values = {key: fields[name] for name, key in keys.items() if fields.get(name) is not None}
        self._values |= values
        return values

    def set(self, key: str, value: object) -> None:
        """Lay a value over what was written."""
        self._values[key] = value

    @overload
    def count(self, key: str, default: int, least: int = 0) -> int: ...
    @overload
    def count(self, key: str, default: None = None, least: int = 0) -> int | None: ...
    def count(self, key: str, default: int | None = None, least: int = 0) -> int | None:
        """Return a whole number of `least` or more, or `default` if the key is not given."""
        value = self.get(key)
        if value is None:
            return default
        text = str(value).replace("_", "")
        whole = isinstance(value, float) and value.is_integer()
        number = int(value) if whole else whole_of(text)  # type: ignore[call-overload]
        usual = LAYERS.le if key == "num_layers" else COUNT.le if key in LARGE_COUNTS else EXTENT.le
        known = None if isinstance(value, bool) else number
        return self.whole(
            self.spell(key), known, value, least=least, most=_MANY.get(key, usual), hint=_var(value)
        )

    def size(self, key: str, default: int | None = None) -> int:
        """Return a whole number of 1 or more, which is required unless it has a `default`."""
        value = self.count(key, default, least=1) if default is not None else self.count(key, least=1)
        if value is None:
            self.refuse_key(wording.missing, key, f"give {wording.whole_from(1)}")
        return value

    def degree(self, key: str) -> int:
        """Return a whole number of 1 or more; 1 if it is not given."""
        return self.count(key, 1, least=1)

    def number(self, key: str) -> float | None:
        """Return a number, or None if it is not given."""
        value = self.get(key)
        try:
            number = None if value is None else float(str(value))
        except ValueError:
            number = math.nan
        if number is not None and not abs(number) <= MOST:
            self.refuse_key(wording.wrong_type, key, value, "a number")
        return number

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        value = self.get(key)
        if value is None:
            return default
        known = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
        return self.boolean(self.spell(key), known, value)

    def choice(self, key: str, default: str, choices: Mapping[str, T]) -> T:
        """Return what `choices` makes of the value; `default` (a key of it) if it is not given."""
        return choices[self.one_of(key, default, choices)]

    def one_of(self, key: str, default: str, known: Collection[str]) -> str:
        """Return the value, which must be one of the `known` words; `default` if it is not given."""
        value = self.text(key, default)
        if value not in known:
            self.refuse_key(wording.not_one_of, key, value, known)
        return value

    def text(self, key: str, default: str = "") -> str:
        """Return one word or line; `default` if it is not given, empty or switched off."""
        value = self.get(key)
        if isinstance(value, list | tuple | Mapping):
            self.refuse_key(wording.wrong_type, key, value, "text")
        return default if value is None or value is False or value == "" else str(value)

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of words, written as a list, as "[a b]", as '["a", "b"]' or as "a,b"."""
        value = self.get(key)
        if value is None:
            return ()
        listed = value if isinstance(value, list | tuple) else [value]
        words = (word for item in listed for word in str(item).strip("[]() ").replace(",", " ").split())
        return tuple(word.strip("\"'") for word in words)

    def pattern(self, key: str, length: int) -> tuple[int, ...] | int | None:
        """Return Megatron's "every N" (an int), or a list of `length` numbers such as "([0]*3+[1]*58)"."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, list):
            result: object = self._evaluate(key, f"[{','.join(map(str, value))}]")
        else:
            result = self._evaluate(key, str(value))
        if isinstance(result, int):
            if result < 1:
                self.refuse_key(wording.out_of_range, key, result, "1 or more")
            return result
        assert isinstance(result, list)
        if len(result) != length:
            self.refuse_key(wording.wrong_count, key, counted(len(result), "layer"), "the model", length)
        return tuple(result)

    def _evaluate(self, key: str, text: str) -> int | list[int]:
        try:
            if len(text) > LONGEST:
                raise ValueError(len(text))  # noqa: TRY301
            return _sum_of_lists(ast.parse(text.strip(), mode="eval").body)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            self.refuse_key(wording.wrong_type, key, text, "a whole number or a list such as ([0]*3+[1]*58)")

    def spell(self, key: str) -> str:
        """Return the key as the configuration writes it, and on which line, for a message."""
        return self._spelling.get(key, key) + self._place(key)

    def refuse_key(
        self,
        error: Callable[Concatenate[str, P], ForescaleError],
        key: str,
        *facts: P.args,
        **named: P.kwargs,
    ) -> NoReturn:
        """Raise the error that a function of `wording` makes of a key as it is spelled."""
        self.refuse(error(self.spell(key), *facts, **named))

    def _place(self, key: str) -> str:
        line = self._lines.get(key)
        text = f"line {line}" if isinstance(line, int) else line
        return f" ({text})" if line else ""

    def note(self, text: str) -> None:
        """Keep a remark for the reader of the result."""
        if text not in self.notes:
            self.notes.append(text)

    def note_fewest(self, devices: int) -> None:
        """Note that a configuration without a number of devices is read for the fewest."""
        self.note(f"the number of devices is not stated; it is read for the fewest, {devices}")

    def note_devices(self, count: int, *keys: str) -> None:
        """Note the keys that the number of devices follows from."""
        named = " x ".join(
            f"{self._spelling.get(key, key)} {self.get(key)}{self._place(key)}" for key in keys
        )
        self.note(f"{counted(count, 'device')}, from {named}")

    def used(self) -> tuple[str, ...]:
        """Return the keys that were given and read, as they are spelled."""
        return tuple(sorted(self._spelling.get(key, key) for key in self._used))

    def unread(self) -> tuple[str, ...]:
        """Return the keys that were given and not read, as they are spelled."""
        return tuple(sorted(self._spelling.get(key, key) for key in self._values if key not in self._used))

    def accounted(self, unknown: Iterable[str]) -> dict[str, Any]:
        """Return what became of every key, as the fields of a `ParsedFile` that say it."""
        kept = {"used": self.used(), "ignored": self.unread()}
        texts: dict[str, Any] = {
            "notes": tuple(self.notes),
            "warnings": tuple(self.warnings),
            "phase": self.phase,
        }
        return {**kept, "unknown": tuple(unknown), **texts}


def known_settings(
    values: Mapping[str, Any], known: Collection[str], path: Path, lines: Mapping[str, int], *, strict: bool
) -> tuple[Settings, tuple[str, ...]]:
    """Return the values of known keys, and the unknown keys; the first of these is refused if `strict`."""
    unknown = unknown_of(values, known, path, lines, strict=strict)
    return Settings({key: values[key] for key in values if key in known}, str(path), lines=lines), unknown


@contextmanager
def errors_of(where: object) -> Iterator[None]:
    """Name the file in errors about a configuration that do not name it."""
    try:
        yield
    except (MissingError, ReaderError, UnknownKeyError, UnknownNameError):
        raise
    except ForescaleError as error:
        raise ReaderError(where, error) from error


def _var(value: object) -> str:
    """Return how to give the shell variable that a value is."""
    return f"give it with --var {value[2:-1]}=VALUE" if isinstance(value, str) and is_unset(value) else ""


def _sum_of_lists(node: ast.expr) -> int | list[int]:
    """Return the value of an expression of whole numbers, lists of them, + and *; nothing else is run."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.List(elts=items):
            return [result for item in items if isinstance(result := _sum_of_lists(item), int)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum_of_lists(left) + _sum_of_lists(right)  # type: ignore[operator]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            parts = _sum_of_lists(left), _sum_of_lists(right)
            sizes = [part if isinstance(part, int) else len(part) for part in parts]
            if sizes[0] * sizes[1] > LAYERS.le:
                raise ValueError(sizes)
            return parts[0] * parts[1]  # type: ignore[operator]
        case _:
            raise ValueError(ast.dump(node))

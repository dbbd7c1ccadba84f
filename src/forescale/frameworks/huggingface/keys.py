"""A view of a parsed configuration that checks values and remembers which keys were used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forescale.errors import ReaderError, shown
from forescale.limits import EXTENT, LAYERS
from forescale.units import counted

_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_nextn_predict_layers")


class Keys:
    """Keys of one JSON object; null is absent. Several names may be given where spellings differ."""

    __slots__ = ("_children", "_data", "_used", "where")

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = dict(data)
        self._used: set[str] = set()
        self._children: dict[str, Keys] = {}
        self.where = where

    def get(self, *names: str) -> Any:  # noqa: ANN401
        """Return the first value that is present and not null, or None."""
        self._used.update(names)
        return next((self._data[name] for name in names if self._data.get(name) is not None), None)

    def size(self, *names: str, default: int | None = None) -> int:
        """Return a positive whole number; without a default the key is required."""
        value = self.optional_size(*names)
        if value is not None:
            return value
        if default is None:
            raise ReaderError(self.where, f"the required key {names[0]!r} is missing{self._also(names)}")
        return default

    def optional_size(self, *names: str) -> int | None:
        """Return a positive whole number, or None where the key is absent."""
        value = self.get(*names)
        return None if value is None else self._whole(names[0], value, least=1)

    def count(self, *names: str) -> int:
        """Return a whole number of zero or more; absent is zero."""
        value = self.get(*names)
        return 0 if value is None else self._whole(names[0], value, least=0)

    def flag(self, *names: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ReaderError(self.where, f"the key {names[0]!r} must be true or false; got {shown(value)}")
        return value

    def items(self, name: str, length: int | None = None) -> Sequence[Any] | None:
        """Return a list of names or numbers, one for each of `length` layers, or None where it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str | int) for item in value):
            raise ReaderError(
                self.where, f"the key {name!r} must be a list of names or numbers; got {shown(value)}"
            )
        if length is not None and len(value) != length:
            problem = f"the key {name!r} lists {counted(len(value), 'layer')}, but there are {length}"
            raise ReaderError(self.where, problem)
        return value

    def child(self, name: str) -> Keys | None:
        """Return the keys of a nested object, or None where there is none."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            return None
        return self._children.setdefault(name, Keys(value, f"{self.where}, {name}"))

    def fall_back(self, name: str, other: Keys) -> None:
        """Take `name` from `other` where it is absent here."""
        value = other.get(name)
        if self._data.get(name) is None and value is not None:
            self._data[name] = value

    def refuse(self, name: str, why: str) -> None:
        """Raise an error if the flag `name` is set: the file describes what the model cannot express."""
        if self.get(name):
            raise ReaderError(self.where, f"the key {name!r} is set, and {why} cannot be described")

    def unread(self, prefix: str = "") -> tuple[str, ...]:
        """Return the keys that nobody asked for, those of nested objects with a dotted prefix, sorted."""
        own = [f"{prefix}{name}" for name in self._data if name not in self._used]
        nested = [key for name, child in self._children.items() for key in child.unread(f"{prefix}{name}.")]
        return tuple(sorted([*own, *nested]))

    def unread_parts(self) -> dict[str, Mapping[str, Any]]:
        """Return the objects under keys that nobody asked for."""
        return {
            name: value
            for name, value in self._data.items()
            if name not in self._used and isinstance(value, Mapping)
        }

    def _whole(self, name: str, value: object, *, least: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            problem = f"the key {name!r} must be a whole number of at least {least}; got {shown(value)}"
            raise ReaderError(self.where, problem)
        most = LAYERS.le if name in _LAYERS else EXTENT.le
        if value > most:  # type: ignore[operator]
            raise ReaderError(self.where, f"the key {name!r} must be {most:,} or less; got {shown(value)}")
        return value

    def _also(self, names: Sequence[str]) -> str:
        return f" (also looked for {', '.join(names[1:])})" if len(names) > 1 else ""

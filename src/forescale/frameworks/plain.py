"""Fields that a framework has under a key of its own with the same values: read and written by their declarations."""

from __future__ import annotations

from typing import Any

from forescale.frameworks.settings import Settings
from forescale.spec.option import Declared, declared


def read_plain(kind: type, settings: Settings, framework: str) -> dict[str, Any]:
    """Return the fields of a struct that the settings of a framework give, or their defaults, by name."""
    return {item.path[-1]: _read(item, key, settings) for item, key in _plain(kind, framework)}


def plain_settings(value: object, framework: str) -> dict[str, Any]:
    """Return the settings of a framework for the fields of a struct; None for numbers and words at their defaults."""
    pairs = [(item, key, getattr(value, item.path[-1])) for item, key in _plain(type(value), framework)]
    return {
        key: None if field == item.default and item.kind is not bool else field for item, key, field in pairs
    }


def _plain(kind: type, framework: str) -> list[tuple[Declared, str]]:
    keys = [(item, key.partition(".")) for item in declared(kind) for key in item.option.keys]
    return [(item, key) for item, (name, _, key) in keys if name == framework and len(item.path) == 1]


def _read(item: Declared, key: str, settings: Settings) -> Any:  # noqa: ANN401 (a value of any field)
    if key not in settings:
        settings.get(key)
        return item.default
    if item.kind is bool:
        return settings.flag(key)
    if item.kind is float:
        return settings.number(key)
    return settings.count(key) if item.kind is int else settings.one_of(key, "", item.values)

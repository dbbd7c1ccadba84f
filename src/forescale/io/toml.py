"""Write plain mappings as TOML (the standard library only reads it)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dump_toml(values: Mapping[str, Any]) -> str:
    """Return `values` as TOML: plain values first, then tables; entries that are None are left out."""
    return "\n".join(_table(values, ())).lstrip("\n") + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"\n[{'.'.join(map(_key, path))}]"] if path else []
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    for key, value in values.items():
        if key not in tables and value is not None:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, table in tables.items():
        lines.extend(_table(table, (*path, key)))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int() | float():
            return repr(value)
        case Mapping():
            inside = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
            return f"{{ {inside} }}" if inside else "{}"
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
        case _:
            msg = f"{value!r} has no form in TOML"
            raise TypeError(msg)

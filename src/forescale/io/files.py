"""Text and plain mappings from files, with one clear error when that fails."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from forescale.errors import ReaderError


def read_text(path: Path, *, hint: str = "") -> str:
    """Return the text of `path`; `hint` is added to the message if there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ReaderError(path, f"there is no such file{hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ReaderError(path, f"it cannot be read as text ({error})") from error


def load_mapping(path: Path) -> dict[str, Any]:
    """Return the table that a TOML, JSON or YAML file holds, by its suffix.

    Raises
    ------
    ReaderError
        If the file is missing, has another suffix, is cut short, or holds no table; syntax errors say where.
    """
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ReaderError(path, f"the suffix {path.suffix!r} is not one of {', '.join(_PARSERS)}")
    return parse_mapping(read_text(path), path, parse)


def parse_mapping(text: str, where: object, parse: Callable[[str, object], object]) -> dict[str, Any]:
    """Return the table that `text` holds in the syntax that `parse` knows."""
    loaded = parse(text, where)
    if not isinstance(loaded, dict):
        raise ReaderError(where, f"it must hold a table of keys, not {_kind(loaded)}")
    return loaded


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `over` laid over it, tables within tables included."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = (
            deep_merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return merged


def parse_toml(text: str, where: object) -> object:
    """Return the content of a TOML text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at line {text.count(chr(10)) + 1}, the end of the file"
        problem = str(error).replace("at end of document", end)
        raise ReaderError(where, f"it is not valid TOML: {problem}") from error


def parse_json(text: str, where: object) -> object:
    """Return the content of a JSON text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"it is not whole JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ReaderError(where, problem) from error


def parse_yaml(text: str, where: object) -> object:
    """Return the content of a YAML text; 1e-5 is a number (YAML 1.2), and a key given twice is refused."""
    return _parse_yaml(text, where, unique=True)


def parse_yaml_lenient(text: str, where: object) -> object:
    """Return the content of a YAML text in which, as for PyYAML, the last of equal keys counts."""
    return _parse_yaml(text, where, unique=False)


def _parse_yaml(text: str, where: object, *, unique: bool) -> object:
    import yaml

    try:
        return yaml.load(text, Loader=_yaml_loader(unique=unique))  # noqa: S506  (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ReaderError(where, f"it is not valid YAML: {error.problem or error.context}{place}") from error
    except yaml.YAMLError as error:
        raise ReaderError(where, f"it is not valid YAML: {' '.join(str(error).split())}") from error


@cache
def _yaml_loader(*, unique: bool) -> Any:  # noqa: ANN401  (the class is made from a lazy import)
    import re

    import yaml

    class Loader(yaml.SafeLoader):
        """SafeLoader that reads 1e-5 as a number and, if asked, refuses a key given twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[object] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if unique and isinstance(key, str) and key != "<<" and key in seen:
                    problem = f"the key {key!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key if isinstance(key, str) else repr(key))
            return super().construct_mapping(node, deep=deep)

    number = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789."))
    return Loader


def _kind(value: object) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), f"a {type(value).__name__}")


_PARSERS: Mapping[str, Callable[[str, object], object]] = MappingProxyType(
    {".toml": parse_toml, ".json": parse_json, ".yaml": parse_yaml, ".yml": parse_yaml}
)

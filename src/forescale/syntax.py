"""Plain mappings from TOML, JSON and YAML texts, with one clear error when that fails; TOML and YAML written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from forescale import wording
from forescale.errors import ReaderError, SpecError, shown
from forescale.files import DEPTH, check_plain, is_folder, parse_json, read_text
from forescale.patterns import pattern

YAML_BYTES = 2**20
"""Largest YAML text that is read: its reader takes seconds for one."""
YAML_VALUES = 200_000
"""Values of a YAML text, those that anchors repeat counted each time."""


def load_mapping(path: Path, *, hint: str = "") -> dict[str, Any]:
    """Return the table that a TOML, JSON or YAML file holds, by its suffix; `hint` is for one that is missing.

    Raises
    ------
    ReaderError
        If the file is missing, has another suffix, is cut short, or holds no table; syntax errors say where.
    """
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        if is_folder(path):
            fix = f"give one of {', '.join(_PARSERS)}"
            raise ReaderError(path, wording.wrong_format("a file", "it is a folder", fix))
        raise ReaderError(path, wording.wrong_suffix("the file", path.suffix, _PARSERS))
    return parse_mapping(read_text(path, hint=hint), path, parse)


def parse_mapping(text: str, where: object, parse: Callable[[str, object], object]) -> dict[str, Any]:
    """Return the table that `text` holds in the syntax that `parse` knows."""
    loaded = parse(text, where)
    if not isinstance(loaded, dict):
        raise ReaderError(where, wording.wrong_type("it", ..., f"a table of keys, not {_kind(loaded)}"))
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
    import tomllib

    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at line {text.count(chr(10)) + 1}, the end of the file"
        violation = str(error).replace("at end of document", end)
        raise ReaderError(where, wording.cannot_parse("TOML", violation)) from error
    except RecursionError as error:
        raise ReaderError(where, wording.too_deep(DEPTH)) from error
    except ValueError as error:  # more digits than Python reads
        allowed = f"{len(str(2**63))}"
        raise ReaderError(where, wording.too_large("a number", "thousands of digits", allowed)) from error
    check_plain(content, where)
    return content


def parse_yaml(text: str, where: object, repeated: list[str] | None = None) -> object:
    """Return the content of a YAML text; 1e-5 is a number (YAML 1.2).

    A key with two values is refused, as by OmegaConf; with `repeated` the last value counts, as by PyYAML's safe_load,
    and a note on each such key is put there.
    """
    import yaml

    if len(text) > YAML_BYTES:
        raise ReaderError(where, wording.too_large("it", "", f"{YAML_BYTES / 2**20:g} MiB for a YAML file"))
    try:
        loader = _yaml_loader()(text)
        loader.repeated = repeated
        content = _loaded(loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ReaderError(
            where, wording.cannot_parse("YAML", f"{error.problem or error.context}{place}")
        ) from error
    except yaml.YAMLError as error:
        raise ReaderError(where, wording.cannot_parse("YAML", f"{' '.join(str(error).split())}")) from error
    except RecursionError as error:
        raise ReaderError(where, wording.too_deep(DEPTH)) from error
    except SpecError as error:
        raise ReaderError(where, error) from error
    except (ValueError, KeyError) as error:  # a tag on what it does not fit, more digits than Python reads
        raise ReaderError(
            where, wording.cannot_parse("YAML", f"{shown(str(error))} is not a valid value of its type")
        ) from error
    check_plain(content, where)
    return content


def yaml_nodes(text: str) -> Any:  # noqa: ANN401  (a node of a lazy import)
    """Return the root node of a YAML text, whose marks say where everything stands; None where it cannot be read."""
    import yaml

    try:
        return yaml.compose(text, Loader=_yaml_loader())
    except (yaml.YAMLError, RecursionError):
        return None


def _loaded(loader: Any) -> object:  # noqa: ANN401  (of a lazy import)
    """Return the content of the one document, after a look at how much its anchors stand for."""
    root = loader.get_single_node()
    if root is None:
        return None
    if _expanded(root, {}) > YAML_VALUES:
        raise wording.too_large("it", "anchors", f"{YAML_VALUES:,} values")
    return loader.construct_document(root)


def _expanded(node: Any, known: dict[int, int]) -> int:  # noqa: ANN401  (a node of a lazy import)
    """Return how many values `node` stands for where every alias is written out; `known` holds those counted."""
    if isinstance(node.value, str):
        return 1
    if id(node) not in known:
        known[id(node)] = YAML_VALUES + 1  # an alias inside its own anchor
        inside = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_expanded(part, known) for part in inside)
    return known[id(node)]


def _alike(one: Any, other: Any) -> bool:  # noqa: ANN401  (nodes of a lazy import)
    """Whether two nodes are the same scalar."""
    return isinstance(one.value, str) and (one.tag, one.value) == (other.tag, other.value)


def _repeated(keys: Sequence[tuple[object, Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each key that a mapping of YAML gives a second value, and its place; null is no value."""
    seen: dict[object, Any] = {}
    for key, key_node, value_node in keys:
        name = key if isinstance(key, str) else repr(key)
        if isinstance(key, str) and name in seen and not _alike(seen[name], value_node):
            yield f"the key {key!r} is given twice", key_node.start_mark
        elif value_node.tag != "tag:yaml.org,2002:null":
            seen[name] = value_node


_MERGE = "tag:yaml.org,2002:merge"


@cache
def _yaml_loader() -> Any:  # noqa: ANN401  (the class is made from a lazy import)
    import re

    import yaml

    class Loader(yaml.SafeLoader):
        """SafeLoader that reads 1e-5 as a number, a date as text, and refuses two values of a key; null is none.

        It stops at brackets too deep inside each other, as the scanner's time grows with the square of their depth.
        """

        flow_level: int
        repeated: list[str] | None = None

        def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
            if self.flow_level > DEPTH:
                raise RecursionError
            super().fetch_flow_collection_start(token)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [
                (self.construct_object(key, deep=True), key, value)
                for key, value in node.value
                if key.tag != _MERGE
            ]
            for problem, mark in _repeated(keys):
                if self.repeated is None:
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
                self.repeated.append(f"{problem}: that of line {mark.line + 1} counts")
            return super().construct_mapping(node, deep=deep)

    number = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789."))
    dates = "tag:yaml.org,2002:timestamp"
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag != dates]
        for first, known in Loader.yaml_implicit_resolvers.items()
    }
    for kind in ("timestamp", "binary", "set", "omap", "pairs"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.construct_undefined)  # type: ignore[type-var]
    return Loader


def _kind(value: object) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), f"a {type(value).__name__}")


_PARSERS: Mapping[str, Callable[[str, object], object]] = {
    ".toml": parse_toml,
    ".json": parse_json,
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
}


_BARE = pattern(r"[A-Za-z0-9_-]+")


def dump_toml(values: Mapping[str, Any]) -> str:
    """Return `values` as TOML: plain values first, then tables; entries that are None are left out."""
    return "\n".join(_table(values, ())).lstrip("\n") + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"\n[{'.'.join(map(_key, path))}]"] if path else []
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    for key, value in values.items():
        if key not in tables and value is not None:
            lines.append(f"{_key(key)} = {toml_value(value)}")
    for key, table in tables.items():
        lines.extend(_table(table, (*path, key)))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: object) -> str:
    """Return a value as TOML writes it on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int() | float():
            return repr(value)
        case Mapping():
            inside = ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items() if v is not None)
            return f"{{ {inside} }}" if inside else "{}"
        case list() | tuple():
            return f"[{', '.join(toml_value(item) for item in value)}]"
        case _:
            raise TypeError(f"{value!r} has no form in TOML")


def dump_yaml(values: Mapping[str, Any], remarks: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return `values` as YAML in blocks, with a remark behind each key whose dotted path has one."""
    return "".join(f"{line}\n" for line in _yaml_table(values, remarks, ""))


def _yaml_table(values: Mapping[str, Any], remarks: Mapping[str, str], before: str) -> Iterator[str]:
    for key, value in values.items():
        path = f"{before}{key}"
        remark = f"  # {remarks[path]}" if path in remarks else ""
        if isinstance(value, Mapping) and value:
            yield f"{key}:{remark}"
            yield from (f"  {line}" for line in _yaml_table(value, remarks, f"{path}."))
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield f"{key}:{remark}"
            for item in value:
                lines = list(_yaml_table(item, remarks, f"{path}[]."))
                yield from (f"{'  ' if at else '- '}{line}" for at, line in enumerate(lines))
        else:
            yield f"{key}: {_yaml_value(value)}{remark}"


def _yaml_value(value: object) -> str:
    """Return a plain value as YAML 1.1 reads it too: of numbers with an exponent it wants a point."""
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        return mantissa + (".0" if exponent and "." not in mantissa else "") + exponent + power
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


_PLAIN = pattern(r"(?!(?:true|false|yes|no|on|off|null|none|y|n)$)[A-Za-z_][A-Za-z0-9_./-]*", re.IGNORECASE)

"""Changes of a layout in the keys of a trainer's file, and copies of the file with them made."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forescale.advise.changes import INSIDE, Change
from forescale.files import parse_json
from forescale.spec.layout import Layout, Recompute
from forescale.spec.workload import Workload

VARIABLE = "$"
"""Start of a key that is a variable of the environment."""
ELSEWHERE = "@"
"""Start of a key of the file that shards the states: DeepSpeed's configuration, or accelerate's."""


def edits(
    change: Change, remedies: Mapping[str, Mapping[str, Any]], layout: Layout, workload: Workload
) -> dict[str, Any] | None:
    """Return the keys and values that make a change; None if the file has none for it.

    Parameters
    ----------
    change
        The change.
    remedies
        Keys by kind and value, of a `ParsedFile`; after `@` the ZeRO stage under which they count.
    layout, workload
        The layout after it, which the accumulated steps follow from.
    """
    value = change.overrides.get(change.kind)
    if change.kind in INSIDE:
        table, name = INSIDE[change.kind]
        value = change.overrides[table][name]
    if isinstance(value, Recompute):
        value = value.granularity if value.num_layers is None and not value.modules else "partial"
    names = (f"{change.kind}:{value}@{layout.zero}", f"{change.kind}:{value}", change.kind)
    keys = next((remedies[name] for name in names if name in remedies), None)
    micro = int(change.overrides.get("micro_batch_size", layout.micro_batch_size))
    if keys is None or (micro % 2 and "{half}" in keys.values()):
        return None
    steps = workload.global_batch_size // (layout.dp * micro)
    words = {"{value}": value, "{half}": micro // 2, "{steps}": max(1, steps)}
    return {key: words.get(item, item) if isinstance(item, str) else item for key, item in keys.items()}


def text_of(keys: Mapping[str, Any]) -> str:
    """Return what to set, in the words of the file."""
    parts = [
        f"{key[1:]}={value}" if key.startswith(VARIABLE) else f"{key.lstrip(ELSEWHERE)}: {_value(value)}"
        for key, value in keys.items()
    ]
    return f"set {' and '.join(f'`{part}`' for part in parts)}"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def patched(text: str, suffix: str, keys: Mapping[str, Any]) -> str:
    """Return a file with keys set; comments and the order of lines stay.

    Parameters
    ----------
    text
        YAML, JSON or a script of the shell.
    suffix
        The ending of its name.
    keys
        New values; variables of the environment begin with `$`, keys of another file, which are passed over, with `@`.
    """
    for key, value in keys.items():
        if key.startswith(ELSEWHERE):
            continue
        if suffix == ".json":
            table = parse_json(text, Path("the file"))
            text = json.dumps({**table, key: value}, indent=2) + "\n"
        elif key.startswith(VARIABLE):
            first, _, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
            line = f"export {key[1:]}={value}" if suffix == ".sh" else f"# run with {key[1:]}={value}"
            text = "\n".join([*filter(None, [first]), line, rest])
        else:
            text = _in_script(text, key, value) if suffix == ".sh" else _in_yaml(text, key, value)
    return text


def _in_yaml(text: str, key: str, value: object) -> str:
    """Return YAML with a key of the outermost table set: on its line, or on one more at the end."""
    line = f"{key}: {_value(value)}"
    place = re.compile(
        rf"^{re.escape(key)}[ \t]*:[^\n#]*?(?P<remark>[ \t]*#[^\n]*)?$(?:\n[ \t]+\S[^\n]*|\n- [^\n]*)*", re.M
    )
    if not (results := [*place.finditer(text)]):
        return f"{text.rstrip()}\n{line}\n"
    result = results[-1]  # of a key that is there twice, the last counts
    return f"{text[: result.start()]}{line}{result['remark'] or ''}{text[result.end() :]}"


def _in_script(text: str, key: str, value: object) -> str:
    """Return a script with an option of its program set: wherever its command has it, or before its first option."""
    option = f"--{key} {shlex.quote(_value(value))}"
    argument = r"""(?:[ \t=]+(?:"[^"\n]*"|'[^'\n]*'|(?!-)[^\s\\]+))?"""
    place = re.compile(rf"(?<!\S)--{re.escape(key)}{argument}(?!\S)")
    if (found := place.search(text)) is not None:
        end = found.start() + len(_rest_of_command(text, found.start()))
        return f"{text[: found.start()]}{place.sub(lambda _: option, text[found.start() : end])}{text[end:]}"
    first = re.search(r"^(?![ \t]*#)(?P<before>[^\n]*?\s)(?=--\w+_\w+)", text, re.MULTILINE)
    if first is None:
        return text
    program = re.search(r"(?<!\S)(?!-)[^\s=]+\.py(?=\s)", _rest_of_command(text, first.end()))
    if program is not None:  # options before the program are those of its launcher
        end = first.end() + program.end()
        return f"{text[:end]} {option}{text[end:]}"
    return f"{text[: first.end()]}{option} {text[first.end() :]}"


def _rest_of_command(text: str, start: int) -> str:
    """Return the text of a command from a place on, its continued lines included."""
    end = re.compile(r"(?<!\\)\n|\Z").search(text, start)
    return text[start : end.start() if end else len(text)]

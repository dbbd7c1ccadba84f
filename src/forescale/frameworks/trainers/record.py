"""Keys of a trainer with their effect, as data: what each means in TrainingArguments, or why it does not matter.

A record (`NAME.json` in this folder) has `keys` (theirs to those of TrainingArguments and TRL, which `training` reads;
after `!` the opposite of a flag),
`values` (of such a key, theirs to ours), `defaults`, `ignored` (patterns of keys without effect) and `matters`
(patterns of keys that may change memory or time, and what they do). `unknown.json` sorts the keys that no record has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from msgspec import field

from forescale.frameworks.reading import packaged, unknown_of
from forescale.frameworks.settings import Settings
from forescale.struct import Struct

OFF: Final = ("", "none", "false", "no", "0", "[]", "{}", "0.0")
"""Values under which a key does nothing."""


class Record(Struct, frozen=True, kw_only=True):
    """The keys of one trainer."""

    source: str
    keys: Mapping[str, str]
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    megatron_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that differ where its back end is Megatron-LM."""
    older_keys: tuple[str, ...] = ()
    """Keys that its present release no longer has."""
    older_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that differ where a program is given one of them."""
    implies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a key that is on sets of others that are not given."""
    ignored: tuple[str, ...] = ()
    matters: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys that make a change of the layout, by kind and value; `{value}` is the value, `{steps}` the accumulation."""


class ClassifiedKeys(Struct, frozen=True):
    """The settings of a file by the keys of TrainingArguments, and what became of its other keys."""

    settings: Settings
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    ignored: tuple[str, ...]


def record_of(name: str) -> Record:
    """Return the record of a trainer; keys that it does not rename are those of TrainingArguments and TRL."""
    content = packaged("trainers", name)
    lists = {key: tuple(content.get(key, ())) for key in ("ignored", "older_keys")}
    return Record(**{**content, **lists})


TEXTS: Final = frozenset(
    ("optim", "use_peft", "model_name_or_path", "dtype", "packing", "bf16", "fp16", "stage")
)
"""Keys that have no table, as programs of people's own may have by these names."""


def classified(
    content: Mapping[str, Any], record: Record, path: Path, lines: Mapping[str, int], *, strict: bool
) -> ClassifiedKeys:
    """Return the settings of a file and its other keys by their effect.

    Raises
    ------
    UnknownKeyError
        If a key is not known, under `strict`.
    """
    base, rules = packaged("deepspeed", "trainer")["keys"], packaged("trainers", "unknown")
    values, spelling, unknown, warnings, ignored = dict(record.defaults), {}, [], [], []
    for name, value in content.items():
        key = record.keys.get(name) or (name if name in base else None)
        if isinstance(value, Mapping) and key in TEXTS:
            key = None  # a table of a program's own
        if key == "dtype" and re.match(r"\$[{(]", str(value)):
            warnings.append(f"{name}: {value} is not known; the type of a run that names none is taken")
            continue
        if key is not None:
            if value is not None:
                key = key.removeprefix("!")
                inverts = key != record.keys.get(name, key)
                values[key] = (
                    str(value).lower() in OFF
                    if inverts
                    else record.values.get(key, {}).get(str(value).lower(), value)
                )
                spelling[key] = name
            continue
        effect = None if name in record.ignored else _matching(name, record.matters)
        known = effect or _matching(name, record.ignored) or _matching(name, rules["ignored"])
        if known is None:
            effect = _matching(name, rules["matters"])
            unknown.append(name)
            if effect is None and _holds(value, {*base, *record.keys}):
                warnings.append(f"{name}: the keys of this table are not read")
                continue
        usual = record.values.get(name, {}).get(str(value).lower(), value)
        if effect is not None and str(usual).lower() not in OFF:
            warnings.append(f"{name}: {value} is not modelled ({effect})")
        elif name not in unknown:
            ignored.append(name)
    on = (sets for name, sets in record.implies.items() if str(content.get(name, "")).lower() not in OFF)
    values = {key: value for sets in on for key, value in sets.items()} | values
    unknown_of(unknown, (), path, lines, strict=strict)
    places = {key: lines.get(name, 0) for key, name in spelling.items()}
    return ClassifiedKeys(
        Settings(values, str(path), spelling, places), tuple(unknown), tuple(warnings), tuple(ignored)
    )


def _holds(value: object, keys: Collection[str]) -> bool:
    """Whether a value is a table with one of the keys."""
    return isinstance(value, Mapping) and any(key in keys for key in value)


def is_idle(name: str) -> bool:
    """Return whether a key has no effect by its name."""
    return _matching(name, packaged("trainers", "unknown")["ignored"]) is not None


def _matching(name: str, patterns: Mapping[str, str] | tuple[str, ...] | list[str]) -> str | None:
    """Return what the first pattern that a key matches says of it, or the pattern; None if it matches none."""
    pattern = next((item for item in patterns if fnmatchcase(name, item)), None)
    return patterns.get(pattern) if pattern and isinstance(patterns, Mapping) else pattern

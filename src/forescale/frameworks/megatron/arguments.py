"""Megatron-LM's command line: a shell script, one line, a list of words, or a table of flags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeAlias

from forescale.errors import ReaderError, UnknownKeyError
from forescale.frameworks.megatron.settings import Settings
from forescale.frameworks.megatron.shell import commands
from forescale.limits import whole_of

Pair: TypeAlias = tuple[str, object]
"""A flag and its values: a list of words, or what a table holds."""

_FLAG = re.compile(r"^--[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A parsed command line."""

    settings: Settings
    unknown: tuple[str, ...]
    num_devices: int | None
    """From the launcher's --nproc-per-node and --nnodes, if they stand before the training script."""


@cache
def known_flags() -> Mapping[str, tuple[str, str]]:
    """Return Megatron-LM's flags: the key each sets, and what it takes (a value, or sets true or false)."""
    data = json.loads((files("forescale.frameworks.megatron") / "flags.json").read_text(encoding="utf-8"))
    return MappingProxyType({flag: (key, kind) for flag, (key, kind) in data["flags"].items()})


@cache
def _flag_of_key() -> Mapping[str, str]:
    """Return the flag that sets each key; the shortest, where there are several."""
    flags = sorted(known_flags(), key=len, reverse=True)
    return MappingProxyType({known_flags()[flag][0]: flag for flag in flags})


def parse_arguments(
    arguments: str | Sequence[str] | Mapping[str, Any],
    *,
    where: str,
    variables: Mapping[str, str] | None = None,
    strict: bool = True,
) -> CommandLine:
    """Return the settings that a command line makes; of a flag given twice the last counts.

    Parameters
    ----------
    arguments
        Shell text (a command, or a script whose variables hold the flags), a list of words, or a table such
        as {"--num-layers": 12, "--bf16": True}.
    where
        Its origin, for messages.
    variables
        Values of shell variables that the text refers to and does not set.
    strict
        Whether to refuse flags that Megatron-LM does not have.
    """
    pairs: list[Pair] = []
    launcher: dict[str, str] = {}
    if isinstance(arguments, Mapping):
        pairs = [(flag, value) for flag, value in arguments.items() if value is not None]
    elif isinstance(arguments, str):
        for words in commands(arguments, variables or {}, where):
            found, started = _pairs_of_words(words)
            pairs += found
            launcher |= started
    else:
        pairs, launcher = _pairs_of_words(list(arguments))
    if not pairs:
        raise ReaderError(where, "it has no Megatron-LM flags (words such as --num-layers)")
    return _command_line(pairs, launcher, where, strict=strict)


def _command_line(
    pairs: Sequence[Pair], launcher: Mapping[str, str], where: str, *, strict: bool
) -> CommandLine:
    values: dict[str, object] = {}
    spelling = dict(_flag_of_key())
    unknown: list[str] = []
    for flag, value in pairs:
        if flag not in known_flags():
            if strict:
                raise UnknownKeyError(flag, where, known_flags())
            unknown.append(flag)
            continue
        key, kind = known_flags()[flag]
        values[key] = _value(flag, kind, value, where)
        spelling[key] = flag
    settings = Settings(values, where, spelling)
    return CommandLine(settings=settings, unknown=tuple(dict.fromkeys(unknown)), num_devices=_world(launcher))


def _value(flag: str, kind: str, value: object, where: str) -> object:
    if kind == "value":
        if value == [] or value is True:
            raise ReaderError(where, f"{flag} needs a value")
        return value[0] if isinstance(value, list) and len(value) == 1 else value
    if value not in ([], True, False):
        raise ReaderError(where, f"{flag} takes no value, got {value!r}")
    return (kind == "true") is (value is not False)


def _pairs_of_words(words: Sequence[str]) -> tuple[list[Pair], dict[str, str]]:
    """Split the words of one command into (flag, values); those before a Python script are the launcher's."""
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), -1)
    pairs, launcher = _pairs(words[script + 1 :]), _pairs(words[: script + 1])
    started = {flag.replace("_", "-"): values for flag, values in launcher}
    return pairs, {flag: values[0] for flag, values in started.items() if isinstance(values, list) and values}


def _pairs(words: Sequence[str]) -> list[Pair]:
    pairs: list[tuple[str, list[str]]] = []
    for word in words:
        flag, equals, inline = word.partition("=")
        if _FLAG.match(word):
            pairs.append((flag, [inline] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
    return [(flag, values) for flag, values in pairs]


def _world(launcher: Mapping[str, str]) -> int | None:
    each, nodes = (whole_of(launcher.get(key, "1")) for key in ("--nproc-per-node", "--nnodes"))
    return each * nodes if each and nodes and "--nproc-per-node" in launcher else None

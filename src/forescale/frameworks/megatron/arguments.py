"""Megatron-LM's command line: a shell script, one line, a list of words, or a table of flags."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeAlias

from forescale.errors import ReaderError, SpecError, UnknownKeyError
from forescale.frameworks.settings import Settings
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


def flag_of(key: str) -> tuple[str, str] | None:
    """Return the flag that sets a key, and what it takes as in `known_flags`; None if no flag does."""
    flag = _flag_of_key().get(key)
    return None if flag is None else (flag, known_flags()[flag][1])


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


LONGEST = 2**20
"""Characters of a script, and of one word of it with its variables put in."""

_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)\+?=(.*)$", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)")
_ARRAY = re.compile(r"^\$\{\w+\[[@*]\]\}$")


def commands(text: str, variables: Mapping[str, str], where: str) -> list[list[str]]:
    """Return the words of each command of `text` that can hold a program's flags.

    A variable that the text sets is put in where it is used; `variables` come before what the text sets. The
    flags inside assignments (`ARGS="--a 1"`, `ARGS=(--a 1)`) count as a command of their own. In a script,
    commands that neither start with a flag nor run a Python file are left out.
    """
    if len(text) > LONGEST:
        raise ReaderError(where, f"it is longer than the {LONGEST / 2**20:g} MiB that a script may have")
    known = dict(variables)
    found: list[list[str]] = []
    statements = list(_statements(_words(text, where)))
    for statement in statements:
        try:
            words = _assigned(statement, known)
            plain = words is None
            if words is None:
                words = [word for raw in statement for word in _split(raw, known)]
        except SpecError as error:
            raise ReaderError(where, str(error)) from error
        if plain:
            runs = any(word.endswith(".py") for word in words)
            if not (runs or len(statements) == 1 or (words and words[0].startswith("--"))):
                continue
        found.append(words)
    return found


def _words(text: str, where: str) -> list[str]:
    """Split into words, with parentheses, separators and ends of lines as words of their own."""
    lines = [_without_comment(line) for line in re.sub(r"\\\r?\n", " ", text).splitlines()]
    lexer = shlex.shlex("\n".join(lines), posix=True, punctuation_chars="();&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer)
    except ValueError as error:
        raise ReaderError(where, f"it is not whole shell text: {str(error).lower()}") from error


def _without_comment(line: str) -> str:
    seen, single, double = 0, 0, 0
    for match in re.finditer(r"(?:^|\s)#", line):
        single += line.count("'", seen, match.start())
        double += line.count('"', seen, match.start())
        seen = match.start()
        if single % 2 == 0 and double % 2 == 0:
            return line[:seen]
    return line


def _statements(words: Sequence[str]) -> Iterator[list[str]]:
    """Group words by statement; a statement does not end inside parentheses, which are left out."""
    statement: list[str] = []
    depth = 0
    for word in words:
        if word and set(word) <= set("();&|\n"):
            depth += word.count("(") - word.count(")")
            if depth <= 0 and set(word) & set(";&|\n") and statement:
                yield statement
                statement = []
        else:
            statement.append(word)
    if statement:
        yield statement


def _assigned(statement: Sequence[str], known: dict[str, str]) -> list[str] | None:
    """Note the variables that a statement sets and return the flags in them; None if it is a command."""
    rest = list(statement)
    while rest and (rest[0] in ("export", "declare", "local", "readonly") or re.match(r"^-\w$", rest[0])):
        rest = rest[1:]
    matches = [_ASSIGNMENT.match(word) for word in rest]
    if not matches or matches[0] is None:
        return None
    words: list[str] = []
    for raw, match in zip(rest, matches, strict=True):
        if match:
            known.setdefault(match[1], _expand(match[2], known))
            words += _split(match[2], known) if "--" in match[2] else []
        else:
            words += _split(raw, known)
    flags = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return words[flags:]


def _split(word: str, known: Mapping[str, str]) -> list[str]:
    """Return `word` with variables put in; what comes from a variable, or holds flags, is split at spaces."""
    if _ARRAY.match(word):
        return []
    expanded = _expand(word, known)
    return expanded.split() if expanded != word or " --" in word else [expanded]


def _expand(text: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return known.get(name, match[2] if match[2] is not None else match[0])

    if "$" not in text:
        return text
    if len(text) + sum(len(value(match)) for match in _REFERENCE.finditer(text)) > LONGEST:
        msg = f"its variables stand for more than {LONGEST / 2**20:g} MiB of text"
        raise SpecError(msg)
    return _REFERENCE.sub(value, text)

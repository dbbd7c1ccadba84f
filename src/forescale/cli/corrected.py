"""The command that an error suggests: what was typed, with the nearest value that is allowed."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath

from forescale.cli.advice import flags_of, rows_of, table
from forescale.cli.misspelt import command_in, lacking
from forescale.errors import ForescaleError, InfeasibleError, ReaderError, nearest
from forescale.patterns import pattern
from forescale.synonyms import EXAMPLES, spelling

LONGEST = 400
"""Characters of a command that an error shows."""
GLOBAL_BATCH, SEQ_LEN, DEVICES = "--global-batch-size", "--seq-len", "--devices"
COUNT = "the number of devices"
"""What an error calls the devices that degrees have to divide."""
_TOKENS = pattern(r"(\d+(?:\.\d+)?) ?[Mm]")
"""A batch in millions of tokens."""
PICTURE = ".svg"
"""Suffix of a picture whose format is not written."""


def corrected(error: ForescaleError, typed: Sequence[str]) -> str:
    """Return the command line that was `typed` with the nearest allowed value, for an error's text; empty if open."""
    corrections = (_with_nearest(cause, typed) for cause in error.causes or (error,))
    words = next((words for words in corrections if words is not None), None)
    text = "" if words is None else shlex.join(("forescale", *words))
    return f"For example: {text}" if text and len(text) <= LONGEST else ""


def _with_nearest(error: ForescaleError, typed: Sequence[str]) -> list[str] | None:
    """Return the words with the nearest allowed value of an error; None if there is none, or no word has its value."""
    if isinstance(error, InfeasibleError) and error.options:
        return _with_options(typed, error.options)
    if error.code == "no_effect":
        return _without(typed, error.key.split(", "))
    if isinstance(error, ReaderError) and error.words:
        return _without_file(error, typed)
    if error.code == "missing" and error.nearest:
        option = _option_of(error.key, typed)
        return None if option is None else [*typed, option, str(error.nearest[0])]
    if (batch := _sequences(error, typed)) is not None:
        return _replaced(typed, str(error.value), batch)
    if error.value is None or (like := _nearest(error)) is None:
        return None
    value = str(error.value)
    if like[:1] == ".":  # the suffix of a file
        path = next((word for word in typed if word.endswith(value) and PurePath(word).suffix), None)
        return None if path is None else _replaced(typed, path, str(PurePath(path).with_suffix(like)))
    flag = DEVICES if error.key == COUNT else f"--{error.key.replace('_', '-')}"
    return _replaced(typed, value, like, flag if value.isdecimal() else "")


def _without(typed: Sequence[str], names: Collection[str]) -> list[str] | None:
    """Return the words without some options with their values, or arguments; None where none of them was typed."""
    path, rest = command_in(typed)
    if path is None:
        return None
    flags, words = flags_of(path), list(typed[: len(typed) - len(rest)])
    left = list(rest)
    while left:
        name, assigned, _ = (word := left.pop(0)).partition("=")
        if name in names:
            del left[: 0 if assigned else flags.get(name, 0)]
        else:
            words.append(word)
    return words if len(words) < len(typed) else None


def _with_options(typed: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words with options of one value each, in place of those that they have."""
    words, given = [*typed], dict(zip(options[::2], options[1::2], strict=True))
    for at in range(len(words) - 1, -1, -1):
        if words[at].partition("=")[0] in given:
            del words[at : at + (1 if "=" in words[at] else 2)]
    return [*words, *options]


def _without_file(error: ReaderError, typed: Sequence[str]) -> list[str] | None:
    """Return the words with what a file says in its place; options that are typed take precedence."""
    file = "" if error.location is None else error.location.file
    words = [*typed]
    at = next((at for at, word in enumerate(words) if word.rpartition("=")[2] == file), None)
    if at is None:
        return None
    is_option = words[at - 1][:2] == "--" and "=" not in words[at - 1]
    if is_option or "=" in words[at]:
        del words[at - is_option : at + 1]
        path, rest = command_in(words)
        if "--model" not in words and (not rest or rest[0][:1] == "-"):
            words.insert(len((path or "").split()), error.words[0])
    else:
        words[at] = error.words[0]
    given = {word.partition("=")[0] for word in words}
    for flag, value in _options(error.words[1:]):
        words += [] if flag in given else [flag, *value]
    return [*words, *lacking(words, flags_of(command_in(words)[0] or ""))]


def _options(words: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield options, each with its value; switches have none."""
    places = [at for at, word in enumerate(words) if word[:2] == "--"]
    for at, end in pairwise((*places, len(words))):
        yield words[at], words[at + 1 : end]


def _sequences(error: ForescaleError, typed: Sequence[str]) -> str | None:
    """Return the sequences of a global batch that is given in tokens, such as 4M; None for other errors."""
    tokens = _TOKENS.fullmatch(str(error.value)) if error.key == GLOBAL_BATCH else None
    if tokens is None:
        return None
    length = next((after for word, after in pairwise(typed) if word == SEQ_LEN), str(EXAMPLES["seq_len"]))
    thousand = 1024 if length.lower().endswith("k") or not int(length) % 1024 else 1000
    size = int(length[:-1]) * thousand if length.lower().endswith("k") else int(length)
    return str(max(1, round(float(tokens[1]) * thousand**2 / size)))


def _option_of(key: str, typed: Sequence[str]) -> str | None:
    """Return the option of the command that was typed for a key of a question; None where it has none."""
    path, _ = command_in(typed)
    rows = (row for _, row in rows_of(table()["commands"].get(path, {})))
    return next((str(row["on"][0]) for row in rows if row.get("path") == key.split(".")), None)


def _nearest(error: ForescaleError) -> str | None:
    """Return the allowed value that is most like the one of an error; None where that is open."""
    if error.nearest:
        return str(error.nearest[0])
    allowed = error.allowed
    if error.key == COUNT and isinstance(allowed, int) and isinstance(error.value, int):
        return str(max(allowed, error.value // allowed * allowed))
    if isinstance(allowed, str) or not isinstance(allowed, Collection):
        return None
    if error.code == "wrong_suffix":
        return PICTURE if PICTURE in allowed else str(next(iter(allowed)))
    if error.code != "not_one_of" or not isinstance(error.value, str):
        return None
    return spelling(error.value, allowed) or next(iter(nearest(error.value, map(str, allowed))), None)


def _replaced(typed: Sequence[str], value: str, other: str, flag: str = "") -> list[str] | None:
    """Return the words with another value in the one place that has it, behind `flag` if given; None if none has.

    A word has a value if it is that, ends in it behind =, or lists it between commas.
    """
    words = list(typed)
    places = []
    for place, word in enumerate(words):
        head, equals, tail = word.rpartition("=")
        is_of_flag = not flag or head == flag or (place and words[place - 1] == flag)
        items = tail.split(",")
        if is_of_flag and value in items:
            kept = [other if item == value else item for item in items]
            places.append((place, f"{head}{equals}{','.join(kept)}"))
    if len(places) != 1:
        return None
    words[places[0][0]] = places[0][1]
    return words

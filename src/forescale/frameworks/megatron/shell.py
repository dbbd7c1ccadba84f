"""Just enough of a shell's syntax for the words of a launch script: quotes, variables, arrays, comments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from forescale.errors import ReaderError, SpecError

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

"""What commands of the shell print that only pass text on: echo, cat, sed, grep, awk, tr, bc, basename and the like."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from forescale.frameworks.shell.expressions import integer_of
from forescale.syntax import parse_yaml

_FLAGS: Final = ("-e", "-n", "-E", "-en", "-ne")
_PLAIN = re.compile(r"[\w\-/{}<>@%=,:#\" ]+")
"""A pattern of sed that stands for itself."""
_BLANKS: Final = ("  *", " +", " \\+", "[ ][ ]*", "\\s\\+", "\\s+", "[[:space:]]\\+", "[[:space:]]+")
"""Patterns of sed for blanks in a row."""
_LETTERS: Final = {"[:upper:] [:lower:]": str.lower, "[:lower:] [:upper:]": str.upper}
"""Words of tr that write letters small, and large."""
_FIELD: Final = re.compile(r"%(?:%|-?\d*(?:\.\d+)?[sdiqb])")
"""A field of printf, whose width is not kept."""
_UNEVALUATED = (ValueError, SyntaxError, ZeroDivisionError, OverflowError, RecursionError, MemoryError)


def printed(names: Sequence[str], piped: str, text_of: Callable[[str], str | None]) -> str | None:
    """Return what a command prints; None if it is not followed.

    Parameters
    ----------
    names
        The words of the command.
    piped
        The text that is piped into it.
    text_of
        Returns the text of a file by its name; None where there is none.
    """
    parts = names[1:]
    match names[0]:
        case "echo" | "printf" if parts[:1] != ["-v"]:
            text = parts[1:] if parts[:1] and parts[0] in (*_FLAGS, "--") else parts
            return " ".join(text) if names[0] == "echo" else formatted(text)
        case "pwd" | "dirname" | "cd":
            return "" if names[0] == "cd" else "."
        case "yq" if len(parts) > 1:
            return _of_table(parts[-2], text_of(parts[-1]) or "")
        case "which" | "basename" | "mktemp" if parts and (names[0] != "mktemp" or "XXX" in parts[-1]):
            parts = parts[-1:] if names[0] == "mktemp" else parts
            end = parts[1] if len(parts) > 1 else ""
            whole = names[0] != "basename"
            return parts[0] if whole else parts[0].rstrip("/").rpartition("/")[2].removesuffix(end)
        case "cat":
            texts = [text_of(name) for name in parts if not name.startswith("-")]
            return None if None in texts else "".join(map(str, texts)) or piped
        case "sed" | "grep":
            return (_edited if names[0] == "sed" else _lines)(parts, piped, text_of)
        case "tr" | "awk" | "bc" | "tee" if piped:
            changes = {"tr": _lettered, "awk": _column, "bc": _computed}
            return changes[names[0]](parts, piped) if names[0] in changes else piped
    return None


def formatted(parts: Sequence[str]) -> str:
    """Return what `printf` prints: its first word with the others in it, again for as long as some are left."""
    text, *words = parts or [""]
    text = text.replace("\\n", "\n").replace("\\t", "\t")
    count = sum(field != "%%" for field in _FIELD.findall(text))
    groups = [words[at : at + count] for at in range(0, len(words), count)] if count and words else [[]]
    return "".join(_filled(text, group) for group in groups)


def _filled(text: str, words: Sequence[str]) -> str:
    left = iter(words)
    return _FIELD.sub(lambda field: "%" if field[0] == "%%" else next(left, ""), text)


def finds(parts: Sequence[str], piped: str) -> bool | None:
    """Return whether `grep -q` finds a plain pattern in what is piped into it; None if that cannot be known."""
    words = [word for word in parts if word not in ("-q", "-F", "-E", "-qF", "-qE", "--")]
    if "q" not in "".join(parts[:1]) or len(words) != 1 or not re.fullmatch(r"[\w=/: -]+", words[0]):
        return None
    found = words[0] in piped
    return found if found or "$" not in piped else None


def _lines(parts: Sequence[str], piped: str, text_of: Callable[[str], str | None]) -> str | None:
    """Return the lines of one file, or of what is piped, that have a plain pattern; None if none is known to."""
    words = [word for word in parts if word not in ("-E", "-F", "--", "-h")]
    if not 1 <= len(words) <= 2 or not re.fullmatch(r"\^?[\w=/: -]+", words[0]) or words[0].startswith("-"):
        return None
    text, starts, pattern = piped, words[0].startswith("^"), words[0].removeprefix("^")
    if len(words) == 2:
        text = text_of(words[1]) or ""
    found = [line for line in text.split("\n") if (line.startswith(pattern) if starts else pattern in line)]
    return "\n".join(found) or None


def _column(parts: Sequence[str], piped: str) -> str | None:
    """Return what `awk '{print $2}'` prints of what is piped, also with -F; None of other programs."""
    between = next((word[2:] for word in parts if word.startswith("-F")), "")
    words = [word for word in parts if not word.startswith("-F")]
    if parts[:1] == ["-F"] and len(words) > 1:
        between, words = words[0], words[1:]
    shown = re.fullmatch(r"\{\s*print \$([1-9]);?\s*\}", words[0]) if len(words) == 1 else None
    if shown is None or not piped:
        return None
    rows = [line.split(between or None) for line in piped.split("\n")]
    at = int(shown[1]) - 1
    return "\n".join(row[at] if at < len(row) else "" for row in rows)


def _of_table(path: str, text: str) -> str | None:
    """Return the value at a path of keys (`.training.seq_length`) of YAML; "null" where there is none, as yq prints."""
    if not text or not re.fullmatch(r"(?:\.\w+)+", path):
        return None
    value: object = parse_yaml(text, Path("the table"))
    for key in path.split(".")[1:]:
        value = value.get(key) if isinstance(value, dict) else None
    return "null" if value is None else str(value)


def _lettered(parts: Sequence[str], piped: str) -> str | None:
    if piped and len(parts) == 2 and parts[0] == "-d" and re.fullmatch(r"(?:\\[rnt]|[^\\\[\]-])+", parts[1]):
        return piped.translate(dict.fromkeys(map(ord, parts[1].encode().decode("unicode_escape"))))
    change = _LETTERS.get(" ".join(parts))
    return change(piped) if piped and change else None


def _computed(parts: Sequence[str], piped: str) -> str | None:  # noqa: ARG001  (as all changes)
    try:
        return str(integer_of(piped.rpartition(";")[2]))
    except _UNEVALUATED:
        return None


def _edited(parts: Sequence[str], piped: str, text_of: Callable[[str], str | None]) -> str | None:
    """Return a text after sed's substitutions of plain words; None where a pattern is not plain."""
    words = [word for word in parts if word not in ("-e", "-E", "-r", "-i")]
    edits = [word for word in words if re.match(r"s[^\w\s]", word)]
    text = next((text for word in words if word not in edits and (text := text_of(word)) is not None), piped)
    if not text or not edits:
        return None
    for edit in (part.strip() for word in edits for part in re.split(r";\s*(?=s[^\w\s])", word)):
        pieces = edit[2:].split(edit[1])
        if len(pieces) > 1 and pieces[0] in _BLANKS:
            blank = pieces[1].replace("\\", r"\\")
            text = "\n".join(re.sub(r"[ \t]+", blank, line) for line in text.split("\n"))
            continue
        if len(pieces) < 2 or not _PLAIN.fullmatch(pieces[0]):
            return None
        count = -1 if "g" in pieces[-1] and len(pieces) > 2 else 1
        text = "\n".join(line.replace(pieces[0], pieces[1], count) for line in text.split("\n"))
    return text

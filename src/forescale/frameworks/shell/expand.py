"""What words of the shell stand for: variables, arrays, arithmetic and what commands print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from forescale.errors import too_large
from forescale.frameworks.budget import Budget
from forescale.frameworks.shell.expressions import changed, integer_of
from forescale.frameworks.shell.syntax import past, split_words

LONGEST: Final = 2**20
"""Characters of a script, and of one word of it with its variables put in."""
DEEPEST: Final = 24


class Expansions:
    """Expands words over the variables that are known."""

    def __init__(self, given: Mapping[str, str], text_left: Budget) -> None:
        self.given, self.text_left = given, text_left
        self.known: dict[str, list[str]] = {}
        self.arguments: list[str] = []
        self.output: list[str] = []
        self.has_arguments, self.guessed = True, False
        self.doubts, self.doubted = 0, set[str]()
        """Conditions around the words that are not known, and variables that were set under one."""
        """Whether the arguments are known, and whether the last words have some that are not."""
        self.depth = 0

    def printed_by(self, text: str) -> list[str] | None:
        """Return the words that a command prints; None if it runs what is not followed."""
        raise NotImplementedError(text)

    def _set(self, name: str, names: list[str]) -> None:
        size = sum(map(len, names))
        if size > LONGEST:
            raise too_large("the text of its variables", "", f"{LONGEST / 2**20:g} MiB")
        self.text_left.spend(len(names) + size)
        if name not in self.given:
            self.known[name] = names
            (self.doubted.add if self.doubts else self.doubted.discard)(name)

    def fields(self, raw: str, *, split: bool = True) -> list[str]:
        """Return the words that a raw word stands for."""
        self.text_left.spend(len(raw))
        names: list[str] = []
        word: list[str] | None = None  # the parts of the word that is being put together
        at = 0
        while at < len(raw):
            after = past(raw, at)
            piece, quoted = raw[at:after], raw[at] in "'\"\\" or raw.startswith("$'", at)
            several = self._piece(piece)
            if not quoted and raw[at] in "$`" and split:
                text = " ".join(several)
                several = split_words(text)
                if text[:1].isspace() and word is not None:
                    names.append("".join(word))
                    word = None
            self.text_left.spend(len(several) + sum(map(len, several)))
            if word is None and quoted and not several and not _ALL.fullmatch(piece):
                word = []
            for place, part in enumerate(several):
                if word is None or place:
                    names += [] if word is None else ["".join(word)]
                    word = []
                word.append(part)
            at = after
        return names if word is None else [*names, "".join(word)]

    def _piece(self, piece: str) -> list[str]:
        """Return the words of one piece of a raw word."""
        match piece[0]:
            case "\\":
                return [piece[1:].strip("\n")]
            case "'":
                return [piece[1:-1]]
            case '"':
                return self._quoted(piece[1:-1])
            case "`":
                return self._output(piece[1:-1], piece)
            case "$" if len(piece) > 1 or piece == "$":
                return self._value(piece)
        return [piece]

    def _quoted(self, text: str) -> list[str]:
        if _ALL.fullmatch(f'"{text}"'):
            return self._value(text)
        result, at = [], 0
        while at < len(text):
            if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
                result.append(text[at + 1].strip("\n"))
                at += 2
            elif text[at] in "$`":
                after = past(text, at)
                result.append(" ".join(self._piece(text[at:after])))
                at = after
            else:
                result.append(text[at])
                at += 1
        return ["".join(result)]

    def _value(self, piece: str) -> list[str]:
        """Return the words of an expansion: $NAME, ${…}, $(…), $((…)), $[…]."""
        if piece.startswith("$(("):
            return [str(self._sum(piece[3:-2]))]
        if piece.startswith("$["):
            return [str(self._sum(piece[2:-1]))]
        if piece.startswith("$("):
            return self._output(piece[2:-1], piece)
        if piece.startswith("$'"):
            return [piece[2:-1]]
        inside = piece[2:-1] if piece.startswith("${") else piece[1:]
        passed = self.arguments
        self.guessed = self.guessed or (inside in "@*#" and not self.has_arguments)
        if cut := re.fullmatch(r"[@*]:(\d{1,4})", inside):
            return passed[max(0, int(cut[1]) - 1) :]
        special = {"@": passed, "*": passed, "#": [str(len(passed))], "?": ["0"]}.get(inside)
        return self._parameter(inside, piece) if special is None else special

    def _parameter(self, inside: str, piece: str) -> list[str]:
        """Return the words of a variable, or of what stands for it where it is not set."""
        name = re.match(r"[A-Za-z_]\w*|\d+", inside.removeprefix("#"))
        self.guessed = self.guessed or (name is not None and name[0] in self.doubted)
        if (about := self._about(inside)) is not None:
            return about
        if (pointed := re.fullmatch(r"!(\w+)", inside)) and (target := self.known.get(pointed[1])):
            return self._parameter("".join(target), piece)
        if name is None or inside[0] == "#":
            return [piece]
        rest = re.sub(r"^\[[^\]]*\]", "", inside[name.end() :])
        value = self.known.get(name[0])
        if value is not None and (at := re.match(r"\[([^]@*]+)\]", inside[name.end() :])):
            place = self._sum(at[1])
            value = [piece] if isinstance(place, str) else value[place:][:1]
        missing = value is None or (rest[:1] == ":" and not "".join(value))
        form = re.match(r":?([-=+])(.*)$", rest, re.DOTALL)
        if form and form[1] in "-=":
            result = self._default(form[2], value) if missing else list(value or [])
            if form[1] == "=" and missing:
                self._set(name[0], result)
            return result
        if form:
            return [] if missing else [" ".join(self.fields(form[2]))]
        if value is None or not rest:
            return ["${" + name[0] + "}"] if value is None else list(value)
        words = [changed(word, "".join(self.fields(rest, split=False))) for word in value]
        return [piece] if None in words else [str(word) for word in words]

    def _about(self, inside: str) -> list[str] | None:
        """Return how many items an array has, their places, or the characters of a variable; None of other forms."""
        array = re.fullmatch(r"([#!])(\w+)\[[@*]\]", inside)
        if array and array[2] in self.known:
            count = len(self.known[array[2]])
            return [str(count)] if array[1] == "#" else [str(place) for place in range(count)]
        sized = re.fullmatch(r"#(\w+)", inside)
        return [str(len("".join(self.known[sized[1]][:1])))] if sized and sized[1] in self.known else None

    def _default(self, raw: str, value: list[str] | None) -> list[str]:
        if self.depth >= DEEPEST:
            return list(value or [])
        self.depth += 1
        result = self.fields(raw, split=False)
        self.depth -= 1
        return result

    def _output(self, text: str, piece: str) -> list[str]:
        """Return what a command prints where that can be known; the text itself where it cannot."""
        if self.depth >= DEEPEST or text.lstrip().startswith("<"):
            return [piece]
        printed = self.printed_by(text)
        return [piece] if printed is None else printed

    def _sum(self, text: str) -> int | str:
        """Return the value of arithmetic; the text itself where it is none."""
        known = re.sub(
            r"\$\([^()]*\)|`[^`]*`|\$\{\w+\[[^{}]*\]\}", lambda m: " ".join(self._piece(m[0])), text
        )
        named = re.sub(r"\$\{?(\w+)\}?|\b([A-Za-z_]\w*)", lambda m: self._number(m[1] or m[2]), known)
        try:
            return integer_of(named)
        except (ValueError, SyntaxError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
            return f"$(({text}))"

    def _number(self, name: str) -> str:
        self.guessed = self.guessed or name in self.doubted
        return "".join(self.known.get(name, ["unset"])) or "0"

    def assigned_sum(self, text: str) -> int | str:
        """Return the value of arithmetic that may set a variable: NAME++, ++NAME, NAME = …, NAME += …."""
        counts = _COUNTS_UP.fullmatch(text.strip())
        sets = _SETS.fullmatch(text.strip())
        if counts is None and sets is None:
            return self._sum(text)
        name = (counts[2] or counts[3]) if counts else sets[1]  # type: ignore[index]
        if counts:
            value = self._sum(f"{name}{(counts[1] or counts[4])[0]}1")
        else:
            value = self._sum(f"{name}{sets[2]}({sets[3]})" if sets[2] else sets[3])  # type: ignore[index]
        if isinstance(value, int):
            self._set(name, [str(value)])
        elif name not in self.given:
            self.known.pop(name, None)
        return value


_COUNTS_UP: Final = re.compile(r"(\+\+|--)([A-Za-z_]\w*)|([A-Za-z_]\w*)(\+\+|--)")
_SETS: Final = re.compile(r"([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)\s*(.+)", re.DOTALL)
_ALL = re.compile(r'"?\$(?:\{\w+\[[@*]\]\}|\{[@*]:\d+\}|[@*])"?')
"""All words of an array, or of the script."""

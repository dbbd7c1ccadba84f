"""Shell text as commands: raw words (quotes and expansions included), branches, loops, functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from forescale.errors import SpecError
from forescale.struct import Struct

Node: TypeAlias = tuple[str, object]
"""A command (`simple`, `if`, `for`, `case`, `while`, `def`, `group`, `subshell`) and its parts."""
Commands: TypeAlias = list[tuple[str, Node]]
"""Commands, each with what joins it to the one before it: `;`, `&&`, `||` or `|`."""

ASSIGNS = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.DOTALL)
_STARTS = ("if", "elif", "while", "until", "then", "do", "else", "!")
"""Words that a command follows."""
_WRITES = (">", ">|", ">>")
_OPERATORS = ("&&", "||", ";;", ";", "&", "|", "(", ")", "\n")
_BLANK = re.compile(r"[ \t\r]+|\\(?:\r?\n|\Z)")
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\n;|&$\"']*(?<![ \t])>(?=[\s\"'\\/_]|$)")
"""What a template leaves to its user, such as <PATH TO DATA>: a piece of a word, not a redirection."""


class Token(Struct, frozen=True):
    """A piece of shell text."""

    kind: str
    """`op`, `word` (raw text, quotes included), `array` (NAME=(…)), `text` (a here-document or -string) or `file`."""
    text: str
    words: tuple[str, ...] = ()
    """Raw words of an array; the operator before a file."""


def _tokens(text: str) -> list[Token]:
    """Cut shell text into raw words, operators, arrays, here-documents and files that output goes to.

    Comments and other redirections go.
    """
    tokens: list[Token] = []
    ends: list[str] = []
    at, dropped, written = 0, False, ""
    while at < len(text):
        if blank := _BLANK.match(text, at):
            at = blank.end()
            continue
        if text[at] == "#":
            at = _line_end(text, at)
            continue
        redirected = not _PLACEHOLDER.match(text, at) and re.compile(
            r"\d*(?:<<<|<<-?|>>|>&|<&|&>>?|>\||[<>])(?!\()"
        ).match(text, at)
        if redirected:
            at, dropped, written = redirected.end(), True, redirected[0].removeprefix("1")
            if redirected[0].lstrip("0123456789") in ("<<", "<<-"):
                raw, at = _raw_word(text, _past_blanks(text, at))
                ends.append(raw.strip("'\"\\"))
                dropped = False
            continue
        if (after := _past_arithmetic(text, at, tokens)) is not None:
            tokens.append(Token("word", text[at:after]))
            at = after
            continue
        operator_ = next((item for item in _OPERATORS if text.startswith(item, at)), None)
        if operator_:
            at += len(operator_)
            tokens.append(Token("op", operator_))
            dropped = False
            while operator_ == "\n" and ends:
                body, at = _here(text, at, ends.pop(0))
                tokens.insert(-1, Token("text", body))
            continue
        token, at = _word(text, at, dropped=dropped, written=written)
        tokens += [] if token is None else [token]
        dropped = False
    return tokens


def _word(text: str, at: int, *, dropped: bool, written: str) -> tuple[Token | None, int]:
    """Return a word, an array or a file of output, and the place after it; None if it is redirected otherwise."""
    raw, after = _raw_word(text, at)
    if ASSIGNS.fullmatch(raw) and text.startswith("(", after):
        inside, after = _balanced(text, after, "(", ")")
        texts = tuple(token.text for token in _tokens(inside) if token.kind == "word")
        return Token("array", raw, texts), after
    if dropped and written == "<<<":
        return Token("text", raw.strip("\"'")), after
    if dropped:
        return (Token("file", raw, (written,)) if written in _WRITES else None), after
    return Token("word", raw), after


def _past_arithmetic(text: str, at: int, tokens: Sequence[Token]) -> int | None:
    """Return the place after `((…))` where a command starts; None if none starts there."""
    starts = not tokens or tokens[-1].kind == "op" or tokens[-1].text in _STARTS
    if not starts or not text.startswith("((", at):
        return None
    inside, after = _balanced(text, at, "(", ")")
    return after if inside.endswith(")") else None


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _past_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _here(text: str, at: int, end: str) -> tuple[str, int]:
    """Return the here-document that starts at a line, and what comes after its last line."""
    start = at
    while at < len(text):
        stop = _line_end(text, at)
        if text[at:stop].strip() == end:
            return text[start:at], stop
        at = stop + 1
    return text[start:], len(text)


def _raw_word(text: str, at: int) -> tuple[str, int]:
    """Return the raw word at a place, quotes and expansions included, and what comes after it."""
    start = at
    while at < len(text) and (text[at] not in " \t\r\n;&|()<>" or _PLACEHOLDER.match(text, at)):
        at = past(text, at)
    return text[start:at], max(at, start + 1 if at == start else at)


PAIRS: Final = {"{": "}", "(": ")", "[": "]"}
"""Brackets of expansions: variables, commands and arithmetic (`$[…]` is its old form)."""


def past(text: str, at: int) -> int:
    """Return the place after one piece of a word: a character, a quoted text or an expansion."""
    match text[at]:
        case "\\":
            return min(at + 2, len(text))
        case "'":
            return _closing(text, at, "'")
        case '"':
            at += 1
            while at < len(text) and text[at] != '"':
                at = past(text, at) if text[at] in "\\$`" else at + 1
            if at >= len(text):
                raise SpecError(_OPEN.format('"'))
            return at + 1
        case "`":
            return _closing(text, at, "`")
        case "$" if text.startswith("$'", at):
            return _closing(text, at + 1, "'")
        case "$" if (left := text[at + 1 : at + 2]) in PAIRS:
            return _balanced(text, at + 1, left, PAIRS[left])[1]
        case _ if named := _PARAMETER.match(text, at) or _PLACEHOLDER.match(text, at):
            return named.end()
    return at + 1


_PARAMETER = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_OPEN = "it is not whole shell text: no closing {}"


def _closing(text: str, at: int, mark: str) -> int:
    end = text.find(mark, at + 1)
    if end < 0:
        raise SpecError(_OPEN.format(mark))
    return end + 1


def _balanced(text: str, at: int, left: str, right: str) -> tuple[str, int]:
    """Return what stands between brackets that open at a place, and the place after them."""
    start, depth = at + 1, 0
    while at < len(text):
        if text[at] == left:
            depth += 1
        elif text[at] == right:
            depth -= 1
            if depth == 0:
                return text[start:at], at + 1
        elif text[at] == "#" and left == "(" and text[at - 1] in " \t\n":
            at = _line_end(text, at)
            continue
        elif text[at] in "\\'\"`":
            at = past(text, at)
            continue
        at += 1
    raise SpecError(_OPEN.format(right))


def parsed(text: str) -> Commands:
    """Return the commands of a script; ends without their beginnings are passed over."""
    parser = _Parser(_tokens(text))
    commands = parser.commands(())
    while parser.at < len(parser.tokens):
        parser.at += 1
        commands += parser.commands(())
    return commands


class _Parser:
    """Groups tokens into commands; what joins each to the one before it stands beside it."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.at = tokens, 0

    def commands(self, ends: Iterable[str]) -> Commands:
        """Return the commands up to a word or operator of `ends`, which stays."""
        commands: Commands = []
        joined = ";"
        while (token := self._peek()) is not None and token.text not in (*ends, ")", ";;"):
            if token.kind == "op" and token.text != "(":
                joins = token.text in ("&&", "||", "|")
                joined = token.text if joins else ";" if token.text != "\n" else joined
                self.at += 1
                continue
            commands.append((joined, self._command()))
            joined = ";"
        return commands

    def _peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _next(self) -> str:
        token = self._peek()
        self.at += 1
        return "" if token is None else token.text

    def _command(self) -> Node:
        token = self.tokens[self.at]
        compound = {
            "if": self._if,
            "for": self._for,
            "case": self._case,
            "while": self._while,
            "until": self._until_loop,
            "{": lambda: self._group("}", "group"),
            "(": lambda: self._group(")", "subshell"),
            "function": self._function,
        }
        if token.kind == "array" or token.text not in compound:
            return self._simple()
        self.at += 1
        return compound[token.text]()

    def _group(self, end: str, kind: str) -> Node:
        body = self.commands((end,))
        self._next()
        return kind, body

    def _function(self) -> Node:
        name = self._next()
        return "def", (name, self._body())

    def _body(self) -> Commands:
        while (token := self._peek()) is not None and token.text in ("(", ")", "\n"):
            self.at += 1
        if token is None:
            return []
        return [(";", self._command())]

    def _if(self) -> Node:
        branches = []
        while True:
            commands = self.commands(("then",))
            self._next()
            branches.append((commands, self.commands(("elif", "else", "fi"))))
            word = self._next()
            if word == "else":
                branches.append(([], self.commands(("fi",))))
                self._next()
            if word != "elif":
                return "if", branches

    def _for(self) -> Node:
        name, parts = self._next(), list[str]()
        while (token := self._peek()) is not None and token.text != "do":
            if token.kind == "word" and token.text != "in":
                parts.append(token.text)
            self.at += 1
        self._next()
        body = self.commands(("done",))
        self._next()
        return "for", (name, parts, body)

    def _while(self) -> Node:
        question = self.commands(("do",))
        self._next()
        body = self.commands(("done",))
        self._next()
        return "while", (question, body)

    def _until_loop(self) -> Node:
        return "until", self._while()[1]

    def _case(self) -> Node:
        subject, arms = self._next(), []
        self._until("in")
        while (token := self._peek()) is not None and token.text != "esac":
            patterns = []
            while (token := self._peek()) is not None and token.text != ")":
                if token.kind == "word":
                    patterns.append(token.text)
                self.at += 1
            self._next()
            arms.append((patterns, self.commands(("esac",))))
            while (token := self._peek()) is not None and token.text in (";;", "\n"):
                self.at += 1
        self._next()
        return "case", (subject, arms)

    def _until(self, word: str) -> None:
        while (token := self._peek()) is not None and self._next() != word:
            assert token is not None

    def _simple(self) -> Node:
        """Return a simple command; inside [[ ]] and (( )) operators are words."""
        parts: list[Token] = []
        inside = self.tokens[self.at].text == "[["
        while (token := self._peek()) is not None:
            if token.kind == "op" and not inside:
                if token.text == "(" and len(parts) == 1:
                    return "def", (parts[0].text, self._body())
                break
            parts.append(token)
            self.at += 1
            if token.text == "]]":
                inside = False
        return "simple", parts


def split_words(text: str) -> list[str]:
    """Return the words of a text; what a command prints that is not known stays one."""
    if "$(" not in text and "`" not in text:
        return text.split()
    words, at = [""], 0
    try:
        while at < len(text):
            after = past(text, at) if text[at] in "$`" else at + 1
            words = [*words, ""] if text[at].isspace() else [*words[:-1], words[-1] + text[at:after]]
            at = after
    except SpecError:  # a part of such a command
        return text.split()
    return [word for word in words if word]


def escaped(text: str) -> str:
    """Return a text as it stands between double quotes."""
    return text.replace('"', '\\"')


def has_program(names: Sequence[str]) -> bool:
    """Whether words have a Python program."""
    return any(word.endswith(".py") for word in names)


TESTED: Final = re.compile(r"text='(?:\[{1,2}|test)'")
"""A test in the text of parsed commands."""
_CHANGES: Final = re.compile(r"\b([A-Za-z_]\w*)(?:\+\+|--|\s*[-+*/%]=)|(?:\+\+|--)([A-Za-z_]\w*)")


def grown(commands: Commands) -> set[str]:
    """Return the variables whose value commands make of the one before: NAME=$((NAME + 1)), NAME+=…, ((NAME++))."""
    names = set[str]()
    for token in _tokens_of(commands):
        assigned = ASSIGNS.match(token.text)
        if assigned is None:
            names |= {name for pair in _CHANGES.findall(token.text) for name in pair if name}
            continue
        rest = " ".join((token.text[assigned.end() :], *token.words))
        if assigned[2] or re.search(rf"\b{assigned[1]}\b", rest):
            names.add(assigned[1])
    return names


def _tokens_of(part: object) -> Iterable[Token]:
    """Yield the tokens of parsed commands."""
    if isinstance(part, Token):
        yield part
    elif isinstance(part, list | tuple):
        for item in part:
            yield from _tokens_of(item)

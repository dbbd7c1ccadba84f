"""Launch scripts of the shell, followed far enough to know the words of every command that they run.

Variables, arrays, defaults, arithmetic, tests, branches, loops over words, functions, here-documents, `bash -c` and
other scripts beside it are followed; nothing is executed. A variable that nothing sets stays as `${NAME}`.
"""

from __future__ import annotations

import ast
import fnmatch
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from forescale.errors import ReaderError, SpecError, too_deep, too_large
from forescale.frameworks.budget import Budget
from forescale.frameworks.shell.launch import header_words, slurm_variables
from forescale.frameworks.shell.syntax import ASSIGNS, Commands, Token, parsed, past

LONGEST: Final = 2**20
"""Characters of a script, and of one word of it with its variables put in."""
_MOST: Final = 20_000
"""Commands that are followed, those inside substitutions included."""
_TEXT: Final = 2**23
"""Characters and words that are expanded, compared or copied in all."""
_DEEPEST: Final = 24
_TESTED: Final = 1_000
"""Words of one test."""

_UNSET = re.compile(r"\$\{\w+\}")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_SHELLS = ("bash", "sh", "zsh")
_DOUBTED = ("false", "command", "which", "grep")
"""Commands that may well fail where the script is read."""


@dataclass(slots=True)
class Script:
    """What a script does, as far as it can be known."""

    commands: list[list[str]] = field(default_factory=list)
    """Words of each command in the order in which they run."""
    variables: dict[str, list[str]] = field(default_factory=dict)
    """Words of each variable that it sets, in the order in which they were first set."""


def is_unset(word: str) -> bool:
    """Whether `word` is nothing but a variable that has no value."""
    return _UNSET.fullmatch(word) is not None


def _names(name: str, text: str) -> bool:
    """Whether a script has a variable of that name, used or set."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def follow(
    text: str, variables: Mapping[str, str], where: str, beside: Callable[[str], str | None] = lambda _: None
) -> Script:
    """Return what the script `text` runs.

    The options of schedulers (`#SBATCH`, `#PBS`, `srun`) stand before the words that they start, and variables of
    Slurm have the values that follow from them.

    Parameters
    ----------
    text
        A script, one command, or a list of flags.
    variables
        Values of variables, over what the script sets.
    where
        Its origin, for messages.
    beside
        The text of another script by its name; None where there is none.

    Raises
    ------
    ReaderError
        If it is too long, not whole shell text, or takes more than its budget of commands and characters.
    """
    if len(text) > LONGEST:
        raise ReaderError(where, too_large("it", "", f"{LONGEST / 2**20:g} MiB for a script"))
    walk = _Walk(variables, beside)
    try:
        walk.read(text)
    except SpecError as error:
        raise ReaderError(where, error) from error
    except RecursionError:
        raise ReaderError(where, too_deep()) from None
    known = {
        name: item for name, item in walk.known.items() if name not in (*variables, *_OWN, *walk.scheduled)
    }
    return Script(commands=walk.commands, variables=known)


_OWN: Mapping[str, str] = {"0": "./script", "BASH_SOURCE": "./script", "PWD": "."}
"""Variables that the shell sets; every path lies beside the script."""
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


class _Walk:
    """Runs commands over the variables that are known; `run` says whether the last succeeded."""

    def __init__(self, variables: Mapping[str, str], beside: Callable[[str], str | None]) -> None:
        self.given, self.beside = variables, beside
        self.known: dict[str, list[str]] = {name: [value] for name, value in _OWN.items()}
        self.started: list[str] = []
        self.scheduled: dict[str, str] = {}
        """Variables that the scheduler sets."""
        self.commands: list[list[str]] = []
        self.functions: dict[str, Commands] = {}
        self.output: list[str] = []
        self.depth = 0
        self.commands_left, self.text_left = Budget(_MOST, "commands"), Budget(_TEXT, "characters")

    def inner(self) -> _Walk:
        """Return the walk of a substitution: it has its own variables and output, and spends the same budgets."""
        walk = _Walk(self.given, self.beside)
        self.text_left.spend(len(self.known))
        walk.known, walk.functions, walk.depth = dict(self.known), self.functions, self.depth + 1
        walk.commands_left, walk.text_left = self.commands_left, self.text_left
        return walk

    def read(self, text: str, started: Sequence[str] = ()) -> bool:
        """Run a script that the words `started` started."""
        if self.depth >= _DEEPEST:
            return True
        outside = self.started
        explicit = header_words(text)
        self.started = [*outside, *started, *explicit]
        if explicit or started:
            self.scheduled |= slurm_variables(self.started)
            self.known |= {name: [value] for name, value in self.scheduled.items() if name not in self.given}
        self.known |= {name: [self.given[name]] for name in self.given if _names(name, text)}
        self.depth += 1
        self.text_left.spend(len(text))
        worked = self.run(parsed(text))
        self.depth -= 1
        self.started = outside
        return worked

    def run(self, commands: Commands) -> bool:
        worked = True
        for joined, (kind, parts) in commands:
            self.commands_left.spend()
            if (joined == "&&" and not worked) or (joined == "||" and worked):
                continue
            worked = getattr(self, f"_{kind}")(parts)
        return worked

    def _group(self, body: Commands) -> bool:
        return self.run(body)

    def _skip(self, _: None) -> bool:
        return True

    def _def(self, parts: tuple[str, Commands]) -> bool:
        self.functions[parts[0]] = parts[1]
        return True

    def _if(self, branches: list[tuple[Commands, Commands]]) -> bool:
        for question, body in branches:
            if not question or self.run(question):
                return self.run(body)
        return True

    def _for(self, parts: tuple[str, list[str], Commands]) -> bool:
        name, overrides, body = parts
        for word in [item for raw in overrides for item in self.fields(raw)]:
            self.commands_left.spend()
            self._set(name, [word])
            self.run(body)
        return True

    def _case(self, parts: tuple[str, list[tuple[list[str], Commands]]]) -> bool:
        subject = " ".join(self.fields(parts[0]))
        for patterns, body in parts[1]:
            self.text_left.spend(len(subject) * len(patterns))
            if any(fnmatch.fnmatchcase(subject, " ".join(self.fields(pattern))) for pattern in patterns):
                return self.run(body)
        return True

    def _simple(self, parts: list[Token]) -> bool:
        start = 0
        if parts[0].text in _DECLARES:
            start = next(
                (at for at, token in enumerate(parts) if at and not token.text.startswith("-")), len(parts)
            )
        while start < len(parts) and self._assigned(parts[start]):
            start += 1
        overrides = [
            item
            for token in parts[start:]
            if token.kind in ("word", "op")
            for item in ([token.text] if token.kind == "op" else self.fields(token.text))
        ]
        if not overrides or parts[0].text in _DECLARES:
            return True
        bodies = [token.text for token in parts if token.kind == "text"]
        return self._called(overrides, bodies)

    def _called(self, names: list[str], bodies: list[str]) -> bool:
        if names[0] in ("[", "[[", "test", "!"):
            if len(names) > _TESTED:
                raise too_large("a test", f"{len(names):,} words", _TESTED)
            return _holds([word for word in names if word not in ("[", "]", "[[", "]]", "test")])
        if names[0] in self.functions and self.depth < _DEEPEST:
            self.depth += 1
            worked = self.run(self.functions[names[0]])
            self.depth -= 1
            return worked
        if names[0] in ("echo", "printf", "pwd", "dirname"):
            self.output.append(" ".join(names[1:]) if names[0] in ("echo", "printf") else ".")
            return True
        if names[0] == "expr":
            self.output.append(str(self._sum(" ".join(names[1:]))))
            return True
        if names[0] == "unset":
            for name in names[1:]:
                self.known.pop(name, None)
            return True
        inner = [("".join(self.fields(f'"{_escaped(body)}"')), names) for body in bodies] + self._inner(names)
        for text, started in inner:
            self.read(text, started)
        if not inner:
            self.commands.append([*self.started, *names])
        return names[0] not in _DOUBTED

    def _inner(self, names: list[str]) -> list[tuple[str, list[str]]]:
        """Return the scripts inside a command, and the words that start them."""
        if names[0] == "eval":
            return [(" ".join(names[1:]), [])]
        of_shell = False
        for at, word in enumerate(names):
            if word == "-c" and of_shell and at + 1 < len(names):
                return [(names[at + 1], names[:at])]
            of_shell = of_shell or word.rpartition("/")[2] in _SHELLS
            starts = at == 0 or names[0] in (".", "source", "sbatch", "srun", *_SHELLS)
            text = self.beside(word) if starts and word.endswith(".sh") else None
            if text is not None:
                return [(text, names[:at])]
        return []

    def _assigned(self, token: Token) -> bool:
        """Take a word as an assignment, if it is one."""
        name = ASSIGNS.match(token.text)
        if name is None or token.kind == "text":
            return False
        if token.kind == "array":
            parts = [item for raw in token.words for item in self.fields(raw)]
        else:
            word = "".join(self.fields(token.text[name.end() :], split=False))
            local = "${" + name[1] + "}"
            parts = [word if word == local else word.replace(local, "")]
            if name[2] and name[1] in self.known:
                parts = ["".join((*self.known[name[1]], *parts))]
                self._set(name[1], parts)
                return True
        self._set(name[1], [*self.known.get(name[1], []), *parts] if name[2] else parts)
        return True

    def _set(self, name: str, names: list[str]) -> None:
        size = sum(map(len, names))
        if size > LONGEST:
            raise too_large("the text of its variables", "", f"{LONGEST / 2**20:g} MiB")
        self.text_left.spend(len(names) + size)
        if name not in self.given:
            self.known[name] = names

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
                several = text.split()
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
        """Return the words of an expansion: $NAME, ${…}, $(…), $((…))."""
        if piece.startswith("$(("):
            return [str(self._sum(piece[3:-2]))]
        if piece.startswith("$("):
            return self._output(piece[2:-1], piece)
        if piece.startswith("$'"):
            return [piece[2:-1]]
        inside = piece[2:-1] if piece.startswith("${") else piece[1:]
        special = {"@": [], "*": [], "#": ["0"], "?": ["0"]}.get(inside)
        return self._parameter(inside, piece) if special is None else special

    def _parameter(self, inside: str, piece: str) -> list[str]:
        """Return the words of a variable, or of what stands for it where it is not set."""
        name = re.match(r"[A-Za-z_]\w*|\d+", inside)
        if name is None:
            return [piece]
        rest = re.sub(r"^\[[^\]]*\]", "", inside[name.end() :])
        value = self.known.get(name[0])
        missing = value is None or (rest[:1] == ":" and not "".join(value))
        form = re.match(r":?([-=+])(.*)$", rest, re.DOTALL)
        if form and form[1] in "-=":
            return self._default(form[2], value) if missing else list(value or [])
        if form:
            return [] if missing else [" ".join(self.fields(form[2]))]
        return ["${" + name[0] + "}"] if value is None else list(value)

    def _default(self, raw: str, value: list[str] | None) -> list[str]:
        if self.depth >= _DEEPEST:
            return list(value or [])
        self.depth += 1
        result = self.fields(raw, split=False)
        self.depth -= 1
        return result

    def _output(self, text: str, piece: str) -> list[str]:
        """Return what a command prints where that can be known; the text itself where it cannot."""
        if self.depth >= _DEEPEST:
            return [piece]
        inner = self.inner()
        inner.run(parsed(text))
        if inner.commands:
            return [piece]
        return " ".join(inner.output).split()

    def _sum(self, text: str) -> int | str:
        """Return the value of arithmetic; the text itself where it is none."""
        named = re.sub(r"\$\{?(\w+)\}?|\b([A-Za-z_]\w*)", lambda m: self._number(m[1] or m[2]), text)
        try:
            return int(_arithmetic(ast.parse(named.strip(), mode="eval").body))
        except (ValueError, SyntaxError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
            return f"$(({text}))"

    def _number(self, name: str) -> str:
        if name.isdigit():
            return name
        return "".join(self.known.get(name, ["unset"])) or "0"


_ALL = re.compile(r'"?\$(?:\{\w+\[[@*]\]\}|[@*])"?')
"""All words of an array, or of the script."""
_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: (
        int(math.copysign(1, left) * math.copysign(1, right)) * (abs(left) // abs(right))
    ),
    ast.Mod: lambda left, right: int(math.copysign(1, left)) * (abs(left) % abs(right)),
}
"""Operators of the shell's arithmetic; division rounds towards zero."""
_LARGEST: Final = 2**63


def _arithmetic(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value):
            result = value
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            result = -_arithmetic(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result = _BINARY[type(op)](_arithmetic(left), _arithmetic(right))
        case _:
            raise ValueError(ast.dump(node))
    if not -_LARGEST <= result < _LARGEST:
        raise OverflowError(result.bit_length())
    return result


def _escaped(text: str) -> str:
    return text.replace('"', '\\"')


def _holds(names: Sequence[str]) -> bool:
    """Say whether a test holds; what cannot be known (files) does not, and what nothing sets is empty."""
    names = ["" if is_unset(word) else word for word in names]
    for joint, combine in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
        if joint in names:
            at = names.index(joint)
            return combine((_holds(names[:at]), _holds(names[at + 1 :])))
    match names:
        case ["!", *rest]:
            return not _holds(rest)
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case [left, ("=" | "=="), right]:
            return fnmatch.fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatch.fnmatchcase(left, right)
        case [left, compare, right] if compare in _COMPARE:
            return _COMPARE[compare](_integer(left), _integer(right))
    return False


def _integer(text: str) -> float:
    return float(text) if re.fullmatch(r"-?\d{1,18}", text) else 0.0

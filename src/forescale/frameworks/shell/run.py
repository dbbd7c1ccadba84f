"""Launch scripts of the shell, followed far enough to know the words of every command that they run.

Variables, arrays, defaults, arithmetic, tests, branches, loops over words, functions, here-documents, `bash -c` and
other scripts next to it are followed; nothing is executed. A variable that nothing sets stays as `${NAME}`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from forescale.errors import ReaderError, SpecError, too_deep, too_large
from forescale.frameworks.budget import Budget
from forescale.frameworks.shell.expressions import changed, holds, integer_of, is_certain, is_unset
from forescale.frameworks.shell.launch import MPI, SLURM, header_words, slurm_variables
from forescale.frameworks.shell.output import finds, printed
from forescale.frameworks.shell.script import Script, Stop, Use, refuse_cut
from forescale.frameworks.shell.syntax import (
    ASSIGNS,
    Commands,
    Token,
    escaped,
    has_program,
    parsed,
    past,
    split_words,
)

LONGEST: Final = 2**20
"""Characters of a script, and of one word of it with its variables put in."""
_MOST: Final = 20_000
"""Commands that are followed, those inside substitutions included."""
_TEXT: Final = 2**23
"""Characters and words that are expanded, compared or copied in all."""
_DEEPEST: Final = 24
_TESTED: Final = 1_000
"""Words of one test."""

_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_SHELLS = ("bash", "sh", "zsh")
_STARTERS: Final = (".", "source", *SLURM, *MPI, *_SHELLS)
"""Commands that start a script among their words."""
_DOUBTED = ("false", "command", "which", "grep")
"""Commands that may well fail where the script is read."""


def _names(name: str, text: str) -> bool:
    """Whether a script has a variable of that name, used or set."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def follow(
    text: str,
    variables: Mapping[str, str],
    where: str,
    read_neighbour: Callable[[str], str | None] = lambda _: None,
    arguments: Sequence[str] | None = None,
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
    read_neighbour
        The text of another script by its name; None where there is none.
    arguments
        Values of `$1`, `$2`, …; None if they are not known.

    Raises
    ------
    ReaderError
        If it is too long, not whole shell text, or takes more than its budget of commands and characters.
    """
    if len(text) > LONGEST:
        raise ReaderError(where, too_large("it", "", f"{LONGEST / 2**20:g} MiB for a script"))
    walk = _Walk(variables, read_neighbour)
    try:
        walk.pass_on(arguments)
        walk.has_arguments = arguments is not None
        walk.until_stop("exit", lambda: walk.read(text))
        walk.read_written()
    except SpecError as error:
        raise ReaderError(where, error) from error
    except RecursionError:
        raise ReaderError(where, too_deep()) from None
    known = {
        name: item for name, item in walk.known.items() if name not in (*variables, *_OWN, *walk.scheduled)
    }
    return Script(walk.commands, known, walk.files, walk.unset, walk.missing, walk.stopped)


_OWN: Mapping[str, str] = {"0": "./script", "BASH_SOURCE": "./script", "PWD": "."}
"""Variables that the shell sets; every path lies beside the script."""
_ARGUMENT = re.compile(r"\$\{?[1@#*]")
"""A use of the arguments of a script."""
_SCRIPTS: Final = (".sh", ".slurm", ".sbatch", ".bash")
"""Endings of the names of scripts."""


class _Walk:
    """Runs commands over the variables that are known; `run` says whether the last succeeded."""

    def __init__(self, variables: Mapping[str, str], read_neighbour: Callable[[str], str | None]) -> None:
        self.given, self.read_neighbour = variables, read_neighbour
        self.known: dict[str, list[str]] = {name: [value] for name, value in _OWN.items()}
        self.started: list[str] = []
        self.scheduled: dict[str, str] = {}
        """Variables that the scheduler sets."""
        self.commands: list[list[str]] = []
        self.functions: dict[str, Commands] = {}
        self.output: list[str] = []
        self.piped = ""
        self.arguments: list[str] = []
        self.files: dict[str, str] = {}
        self.read_files: set[str] = set()
        self.unset: dict[str, Use] = {}
        self.missing: list[str] = []
        self.depth = self.doubts = 0
        self.sure, self.has_arguments, self.guessed = True, True, False
        """Whether the last status, and the arguments, are known; whether the last words have arguments that are not."""
        self.stopped = ""
        self.commands_left, self.text_left = Budget(_MOST, "commands"), Budget(_TEXT, "characters")

    def inner(self) -> _Walk:
        """Return the walk of a substitution: it has its own variables and output, and spends the same budgets."""
        walk = _Walk(self.given, self.read_neighbour)
        self.text_left.spend(len(self.known))
        walk.known, walk.functions, walk.depth = dict(self.known), self.functions, self.depth + 1
        walk.commands_left, walk.text_left = self.commands_left, self.text_left
        walk.arguments, walk.files, walk.unset = self.arguments, self.files, self.unset
        walk.has_arguments = self.has_arguments
        return walk

    def until_stop(self, kind: str, runs: Callable[[], bool], *, doubted: bool = False) -> bool:
        """Run what an `exit` (or a `return`) ends; under a condition that is `doubted` none is followed."""
        outside = self.doubts, self.depth, self.started
        self.doubts += doubted
        try:
            return runs()
        except Stop as stop:
            if kind not in (stop.args[0], "exit"):
                raise
            return bool(stop.args[1] == 0)
        finally:
            self.doubts, self.depth, self.started = outside

    def _stop(self, names: Sequence[str]) -> bool:
        """End a script or a function, unless a condition that is not known decides it."""
        if self.doubts:
            return True
        status = names[1] if names[1:] else "0"
        failed = status.isdigit() and int(status) != 0
        if names[0] == "exit" and failed and not self.stopped:
            printed = next((text for text in reversed(self.output) if text.strip()), "")
            self.stopped = " ".join(("exit", status, *(["after:", printed.strip()[:120]] if printed else [])))
        raise Stop(names[0], int(failed))

    def pass_on(self, arguments: Sequence[str] | None) -> None:
        """Set `$1`, `$2` and so on; None leaves them unset."""
        self.arguments = list(arguments or ())
        self.known = {name: value for name, value in self.known.items() if not name.isdigit() or name == "0"}
        self.known |= {str(at): [word] for at, word in enumerate(self.arguments, 1)}

    def read_written(self) -> None:
        """Read the scripts that the script writes and starts in no way that is followed."""
        for name, text in list(self.files.items()):
            script = name.endswith(_SCRIPTS) or text.startswith("#!")
            if script and name not in self.read_files:
                self.read(text)

    def text_of(self, name: str) -> str | None:
        """Return the text of a file that the script writes, or that is next to it; a folder may not be known."""
        text = self.files.get(name)
        return self.read_neighbour(_FOLDER.sub("", name)) if text is None else text

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
        worked, before = True, len(self.output)
        for joined, (kind, parts) in commands:
            self.commands_left.spend()
            self.piped = "\n".join(self.output[before:]) if joined == "|" else ""
            if joined == "|":
                del self.output[before:]
            before = len(self.output)
            if (joined == "&&" and not worked) or (joined == "||" and worked):
                continue
            doubted = joined in ("&&", "||") and not self.sure
            self.sure = True
            worked = self.until_stop("", partial(getattr(self, f"_{kind}"), parts), doubted=doubted)
            self.sure = self.sure and not doubted
        return worked

    def _group(self, body: Commands) -> bool:
        return self.run(body)

    def _subshell(self, body: Commands) -> bool:
        return self.until_stop("exit", partial(self.run, body))

    def _while(self, parts: tuple[Commands, Commands]) -> bool:
        """Run a loop over the arguments of the script, and one round of a loop that counts or reads lines."""
        question, body = parts
        if not _ARGUMENT.search(str(question)):
            reads = re.search(r"\bread\b", str(question)) is not None
            if not reads and not ("((" in str(question) and self.run(question)):
                return True
            return self.until_stop("", partial(self.run, body), doubted=True)
        left = None
        while self.arguments and self.arguments != left and self.run(question):
            left = self.arguments
            self.run(body)
        return True

    def _def(self, parts: tuple[str, Commands]) -> bool:
        self.functions[parts[0]] = parts[1]
        return True

    def _if(self, branches: list[tuple[Commands, Commands]]) -> bool:
        doubted = False
        for question, body in branches:
            taken = not question or self.run(question)
            doubted = doubted or (bool(question) and not self.sure)
            if taken:
                return self.until_stop("", partial(self.run, body), doubted=doubted)
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
        doubted = not subject or "$" in subject
        if is_unset(subject):
            self._use(subject).choices += [
                item for patterns, _ in parts[1] for item in patterns if item != "*"
            ]
        for patterns, body in parts[1]:
            self.text_left.spend(len(subject) * len(patterns))
            if any(fnmatch.fnmatchcase(subject, " ".join(self.fields(pattern))) for pattern in patterns):
                return self.until_stop("", partial(self.run, body), doubted=doubted)
        return True

    def _simple(self, parts: list[Token]) -> bool:
        start = 0
        targets = [token for token in parts if token.kind == "file"]
        parts = [token for token in parts if token.kind != "file"]
        if not parts:
            return True
        if parts[0].text in _DECLARES:
            start = next(
                (at for at, token in enumerate(parts) if at and not token.text.startswith("-")), len(parts)
            )
        self.guessed = False
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
        bodies = ["".join(self.fields(f'"{escaped(token.text)}"')) for token in parts if token.kind == "text"]
        if overrides[0] == "read" and bodies and "-d" not in overrides:
            return self._read(overrides, bodies[0])
        text = printed(overrides, "".join(bodies) or self.piped, self.text_of)
        if text is None or overrides[0] in self.functions:
            return self._called(overrides, bodies)
        self._print(text, overrides, targets)
        return True

    def _print(self, text: str, names: Sequence[str], targets: Sequence[Token]) -> None:
        """Write what a command prints to a file, or keep it as output."""
        self.text_left.spend(len(text))
        files = ["".join(self.fields(token.text)) for token in targets]
        appends = any(token.words == (">>",) for token in targets)
        if names[0] == "tee":
            files += [name for name in names[1:] if not name.startswith("-")]
        text += "\n" if names[0] == "echo" and names[1:2] != ["-n"] and files else ""
        for name in files:
            self.files[name] = f"{self.files.get(name, '')}{text}" if appends else text
        if not files:
            self.output.append(text)

    def _use(self, word: str) -> Use:
        """Return what is known of a variable that nothing sets, written as `${NAME}`."""
        return self.unset.setdefault(word[2:-1], Use())

    def _note_choices(self, names: Sequence[str]) -> None:
        """Keep what variables that nothing sets are compared with; an argument that must not be something may lack."""
        for left, compare, right in zip(names, names[1:], names[2:], strict=False):
            decides = compare in ("=", "==") or (compare == "!=" and not left.strip("${}").isdigit())
            if decides and is_unset(left) and right and not is_unset(right):
                self._use(left).choices.append(right)

    def _called(self, names: list[str], bodies: list[str]) -> bool:
        if names[0] in ("exit", "return") and len(names) <= len(("exit", "status")):
            return self._stop(names)
        if names[0].startswith("((") or names[0] in ("[", "[[", "test", "!"):
            return self._test(names)
        if names[0] in self.functions and self.depth < _DEEPEST:
            return self._function(names)
        if names[0] == "shift" and self.arguments:
            self.pass_on(self.arguments[int(names[1]) if names[1:] and names[1].isdigit() else 1 :])
            return True
        if names[0] == "expr":
            self.output.append(str(self._sum(" ".join(names[1:]))))
            return True
        if names[0] == "unset":
            for name in names[1:]:
                self.known.pop(name, None)
            return True
        inner = [(body, names, ()) for body in bodies] + self._inner(names)
        for text, started, arguments in inner:
            outside, before = self.arguments, len(self.commands)
            if arguments:
                self.pass_on(arguments)
            sourced = names[0] in (".", "source", "eval")
            self.until_stop("return" if sourced else "exit", partial(self.read, text, started))
            self.pass_on(outside)
            if has_program(arguments) and not any(map(has_program, self.commands[before:])):
                self.commands.append(
                    [*self.started, *names]
                )  # a wrapper that decides how its arguments start
        if not inner:
            refuse_cut(names, self.commands[-1] if self.commands else [])
            self.commands.append([*self.started, *names])
        found = finds(names[1:], self.piped) if names[0] == "grep" else None
        self.sure = names[0] in ("true", "false", ":")
        return names[0] not in _DOUBTED if found is None else found

    def _test(self, names: Sequence[str]) -> bool:
        if names[0].startswith("(("):
            value = self._sum(names[0][2:-2])
            self.sure = isinstance(value, int) and not self.guessed and "$#" not in names[0]
            return value not in (0, f"$({names[0]})")
        if len(names) > _TESTED:
            raise too_large("a test", f"{len(names):,} words", _TESTED)
        self._note_choices(names)
        tested = [word for word in names if word not in ("[", "]", "[[", "]]", "test")]
        self.sure = len(tested) < len(names) and not self.guessed and is_certain(tested)
        return holds(tested)

    def _function(self, names: Sequence[str]) -> bool:
        self.depth += 1
        outside, has_arguments = self.arguments, self.has_arguments
        self.has_arguments = True
        self.pass_on(names[1:])
        worked = self.until_stop("return", partial(self.run, self.functions[names[0]]))
        self.pass_on(outside)
        self.has_arguments = has_arguments
        self.depth -= 1
        return worked

    def _read(self, names: Sequence[str], text: str) -> bool:
        """Set variables to the fields of a line between characters of IFS; the last one takes the rest."""
        between = "".join(self.known.pop("IFS", []))
        if "${" in text:
            return True
        variables = [name for name in names[1:] if not name.startswith("-")]
        is_array = any(re.fullmatch("-[a-z]*a", name) for name in names)
        most, line = 0 if is_array else len(variables) - 1, text.partition("\n")[0]
        parts = (
            re.split(f"[{re.escape(between)}]", line, maxsplit=most)
            if between
            else line.split(None, most or -1)
        )
        fields = [parts] if is_array else [[part] for part in parts] + [[]] * most
        for name, value in zip(variables, fields, strict=False):
            self._set(name, value)
        return True

    def _inner(self, names: list[str]) -> list[tuple[str, list[str], Sequence[str]]]:
        """Return the scripts inside a command, the words that start them, and their arguments."""
        if names[0] == "eval":
            return [(" ".join(names[1:]), [], ())]
        of_shell = False
        for at, word in enumerate(names):
            if of_shell and at + 1 < len(names) and re.fullmatch(r"-[a-z]*c", word):
                return [(names[at + 1], names[:at], names[at + 3 :])]  # the one between is $0
            of_shell = of_shell or word.rpartition("/")[2] in _SHELLS
            starts = at == 0 or names[0] in _STARTERS or names[at - 1].rpartition("/")[2] in _SHELLS
            if not starts or not word.endswith(_SCRIPTS):
                continue
            if (text := self.text_of(word)) is not None:
                self.read_files.add(word)
                return [(text, names[:at], names[at + 1 :])]
            if not (names[0] in (".", "source") and word.startswith(("/", "~"))):  # a profile of that machine
                self.missing.append(word)
        return []

    def _assigned(self, token: Token) -> bool:
        """Take a word as an assignment, if it is one."""
        name = ASSIGNS.match(token.text)
        if name is None or token.kind == "text":
            return False
        if token.kind == "array":
            parts = [item for raw in token.words for item in self.fields(raw)]
        else:
            word = " ".join(self.fields(token.text[name.end() :], split=False))
            if is_unset(word) and word[2:-1] != name[1]:
                self._use(word).names.append(name[1])
            local = "${" + name[1] + "}"
            word = local if _PRINTED.fullmatch(word) else word
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
        special = {"@": passed, "*": passed, "#": [str(len(passed))], "?": ["0"]}.get(inside)
        return self._parameter(inside, piece) if special is None else special

    def _parameter(self, inside: str, piece: str) -> list[str]:
        """Return the words of a variable, or of what stands for it where it is not set."""
        if counted := re.fullmatch(r"#(\w+)\[[@*]\]", inside):
            return [str(len(self.known[counted[1]]))] if counted[1] in self.known else [piece]
        if (sized := re.fullmatch(r"#(\w+)", inside)) and sized[1] in self.known:
            return [str(len("".join(self.known[sized[1]][:1])))]
        if (pointed := re.fullmatch(r"!(\w+)", inside)) and (target := self.known.get(pointed[1])):
            return self._parameter("".join(target), piece)
        name = re.match(r"[A-Za-z_]\w*|\d+", inside)
        if name is None:
            return [piece]
        at = re.match(r"\[(\d{1,6})\]", inside[name.end() :])
        rest = re.sub(r"^\[[^\]]*\]", "", inside[name.end() :])
        value = self.known.get(name[0])
        if at and value is not None:
            value = value[int(at[1]) : int(at[1]) + 1]
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

    def _default(self, raw: str, value: list[str] | None) -> list[str]:
        if self.depth >= _DEEPEST:
            return list(value or [])
        self.depth += 1
        result = self.fields(raw, split=False)
        self.depth -= 1
        return result

    def _output(self, text: str, piece: str) -> list[str]:
        """Return what a command prints where that can be known; the text itself where it cannot."""
        if self.depth >= _DEEPEST or text.lstrip().startswith("<"):
            return [piece]
        inner = self.inner()
        inner.until_stop("exit", lambda: inner.run(parsed(text)))
        if inner.commands:
            return [piece]
        return " ".join(inner.output).split()

    def _sum(self, text: str) -> int | str:
        """Return the value of arithmetic; the text itself where it is none."""
        named = re.sub(r"\$\{?(\w+)\}?|\b([A-Za-z_]\w*)", lambda m: self._number(m[1] or m[2]), text)
        try:
            return integer_of(named)
        except (ValueError, SyntaxError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
            return f"$(({text}))"

    def _number(self, name: str) -> str:
        if name.isdigit():
            return name
        return "".join(self.known.get(name, ["unset"])) or "0"


_PRINTED = re.compile(r"\$\([^(].*\)|`.*`", re.DOTALL)
"""What a command prints, which is not known: the variable that takes it is as one that nothing sets."""
_FOLDER = re.compile(r"\$\{\w+\}/")
"""A folder that is a variable which nothing sets, before the name of a file."""
_ALL = re.compile(r'"?\$(?:\{\w+\[[@*]\]\}|[@*])"?')
"""All words of an array, or of the script."""

"""Launch scripts of the shell, followed far enough to know the words of every command that they run.

Variables, arrays, defaults, arithmetic, tests, branches, loops over words, functions, here-documents, `bash -c` and
other scripts next to it are followed; nothing is executed. A variable that nothing sets stays as `${NAME}`.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from forescale.errors import ReaderError, SpecError, too_deep, too_large
from forescale.frameworks.budget import Budget
from forescale.frameworks.shell.expand import DEEPEST, LONGEST, Expansions
from forescale.frameworks.shell.expressions import holds, is_certain, is_unset
from forescale.frameworks.shell.launch import MPI, SLURM, header_words, slurm_variables
from forescale.frameworks.shell.output import finds, printed
from forescale.frameworks.shell.script import Script, Stop, Use, refuse_cut
from forescale.frameworks.shell.syntax import (
    ASSIGNS,
    TESTED,
    Commands,
    Token,
    escaped,
    grown,
    has_program,
    parsed,
)

_MOST: Final = 20_000
"""Commands that are followed, those inside substitutions included."""
_TEXT: Final = 2**23
"""Characters and words that are expanded, compared or copied in all."""
_TESTED: Final = 1_000
"""Words of one test."""

WORLD: Final = "WORLD_SIZE"
"""Variable of PyTorch that counts processes."""
COUNTING: Final = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "NPROC_PER_NODE", "NNODES", WORLD)
"""Variables that trainers take devices and processes from."""
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_SHELLS = ("bash", "sh", "zsh")
_STARTERS: Final = (".", "source", *SLURM, *MPI, *_SHELLS)
"""Commands that start a script among their words."""
_HIDES = ("local", "declare", "typeset")
"""Commands that hide a variable in a function."""
_ROUNDS: Final = 1_000
"""Rounds of a loop."""
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
    return Script(walk.commands, known, walk.files, walk.unset, walk.missing, walk.stopped, walk.environments)


_OWN: Mapping[str, str] = {"0": "./script", "BASH_SOURCE": "./script", "PWD": "."}
"""Variables that the shell sets; every path lies beside the script."""
_ARGUMENT = re.compile(r"\$\{?[1@#*]")
"""A use of the arguments of a script."""
RAY: Final = "ray.sub"
"""NeMo RL's script of Slurm, which starts what COMMAND has."""
_SCRIPTS: Final = (".sh", ".slurm", ".sbatch", ".bash", ".sub")
"""Endings of the names of scripts."""


class _Walk(Expansions):
    """Runs commands over the variables that are known; `run` says whether the last succeeded."""

    def __init__(self, variables: Mapping[str, str], read_neighbour: Callable[[str], str | None]) -> None:
        super().__init__(variables, Budget(_TEXT, "characters"))
        self.read_neighbour = read_neighbour
        self.known |= {name: [value] for name, value in _OWN.items()}
        self.folder = ""
        """Folder below that of the script into which `cd` went."""
        self.started: list[str] = []
        self.scheduled: dict[str, str] = {}
        """Variables that the scheduler sets."""
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.functions: dict[str, Commands] = {}
        self.locals: list[dict[str, list[str] | None]] = []
        """Variables that each function hides, with what they are outside."""
        self.piped = ""
        self.files: dict[str, str] = {}
        self.read_files: set[str] = set()
        self.unset: dict[str, Use] = {}
        self.missing: list[str] = []
        self.sure = True
        """Whether the last status is known."""
        self.stopped = ""
        self.commands_left = Budget(_MOST, "commands")

    def inner(self) -> _Walk:
        """Return the walk of a substitution: it has its own variables and output, and spends the same budgets."""
        walk = _Walk(self.given, self.read_neighbour)
        self.text_left.spend(len(self.known))
        walk.known, walk.functions, walk.depth = dict(self.known), self.functions, self.depth + 1
        walk.commands_left, walk.text_left = self.commands_left, self.text_left
        walk.arguments, walk.files, walk.unset = self.arguments, self.files, self.unset
        walk.has_arguments, walk.folder = self.has_arguments, self.folder
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
        plain = _FOLDER.sub("", name)
        if text is None and self.folder:
            text = self.read_neighbour(f"{self.folder}/{plain}")
        return self.read_neighbour(plain) if text is None else text

    def read(self, text: str, started: Sequence[str] = ()) -> bool:
        """Run a script that the words `started` started."""
        if self.depth >= DEEPEST:
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
        self.text_left.spend(len(self.known))
        outside = dict(self.known), self.folder
        worked = self.until_stop("exit", partial(self.run, body))
        self.known, self.folder = outside
        return worked

    def printed_by(self, text: str) -> list[str] | None:
        """Return what a command prints as one word, or none; None if it runs what is not followed."""
        inner = self.inner()
        inner.until_stop("exit", lambda: inner.run(parsed(text)))
        shown = "\n".join(inner.output).strip()
        return None if inner.commands else [shown] * bool(shown)

    def _while(self, parts: tuple[Commands, Commands], *, until: bool = False) -> bool:
        """Run a loop over the arguments, or while a known test holds; of one that counts or reads lines a round."""
        question, body = parts
        asked = str(question)
        if _ARGUMENT.search(asked):
            left = None
            while self.arguments and self.arguments != left and self.run(question):
                left = self.arguments
                self.run(body)
            return True
        rounds = 0
        while TESTED.search(asked) and rounds < _ROUNDS:
            goes = self.run(question) != until
            if not self.sure:
                break
            if not goes or not self._round(body):
                return True
            rounds += 1
        if re.search(r"\bread\b", asked) or ("((" in asked and self.run(question) != until):
            self.until_stop("", partial(self._round, body), doubted=True)
        self._forget(body)
        return True

    def _until(self, parts: tuple[Commands, Commands]) -> bool:
        return self._while(parts, until=True)

    def _round(self, body: Commands) -> bool:
        """Run one round of a loop; return whether another follows."""
        try:
            self.until_stop("", partial(self.run, body))
        except Stop as stop:
            if stop.args[0] not in ("break", "continue"):
                raise
            return bool(stop.args[0] == "continue")
        return True

    def _forget(self, body: Commands) -> None:
        """Take the values of variables that each round of a loop changes: how many rounds there are is not known."""
        for name in grown(body):
            if name not in self.given:
                self.known.pop(name, None)

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
        if not name.isidentifier():  # for ((…))
            self.until_stop("", partial(self._round, body), doubted=True)
            self._forget(body)
            return True
        for word in [item for raw in overrides for item in self.fields(raw)]:
            self.commands_left.spend()
            self._set(name, [word])
            if not self._round(body):
                break
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
        if self.locals and parts[0].text in _HIDES:
            for name in filter(None, (ASSIGNS.match(token.text) for token in parts[1:])):
                self.locals[-1].setdefault(name[1], self.known.get(name[1]))
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
        if overrides[0] == "read" and bodies:
            if "-d" not in overrides:
                return self._read(overrides, bodies[0])
            self._set(overrides[-1], [bodies[0].strip()])  # all lines
            return True
        text = printed(overrides, "".join(bodies) or self.piped, self.text_of)
        if text is None or overrides[0] in self.functions:
            return self._called(overrides, bodies)
        self._print(text, overrides, targets)
        return True

    def _print(self, text: str, names: Sequence[str], targets: Sequence[Token]) -> None:
        """Write what a command prints to a file, or keep it as output; follow `cd`."""
        if names[0] == "cd":
            self.folder = _entered(self.folder, names[-1])
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

    def _start(self, names: Sequence[str]) -> None:
        self.commands.append([*self.started, *names])
        self.environments.append({name: " ".join(self.known.get(name, ())) for name in COUNTING})

    def _called(self, names: list[str], bodies: list[str]) -> bool:
        if names[0] in ("exit", "return", "break", "continue") and len(names) <= len(("exit", "status")):
            return self._stop(names)
        if names[0].startswith("((") or names[0] in ("[", "[[", "test", "!"):
            return self._test(names)
        if names[0] in self.functions and self.depth < DEEPEST:
            return self._function(names)
        if names[0] == "shift" and self.arguments:
            self.pass_on(self.arguments[int(names[1]) if names[1:] and names[1].isdigit() else 1 :])
            return True
        if names[0] in ("let", "unset") or names[:2] == ["printf", "-v"]:
            return self._sets(names)
        if names[0] == "expr":
            self.output.append(str(self._sum(" ".join(names[1:]))))
            return True
        reads = bool(self.piped) and names[-1].rpartition("/")[2] in _SHELLS
        inner = [(body, names, ()) for body in [*bodies, *[self.piped] * reads]] + self._inner(names)
        for text, started, arguments in inner:
            outside, has_arguments, before = self.arguments, self.has_arguments, len(self.commands)
            if arguments:
                self.pass_on(arguments)
                self.has_arguments = True
            sourced = names[0] in (".", "source", "eval")
            self.until_stop("return" if sourced else "exit", partial(self.read, text, started))
            self.pass_on(outside)
            self.has_arguments = has_arguments
            if has_program(arguments) and not any(map(has_program, self.commands[before:])):
                self._start(names)  # a wrapper that decides how its arguments start
        if not inner:
            refuse_cut(names, self.commands[-1] if self.commands else [])
            self._start(names)
        found = finds(names[1:], self.piped) if names[0] == "grep" else None
        self.sure = names[0] in ("true", "false", ":")
        return names[0] not in _DOUBTED if found is None else found

    def _sets(self, names: Sequence[str]) -> bool:
        """Run `let`, `unset` or `printf -v`."""
        if names[0] == "let":
            return all(self.assigned_sum(word) not in (0, f"$(({word}))") for word in names[1:])
        if names[0] == "printf" and names[4:]:
            self._set(names[2], [*names[4:5]])
        for name in names[1:] if names[0] == "unset" else ():
            self.known.pop(name, None)
        return True

    def _test(self, names: Sequence[str]) -> bool:
        if names[0].startswith("(("):
            value = self.assigned_sum(names[0][2:-2])
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
        self.locals.append({})
        self.pass_on(names[1:])
        worked = self.until_stop("return", partial(self.run, self.functions[names[0]]))
        self.pass_on(outside)
        for name, value in self.locals.pop().items():
            self.known |= {} if value is None else {name: value}
            if value is None:
                self.known.pop(name, None)
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
            if word.rpartition("/")[2] == RAY and "COMMAND" in self.known:
                return [("".join(self.known["COMMAND"]), names[:at], names[at + 1 :])]
            if not (names[0] in (".", "source") and word.startswith(("/", "~"))):  # a profile of that machine
                self.missing.append(word)
        return []

    def _assigned(self, token: Token) -> bool:
        """Take a word as an assignment, if it is one; what is set to a value that is not sure is not sure either."""
        name = ASSIGNS.match(token.text)
        if name is None or token.kind == "text":
            return False
        self._assign(token, name)
        if self.guessed and name[1] not in self.given:
            self.doubted.add(name[1])
        return True

    def _assign(self, token: Token, name: re.Match[str]) -> None:
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
                return
        self._set(name[1], [*self.known.get(name[1], []), *parts] if name[2] else parts)


def _entered(folder: str, target: str) -> str:
    """Return the folder after `cd target`; that of the script where it is not below it or not known."""
    if target == "cd" or target.startswith(("/", "~", "-")) or "$" in target:
        return ""
    path = posixpath.normpath(posixpath.join(folder, target))
    return "" if path.startswith("..") or path == "." else path


_PRINTED = re.compile(r"\$\([^(].*\)|`.*`", re.DOTALL)
"""What a command prints, which is not known: the variable that takes it is as one that nothing sets."""
_FOLDER = re.compile(r"\$\{\w+\}/")
"""A folder that is a variable which nothing sets, before the name of a file."""

"""Words of commands: the program that they start, its arguments and the configurations that it is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from forescale.files import read_text
from forescale.frameworks.shell import is_unset
from forescale.frameworks.trainers.accelerated import plain
from forescale.frameworks.trainers.program import is_loop, modules_of
from forescale.frameworks.trainers.run import found_by_end, in_source, neighbour_of

PLACED: Final = re.compile(r"""\badd_argument\(\s*["'][A-Za-z]""")
"""An argument of argparse that is given by its place."""
MODULE: Final = ("-m", "--module")
"""Options after which a module of Python is named, by its name with dots."""


FACTORY: Final = re.compile(r"llamafactory|llmtuner|glmtuner")
"""Packages of LLaMA-Factory, which its programs take from."""


def by_text(run: tuple[str, int, list[str]], path: Path) -> tuple[str, int, list[str]]:
    """Return a command; one of a program at hand that only has a name of LLaMA-Factory's as a person's own."""
    form, at, words = run
    file = program_file(path, words[at - 1]) if form == "llamafactory" else None
    is_other = file is not None and FACTORY.search(read_text(file)) is None
    return ("trainer", at, words) if is_other else run


def programs_of(words: Sequence[str]) -> list[tuple[str, int]]:
    """Return the files of Python that a command may start, and their places: programs, and modules by their files."""
    pairs = enumerate(pairwise(["", *words]))
    modules = [
        (f"{word.replace('.', '/')}.py", at) for at, (before, word) in pairs if before in MODULE and word
    ]
    return [(word, at) for at, word in enumerate(words) if word.endswith(".py")] + modules


def loops(commands: Sequence[Sequence[str]], folder: Path) -> list[tuple[str, int, list[str]]]:
    """Return the commands that start a program with a loop of its own, and where its arguments begin."""
    return [
        ("trainer", at + 1, list(words))
        for words in commands
        for name, at in programs_of(words)
        if is_loop(found_by_end(folder, name))
    ]


def unknown_program(words: Sequence[str]) -> str:
    """Return the program of a command that has options: a file or a module of Python, or the command itself."""
    if not any(word.startswith("--") for word in words):
        return ""
    for before, word in pairwise(["", *words]):
        if before in MODULE or word.endswith(".py"):
            return word
    first = next(
        (word for word in words if word not in ("exec", "nohup", "env", "time") and "=" not in word), ""
    )
    return "" if first.startswith("-") else first.rpartition("/")[2]


def arguments_of(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of a program, and the names of the configurations that it is given."""
    values: dict[str, Any] = {}
    files: list[str] = []
    name = ""
    for word in filter(lambda word: word != "--", words):
        flag, equals, value = word.lstrip("+").partition("=")
        if flag == "--multirun":
            continue  # a switch of hydra's, whose words follow
        if flag.startswith("--"):
            name = flag[2:].replace("-", "_")
            values[name] = plain(value) if equals else True
        elif name and values[name] is True and not word.startswith("++"):
            values[name] = plain(word)
        elif equals and re.fullmatch(r"[A-Za-z_][\w.]*", flag):
            values[flag] = plain(value)
        elif (not name and is_unset(word)) or (
            word.endswith((".yaml", ".yml")) or (not name and word.endswith(".json"))
        ):
            files.append(word)
        elif name:
            old = values[name]
            values[name] = [*(old if isinstance(old, list) else [old]), plain(word)]
    named = [values.pop(key, None) for key in ("config", "config_file")]
    files += [file for file in named if isinstance(file, str)]
    return values, files


def in_folder(words: Sequence[str], files: Sequence[str]) -> list[str]:
    """Return the names of configurations in the folder that GPT-NeoX's launcher takes for them."""
    folder = next((after for before, after in pairwise(words) if before in ("-d", "--conf_dir")), "")
    return [f"{folder}/{name}" if folder and "/" not in name else name for name in files]


def own_program(words: Sequence[str], at: int) -> str:
    """Return the file of a Python program or module that is none of TRL's own scripts; "" of others."""
    name = words[at - 1]
    if name in MODULE and words[at:]:
        name = f"{words[at].replace('.', '/')}.py"
    elif words[max(0, at - 2)] in MODULE:
        name = f"{name.replace('.', '/')}.py"
    return "" if not name.endswith(".py") or re.search(r"\btrl/(?:.*/)?scripts/", name) else name


def program_file(path: Path, program: str) -> Path | None:
    """Return the file of a program that a script starts, or else that of its name next to the script."""
    if not program.endswith((".py", ".ipynb")):
        return None
    found = found_by_end(path.parent, program) or neighbour_of(path.parent, Path(program).name)
    return found or in_source(path.parent, program)


def own_arguments(
    file: Path | None, words: Sequence[str], values: Mapping[str, Any], named: str
) -> dict[str, Any] | None:
    """Return the arguments of a program that loads the configuration `named` itself, by an option that it declares."""
    if file is None:
        return None
    option = next(
        (word[2:].partition("=")[0] for word, after in pairwise([*words, ""]) if _names(word, after, named)),
        "",
    )
    text = "\n".join(map(read_text, modules_of(file)))
    if not option:
        is_placed = bool(named) and words[:1] != [] and PLACED.search(text) is not None
        return dict(values) if is_placed and not words[0].startswith("-") else None
    spelled = re.sub(r"[-_]", "[-_]", option)
    is_declared = re.search(rf"""["']--{spelled}["']""", text)
    return {**values, option.replace("-", "_"): named} if is_declared else None


def _names(word: str, after: str, named: str) -> bool:
    """Whether a word, or with the one after it, is an option with the name of a file."""
    return word.startswith("--") and bool(named) and (after == named or word.endswith(f"={named}"))

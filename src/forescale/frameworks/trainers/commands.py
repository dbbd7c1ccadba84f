"""Words of commands: the program that they start, its arguments and the configurations that it is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from forescale.frameworks.shell import is_unset
from forescale.frameworks.trainers.accelerated import plain


def unknown_program(words: Sequence[str]) -> str:
    """Return the program of a command that has options: a file or a module of Python, or the command itself."""
    if not any(word.startswith("--") for word in words):
        return ""
    for before, word in pairwise(["", *words]):
        if before == "-m" or word.endswith(".py"):
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
    for word in words:
        flag, equals, value = word.lstrip("+").partition("=")
        if flag.startswith("--"):
            name = flag[2:].replace("-", "_")
            values[name] = plain(value) if equals else True
        elif name and values[name] is True and not word.startswith("++"):
            values[name] = plain(word)
        elif (not name and is_unset(word)) or (
            word.endswith((".yaml", ".yml")) or (not name and word.endswith(".json"))
        ):
            files.append(word)
        elif equals and re.fullmatch(r"[A-Za-z_][\w.]*", flag):
            values[flag] = plain(value)
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

"""Write src/forescale/cli/flags.json: the options of every command, for errors that need nothing else.

`python -m scripts.flags` writes the file; a test compares it with what this script would write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forescale.cli import misspelt
from forescale.cli.app import entry_point
from forescale.cli.front import COMMANDS
from forescale.spec.space import NAMES

TABLE = Path(misspelt.__file__).with_name("flags.json")


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401  (whichever click typer has)
    """Yield all commands below one, with what is typed for each."""
    if path and not hasattr(command, "commands"):
        yield path, command
    for name, item in getattr(command, "commands", {}).items():
        yield from commands(item, f"{path} {name}".strip())


def options(command: Any) -> dict[str, int]:  # noqa: ANN401  (whichever click typer has)
    """Return the options of a command, with how many words follow each as its value."""
    names = dict.fromkeys(("-h", "--help"), 0)
    for param in command.params:
        if param.param_type_name == "option":
            values = 0 if param.is_flag or param.count else param.nargs
            names |= dict.fromkeys((*param.opts, *param.secondary_opts), values)
    return names


def written() -> str:
    """Return the file, a command a line."""
    rows = []
    for path, command in commands(entry_point(tuple(COMMANDS))):
        arguments = [param.name for param in command.params if param.param_type_name == "argument"]
        values = {"arguments": arguments, "options": options(command)}
        rows.append(f"{json.dumps(path)}: {json.dumps(values, separators=(',', ':'))}")
    body = ",\n".join(rows)
    return f'{{"held_by_fix": {json.dumps(NAMES)},\n"commands": {{\n{body}\n}}}}\n'


if __name__ == "__main__":
    TABLE.write_text(written(), encoding="utf-8")

"""Write the output of the README's commands into the README: `python scripts/readme.py`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
FIRST = re.compile(r"(    \./scripts/(forescale search [^\n]*)\n\n```\n)(.*?)(\n```\n)", re.DOTALL)
SHOWN = re.compile(r"(```\n\$ (forescale [^\n]*)\n)(.*?)(\n```\n)", re.DOTALL)


def output(command: str) -> str:
    """Return what a command of the README prints."""
    arguments = shlex.split(command)[1:]
    done = subprocess.run(  # noqa: S603 (the README's own commands)
        [sys.executable, "-m", "forescale", *arguments], capture_output=True, text=True, check=True
    )
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def main() -> None:
    """Replace every output by the present one."""
    text = README.read_text(encoding="utf-8")
    for pattern in (FIRST, SHOWN):
        text = pattern.sub(lambda found: found[1] + output(found[2]) + found[4], text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

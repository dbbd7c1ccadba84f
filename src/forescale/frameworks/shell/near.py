"""Files next to a launch script."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from forescale.files import is_file, read_text

KINDS = (".sh", ".slurm", ".sbatch", ".bash", ".json", ".yaml", ".yml")
"""Endings of scripts and tables."""
ABOVE = 3
"""Folders above a script in which a path that it names is looked for."""


_OPEN = re.compile(r"^\$(?:\{\w+\}|\(.*\))/")
"""A folder that is not known: a variable that nothing sets, or what a command prints."""


def near(script: Path) -> Callable[[str], str | None]:
    """Return a function that reads a file which `script` names, or None where it is not there.

    A path is looked for as it is written, then by as many of its last parts as are there, in the folder of the
    script; that of a script or of a table also in the folders above.
    Nothing outside these folders is read, wherever a path points.
    """
    folders = (script.absolute().parent, *script.absolute().parents[1:ABOVE])

    def text_of(name: str) -> str | None:
        name = _OPEN.sub("", name)
        if not name or "$" in name or "\0" in name:
            return None
        parts = [part for part in Path(name).parts if part not in ("/", ".", "..")]
        ends = ["/".join(parts[at:]) for at in range(len(parts))]
        searched = folders if Path(name).suffix in KINDS else folders[:1]
        written = [] if Path(name).is_absolute() else [(folders[0] / name).resolve()]
        places = [
            place for place in written if any(place.is_relative_to(folder.resolve()) for folder in searched)
        ]
        places += [folder / end for end in ends for folder in searched]
        path = next((place for place in places if is_file(place)), None)
        return None if path is None else read_text(path)

    return text_of

"""MaxText's keys as data, and its command line: `python3 -m maxtext.trainers.pre_train.train base.yml key=value`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from forescale.errors import ReaderError, unset_variable, wrong_format
from forescale.files import is_file
from forescale.frameworks.reading import packaged
from forescale.frameworks.shell import follow
from forescale.struct import Struct
from forescale.units import counted


def known_keys() -> Mapping[str, str]:
    """Return every key that MaxText takes, with the kind of its value."""
    return MappingProxyType(packaged("maxtext")["keys"])


def base_values() -> Mapping[str, Any]:
    """Return base.yml's values of the keys that figures depend on."""
    return MappingProxyType(packaged("maxtext")["base"])


def topologies() -> Mapping[str, int]:
    """Return the devices of one slice by the name of its topology."""
    return MappingProxyType(packaged("maxtext")["topologies"])


def presets() -> Mapping[str, Mapping[str, Any]]:
    """Return MaxText's models by name: the `keys` that base.yml says otherwise, and our `catalogue` name of some."""
    return MappingProxyType(packaged("maxtext", "presets")["models"])


HALLMARK = re.compile(r"-m\s+[\"']?(?:maxtext|MaxText)\.|(?:maxtext|MaxText)\S{0,200}\s[^\n]{0,4000}\.yml\b")
_TRAINS = re.compile(r"(?:pre_train|post_train|MaxText|maxtext)[.\w/]*?(?:train\w*|\$\{\w+\})(?:\.py)?$")
_FILE = (".yml", ".yaml")


class Command(Struct, frozen=True):
    """What one start of MaxText says."""

    config: str
    overrides: Mapping[str, str]
    notes: tuple[str, ...] = ()


def parse_command(text: str, variables: Mapping[str, str], path: Path) -> Command:
    """Return the first command of a script that trains.

    Raises
    ------
    ReaderError
        If there is none, or a key that figures follow from holds a variable that nothing sets.
    """

    def beside(name: str) -> str | None:
        file = path.parent / Path(name).name
        return file.read_text("utf-8") if is_file(file) else None

    runs = [command for command in follow(text, variables, str(path), beside).commands if _trains(command)]
    if not runs:
        raise ReaderError(
            path,
            wrong_format(
                "a command that trains with MaxText",
                "it has no python3 -m maxtext.trainers.pre_train.train FILE.yml …",
            ),
        )
    parts = runs[0]
    program = next(index for index, word in enumerate(parts) if _TRAINS.search(word))
    config = next((word for word in parts[program + 1 :] if word.endswith(_FILE)), "base.yml")
    after = [word for word in parts[program + 1 :] if "=" in word and not word.startswith("-")]
    overrides = dict(word.split("=", 1) for word in after)
    for key, value in overrides.items():
        unset = re.search(r"\$\{(\w+)\}", value)
        if unset and (key in base_values() or key == "model_name"):
            raise ReaderError(path, unset_variable(key, value, f"--var {unset[1]}=VALUE"))
    several = f"it starts {counted(len(runs), 'training')}; the first is read"
    return Command(config, overrides, (several,) if len(runs) > 1 else ())


def _trains(names: Sequence[str]) -> bool:
    return any(_TRAINS.search(word) for word in names)

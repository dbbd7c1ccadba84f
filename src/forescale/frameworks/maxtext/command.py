"""MaxText's keys as data, and its command line: `python3 -m maxtext.trainers.pre_train.train base.yml key=value`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from forescale.errors import ReaderError, not_expressed, unset_variable, wrong_format
from forescale.frameworks.reading import packaged
from forescale.frameworks.shell import follow
from forescale.frameworks.shell.near import near
from forescale.limits import whole_of
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
    script = follow(text, variables, str(path), near(path))
    commands = script.commands
    runs = [(command, dict[str, str]()) for command in commands if _trains(command)]
    runs += _workloads(commands, path)
    if named := next(
        (words for words in commands if RUNNER in words or RUNNER_FILE in " ".join(words)), None
    ):
        model = next(
            (word.partition("=")[2] for word in named if word.startswith("--model_name=")), "of its own"
        )
        fix = "give MODEL and the layout as options, or the command that it starts"
        raise ReaderError(
            path, not_expressed(f"the configuration {model} of MaxText's benchmark_runner", "", fix)
        )
    if not runs:
        script.refuse_stopped(path)
        raise ReaderError(
            path,
            wrong_format(
                "a command that trains with MaxText",
                "it has no python3 -m maxtext.trainers.pre_train.train FILE.yml …",
            ),
        )
    parts, outer = runs[0]
    program = next(index for index, word in enumerate(parts) if _TRAINS.search(word))
    config = next((word for word in parts[program + 1 :] if word.endswith(_FILE)), "base.yml")
    after = [word for word in parts[program + 1 :] if "=" in word and not word.startswith("-")]
    overrides = {**outer, **dict(word.split("=", 1) for word in after)}
    for key, value in overrides.items():
        unset = re.search(r"\$\{(\w+)\}", value)
        if unset and (key in base_values() or key == "model_name"):
            raise ReaderError(path, unset_variable(key, value, f"--var {unset[1]}=VALUE"))
    several = f"it starts {counted(len(runs), 'training')}; the first is read"
    return Command(config, overrides, (several,) if len(runs) > 1 else ())


RUNNER: Final = "benchmarks.benchmark_runner"
RUNNER_FILE: Final = "benchmark_runner.py"
"""MaxText's program that starts configurations by name, which are Python."""


def _workloads(commands: Iterable[Sequence[str]], path: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Return the trainings that `--command=…` of xpk, or `--COMMAND=…` of MaxText's multihost programs, start.

    Each has the devices of the slices that are asked for.
    """
    runs = []
    for words in commands:
        parts = (word.lstrip("-").partition("=") for word in words if word.startswith("--"))
        options = {name.lower().replace("_", "-"): value for name, _, value in parts}
        inner = follow(options["command"], {}, str(path)).commands if "command" in options else []
        kind = options.get("device-type", options.get("tpu-type", ""))
        name = _topology(kind)
        devices = {"compile_topology": name, "compile_topology_num_slices": options.get("num-slices", "1")}
        runs += [(command, devices if name else {}) for command in inner if _trains(command)]
    return runs


def _topology(kind: str) -> str:
    """Return MaxText's name of a slice; one by its shape in chips (tpu7x-4x4x8) by its devices, two of each chip."""
    family, _, shape = kind.partition("-")
    if kind in topologies():
        return kind
    sizes = [whole_of(part) or 0 for part in shape.split("x")]
    devices = prod(sizes) * (2 if family == "tpu7x" else 1)
    names = (
        name for name, count in topologies().items() if name.startswith(f"{family}-") and count == devices
    )
    return next(names, "")


def _trains(names: Sequence[str]) -> bool:
    return any(_TRAINS.search(word) for word in names)

"""One run of a trainer: its settings, what starts it, and what its files leave open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import field

from forescale import wording
from forescale.errors import MissingFact
from forescale.files import is_file
from forescale.frameworks.reading import ParsedFile
from forescale.frameworks.settings import Settings
from forescale.frameworks.shell import Devices
from forescale.spec.framework import Words
from forescale.struct import Struct

MICRO: Final = "per_device_train_batch_size"
STEPS: Final = "gradient_accumulation_steps"


class Training(Struct, frozen=True, kw_only=True):
    """The settings of one run, and what starts it."""

    settings: Settings
    form: str
    """Name of the reader."""
    folder: Path
    """Folder of the file, in which and above which others are looked for."""
    launch: ParsedFile | None = None
    """Accelerate's configuration that the command names."""
    num_devices: int | None = None
    """Devices that the command starts."""
    program: str = ""
    """A person's own program that the command starts; its defaults are not known."""
    over: Words = field(default_factory=dict)
    """What flags and plans set of the layout and the workload."""
    assumed: list[str] = field(default_factory=list)
    """What is assumed of its defaults, with the flag that sets it."""
    warnings: list[str] = field(default_factory=list)
    missing: list[MissingFact] = field(default_factory=list)


class Start(Struct, frozen=True, kw_only=True):
    """What starts a program."""

    launch: ParsedFile | None
    """Accelerate's configuration."""
    devices: Devices | None
    program: str
    """The program, as the command names it."""
    own: Mapping[str, Any] | None = None
    """Its arguments where it loads the configuration itself that the command names."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that its script sets."""
    words: tuple[str, ...] = ()
    """Its words after the program."""
    kinds: tuple[str, ...] = ()
    """The launchers that start it."""

    def count(self, given: int | None) -> int | None:
        """Return the number of devices that flags have `given`, or else that the command starts."""
        return given or (None if self.devices is None else self.devices.count)

    def leaves_nothing_to_shard(self, given: int | None) -> bool:
        """Return whether accelerate's configuration says how states are sharded, or one device has them all."""
        return self.launch is not None or self.count(given) == 1

    def ranks(self, given: int | None) -> Mapping[str, str] | None:
        """Return the variables of ranks that the first process of a command has; None where that is not known.

        `given` is the number of devices that flags give. A program alone is one process where they give none.
        """
        count = self.count(given)
        if not self.kinds and (count or 1) == 1:
            return {}
        if not count or (self.kinds and not {"torch", "accelerate", "deepspeed"} & set(self.kinds)):
            return None
        return {"WORLD_SIZE": str(count), "RANK": "0", "LOCAL_RANK": "0"}


def neighbour_of(folder: Path, name: str) -> Path | None:
    """Return a file by the name that another one, or a command, has for it: in its folder, or in one above that.

    A module of a package is looked for in `src` too.
    """
    inside = (".", "src") if re.fullmatch(r"\w+/.*\.py", name) else (".",)
    places = (place / part / name for place in (folder, *folder.parents[:6]) for part in inside)
    return next(filter(is_file, places), None)


def found_by_end(folder: Path, name: str) -> Path | None:
    """Return a file by as much of the end of its path on another machine, 8 parts at most, as is there."""
    parts = Path(name).parts[1:][-8:]
    ends = [name, *("/".join(parts[at:]) for at in range(len(parts)))]
    return next(filter(None, (neighbour_of(folder, end) for end in ends)), None)


def in_source(folder: Path, name: str) -> Path | None:
    """Return a program by its bare name in the folder `src` of one around a script, which may enter that first."""
    return neighbour_of(folder, f"src/{name}") if re.fullmatch(r"\w+\.py", name) else None


def required(folder: Path, settings: Settings, key: str, name: str) -> Path:
    """Return a file that a key names, which must be there."""
    if (file := found_by_end(folder, name)) is None:
        settings.refuse(wording.not_found(f"file {name} ({settings.spell(key)})", "put it next to this one"))
    note_namesake(settings, key, name, file)
    return file


def note_namesake(settings: Settings, key: str, name: str, file: Path) -> None:
    """Note a file that is read for one on another machine, of whose path it has the name alone."""
    if Path(name).is_absolute() and file.absolute().parts[-2:] != Path(name).parts[-2:]:
        settings.note(f"{settings.spell(key)}: {file}, which has the same name, is read for {name}")


def assume(run: Training, key: str, field_name: str, what: str) -> None:
    """Keep what is assumed of a person's own program where neither a key nor a flag gives it."""
    given = {**run.over, **(run.over.get("trainable") or {}), **(run.over.get("precision") or {})}
    if run.program and key not in run.settings and field_name not in given:
        run.assumed.append(what)

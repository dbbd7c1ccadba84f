"""What every reader of a framework's configuration returns, and what a caller may tell it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import field

from forescale.errors import UnknownKeyError
from forescale.spec import Layout, Model, Workload
from forescale.spec.framework import Words
from forescale.struct import Struct


class Variables(Mapping[str, str]):
    """Values of variables by name, which remembers those that a reader asked for: no other changes anything."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values, self.asked = dict(values), set[str]()

    def __getitem__(self, name: str) -> str:
        value = self._values[name]
        self.asked.add(name)
        return value

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the names that no reader asked for."""
        return tuple(name for name in self._values if name not in self.asked)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class ParsedFile(Struct, frozen=True, kw_only=True):
    """A configuration as specifications, and what became of each of its keys."""

    format: str
    """Name of the reader."""
    model: Model | None = None
    framework: str | None = None
    """Record of the framework that says the rest; None where the configuration is of a model only."""
    strategy: Layout | None = None
    """The layout as the configuration alone says it."""
    told: Words = field(default_factory=lambda: MappingProxyType({}))
    """What of the layout it says, in the words of a plan; the rest is the framework's."""
    workload: Workload | None = None
    workload_values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What it says of the workload where the length of sequences is in no configuration, in the words of a plan."""
    schedule: str | None = None
    """Pipeline schedule by its name in the schedule library; None where the configuration names none."""
    num_devices: int | None = None
    """Devices that the layout was read for; None where neither the caller nor the configuration says."""
    used: tuple[str, ...] = ()
    """Keys that the result depends on, as the configuration spells them."""
    ignored: tuple[str, ...] = ()
    """Known keys that do not change what is projected (learning rate, paths, logging)."""
    unknown: tuple[str, ...] = ()
    """Keys that the framework does not have; empty unless `Options.strict` is off."""
    notes: tuple[str, ...] = ()
    """How something was understood, or what could not be expressed, one sentence each."""


@cache
def packaged(framework: str, name: str = "keys") -> Any:  # noqa: ANN401  (JSON)
    """Return the facts that lie in a framework's folder as `name`.json; whoever reads them leaves them as they are."""
    return json.loads(
        (files("forescale.frameworks") / framework / f"{name}.json").read_text(encoding="utf-8")
    )


def unknown_of(
    values: Iterable[object], known: Collection[str], path: Path, lines: Mapping[str, int], *, strict: bool
) -> tuple[str, ...]:
    """Return the keys that a framework does not have; the first of them is refused, with its line, if `strict`.

    Of dotted keys the nearest are looked for in the same section.
    """
    unknown = tuple(str(key) for key in values if key not in known)
    if unknown and strict:
        line, section = lines.get(unknown[0]), unknown[0].rpartition(".")[0]
        near = [key for key in known if key.rpartition(".")[0] == section] or known
        raise UnknownKeyError(unknown[0], f"{path}, line {line}" if line else str(path), near)
    return unknown


def flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a table, and of those within it, by their dotted keys; an empty table is a value."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def words_of(layout: Layout, *, left: Collection[str] = (), **tables: Collection[str]) -> dict[str, Any]:
    """Return a layout in the words of a plan without the fields that are `left` to the framework.

    `tables` name, of a table such as kernels, the fields that are said.
    """
    whole = asdict(layout)
    parts = {name: value for name, value in whole.items() if name not in left}
    return parts | {
        name: {field: value for field, value in whole[name].items() if field in table}
        for name, table in tables.items()
    }


class Options(Struct, frozen=True, kw_only=True):
    """What a configuration leaves to its surroundings, told by the caller, never by the environment."""

    num_devices: int | None = None
    """Devices of the run: most frameworks leave them to the launcher."""
    layout: bool = True
    """Whether the layout is asked for; False reads it for the fewest devices and says nothing of them."""
    vocab_size: int | None = None
    """Vocabulary, where the configuration only names a tokenizer."""
    vocabulary_of: Callable[[str], int | None] = lambda _: None
    """Vocabulary of the model that a tokenizer comes with, by its name; None where it is not known."""
    model_of: Callable[[str], Model] | None = None
    """The model that a catalogue name means, for configurations that only name theirs; None where none are known."""
    over: Words = field(default_factory=lambda: MappingProxyType({}))
    """Words of a plan's layout and workload that go over what the configuration says of them."""
    variables: Variables = field(default_factory=lambda: Variables({}))
    """Values of `${NAME}` placeholders, over their defaults."""
    folders: tuple[Path, ...] = ()
    """Where presets are looked for, besides the file's own folder."""
    strict: bool = True
    """Refuse keys that the framework does not have."""


class Reader(Protocol):
    """Reads one framework's configuration. A new one must pass `check_reader` (tests/conformance)."""

    @property
    def name(self) -> str:
        """Short name, such as "megatron"."""

    @property
    def title(self) -> str:
        """What it reads, for people."""

    def recognises(self, text: str) -> bool:
        """Whether `text` (the content of a file) is in this format; cheap, and never raises."""

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the file at `path` says."""

"""What every reader of a framework's configuration returns, and what a caller may tell it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from msgspec import field

from forescale.errors import MissingFact, UnknownKeyError
from forescale.files import shipped
from forescale.spec import Layout, Model, Workload
from forescale.spec.framework import Words, merged
from forescale.struct import Struct, asdict

SAMPLING = "the training phase is projected; sampling (rollout)"
"""What is said of the steps of runs that sample what they train on."""


DEVICES: Final = MissingFact("the number of devices", "--devices N", "--devices 8", "devices")


class Variables(Mapping[str, str]):
    """Values of variables by name, which remembers those that a reader asked for: no other changes anything.

    Variables of the environment, which only the command line passes on, need not be read.
    """

    def __init__(
        self, values: Mapping[str, str], environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._values, self._all, self.asked = dict(values), {**environment, **values}, set[str]()

    def __getitem__(self, name: str) -> str:
        value = self._all[name]
        self.asked.add(name)
        return value

    @property
    def from_environment(self) -> dict[str, str]:
        """Return the variables of the environment that a reader asked for."""
        return {name: self._all[name] for name in sorted(self.asked - self._values.keys())}

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the names that no reader asked for."""
        return tuple(name for name in self._values if name not in self.asked)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


class ParsedFile(Struct, frozen=True, kw_only=True):
    """The explicit fields of a framework's configuration, and what became of each of its keys."""

    format: str
    """Name of the reader."""
    model: Model | None = None
    framework: str | None = None
    """Record of the framework that sets the other fields; None if the configuration is of a model only."""
    layout_fields: Words = field(default_factory=lambda: MappingProxyType({}))
    """Fields of the layout that the configuration sets; all others are the framework's."""
    workload_fields: Words = field(default_factory=lambda: MappingProxyType({}))
    """Fields of the workload that it sets."""
    num_devices: int | None = None
    """Devices that the layout was read for; None where neither the caller nor the configuration says."""
    used: tuple[str, ...] = ()
    """Keys that the result depends on, as the configuration spells them."""
    ignored: tuple[str, ...] = ()
    """Known keys that do not change what is projected (learning rate, paths, logging)."""
    unknown: tuple[str, ...] = ()
    """Keys that the framework does not have; empty unless `Options.strict` is off."""
    remedies: Words = field(default_factory=lambda: MappingProxyType({}))
    """Keys that make a change of the layout, by its kind and value ("recompute:full") or kind."""
    notes: tuple[str, ...] = ()
    """How something was understood, or what could not be expressed, one sentence each."""
    warnings: tuple[str, ...] = ()
    """Settings that may change the projection and are not modelled, as sentences; `--strict` refuses them."""
    phase: str = ""
    """Which part of a step is projected where that is not all of it, as a sentence: runs that sample take longer."""
    missing: tuple[MissingFact, ...] = ()
    """What the configuration leaves open and the question needs, where it can be read without."""

    @property
    def strategy(self) -> Layout | None:
        """The layout of the explicit fields, with the usual defaults; None if there are none."""
        return merged(Layout(), self.layout_fields) if self.layout_fields else None

    @property
    def workload(self) -> Workload | None:
        """The workload of the explicit fields, with the usual defaults; None if it has no length or batch."""
        sizes = {name: self.workload_fields.get(name) for name in ("seq_len", "global_batch_size")}
        if None in sizes.values():
            return None
        return merged(Workload(**sizes), self.workload_fields)  # type: ignore[arg-type]


def packaged(framework: str, name: str = "keys") -> Any:  # noqa: ANN401  (JSON)
    """Return the facts that lie in a framework's folder as `name`.json."""
    return shipped(f"frameworks/{framework}/{name}")


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


def explicit_fields(
    layout: Layout,
    *,
    left: Collection[str] = (),
    schedule: str | None = None,
    tables: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the fields of a layout without those that are `left` to the framework.

    Parameters
    ----------
    layout
        The layout that a configuration sets.
    left
        Fields that it does not set.
    schedule
        Pipeline schedule, if it is not that of `layout`; the 1F1B schedules are the default.
    tables
        Fields that are set, of each table such as kernels that is not set as a whole.
    """
    whole = asdict(layout)
    fields = {name: value for name, value in whole.items() if name not in left}
    named = schedule or layout.schedule
    fields["schedule"] = None if named in ("1f1b", "interleaved-1f1b") else named
    return fields | {
        name: {key: value for key, value in whole[name].items() if key in keys}
        for name, keys in tables.items()
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
    model: Model | None = None
    """The model, for configurations that describe none."""
    over: Words = field(default_factory=lambda: MappingProxyType({}))
    """Words of a plan's layout and workload that go over what the configuration says of them."""
    variables: Variables = field(default_factory=lambda: Variables({}))
    """Values of `${NAME}` placeholders, over their defaults."""
    arguments: tuple[str, ...] | None = None
    """Arguments of a script, `$1` and so on; None if they are not known."""
    folders: tuple[Path, ...] = ()
    """Where presets are looked for, besides the file's own folder."""
    launch: ParsedFile | None = None
    """Configuration of Accelerate or DeepSpeed that starts a trainer whose file names none."""
    has_bf16: bool = True
    """Whether the devices compute in bf16, which scripts ask before they choose a type."""
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

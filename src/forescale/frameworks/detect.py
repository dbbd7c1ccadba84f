"""The format of a configuration, decided from its content alone by the markers that formats declare.

Formats are rows of `signatures.json`, in the order in which they are tried. A marker that ends with a colon is a key of
the file's outermost table (in YAML or JSON), or, with a dot, of a table in it; any other is a regular expression, which
is searched for in the text. All of `all`, at least one of `any` and none of `none` must be there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from textwrap import dedent
from typing import ClassVar, Final

import msgspec

from forescale.files import shipped
from forescale.struct import Struct

_KEY: Final = re.compile(
    r"^(?P<indent>[ \t]*)(?:- )?[\"']?(?P<key>[A-Za-z_][\w.-]*)[\"']?[ \t]*:(?=\s|$)", re.M
)
_QUOTED: Final = re.compile(r'"([A-Za-z_][\w.-]*)"\s*:')


class Signature(Struct, frozen=True, kw_only=True):
    """The markers of a format."""

    name: str
    """Name of the reader, or of a framework whose files are not read."""
    title: str = ""
    """Framework, for formats without a reader."""
    all: tuple[str, ...] = ()
    any: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    only: str = ""
    """What keys of the outermost table match, apart from one that may be misspelt; nothing if empty."""
    learns: bool = False
    """Whether it configures reinforcement learning, whose steps are not projected."""

    def matched(self, text: Content) -> tuple[tuple[str, int], ...]:
        """Return the markers that are in a text with their lines; nothing if it is not in this format."""
        if any(text.line_of(marker) for marker in self.none) or not self._is_alone(text):
            return ()
        needed = [(marker, text.line_of(marker)) for marker in self.all]
        options = [(marker, line) for marker in self.any if (line := text.line_of(marker))]
        if not all(line for _, line in needed) or (self.any and not options):
            return ()
        return (*needed, *options)

    def _is_alone(self, text: Content) -> bool:
        """Return whether a text has no keys but those of the format, or one other."""
        others = [key for key in text.keys if not _compiled(self.only).fullmatch(key)] if self.only else ()
        return len(others) <= 1


class Detection(Struct, frozen=True, kw_only=True):
    """The format that a text was taken for, and the markers that decided it."""

    signature: Signature
    markers: tuple[tuple[str, int], ...]
    """What was recognised, as it is written in the text, and its line."""
    others: tuple[str, ...] = ()
    """Names of formats further down whose markers are there as well."""

    @property
    def name(self) -> str:
        """Name of the reader."""
        return self.signature.name

    @property
    def reason(self) -> str:
        """Return the markers as a list: "line 1: base_model, line 4: sequence_len"."""
        return ", ".join(f"line {line}: {marker}" for marker, line in self.markers)


class Content:
    """A text with the lines of its keys."""

    def __init__(self, text: str) -> None:
        self.text = dedent(text.replace("\r\n", "\n").replace("\r", "\n"))

    @cached_property
    def keys(self) -> Mapping[str, int]:
        """Return the line of each key of the outermost table and, with a dot, of the tables in it; none of a script."""
        if self.text.startswith("#!"):
            return {}
        if self.text.lstrip().startswith("{"):
            return self._json_keys()
        lines: dict[str, int] = {}
        section, line, end = "", 1, 0
        for item in _KEY.finditer(self.text):
            line += self.text.count("\n", end, item.start())
            end = item.start()
            section = section if item["indent"] else item["key"]
            lines.setdefault(f"{section}.{item['key']}" if item["indent"] else item["key"], line)
        return lines

    def _json_keys(self) -> Mapping[str, int]:
        lines: dict[str, int] = {}
        for item in _QUOTED.finditer(self.text):
            lines.setdefault(item[1], self.text.count("\n", 0, item.start()) + 1)
        try:
            table = json.loads(self.text)
        except (ValueError, RecursionError):
            return lines
        inside = {
            f"{key}.{name}": name for key, value in table.items() if isinstance(value, dict) for name in value
        }
        return {path: lines.get(key, 1) for path, key in {**inside, **{key: key for key in table}}.items()}

    def line_of(self, marker: str) -> int:
        """Return the line of a marker; 0 if it is not there."""
        if _is_key(marker):
            return self.keys.get(marker[:-1], 0)
        result = _compiled(marker).search(self.text)
        return self.text.count("\n", 0, result.end()) + 1 if result else 0

    def shown(self, marker: str) -> str:
        """Return a marker as the text has it."""
        result = None if _is_key(marker) else _compiled(marker).search(self.text)
        return marker if result is None else " ".join(result[0].split())[-40:]


@cache
def _is_key(marker: str) -> bool:
    return re.fullmatch(r"[\w.-]+:", marker) is not None


@cache
def _compiled(marker: str) -> re.Pattern[str]:
    return re.compile(marker, re.MULTILINE)


@cache
def signatures() -> tuple[Signature, ...]:
    """Return the signatures of all formats, in the order in which they are tried."""
    return tuple(msgspec.convert(row, Signature) for row in shipped("frameworks/signatures"))


@lru_cache(maxsize=8)
def detect(text: str, name: str | None = None) -> Detection | None:
    """Return the format that a text is in: the first whose markers it has, of one `name`; None if it is in none."""
    content = Content(text)
    results = [
        (row, markers)
        for row in signatures()
        if name in (None, row.name) and (markers := row.matched(content))
    ]
    if not results:
        return None
    row, markers = results[0]
    names = dict.fromkeys(other.name for other, _ in results[1:] if other.name != row.name)
    shown = tuple((content.shown(marker), line) for marker, line in markers)
    return Detection(signature=row, markers=shown, others=tuple(names))


_COMMAND: Final = r"^(?![ \t]*#)[^\n]*?"
SHEBANG: Final = r"\A#![^\n]*sh\b"
SCRIPT: Final = Signature(
    name="launch",
    all=(
        rf"{_COMMAND}\b(?:torchrun|deepspeed|accelerate|srun|mpirun|mpiexec|jsrun|python3?|bash|sbatch|\S+\.py[ \t])",
        rf"{_COMMAND}(?:\.(?:py|sh|slurm|sbatch)\b| (?:-m|--module) [\w$\\])",
    ),
)
"""A script that launches something, where neither its own text nor that of a script which it starts says what."""


LOOP: Final = Signature(
    name="script",
    all=(r"^(?:from|import) (?:torch|lightning|pytorch_lightning)\b", r"\.backward\(", r"\.step\("),
)
"""A Python program that trains with a loop of its own."""


SHELL: Final = (".sh", ".bash", ".slurm", ".sbatch")
"""Endings of the names of scripts of the shell."""


def detect_script(text: str, suffix: str = "") -> Detection | None:
    """Return what a script of the shell or of Python is taken for that is in no format; None of another text."""
    content = Content(text)
    of_shell = suffix in SHELL or re.match(SHEBANG, text) is not None
    for signature in (SCRIPT,) if of_shell else (LOOP,):
        if markers := signature.matched(content):
            shown = tuple((content.shown(marker), line) for marker, line in markers)
            return Detection(signature=signature, markers=shown)
    return None


class Signed:
    """Base of readers that are recognised by the rows of `signatures.json` with their name."""

    name: ClassVar[str]
    classifies: ClassVar[bool] = False
    """Whether unknown keys are classified and reported, unless `Options.strict`; else the first is refused."""

    def recognises(self, text: str) -> bool:
        """Return whether a text is in this format."""
        detection = detect(text)
        return detection is not None and detection.name == self.name

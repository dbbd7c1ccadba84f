"""What every reader of a framework's configuration must keep to, as one check to call from a test."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from unittest import mock

from forescale.errors import ForescaleError, ReaderError, UnknownKeyError
from forescale.frameworks.reading import Options, ParsedFile, Reader

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One configuration that a reader must read."""

    text: str
    suffix: str
    """With the dot, such as ".yaml"."""
    with_key: Callable[[str, str], str] | None = None
    """Returns the text with one more key that does not exist; None if the reader reports unused keys only."""
    keys: frozenset[str] = frozenset()
    """Every key of the text that is a setting, as it is spelled there; empty leaves them uncounted."""
    options: Options = field(default_factory=Options)
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables whose presence in the environment must change nothing."""


def check_reader(
    reader: Reader, samples: Sequence[Sample], folder: Path, *, others: Sequence[Reader] = ()
) -> None:
    """Assert that `reader` keeps to what every reader must, on `samples` written into `folder`.

    Parameters
    ----------
    reader
        The reader under test.
    samples
        Configurations in its format, at least one.
    folder
        An empty folder to write to (pytest's `tmp_path`).
    others
        Readers that must not recognise the samples.
    """
    assert samples, "a reader needs at least one sample"
    assert reader.name and reader.title, "a reader has a name and a title"
    _check_refusals(reader, folder)
    for index, sample in enumerate(samples):
        path = folder / f"sample{index}{sample.suffix}"
        path.write_text(sample.text, encoding="utf-8")
        _check_recognition(reader, sample, others)
        reading = reader.read(path, sample.options)
        _check_reading(reader, reading, sample)
        assert reader.read(path, sample.options) == reading, "reading twice must give equal results"
        with mock.patch.dict(os.environ, dict(sample.environment)):
            assert reader.read(path, sample.options) == reading, "the environment must not matter"
        _check_unknown_key(reader, sample, path, reading)
        _check_truncated(reader, sample, path)


def _check_refusals(reader: Reader, folder: Path) -> None:
    with _refused("a missing file", ReaderError):
        reader.read(folder / "missing.yaml", Options())
    for text in ("", "\x00\x01", "just some words\n", "{", "[1, 2"):
        path = folder / "nothing.json"
        path.write_text(text, encoding="utf-8")
        assert reader.recognises(text) in (True, False), "recognises never raises"
        with _refused(f"the text {text!r}", ForescaleError):
            reader.read(path, Options())


def _check_recognition(reader: Reader, sample: Sample, others: Sequence[Reader]) -> None:
    assert reader.recognises(sample.text), f"{reader.name} must recognise its own format"
    for other in others:
        assert not other.recognises(sample.text), f"{other.name} must leave it to {reader.name}"


def _check_reading(reader: Reader, reading: ParsedFile, sample: Sample) -> None:
    assert reading.format == reader.name
    says = reading.model is not None or reading.strategy is not None or reading.workload_fields
    assert says, "a reading says something"
    assert reading.unknown == (), "nothing unknown passes a strict reading"
    for note in reading.notes:
        assert "\n" not in note and note, "a note is one sentence"
    used = [*reading.used, *reading.ignored]
    assert len(set(used)) == len(used), "a key is either used or ignored"
    if sample.keys:
        missing = sample.keys - set(used)
        assert not missing, f"keys dropped in silence: {sorted(missing)}"
    if reading.strategy is not None and reading.num_devices is not None:
        assert reading.strategy.num_devices == reading.num_devices, "the layout fills its devices"


def _check_unknown_key(reader: Reader, sample: Sample, path: Path, reading: ParsedFile) -> None:
    if sample.with_key is None:
        return
    path.write_text(sample.with_key(sample.text, "zzz_no_such_key"), encoding="utf-8")
    with _refused("a key that does not exist", UnknownKeyError):
        reader.read(path, sample.options)
    listed = reader.read(path, replace(sample.options, strict=False))
    assert [key.strip("-").replace("-", "_") for key in listed.unknown] == ["zzz_no_such_key"]
    assert (listed.model, listed.strategy) == (reading.model, reading.strategy)


def _check_truncated(reader: Reader, sample: Sample, path: Path) -> None:
    """Assert that a file cut short reads, or is refused in one sentence: never another exception."""
    for part in range(1, 8):
        path.write_text(sample.text[: len(sample.text) * part // 8], encoding="utf-8")
        try:
            reader.read(path, sample.options)
        except ForescaleError as error:
            assert "\n" not in str(error), f"an error is one sentence, got {error}"


@contextmanager
def _refused(what: str, kind: type[ForescaleError]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert "\n" not in str(error), f"an error is one sentence, got {error}"
    else:
        message = f"{what} must raise {kind.__name__}"
        raise AssertionError(message)

"""Events of a chrome trace, decoded in chunks: a trace of several GB takes no more memory than one of its chunks."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from forescale.errors import ReaderError, wrong_format
from forescale.struct import Struct

CHUNK = 8 << 20
"""Bytes that are decoded at a time."""
RATIO = 16
"""How much smaller a compressed trace is."""
GZIP = 31
"""zlib's number for gzip with its largest window."""
TAIL = 1 << 16
"""Bytes at the end of a chunk that are looked through for the end of an event."""
RETRIES = 4
"""Places between objects that are tried as the end of an event."""
_START = b'"traceEvents"'
_BETWEEN = re.compile(rb"\}\s*,\s*\{")


class TraceArguments(msgspec.Struct):
    """What is read of the arguments of an event."""

    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b"[]"))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b"[]"))
    elements: int | str | None = msgspec.field(name="In msg nelems", default=None)
    """Of a message."""
    dtype: str | None = None
    """Of the elements of a message."""


class TraceEvent(msgspec.Struct):
    """One event; times are in microseconds."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float | str = 0.0
    dur: float | str = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: TraceArguments | None = None


_DECODER = msgspec.json.Decoder(list[TraceEvent])


class Truncated(Struct, frozen=True):
    """That a trace ends before its last event."""

    bytes_read: int


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, unpacked if it is compressed; of a broken one what comes before the break."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        unpack = zlib.decompressobj(GZIP)
        while raw := file.read(CHUNK // RATIO if compressed else CHUNK):
            if not compressed:
                yield raw
                continue
            while raw:
                try:
                    yield unpack.decompress(raw)
                except zlib.error:
                    return
                raw = unpack.unused_data
                if unpack.eof:
                    unpack = zlib.decompressobj(GZIP)


def stream_events(
    path: Path, progress: Callable[[int], None] = lambda _: None
) -> Iterator[TraceEvent | Truncated]:
    """Yield the events of a trace in its order; last a `Truncated` if the file ends before the list does.

    Parameters
    ----------
    path
        A chrome trace (JSON), compressed by gzip or not.
    progress
        Is called with the bytes read so far.

    Raises
    ------
    ReaderError
        If it has no list of events.
    """
    total, rest, begun = 0, b"", False
    for chunk in _chunks(path):
        total += len(chunk)
        progress(total)
        rest += chunk
        if not begun:
            rest, begun = _after_start(rest)
        if begun:
            events, rest, ended = _whole_events(rest)
            yield from events
            if ended:
                return
    if not begun:
        raise ReaderError(path, wrong_format("a chrome trace", "it has no list traceEvents"))
    if (last := _list(rest)) is None:
        yield Truncated(total)
    else:
        yield from last


def _after_start(text: bytes) -> tuple[bytes, bool]:
    """Return what follows the opening bracket of the list of events, and whether it was found."""
    at = text.find(_START)
    if at < 0 and text.lstrip()[:1] == b"[":
        return text.lstrip()[1:], True
    bracket = text.find(b"[", at) if at >= 0 else -1
    return (text[bracket + 1 :], True) if bracket >= 0 else (text, False)


def _whole_events(text: bytes) -> tuple[list[TraceEvent], bytes, bool]:
    """Return the events that end in a text, what follows them, and whether the list ended there.

    Events are split where one object follows another. The last such place may lie in the arguments of an event, or
    behind the list: then the list is decoded as far as it goes, or an earlier place is taken.
    """
    places = [match.span() for match in _BETWEEN.finditer(text, max(0, len(text) - TAIL))]
    for start, end in reversed(places[-RETRIES:]):
        try:
            return _DECODER.decode(b"[" + text[: start + 1] + b"]"), text[end - 1 :], False
        except (msgspec.DecodeError, UnicodeDecodeError):
            if (events := _list(text)) is not None:
                return events, b"", True
    return [], text, False


def _list(text: bytes) -> list[TraceEvent] | None:
    """Return the events up to the end of their list; None if it does not end in the text, or is none."""
    try:
        content, _ = json.JSONDecoder().raw_decode("[" + text.decode("utf-8", errors="replace"))
        return _DECODER.decode(msgspec.json.encode([item for item in content if isinstance(item, dict)]))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None

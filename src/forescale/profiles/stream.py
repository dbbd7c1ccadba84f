"""Events of a chrome trace, decoded in chunks: a trace of several GB takes no more memory than one of its chunks."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from forescale.errors import ReaderError, cannot_read, wrong_format
from forescale.profiles.events import Header, TraceEvent, Truncated
from forescale.profiles.jax import with_categories
from forescale.profiles.nsight import MAGIC, nsight_events

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
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_DEVICES = re.compile(r'"deviceProperties"\s*:\s*')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_ENDLESS = re.compile(rb"(?<=[:\[,\s])(-?(?:NaN|Infinity))(?=\s*[,\]}])")
"""Numbers that JSON does not have; they are read as texts."""


_DECODER = msgspec.json.Decoder(list[TraceEvent])


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, unpacked if it is compressed; of a broken one what comes before the break."""
    try:
        opened = path.open("rb")
    except OSError as error:
        raise ReaderError(path, cannot_read(error.strerror)) from error
    with opened as file:
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


OTHER_FORMS = {
    ".xplane.pb": "give the .trace.json.gz file next to it",
    ".nsys-rep": "export it with nsys export --type sqlite",
}
"""Files of profilers that another file has the events of."""


DATABASES = (".sqlite", ".sqlite3")


def begins_trace(data: bytes) -> bool:
    """Say whether bytes are the beginning of a profiler's file."""
    return data.startswith(MAGIC) or _START.search(data) is not None


def is_trace(path: Path) -> bool:
    """Say whether a file is of a profiler: a list of events, compressed or not, or an export of Nsight Systems."""
    if path.name.endswith((*OTHER_FORMS, *DATABASES)):
        return True
    before = b""
    for chunk in _chunks(path):
        if begins_trace(before + chunk):
            return True
        before = chunk[-RETRIES * len("traceEvents") :]
    return False


def stream_events(
    path: Path, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Header | TraceEvent | Truncated]:
    """Yield the header and the events of a trace; last a `Truncated` if the file ends before the list does.

    Parameters
    ----------
    path
        A chrome trace (JSON) of torch or JAX, compressed by gzip or not, or an SQLite export of Nsight Systems.
    progress
        Is called with the bytes read so far.

    Raises
    ------
    ReaderError
        If it has no list of events, or an event has a value of another type.
    """
    for end, fix in OTHER_FORMS.items():
        if path.name.endswith(end):
            raise ReaderError(path, wrong_format("a trace that can be read", f"it is a {end} file", fix))
    is_database = next(_chunks(path), b"").startswith(MAGIC)
    if path.suffix in DATABASES and not is_database:
        fix = "export it again with nsys export --type sqlite"
        raise ReaderError(path, wrong_format("an SQLite database", "it does not begin as one", fix))
    if is_database:
        yield from nsight_events(path, progress)
    else:
        yield from with_categories(_chrome_events(path, progress))


def _chrome_events(path: Path, progress: Callable[[int], None]) -> Iterator[Header | TraceEvent | Truncated]:
    total, rest, begun = 0, b"", False
    try:
        for chunk in _chunks(path):
            total += len(chunk)
            progress(total)
            rest += chunk
            if not begun and (start := _start(rest)) is not None:
                begun = True
                yield _header(rest[:start])
                rest = rest[start:]
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
    except (msgspec.ValidationError, RecursionError) as error:
        raise ReaderError(path, wrong_format("a chrome trace", f"of an event, {error}")) from error


def _start(text: bytes) -> int | None:
    """Return the place behind the opening bracket of the list of events; None if it is not there."""
    if match := _START.search(text):
        return match.end()
    return text.index(b"[") + 1 if text.lstrip()[:1] == b"[" else None


def _header(text: bytes) -> Header:
    head = text.decode("utf-8", errors="replace")
    if (match := _DEVICES.search(head)) is None:
        return Header()
    try:
        return Header(json.JSONDecoder().raw_decode(head, match.end())[0])
    except ValueError:
        return Header()


def _whole_events(text: bytes) -> tuple[list[TraceEvent], bytes, bool]:
    """Return the events that end in a text, what follows them, and whether the list ended there.

    Events are split where one object follows another. The last such place may lie in the arguments of an event, or
    behind the list: then the list is decoded as far as it goes, or an earlier place is taken.
    """
    if b"NaN" in text or b"Infinity" in text:
        text = _ENDLESS.sub(rb'"\1"', text)
    places = [match.span() for match in _BETWEEN.finditer(text, max(0, len(text) - TAIL))]
    for start, end in reversed(places[-RETRIES:]):
        try:
            return _DECODER.decode(b"[" + text[: start + 1] + b"]"), text[end - 1 :], False
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            if (events := _list(text)) is not None:
                return events, b"", True
    return [], text, False


def _list(text: bytes) -> list[TraceEvent] | None:
    """Return the events up to the end of their list; None if it does not end in the text, or is none."""
    try:
        content, _ = json.JSONDecoder(parse_constant=str).raw_decode(
            "[" + text.decode("utf-8", errors="replace")
        )
    except ValueError:
        return None
    return _DECODER.decode(msgspec.json.encode(content))

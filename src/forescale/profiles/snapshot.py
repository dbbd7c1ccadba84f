"""Peaks of memory by snapshots of torch's allocator (`torch.cuda.memory._dump_snapshot`)."""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from forescale import wording
from forescale.errors import ReaderError, SpecError
from forescale.files import read_bytes
from forescale.limits import Interval, within
from forescale.memory.anchored import RankPeak

Event: TypeAlias = Mapping[str, Any]
MOST_BYTES = 1 << 30


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and tables; anything that would call a function is refused."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 (a class)
        raise pickle.UnpicklingError(f"it would load {module}.{name}, and a snapshot holds plain values only")


def read_snapshot(file: Path) -> tuple[RankPeak, ...]:
    """Return the peaks of every device of a snapshot.

    Raises
    ------
    ReaderError
        If it cannot be read, or holds no memory.
    """
    return _peaks(_snapshot(file), file)


def _snapshot(file: Path) -> Event:
    try:
        content = _Plain(io.BytesIO(read_bytes(file, most=MOST_BYTES))).load()
    except ReaderError:
        raise
    except Exception as error:  # a broken pickle raises anything
        raise ReaderError(file, wording.cannot_parse("pickle", str(error))) from error
    if not isinstance(content, Mapping) or not isinstance(content.get("segments"), list):
        raise ReaderError(
            file, wording.wrong_format("a snapshot of torch.cuda.memory", "it has no list segments")
        )
    return content


CHANGES: Mapping[str, tuple[int, int]] = {
    "alloc": (1, 0),
    "free_completed": (-1, 0),
    "segment_alloc": (0, 1),
    "segment_free": (0, -1),
    "segment_map": (0, 1),
    "segment_unmap": (0, -1),
}
"""Sign of an action's bytes in what is allocated, and in what is reserved."""


SIZE = Interval(ge=0, le=2**60)
"""Bytes of a segment or of a change."""
PLACE = Interval(ge=0, le=2**16)
"""Numbers of devices."""


def _peaks(content: Event, file: Path) -> tuple[RankPeak, ...]:
    """Return the peaks of every device: what is held at the end, and the recorded changes before it."""
    segments = _tables(content["segments"], "segments", file)
    traces = content.get("device_traces") or []
    if not isinstance(traces, list):
        raise ReaderError(file, wording.wrong_type("device_traces", traces, "a list"))
    values: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for place, segment in enumerate(segments):
        where = f"segments[{place}]"
        sizes = [_whole(segment, key, where, file, SIZE) for key in ("allocated_size", "total_size")]
        ends = values[_whole({"device": 0, **segment}, "device", where, file, PLACE)]
        ends[:] = [before + size for before, size in zip(ends, sizes, strict=True)]
    result = []
    for device in sorted({*values, *range(len(traces))}):
        where = f"device_traces[{device}]"
        trace = _tables(traces[device], where, file) if device < len(traces) else []
        allocated, reserved = (
            _highest(end, list(_changed(trace, which, where, file)))
            for which, end in enumerate(values[device])
        )
        if reserved or allocated:
            result.append(
                RankPeak(
                    rank=device,
                    peak_allocated_bytes=allocated,
                    peak_reserved_bytes=max(reserved, allocated),
                )
            )
    if not result:
        raise ReaderError(file, wording.not_measured("it", "memory: nothing was allocated when it was taken"))
    return tuple(result)


def _tables(rows: object, where: str, file: Path) -> list[Event]:
    """Return a list of tables of a snapshot as it is."""
    if not isinstance(rows, list):
        raise ReaderError(file, wording.wrong_type(where, rows, "a list of tables"))
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ReaderError(file, wording.wrong_type(f"{where}[{place}]", row, "a table"))
    return rows


def _whole(table: Event, key: str, where: str, file: Path, allowed: Interval) -> int:
    """Return a whole number of a snapshot's table."""
    if key not in table:
        raise ReaderError(
            file, wording.wrong_format("a snapshot of torch.cuda.memory", f"{where} has no {key}")
        )
    try:
        return int(within(table[key], allowed, f"{where}.{key}", whole=True))
    except SpecError as error:
        raise ReaderError(file, error) from error


def _changed(trace: Sequence[Event], which: int, where: str, file: Path) -> Iterator[int]:
    for place, event in enumerate(trace):
        action = event.get("action")
        if not isinstance(action, str):
            raise ReaderError(file, wording.wrong_type(f"{where}[{place}].action", action, "text"))
        if sign := CHANGES.get(action, (0, 0))[which]:
            yield sign * _whole(event, "size", f"{where}[{place}]", file, SIZE)


def _highest(end: int, changes: Sequence[int]) -> float:
    """Return the most there was, from what there is after the changes."""
    start = max(end - sum(changes), 0)
    return float(max(accumulate(changes, initial=start)))

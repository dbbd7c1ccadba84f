"""Peaks of memory by snapshots of torch's allocator (`torch.cuda.memory._dump_snapshot`)."""

from __future__ import annotations

import io
import pickle
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import msgspec

from forescale import wording
from forescale.errors import ReaderError, SpecError
from forescale.files import read_bytes
from forescale.memory.anchored import RankPeak

MOST_BYTES = 1 << 30


Size = Annotated[int, msgspec.Meta(ge=0, le=2**60)]


class Segment(msgspec.Struct):
    """What the allocator holds of a device at the end [byte]."""

    total_size: Size
    allocated_size: Size
    device: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 0


class Change(msgspec.Struct):
    """One action of the allocator."""

    action: str
    size: Size


class Snapshot(msgspec.Struct):
    """What is read of a snapshot."""

    segments: list[Segment]
    device_traces: list[list[Change]] | None = None


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and tables; anything that would call a function is refused."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 (a class)
        raise pickle.UnpicklingError(f"it would load {module}.{name}, and a snapshot holds plain values only")


def read_snapshot(file: Path) -> tuple[RankPeak, ...]:
    """Return the peak of every device, from the memory allocated at the end and the recorded changes before it.

    Raises
    ------
    ReaderError
        If it cannot be read, or holds no memory.
    """
    snapshot = _snapshot(file)
    ends: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for segment in snapshot.segments:
        for place, size in enumerate((segment.allocated_size, segment.total_size)):
            ends[segment.device][place] += size
    traces = dict(enumerate(snapshot.device_traces or ()))
    result = []
    for device in sorted({*ends, *traces}):
        allocated, reserved = (
            _highest(
                end, [CHANGES.get(item.action, (0, 0))[place] * item.size for item in traces.get(device, ())]
            )
            for place, end in enumerate(ends[device])
        )
        if reserved or allocated:
            peak = max(reserved, allocated)
            result.append(RankPeak(rank=device, peak_allocated_bytes=allocated, peak_reserved_bytes=peak))
    if not result:
        raise ReaderError(file, wording.not_measured("it", "memory: nothing was allocated when it was taken"))
    return tuple(result)


def _snapshot(file: Path) -> Snapshot:
    try:
        content = _Plain(io.BytesIO(read_bytes(file, most=MOST_BYTES))).load()
    except ReaderError:
        raise
    except Exception as error:  # a broken pickle raises anything
        raise ReaderError(file, wording.cannot_parse("pickle", str(error))) from error
    try:
        return msgspec.convert(content, Snapshot)
    except msgspec.ValidationError as error:
        raise ReaderError(file, _violation(content, str(error))) from error


KINDS = {
    "int": "a whole number",
    "str": "text",
    "object": "a table",
    "array": "a list",
    "array | null": "a list",
}


def _violation(content: object, text: str) -> SpecError:
    """Return msgspec's description of a wrong value ("Expected `int` >= 0 - at `$.a[0].b`") in our terms."""
    _, kind, rest = text.partition(" - at `$")[0].split("`", 2)
    key = text.partition(" - at `$")[2].strip("`").removeprefix(".")
    if "missing" in text or not key:
        violation = f"{key or 'it'} has no {kind if 'missing' in text else 'segments'}"
        return wording.wrong_format("a snapshot of torch.cuda.memory", violation)
    value: Any = content
    for name, place in re.findall(r"(\w+)|\[(\d+)\]", key):
        value = value[name] if name else value[int(place)]
    if "=" in rest:
        return wording.out_of_range(key, value, f"{KINDS[kind]}{rest}")
    return wording.wrong_type(key, value, KINDS[kind])


CHANGES: Mapping[str, tuple[int, int]] = {
    "alloc": (1, 0),
    "free_completed": (-1, 0),
    "segment_alloc": (0, 1),
    "segment_free": (0, -1),
    "segment_map": (0, 1),
    "segment_unmap": (0, -1),
}
"""Sign of an action's bytes in what is allocated, and in what is reserved."""


def _highest(end: int, changes: Sequence[int]) -> float:
    """Return the most there was, from what there is after the changes."""
    start = max(end - sum(changes), 0)
    return float(max(accumulate(changes, initial=start)))

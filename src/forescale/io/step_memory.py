"""Memory over a step of all pipeline ranks as files: counters for Perfetto, a snapshot for PyTorch's memory_viz.

The counter trace is a Chrome trace (one process per rank, slices of the schedule beside the bytes). The
snapshot has the fields that PyTorch documents for `torch.cuda.memory._snapshot()`; it is written with pickle
and holds plain dictionaries only. Ranks appear as devices.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from forescale.atomic_write import replacing
from forescale.errors import wrong_suffix
from forescale.memory.timeline import MemoryTimeline, RankTimeline, Sized
from forescale.schedule import Kind
from forescale.schedule.actions import BACKWARD
from forescale.schedule.draw import to_perfetto
from forescale.struct import attributes

Event: TypeAlias = dict[str, Any]
MICRO = 1e6
"""Microseconds per second."""
SUFFIXES = (".json", ".pickle", ".pkl")


def write_timeline(timeline: MemoryTimeline, path: Path) -> None:
    """Write a timeline in the format that the file's suffix asks for.

    Raises
    ------
    ForescaleError
        If the suffix is no format, or the file cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise wrong_suffix("a timeline", path, (".json (Perfetto)", ".pickle (PyTorch's memory_viz)"))
    if path.suffix == ".json":
        content = json.dumps(step_counters(timeline)).encode()
    else:
        content = pickle.dumps(step_snapshot(timeline), protocol=4)
    with replacing(path) as place:
        place.write_bytes(content)


def step_counters(timeline: MemoryTimeline) -> Event:
    """Return a Chrome trace document: the schedule's slices, and bytes by part as counters of every rank."""
    document = to_perfetto(timeline.simulation.timeline, unit_s=1.0)
    events = [event for event in document["traceEvents"] if event["ph"] != "C"]
    for rank in timeline.ranks:
        standing = rank.standing
        still = attributes(standing, "weights", "gradients", "optimizer", "buffers")
        events += [_counter(rank.rank, 0.0, name, value) for name, value in still.items()]
        for time, activation, total in zip(
            rank.time_s.tolist(), rank.activations.tolist(), rank.allocated.tolist(), strict=True
        ):
            events.append(_counter(rank.rank, time, "activations", activation))
            events.append(_counter(rank.rank, time, "allocated", total))
    return {**document, "traceEvents": events}


def step_snapshot(timeline: MemoryTimeline) -> Event:
    """Return a snapshot: a trace of allocations per rank, and what is still held at its end as segments."""
    ranks = [_Replay(timeline, rank) for rank in timeline.ranks]
    return {
        "segments": [segment for rank in ranks for segment in rank.segments()],
        "device_traces": [rank.trace for rank in ranks],
    }


def _counter(rank: int, time_s: float, name: str, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": rank, "ts": time_s * MICRO, "args": {"bytes": value}}


class _Replay:
    """Allocations and frees of one rank in order; addresses are never used twice."""

    def __init__(self, timeline: MemoryTimeline, rank: RankTimeline) -> None:
        self.rank = rank.rank
        self.trace: list[Event] = []
        self.alive: dict[tuple[str, ...], tuple[int, int]] = {}
        """Address and size by name: the stack of frames, outermost first."""
        self._next = (rank.rank + 1) << 44
        standing = rank.standing
        for name in ("weights", "gradients", "optimizer", "buffers"):
            self._allocate(("states", name), getattr(standing, name), 0.0)
        self._actions(timeline)
        beyond = float(rank.update.max())
        self._allocate(("update", "fp32 gradients"), beyond, float(rank.time_s[-2]))
        self._free(("update", "fp32 gradients"), float(rank.time_s[-1]))

    def segments(self) -> Iterator[Event]:
        """Yield what is still held, each block as a segment of its own."""
        for names, (address, size) in self.alive.items():
            block = {
                "address": address,
                "size": size,
                "requested_size": size,
                "state": "active_allocated",
                "frames": _frames(names),
            }
            yield {
                "device": self.rank,
                "address": address,
                "total_size": size,
                "allocated_size": size,
                "active_size": size,
                "requested_size": size,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [block],
            }

    def _actions(self, timeline: MemoryTimeline) -> None:
        simulation, loads = timeline.simulation, timeline.loads
        flat = simulation.compiled.program.flat
        for index in range(int(flat.bounds[self.rank]), int(flat.bounds[self.rank + 1])):
            load, kind = loads[int(flat.stage[index])], int(flat.kind[index])
            passed = (f"stage {load.stage}", f"micro-batch {int(flat.unit[index])}")
            start, end = float(simulation.start[index]), float(simulation.end[index])
            if kind == Kind.F:
                self._allocate_all((*passed, "kept"), load.kept, start)
                self._passing((*passed, "forward"), load.forward, start, end)
                self._allocate_all((*passed, "waiting"), load.between, end)
            elif kind in BACKWARD:
                self._free_all((*passed, "waiting"), load.between, start)
                self._passing((*passed, "backward"), load.backward, start, end)
            elif kind == Kind.RELOAD:
                self._allocate_all((*passed, "kept"), load.kept, start)
            if kind in (Kind.B, Kind.I, Kind.OFFLOAD):
                self._free_all((*passed, "kept"), load.kept, end)
            if kind == Kind.I:
                self._allocate_all((*passed, "awaited"), load.awaited, end)
            elif kind == Kind.W:
                self._free_all((*passed, "awaited"), load.awaited, end)

    def _passing(self, names: tuple[str, ...], tensors: tuple[Sized, ...], start: float, end: float) -> None:
        shown = _positive(tensors)
        self._allocate_all(names, shown, start)
        self._free_all(names, shown, end)

    def _allocate_all(self, names: tuple[str, ...], tensors: Iterable[Sized], time_s: float) -> None:
        for tensor in tensors:
            self._allocate((*names, tensor.owner, tensor.name), tensor.num_bytes, time_s)

    def _free_all(self, names: tuple[str, ...], tensors: Iterable[Sized], time_s: float) -> None:
        for tensor in tensors:
            self._free((*names, tensor.owner, tensor.name), time_s)

    def _allocate(self, names: tuple[str, ...], num_bytes: float, time_s: float) -> None:
        size = round(num_bytes)
        if size > 0:
            self.alive[names] = (self._next, size)
            self.trace.append(_change("alloc", self._next, size, time_s, names))
            self._next += size

    def _free(self, names: tuple[str, ...], time_s: float) -> None:
        if names in self.alive:
            address, size = self.alive.pop(names)
            for action in ("free_requested", "free_completed"):
                self.trace.append(_change(action, address, size, time_s, names))


def _positive(tensors: tuple[Sized, ...]) -> tuple[Sized, ...]:
    """Return a working set without its negative entry (kept tensors gone by then), taken from the largest."""
    gone = sum(tensor.num_bytes for tensor in tensors if tensor.num_bytes < 0.0)
    shown = sorted(
        (tensor for tensor in tensors if tensor.num_bytes > 0.0), key=lambda tensor: -tensor.num_bytes
    )
    left = []
    for tensor in shown:
        size = max(0.0, tensor.num_bytes + gone)
        gone = min(0.0, tensor.num_bytes + gone)
        left.append(Sized(owner=tensor.owner, name=tensor.name, num_bytes=size))
    return tuple(left)


def _change(action: str, address: int, size: int, time_s: float, names: tuple[str, ...]) -> Event:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": round(time_s * MICRO),
        "frames": _frames(names),
    }


def _frames(names: tuple[str, ...]) -> list[Event]:
    """Return the tensor, its block, pass and stage as a stack, innermost first."""
    return [{"filename": "forescale", "line": 0, "name": name} for name in reversed(names)]

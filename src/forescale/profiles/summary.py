"""What each part of a step took on one rank: kernels by kind, exposed communication, idle time, data loading."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forescale.errors import ReaderError, not_measured
from forescale.profiles.parts import part_of
from forescale.profiles.stream import TraceEvent, Truncated, stream_events
from forescale.results import Result
from forescale.struct import Struct, attributes

MICRO = 1e-6
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of work of a device."""
STEP, DATA = "ProfilerStep#", "DataLoader"
TOP = 20
"""Kernels that are listed."""
Intervals = NDArray[np.float64]


class Kernel(Struct, frozen=True, kw_only=True):
    """All calls of one kernel."""

    name: str
    part: str
    calls: int
    seconds: float
    """Of one step."""


class TraceSummary(Result, Struct, frozen=True, kw_only=True):
    """What one rank did in a step; seconds of one step."""

    path: str
    steps: int
    """Steps that were recorded; 1 if none is marked."""
    step_s: float
    """Median of the marked steps, or the time from the first to the last event."""
    on_device: bool
    """Whether kernels of a device were recorded; else operators of the host."""
    computing_s: float
    """In which a kernel that computes ran."""
    busy_s: float
    """In which any kernel ran."""
    idle_s: float
    """In which none ran."""
    parts_s: Mapping[str, float]
    """Seconds of kernels by kind of work; communication by collective. They may run side by side."""
    exposed_s: Mapping[str, float]
    """Of each kind of communication, seconds in which nothing else computes."""
    data_s: float
    """In which the host waited for data."""
    launches: int
    """Kernels of one step."""
    kernels: tuple[Kernel, ...]
    """Those that took longest."""
    truncated: bool = False
    """Whether the file ends before its last event."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per kind of work."""
        rows: list[dict[str, Any]] = [
            {"part": name, "seconds": value, "exposed_s": self.exposed_s.get(name)}
            for name, value in self.parts_s.items()
        ]
        return [*rows, {"part": "idle", "seconds": self.idle_s, "exposed_s": self.idle_s}]

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        names = [name for name in self.__struct_fields__ if name != "kernels"]
        return {
            **attributes(self, *names),
            "kernels": [attributes(item, *item.__struct_fields__) for item in self.kernels],
        }


class _Collected:
    """Times of a trace's events, as they come."""

    def __init__(self) -> None:
        self.kernels: dict[str, array[float]] = defaultdict(lambda: array("d"))
        """Starts and ends of the calls of each kernel, in seconds, one after the other."""
        self.operators: dict[tuple[object, object], array[float]] = defaultdict(lambda: array("d"))
        """Start, end and number of the name of each operator of the host, by thread; none once a device has kernels."""
        self.names: dict[str, int] = {}
        self.steps: list[tuple[float, float]] = []
        self.data: list[tuple[float, float]] = []
        self.truncated = False

    def add(self, event: TraceEvent) -> None:
        """Take one event in."""
        if event.ph != "X":
            return
        try:
            start, length = float(event.ts) * MICRO, float(event.dur) * MICRO
        except ValueError:
            return
        if event.cat in DEVICE:
            self.kernels[event.name].extend((start, start + length))
            self.operators.clear()
        elif event.cat == "cpu_op" and not self.kernels:
            name = self.names.setdefault(event.name, len(self.names))
            self.operators[event.pid, event.tid].extend((start, start + length, name))
        elif event.cat == "user_annotation" and event.name.startswith(STEP):
            self.steps.append((start, start + length))
        if event.cat == "user_annotation" and DATA in event.name:
            self.data.append((start, start + length))


def summarise(path: Path, progress: Callable[[int], None] = lambda _: None) -> TraceSummary:
    """Return what each part of a step took by a chrome trace of torch.profiler.

    Raises
    ------
    ReaderError
        If it is not a trace, or holds no work.
    """
    collected = _Collected()
    for event in stream_events(path, progress):
        if isinstance(event, Truncated):
            collected.truncated = True
        else:
            collected.add(event)
    on_device = bool(collected.kernels)
    calls = {name: np.frombuffer(times).reshape(-1, 2) for name, times in collected.kernels.items()}
    if not on_device:
        calls = _own_times(collected.operators, list(collected.names))
    if not calls:
        raise ReaderError(path, not_measured("it", "kernels or operators", "record with torch.profiler"))
    return _summary(path, collected, calls, on_device=on_device)


def _summary(
    path: Path, collected: _Collected, calls: Mapping[str, Intervals], *, on_device: bool
) -> TraceSummary:
    begin = min(float(times[:, 0].min()) for times in calls.values())
    end = max(float(times[:, 1].max()) for times in calls.values())
    steps = max(1, len(collected.steps))
    step_s = float(np.median([b - a for a, b in collected.steps])) if collected.steps else end - begin
    span = (
        (min(a for a, _ in collected.steps), max(b for _, b in collected.steps))
        if collected.steps
        else (begin, end)
    )
    whole = max(span[1] - span[0], 1e-12)
    kinds = {name: part_of(name) for name in calls}
    groups: dict[str, list[Intervals]] = defaultdict(list)
    for name, times in calls.items():
        groups[kinds[name][0]].append(times)
    computing = union([times for name, times in calls.items() if not kinds[name][1]])
    exposed = {
        part: (length(union([*groups[part], computing])) - length(computing)) / steps
        for part in groups
        if _communicates(part, kinds.values())
    }
    busy = length(union(list(calls.values())))
    listed = sorted(calls, key=lambda name: -length(calls[name]))[:TOP]
    return TraceSummary(
        path=str(path),
        steps=steps,
        step_s=step_s,
        on_device=on_device,
        computing_s=length(computing) / steps,
        busy_s=busy / steps,
        idle_s=max(0.0, whole - busy) / steps,
        parts_s={part: sum(map(length, several)) / steps for part, several in groups.items()},
        exposed_s=exposed,
        data_s=sum(b - a for a, b in collected.data) / steps,
        launches=round(sum(len(times) for times in calls.values()) / steps),
        kernels=tuple(_kernel(name, calls[name], steps) for name in listed),
        truncated=collected.truncated,
    )


def _kernel(name: str, times: Intervals, steps: int) -> Kernel:
    return Kernel(name=name, part=part_of(name)[0], calls=len(times), seconds=length(times) / steps)


def _communicates(part: str, kinds: Iterable[tuple[str, bool]]) -> bool:
    return (part, True) in kinds


def length(times: Intervals) -> float:
    """Return the sum of the lengths of intervals (n × 2, in seconds)."""
    return float((times[:, 1] - times[:, 0]).sum()) if len(times) else 0.0


def union(several: list[Intervals]) -> Intervals:
    """Return the intervals in which at least one of several sets of intervals is, in order."""
    if not several:
        return np.empty((0, 2))
    times = np.concatenate(several)
    times = times[np.argsort(times[:, 0], kind="stable")]
    ends = np.maximum.accumulate(times[:, 1])
    new = np.r_[True, times[1:, 0] > ends[:-1]]
    starts = times[new, 0]
    last = np.r_[np.flatnonzero(new)[1:] - 1, len(times) - 1]
    return np.column_stack((starts, ends[last]))


def _own_times(threads: Mapping[Any, array[float]], names: Sequence[str]) -> dict[str, Intervals]:
    """Return the times of host operators that no operator inside them covers, by name."""
    pieces: dict[str, array[float]] = defaultdict(lambda: array("d"))
    for events in threads.values():
        stack: list[tuple[float, str]] = []
        now = float("-inf")
        rows = np.frombuffer(events).reshape(-1, 3)
        for start, end, number in rows[np.lexsort((-rows[:, 1], rows[:, 0]))].tolist():
            name = names[int(number)]
            while stack and stack[-1][0] <= start:
                until, inner = stack.pop()
                if until > now:
                    pieces[inner].extend((now, until))
                    now = until
            if stack and start > now:
                pieces[stack[-1][1]].extend((now, start))
            now = max(now, start)
            stack.append((end, name))
        while stack:
            until, inner = stack.pop()
            if until > now:
                pieces[inner].extend((now, until))
                now = until
    return {name: np.frombuffer(times).reshape(-1, 2) for name, times in pieces.items()}

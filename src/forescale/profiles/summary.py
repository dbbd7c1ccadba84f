"""What each part of a step took on one rank: kernels by kind, exposed communication, idle time, data loading."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import field
from numpy.typing import NDArray

from forescale.cost.timings import ProfiledOperator
from forescale.errors import ReaderError, not_measured
from forescale.profiles.events import Header, TraceEvent, Truncated
from forescale.profiles.parts import part_of
from forescale.profiles.shapes import Shapes
from forescale.profiles.stream import stream_events
from forescale.struct import Struct, attributes

MICRO = 1e-6
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of work of a device."""
PROFILED_STEP, DATA = "ProfilerStep#", "DataLoader"
UPDATE = "Optimizer.step"
TOP = 20
"""Kernels that are listed."""
PAUSE_S = 1e-3
"""Length of a gap without work from which on it is a pause, and not the time of a launch."""
MOST_MESSAGES = 10_000
"""Messages of a kind whose times are kept."""
RANK_PARTS = {name: f"rank_{name}" for name in ("step", "computing", "pauses", "gaps")}
"""Parts of the rows that say what steps and ranks scatter."""
Intervals = NDArray[np.float64]


class TraceSummary(Struct, frozen=True, kw_only=True):
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
    kernels: tuple[ProfiledOperator, ...]
    """The one that took longest first."""
    pauses: int = 0
    """Gaps of a step, each of `PAUSE_S` or more, in which nothing ran."""
    pauses_s: float = 0.0
    shapes: Shapes = field(default_factory=Shapes)
    """Of operators whose shapes were recorded (`record_shapes=True`)."""
    updates: float = 0.0
    """How often the optimizer ran in a step."""
    messages_s: Mapping[str, tuple[float, ...]] = {}
    """Seconds of every message, in order, by collective."""
    truncated: bool = False
    """Whether the file ends before its last event."""
    step_error_s: float = 0.0
    """Standard error of the mean step, by the scatter between the marked steps; 0 of a single one."""
    samples: Mapping[str, tuple[float, ...]] = {}
    """Seconds in each marked step: of the step, of computing, of pauses and of shorter gaps (`RANK_PARTS`)."""

    def to_json(self) -> dict[str, Any]:
        """Return all figures of a step, without those of each."""
        hidden = ("kernels", "messages_s", "shapes", "samples")
        names = [name for name in self.__struct_fields__ if name not in hidden]
        fields = [name for name in ProfiledOperator.__struct_fields__ if name != "samples"]
        return {
            **attributes(self, *names),
            "kernels": [attributes(item, *fields) for item in self.kernels[:TOP]],
        }


def profile_rows(
    summary: TraceSummary, ranks: Sequence[Mapping[str, tuple[float, ...]]] = ()
) -> tuple[ProfiledOperator, ...]:
    """Return the operators of a step; those that only shapes are known of take no time by themselves.

    Parameters
    ----------
    ranks
        `samples` of all ranks, where more than one was recorded.
    """
    shapes, short_s = summary.shapes, max(0.0, summary.idle_s - summary.pauses_s)
    return (
        *summary.kernels,
        _waiting("pauses", summary.pauses, summary.pauses_s, summary),
        _waiting("gaps", summary.launches, short_s, summary),
        *_rank_rows(ranks or [summary.samples]),
        *(
            ProfiledOperator(name="products", part="gemm", calls=0.0, seconds=0.0, flops=value, dtype=dtype)
            for dtype, value in shapes.flops.items()
        ),
        *(
            ProfiledOperator(name="message", part=part, calls=calls, seconds=0.0, num_bytes=size)
            for (part, size), calls in shapes.messages.items()
        ),
        *(
            ProfiledOperator(name=name, part="attention_calls", calls=calls, seconds=0.0)
            for name, calls in shapes.attention.items()
        ),
    )


def _waiting(name: str, calls: float, seconds: float, summary: TraceSummary) -> ProfiledOperator:
    samples = summary.samples.get(name, ())
    return ProfiledOperator(name=name, part="waiting", calls=calls, seconds=seconds, samples=samples)


def _rank_rows(ranks: Sequence[Mapping[str, tuple[float, ...]]]) -> Iterator[ProfiledOperator]:
    """Yield how long each rank takes for a step, computes and waits: what ranks and steps scatter."""
    for rank, samples in enumerate(ranks):
        for name, part in RANK_PARTS.items():
            if times := samples.get(name):
                yield ProfiledOperator(
                    name=f"{rank}", part=part, calls=0.0, seconds=median(times), samples=times
                )


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
        self.updates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        """When the optimizer ran, on a device and on the host."""
        self.shapes = Shapes()
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
            self.shapes.add(event, part_of(event.name))
            return
        self._add_host(event, start, start + length)

    def _add_host(self, event: TraceEvent, start: float, end: float) -> None:
        if event.cat == "cpu_op" or event.name.startswith("gloo:"):
            self.shapes.add(event, part_of(event.name))
            if self.kernels:
                return
            name = self.names.setdefault(event.name, len(self.names))
            self.operators[event.pid, event.tid].extend((start, end, name))
        elif event.cat == "gpu_user_annotation" and event.name.startswith(UPDATE):
            self.updates[True].append((start, end))
        elif event.cat == "user_annotation":
            if event.name.startswith(PROFILED_STEP):
                self.steps.append((start, end))
            elif event.name.startswith(UPDATE):
                self.updates[False].append((start, end))
            elif DATA in event.name:
                self.data.append((start, end))


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
        elif not isinstance(event, Header):
            collected.add(event)
    on_device = bool(collected.kernels)
    calls = {name: np.frombuffer(times).reshape(-1, 2) for name, times in collected.kernels.items()}
    windows = union([np.array(times)]) if (times := collected.updates[on_device]) else np.empty((0, 2))
    if on_device:
        calls = dict(_with_update(calls, windows))
        counts = {name: len(times) for name, times in calls.items()}
    else:
        calls, counts = _own_times(collected.operators, list(collected.names), windows)
    if not calls:
        raise ReaderError(path, not_measured("it", "kernels or operators", "record with torch.profiler"))
    return _summary(path, collected, calls, counts, on_device=on_device)


def _summary(
    path: Path,
    collected: _Collected,
    calls: Mapping[str, Intervals],
    counts: Mapping[str, int],
    *,
    on_device: bool,
) -> TraceSummary:
    times = np.concatenate(list(calls.values()))
    marked = np.array(collected.steps or [(times[:, 0].min(), times[:, 1].max())])
    lengths = marked[:, 1] - marked[:, 0]
    steps, span = len(marked), (float(marked[:, 0].min()), float(marked[:, 1].max()))
    kinds = {name: part_of(name) for name in calls}
    groups: dict[str, list[Intervals]] = defaultdict(list)
    for name, intervals in calls.items():
        groups[kinds[name][0]].append(intervals)
    computing = union([intervals for name, intervals in calls.items() if not kinds[name][1]])
    exposed = {
        part: (length(union([*groups[part], computing])) - length(computing)) / steps
        for part in groups
        if _communicates(part, kinds.values())
    }
    working = union(list(calls.values()))
    busy, starts = length(working), np.sort(marked[:, 0])
    waits = _waits(working, span)
    samples = {name: _by_step(times, starts) for name, times in ({"computing": computing} | waits).items()}
    return TraceSummary(
        path=str(path),
        steps=steps,
        step_s=float(np.median(lengths)),
        step_error_s=float(lengths.std(ddof=1)) / steps**0.5 if steps > 1 else 0.0,
        on_device=on_device,
        computing_s=length(computing) / steps,
        busy_s=busy / steps,
        idle_s=max(0.0, span[1] - span[0] - busy) / steps,
        parts_s={part: sum(map(length, several)) / steps for part, several in groups.items()},
        exposed_s=exposed,
        data_s=sum(b - a for a, b in collected.data) / steps,
        launches=round(sum(counts.values()) / steps),
        kernels=_kernels(calls, counts, starts, on_device=on_device),
        pauses=round(len(waits["pauses"]) / steps),
        pauses_s=length(waits["pauses"]) / steps,
        shapes=collected.shapes.per_step(steps),
        updates=len(collected.updates[False]) / steps,
        messages_s={part: _lengths(groups[part]) for part in exposed},
        truncated=collected.truncated,
        samples={"step": tuple(lengths.tolist()), **samples} if collected.steps else {},
    )


def _waits(working: Intervals, span: tuple[float, float]) -> dict[str, Intervals]:
    """Return the times in which nothing runs: pauses, and shorter gaps."""
    edges = np.r_[span[0], np.clip(working.ravel(), *span), span[1]].reshape(-1, 2)
    long = edges[:, 1] - edges[:, 0] >= PAUSE_S
    return {"pauses": edges[long], "gaps": edges[~long]}


def _kernels(
    calls: Mapping[str, Intervals], counts: Mapping[str, int], starts: NDArray[np.float64], *, on_device: bool
) -> tuple[ProfiledOperator, ...]:
    steps = len(starts)
    rows = (
        ProfiledOperator(
            name=name,
            part=part_of(name)[0],
            calls=counts[name] / steps,
            seconds=length(times) / steps,
            samples=_by_step(times, starts, in_turn=on_device) if steps > 1 else (),
        )
        for name, times in calls.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _by_step(times: Intervals, starts: NDArray[np.float64], *, in_turn: bool = False) -> tuple[float, ...]:
    """Return the seconds of intervals in each step.

    Parameters
    ----------
    in_turn
        Whether each step has as many of them, in order of time, where their number allows it: kernels of a device
        run after the host has marked the next step.
    """
    steps, lengths = len(starts), times[:, 1] - times[:, 0]
    if in_turn and len(times) % steps == 0:
        order = np.argsort(times[:, 0], kind="stable")
        return tuple(lengths[order].reshape(steps, -1).sum(axis=1).tolist())
    place = np.searchsorted(starts, times[:, 0], side="right") - 1
    return tuple(np.bincount(np.maximum(place, 0), lengths, steps).tolist())


def _lengths(several: list[Intervals]) -> tuple[float, ...]:
    times = np.concatenate(several)
    ordered = times[np.argsort(times[:, 0], kind="stable")][:MOST_MESSAGES]
    return tuple((ordered[:, 1] - ordered[:, 0]).tolist())


def _inside(starts: NDArray[np.float64], windows: Intervals) -> NDArray[np.bool_]:
    """Say which moments lie in ordered intervals."""
    place = np.searchsorted(windows[:, 0], starts, side="right") - 1
    ends = np.r_[-np.inf, windows[:, 1]]
    return np.asarray(starts < ends[place + 1])


def _in_update(name: str) -> str:
    """Return the name of an operator inside the optimizer's step, so that it counts as its work."""
    part, communicates = part_of(name)
    return name if communicates or part == "optimizer" else f"optimizer: {name}"


def _with_update(calls: Mapping[str, Intervals], windows: Intervals) -> Iterator[tuple[str, Intervals]]:
    """Yield the calls of each kernel, of those inside the optimizer's step under a name that says so."""
    for name, times in calls.items():
        other = _in_update(name)
        inside = _inside(times[:, 0], windows) & (other != name)
        yield from (
            (key, part) for key, part in ((other, times[inside]), (name, times[~inside])) if len(part)
        )


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


def _own_times(
    threads: Mapping[Any, array[float]], names: Sequence[str], windows: Intervals
) -> tuple[dict[str, Intervals], dict[str, int]]:
    """Return the times of host operators that no operator inside them covers, and their calls, by name."""
    pieces: dict[str, array[float]] = defaultdict(lambda: array("d"))
    counts: Counter[str] = Counter()
    names = [*names, *map(_in_update, names)]
    for events in threads.values():
        stack: list[tuple[float, str]] = []
        now = float("-inf")
        rows = np.frombuffer(events).reshape(-1, 3).copy()
        rows[_inside(rows[:, 0], windows), 2] += len(names) // 2
        counts.update(names[int(number)] for number in rows[:, 2].tolist())
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
    calls = {name: np.frombuffer(times).reshape(-1, 2) for name, times in pieces.items()}
    return calls, {name: counts[name] for name in calls}

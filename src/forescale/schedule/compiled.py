"""A schedule compiled to flat arrays: timing it again costs a handful of array operations per level.

The makespan is a max-plus recurrence over topological levels. Row l of the state holds, per stream, the end
of the last node that ended by level l; a row is `max(row before, arrivals) + durations`. Durations may carry
a trailing axis of candidates; each candidate's result is bit-identical to timing it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from forescale.numeric import Array
from forescale.schedule.flat import ABSENT, Ints
from forescale.schedule.layout import Durations, lay_out
from forescale.schedule.model import Schedule
from forescale.schedule.program import Comm, Program, Sizes, build, sizes
from forescale.schedule.sweep import Room, Waits, sweep
from forescale.schedule.times import FREE, LinkTimes, StageTimes
from forescale.schedule.timing import Timing

MAX_CANDIDATES = 128
"""Candidates timed together, so that a state stays in the cache."""
MAX_STRAIGHT_NODES = 4096
"""Programs up to this size are written out as straight-line code from their second single timing on."""
Straight: TypeAlias = Callable[[list[float], list[float]], tuple[tuple[float, ...], tuple[float, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledSchedule:
    """A schedule ready to be timed again and again; made by `compile_schedule`."""

    schedule: Schedule
    comm: Comm
    program: Program
    sizes: Sizes
    position: Ints
    """Cell (level * num_streams + stream) of each node."""
    node_class: Ints
    """(num_levels, num_streams); the class beyond the last is an empty cell."""
    arrivals: tuple[tuple[Ints, ...], ...]
    """Per level, none or more rows (num_streams,) of the cells waited for; the last cell is time 0."""
    late: Ints
    """Delay class of each such wait, row after row; (num_rows, num_streams)."""
    first_waits: tuple[tuple[Ints, Ints], ...]
    """What each rank's first compute node waits for: pairs (cell, delay class), each (p,)."""
    runs: tuple[tuple[Ints, Array], ...]
    """How often each rank runs which duration class; see `Timing.runs`."""
    _straight: list[Straight] = field(default_factory=list)
    _timed: list[bool] = field(default_factory=lambda: [False])
    _rooms: list[Room] = field(default_factory=list)
    """Rooms that no timing is using now."""

    @property
    def num_messages(self) -> int:
        """Messages between ranks in one step."""
        return self.program.num_messages

    def durations(self, times: StageTimes, links: LinkTimes = FREE) -> Durations:
        """Return stage and link times laid out for this schedule."""
        blocks = self.program.blocks
        return lay_out(self.schedule, times, links, blocks=blocks, passing=self.comm == "overlapped")

    def time(self, times: StageTimes | Durations, links: LinkTimes = FREE) -> Timing:
        """Return how long a step takes; arrays over candidates give arrays.

        Parameters
        ----------
        times
            Stage times, or the durations that `durations` laid out before.
        links
            Link times; ignored if `times` is laid out already.
        """
        laid = times if isinstance(times, Durations) else self.durations(times, links)
        if laid.nodes.ndim == 1:
            return self._time_one(laid)
        width = laid.nodes.shape[1]
        parts = [
            self.summary(part, self.run(part)[0])
            for part in (_columns(laid, low, low + MAX_CANDIDATES) for low in range(0, width, MAX_CANDIDATES))
        ]
        if len(parts) == 1:
            return parts[0]
        return Timing(
            first_start=np.concatenate([part.first_start for part in parts], axis=1),
            last_end=np.concatenate([part.last_end for part in parts], axis=1),
            runs=self.runs,
            nodes=laid.nodes,
        )

    def run(
        self, laid: Durations, *, noise: Array | None = None, release: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the state after each level (num_levels * num_streams + 1[, N]) and the cells' durations.

        `noise` multiplies the duration of each cell (num_levels, num_streams[, N]); `release` is the earliest
        start of each cell (num_levels, num_streams).
        """
        shape, tail = self.node_class.shape, laid.nodes.shape[1:]
        spent = laid.nodes[self.node_class]
        if noise is not None:
            spent = (spent if spent.ndim == noise.ndim else spent[..., None]) * noise
            tail = spent.shape[2:]
        state = np.empty((shape[0] * shape[1] + 1, *tail))
        state[-1] = 0.0
        rows = state[:-1].reshape(shape[0], shape[1], *tail)
        delays = laid.delays if laid.delays.any() else None
        if delays is not None and delays.ndim < len(tail) + 1:
            delays = delays[:, None]
        start: Array = np.zeros((shape[1], *tail))
        sweep(rows, spent, self._waits(delays), take=state.take, before=start, releases=release)
        return state, spent

    def _waits(self, delays: Array | None) -> Iterator[Waits]:
        late = iter(self.late)
        for cells in self.arrivals:
            yield tuple((each, None if delays is None else delays[next(late)]) for each in cells)

    def _time_one(self, laid: Durations) -> Timing:
        timed_before, self._timed[0] = self._timed[0], True
        if not timed_before:
            return self.summary(laid, self.run(laid)[0])
        if self.program.stream.size > MAX_STRAIGHT_NODES:
            room = self._rooms.pop() if self._rooms else Room(self)
            timing = self.summary(laid, room.fill(laid))
            self._rooms.append(room)
            return timing
        if not self._straight:
            from forescale.schedule.straight import write

            self._straight.append(write(self))
        ends, starts = self._straight[0](laid.nodes.tolist(), laid.delays.tolist())
        return Timing(first_start=np.array(starts), last_end=np.array(ends), runs=self.runs, nodes=laid.nodes)

    def summary(self, laid: Durations, state: Array) -> Timing:
        """Return the timing behind a state of `run`."""
        ranks, width = self.schedule.num_ranks, self.node_class.shape[1]
        start = np.zeros((ranks, *state.shape[1:]))
        for cells, delay in self.first_waits:
            late = laid.delays[delay]
            np.maximum(start, state[cells] + (late if late.ndim == start.ndim else late[:, None]), out=start)
        return Timing(
            first_start=start,
            last_end=state[-1 - width : -1][:ranks].copy(),
            runs=self.runs,
            nodes=laid.nodes,
        )


def compile_schedule(
    schedule: Schedule, *, comm: Comm = "overlapped", verify: bool = False
) -> CompiledSchedule:
    """Return a schedule compiled for timing.

    Parameters
    ----------
    schedule
        Any valid schedule.
    comm
        "overlapped": a message delays its receiver only. "serial": messages of one ordered rank pair queue
        on their link for their transfer time. "blocking": a message also holds both ranks' compute.
    verify
        Check the schedule in full as well; cheaper than checking it apart.

    Raises
    ------
    ScheduleError
        If the schedule cannot run; the message names the actions.
    """
    program, size = build(schedule, comm), sizes(schedule)
    if verify:
        from forescale.schedule.checker import check

        check(schedule, program=program if comm == "overlapped" else None).require(schedule.name)
    num_levels = int(program.level.max()) + 1 if program.level.size else 0
    num_streams = program.num_streams
    num_classes = size.num_compute + len(program.blocks) + size.no_delay
    position = program.level * num_streams + program.stream
    arrivals, late = _arrivals(program, size, position, num_levels)
    cells = np.full(num_levels * num_streams, num_classes, dtype=np.int64)
    cells[position] = program.duration
    return CompiledSchedule(
        schedule=schedule,
        comm=comm,
        program=program,
        sizes=size,
        position=position,
        node_class=cells.reshape(num_levels, num_streams),
        arrivals=arrivals,
        late=late,
        first_waits=_first_waits(program, size, position, schedule.num_ranks),
        runs=_runs(program, size, schedule),
    )


def _computes(program: Program, size: Sizes, num_ranks: int) -> Ints:
    """Return the nodes that compute: no copies, no messages."""
    busy = (program.stream < num_ranks) & (program.duration < size.num_compute + len(program.blocks))
    return np.nonzero(busy)[0]


def _first_waits(
    program: Program, size: Sizes, position: Ints, num_ranks: int
) -> tuple[tuple[Ints, Ints], ...]:
    nodes = _computes(program, size, num_ranks)
    order = nodes[np.lexsort((position[nodes], program.stream[nodes]))]
    ranks, where = np.unique(program.stream[order], return_index=True)
    first, width = order[where], program.num_streams
    end = (int(program.level.max()) + 1) * width if program.level.size else 0
    waits = []
    row_before = np.where(position[first] >= width, position[first] - width, end)
    columns = [(row_before, np.full(first.size, size.no_delay))]
    for before, delay in program.columns:
        cell = np.where(before[first] == ABSENT, end, position[before[first]])
        columns.append((cell, delay[first]))
    for cell, delay in columns:
        cells, delays = np.full(num_ranks, end), np.full(num_ranks, size.no_delay)
        cells[ranks], delays[ranks] = cell, delay
        waits.append((cells, delays))
    return tuple(waits)


def _runs(program: Program, size: Sizes, schedule: Schedule) -> tuple[tuple[Ints, Array], ...]:
    nodes, p = _computes(program, size, schedule.num_ranks), schedule.num_ranks
    width = size.num_compute + len(program.blocks)
    keys, counts = np.unique(program.stream[nodes] * width + program.duration[nodes], return_counts=True)
    rank, kind = np.divmod(keys, width)
    slot = np.arange(keys.size) - np.searchsorted(rank, rank)
    layers = []
    for index in range(int(slot.max()) + 1 if slot.size else 0):
        chosen = slot == index
        classes, times = np.zeros(p, dtype=np.int64), np.zeros(p)
        classes[rank[chosen]], times[rank[chosen]] = kind[chosen], counts[chosen]
        layers.append((classes, times))
    return tuple(layers)


def _arrivals(
    program: Program, size: Sizes, position: Ints, num_levels: int
) -> tuple[tuple[tuple[Ints, ...], ...], Ints]:
    width, columns = program.num_streams, program.columns
    cells = np.full((num_levels, len(columns), width), num_levels * width, dtype=np.int64)
    delays = np.full(cells.shape, size.no_delay, dtype=np.int64)
    for index, (before, delay) in enumerate(columns):
        has = before != ABSENT
        level, stream = np.divmod(position[has], width)
        cells[level, index, stream] = position[before[has]]
        delays[level, index, stream] = delay[has]
    used = (cells != num_levels * width).any(axis=2)
    rows, counts = iter(cells[used]), used.sum(axis=1).tolist()
    return tuple(tuple(next(rows) for _ in range(count)) for count in counts), delays[used]


def _columns(laid: Durations, low: int, high: int) -> Durations:
    same = laid.delays.ndim == 1 or laid.delays.shape[1] == 1
    delays = laid.delays if same else laid.delays[:, low:high]
    return Durations(nodes=np.ascontiguousarray(laid.nodes[:, low:high]), delays=delays)

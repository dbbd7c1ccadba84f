"""How long a step of a schedule takes: the schedule as flat arrays, and one pass over them per set of durations.

A pass starts when its rank is free and its inputs have arrived. That is a max-plus recurrence over topological
levels: row l of the state holds, per stream, the end of the last node that ended by level l, and a row is
`max(row before, arrivals) + durations`. Durations may carry a trailing axis of candidates; each candidate's
result is bit-identical to timing it alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from forescale.numeric import Array, Numeric
from forescale.schedule.messages import Comm, Sends, with_messages
from forescale.schedule.model import Schedule
from forescale.schedule.program import ABSENT, Ints, Program, build
from forescale.schedule.times import FREE, Durations, LinkTimes, StageTimes, lay_out
from forescale.struct import Struct

MAX_CANDIDATES = 128
"""Candidates timed together, so that a state stays in the cache."""
GATHERED = 1 << 17
"""Durations of all nodes and candidates that are looked up at once."""


class Timing(Struct, frozen=True, kw_only=True, eq=False):
    """What a step takes; arrays over ranks (p,) or over ranks and candidates (p, N)."""

    first_start: Array
    last_end: Array
    runs: tuple[tuple[Ints, Array], ...]
    """Pairs (duration class of each rank, how often it runs there) that add up to the busy time."""
    nodes: Array
    """Durations by class."""

    @property
    def busy(self) -> Array:
        """Time each rank computes."""
        total = np.zeros_like(self.last_end)
        for classes, counts in self.runs:
            spent = self.nodes[classes]
            total += spent * counts.reshape(-1, *([1] * (spent.ndim - 1)))
        return total

    @property
    def makespan(self) -> Numeric:
        """Time from the step's start to the last end of any rank: what an optimizer barrier waits for."""
        return _scalar(self.last_end.max(axis=0))

    @property
    def longest_span(self) -> Numeric:
        """Longest time of one rank from its first start to its last end (the zero-bubble papers' measure)."""
        return _scalar((self.last_end - self.first_start).max(axis=0))

    @property
    def bubble_rate_makespan(self) -> Numeric:
        """Idle share of all ranks' time under an optimizer barrier."""
        return _idle_share(self.busy.mean(axis=0), self.last_end.max(axis=0))

    @property
    def bubble_rate_span(self) -> Numeric:
        """Idle share of all ranks' time where each rank's step is as long as the longest span."""
        return _idle_share(self.busy.mean(axis=0), (self.last_end - self.first_start).max(axis=0))


def _idle_share(busy: Array, total: Array) -> Numeric:
    """Return the idle part of a time; none of no time."""
    return _scalar(1.0 - np.divide(busy, total, out=np.ones_like(busy), where=np.asarray(total) > 0))


def _scalar(value: Array) -> Numeric:
    return float(value) if np.ndim(value) == 0 else value


class CompiledSchedule(Struct, frozen=True, kw_only=True, eq=False):
    """A schedule ready to be timed again and again; made by `compile_schedule`."""

    schedule: Schedule
    comm: Comm
    sends: Sends
    program: Program
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

    @property
    def num_messages(self) -> int:
        """Messages between ranks in one step."""
        return self.program.num_messages

    def durations(self, times: StageTimes, links: LinkTimes = FREE) -> Durations:
        """Return stage and link times laid out for this schedule."""
        return lay_out(
            self.schedule,
            times,
            links,
            blocks=self.program.blocks,
            passing=self.comm == "overlapped",
            early=self.sends == "early",
        )

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
            return self.summary(laid, self.run(laid))
        width = laid.nodes.shape[1]
        parts = [
            self._some(laid, slice(low, low + MAX_CANDIDATES)) for low in range(0, width, MAX_CANDIDATES)
        ]
        return Timing(
            first_start=np.concatenate([part.first_start for part in parts], axis=1),
            last_end=np.concatenate([part.last_end for part in parts], axis=1),
            runs=self.runs,
            nodes=laid.nodes,
        )

    def _some(self, laid: Durations, candidates: slice) -> Timing:
        subset = laid.some(candidates)
        nodes = subset.nodes
        if nodes.shape[1] > 1:
            part = replace(subset, nodes=np.ascontiguousarray(nodes))
            return self.summary(part, self.run(part))
        host = None if subset.host is None else subset.host[:, 0]
        part = Durations(nodes=nodes[:, 0], delays=subset.delays[:, 0], host=host)  # quicker without the axis
        alone = self.summary(part, self.run(part))
        return Timing(
            first_start=alone.first_start[:, None],
            last_end=alone.last_end[:, None],
            runs=self.runs,
            nodes=nodes,
        )

    def run(self, laid: Durations, *, release: Array | None = None) -> Array:
        """Return the state after each level; (num_levels * num_streams + 1[, N]), the last cell is time 0.

        `release` is the earliest start of each cell (num_levels, num_streams).
        """
        levels, width = self.node_class.shape
        tail = laid.nodes.shape[1:]
        state = np.empty((levels * width + 1, *tail))
        state[-1] = 0.0
        rows = state[:-1].reshape(levels, width, *tail)
        late = _by_row(laid.delays, self.late) if laid.delays.any() else None
        before: Array = np.zeros((width, *tail))
        arriving, take, maximum, add = np.empty_like(before), state.take, np.maximum, np.add  # a hot loop
        costs = _by_row(laid.spent, self.node_class)
        for level, (row, cost, waits) in enumerate(zip(rows, costs, self.arrivals, strict=True)):
            for cells in waits:
                take(cells, 0, arriving, "clip")
                if late is not None:
                    add(arriving, next(late), arriving)
                before = maximum(arriving, before, out=row)
            if release is not None:
                before = maximum(before, release[level], out=row)
            before = add(before, cost, row)
        return state

    def passes(self, laid: Durations, state: Array) -> tuple[Array, Array]:
        """Return when each action of the program starts and ends, of one candidate; each (num_actions,)."""
        node = self.program.node_of_action
        kind = self.program.duration[node]
        end = state[self.position[node]] - (0.0 if laid.host is None else laid.host[kind])
        return end - laid.nodes[kind], end

    def makespans(self, laid: Durations, *, jitter: float, num_draws: int = 256, seed: int = 0) -> Array:
        """Return makespans, (num_draws,), where every pass takes a random time of its own.

        Parameters
        ----------
        laid
            Durations of one candidate: the means.
        jitter
            Standard deviation of a pass's duration over its mean; log-normal.
        """
        levels, width = self.node_class.shape
        nodes = self.program.duration.size
        cells = np.full(levels * width, nodes, dtype=np.int64)
        cells[self.position] = np.arange(nodes)
        alone = replace(self, node_class=cells.reshape(levels, width))
        mean = laid.spent[self.program.duration][:, None]
        spread = float(np.sqrt(np.log1p(jitter**2)))
        drawn = np.random.default_rng(seed)
        result = []
        for low in range(0, num_draws, MAX_CANDIDATES):
            count = min(MAX_CANDIDATES, num_draws - low)
            factors = np.exp(drawn.normal(-(spread**2) / 2.0, spread, (nodes, count)))
            concatenate = np.concatenate((mean * factors, np.zeros((1, count))))
            state = alone.run(Durations(nodes=concatenate, delays=laid.delays[:, None]))
            result.append(state[-1 - width : -1][: self.schedule.num_ranks].max(axis=0))
        return np.concatenate(result)

    def summary(self, laid: Durations, state: Array) -> Timing:
        """Return the timing behind a state of `run`."""
        ranks, width = self.schedule.num_ranks, self.node_class.shape[1]
        start = np.zeros((ranks, *state.shape[1:]))
        for cells, delay in self.first_waits:
            np.maximum(start, state[cells] + laid.delays[delay], out=start)
        return Timing(
            first_start=start,
            last_end=state[-1 - width : -1][:ranks].copy(),
            runs=self.runs,
            nodes=laid.nodes,
        )


def compile_schedule(
    schedule: Schedule, *, comm: Comm = "overlapped", sends: Sends = "late"
) -> CompiledSchedule:
    """Return a schedule compiled for timing.

    Parameters
    ----------
    schedule
        Any valid schedule; `check` says whether it is, and takes the compiled schedule's program.
    comm
        "overlapped": a message delays its receiver only. "serial": messages of one ordered rank pair queue
        on their link for their transfer time. "blocking": a message also holds both ranks' compute.
    sends
        Whether an overlapped block's forward output leaves before its backward runs ("early") or after the block.

    Raises
    ------
    ScheduleError
        If the schedule cannot run; the message names the actions.
    """
    program = with_messages(build(schedule, early=sends == "early"), comm)
    size = program.sizes
    num_levels = int(program.level.max()) + 1 if program.level.size else 0
    num_streams = program.num_streams
    num_classes = size.num_compute + len(program.blocks) + size.no_delay
    position = program.level * num_streams + program.stream
    arrivals, late = _arrivals(program, position, num_levels)
    cells = np.full(num_levels * num_streams, num_classes, dtype=np.int64)
    cells[position] = program.duration
    computing = _computing(program, schedule.num_ranks)
    return CompiledSchedule(
        schedule=schedule,
        comm=comm,
        sends=sends,
        program=program,
        position=position,
        node_class=cells.reshape(num_levels, num_streams),
        arrivals=arrivals,
        late=late,
        first_waits=_first_waits(program, position, computing, schedule.num_ranks),
        runs=_runs(program, computing, schedule.num_ranks),
    )


def _by_row(table: Array, classes: Ints) -> Iterator[Array]:
    """Yield a table's values by rows of classes; of many candidates only when they are due, to stay in the cache."""
    if table.ndim == 1 or classes.size * table.shape[1] <= GATHERED:
        return iter(table[classes])
    return (table.take(row, 0) for row in classes)


def _computing(program: Program, num_ranks: int) -> Ints:
    """Return the nodes that compute: no copies, no messages."""
    num_passes = program.sizes.num_compute + len(program.blocks)
    busy = (program.stream < num_ranks) & (program.duration < num_passes)
    return np.nonzero(busy)[0]


def _first_waits(
    program: Program, position: Ints, computing: Ints, num_ranks: int
) -> tuple[tuple[Ints, Ints], ...]:
    order = computing[np.lexsort((position[computing], program.stream[computing]))]
    ranks, where = np.unique(program.stream[order], return_index=True)
    first, width, no_delay = order[where], program.num_streams, program.sizes.no_delay
    end = (int(program.level.max()) + 1) * width if program.level.size else 0
    waits = []
    row_before = np.where(position[first] >= width, position[first] - width, end)
    columns = [(row_before, np.full(first.size, no_delay))]
    for before, delay in program.columns:
        cell = np.where(before[first] == ABSENT, end, position[before[first]])
        columns.append((cell, delay[first]))
    for cell, delay in columns:
        cells, delays = np.full(num_ranks, end), np.full(num_ranks, no_delay)
        cells[ranks], delays[ranks] = cell, delay
        waits.append((cells, delays))
    return tuple(waits)


def _runs(program: Program, computing: Ints, num_ranks: int) -> tuple[tuple[Ints, Array], ...]:
    width = int(program.duration.max(initial=0)) + 1
    keys, counts = np.unique(
        program.stream[computing] * width + program.duration[computing], return_counts=True
    )
    return layered_runs(*np.divmod(keys, width), counts, num_ranks)


def layered_runs(ranks: Ints, classes: Ints, counts: Ints, num_ranks: int) -> tuple[tuple[Ints, Array], ...]:
    """Return `Timing.runs` from how often each rank, in ascending order, runs each of its duration classes."""
    slot = np.arange(ranks.size) - np.searchsorted(ranks, ranks)
    layers = []
    for index in range(int(slot.max(initial=-1)) + 1):
        selected = slot == index
        of_rank, times = np.zeros(num_ranks, dtype=np.int64), np.zeros(num_ranks)
        of_rank[ranks[selected]], times[ranks[selected]] = classes[selected], counts[selected]
        layers.append((of_rank, times))
    return tuple(layers)


def _arrivals(program: Program, position: Ints, num_levels: int) -> tuple[tuple[tuple[Ints, ...], ...], Ints]:
    width, columns = program.num_streams, program.columns
    cells = np.full((num_levels, len(columns), width), num_levels * width, dtype=np.int64)
    delays = np.full(cells.shape, program.sizes.no_delay, dtype=np.int64)
    for index, (before, delay) in enumerate(columns):
        has = before != ABSENT
        level, stream = np.divmod(position[has], width)
        cells[level, index, stream] = position[before[has]]
        delays[level, index, stream] = delay[has]
    used = (cells != num_levels * width).any(axis=2)
    rows, counts = iter(cells[used]), used.sum(axis=1).tolist()
    return tuple(tuple(next(rows) for _ in range(count)) for count in counts), delays[used]

"""From a schedule to nodes on streams: what waits for what, before any duration is known.

A stream runs its nodes one after the other: a rank's compute, its copies to and from the host, and (where
messages queue or block, see `forescale.schedule.messages`) links. Every other wait is an edge with a delay
class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.errors import ScheduleError, deadlock, out_of_range
from forescale.schedule.actions import (
    BACKWARD,
    JOINED,
    KIND_BITS,
    MICROBATCH_SHIFT,
    STAGE_BITS,
    STAGE_SHIFT,
    Kind,
    as_codes,
    unpack,
)
from forescale.schedule.model import Schedule
from forescale.struct import Struct

Ints: TypeAlias = NDArray[np.int64]
ABSENT = -1


class Flat(Struct, frozen=True, kw_only=True, eq=False):
    """All actions of all ranks, rank after rank; arrays of shape (num_actions,)."""

    code: Ints
    rank: Ints
    kind: Ints
    stage: Ints
    unit: Ints
    """Micro-batch, or piece of one under sequence splits."""
    joined: NDArray[np.bool_]
    """True where the next action belongs to the same block."""
    bounds: Ints
    """Where each rank begins, and the end; shape (num_ranks + 1,)."""

    def are(self, *kinds: Kind) -> NDArray[np.bool_]:
        """Return which actions are of some kinds."""
        requested = np.zeros(KIND_BITS + 1, dtype=bool)
        requested[list(kinds)] = True
        return requested[self.kind]

    def label(self, index: int) -> str:
        """Return one action with its place, for messages."""
        rank = int(self.rank[index])
        return f"{unpack(int(self.code[index]))} (rank {rank}, position {index - int(self.bounds[rank])})"


def flatten(orders: Sequence[Sequence[int]]) -> Flat:
    """Return packed actions as flat arrays."""
    lengths = [len(order) for order in orders]
    bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    code = np.empty(int(bounds[-1]), dtype=np.int64)
    for rank, order in enumerate(orders):
        code[bounds[rank] : bounds[rank + 1]] = as_codes(order)
    return Flat(
        code=code,
        rank=np.repeat(np.arange(len(orders)), lengths),
        kind=code & KIND_BITS,
        stage=code >> STAGE_SHIFT & STAGE_BITS,
        unit=code >> MICROBATCH_SHIFT,
        joined=(code & JOINED) != 0,
        bounds=bounds,
    )


def check_ids(schedule: Schedule, flat: Flat) -> Ints:
    """Return the actions whose stage or micro-batch does not exist."""
    num_stages = len(schedule.placement.rank_of_stage)
    return np.nonzero((flat.stage >= num_stages) | (flat.unit >= schedule.num_units))[0]


def positions(schedule: Schedule, flat: Flat, *kinds: Kind) -> Ints:
    """Return the action of some kinds for each stage and unit, (stage ids, units); ABSENT where there is none."""
    table = np.full((len(schedule.placement.rank_of_stage), schedule.num_units), ABSENT, dtype=np.int64)
    at = np.nonzero(flat.are(*kinds))[0]
    table[flat.stage[at], flat.unit[at]] = at
    return table


def sources(schedule: Schedule, flat: Flat) -> Ints:
    """Return, for each action, the index of the action whose output it needs; ABSENT where none is.

    Raises
    ------
    ScheduleError
        If an id is out of range or the producer of an input is missing.
    """
    if (bad := check_ids(schedule, flat)).size:
        allowed = "of a stage and micro-batch that exist"
        raise ScheduleError(out_of_range("an action", flat.label(int(bad[0])), allowed)).at(schedule.name)
    forward, gradient, copied = (
        positions(schedule, flat, *kinds) for kinds in ((Kind.F,), BACKWARD, (Kind.OFFLOAD,))
    )
    logical, backward = schedule.num_stages, flat.are(*BACKWARD)
    source = np.full(flat.code.size, ABSENT, dtype=np.int64)
    needs = np.zeros(flat.code.size, dtype=bool)
    place = flat.stage % logical
    rules = (
        ((flat.kind == Kind.F) & (place > 0), forward, -1),
        (backward & (place == logical - 1), forward, 0),
        (backward & (place < logical - 1), gradient, 1),
        (flat.kind == Kind.W, gradient, 0),
        (flat.kind == Kind.OFFLOAD, forward, 0),
        (flat.kind == Kind.RELOAD, copied, 0),
    )
    for mask, produced, step in rules:
        where = np.nonzero(mask)[0]
        source[where] = produced[flat.stage[where] + step, flat.unit[where]]
        needs[where] = True
    missing = np.nonzero(needs & (source == ABSENT))[0]
    if missing.size:
        raise ScheduleError(
            deadlock(schedule.name, f"nothing produces the input of {flat.label(int(missing[0]))}")
        )
    return source


def reload_sources(schedule: Schedule, flat: Flat) -> Ints:
    """Return, for each backward action, the reload it waits for; ABSENT where none is. Weight gradients follow it."""
    source = np.full(flat.code.size, ABSENT, dtype=np.int64)
    if np.any(flat.kind == Kind.RELOAD):
        users = np.nonzero(flat.are(*BACKWARD))[0]
        source[users] = positions(schedule, flat, Kind.RELOAD)[flat.stage[users], flat.unit[users]]
    return source


def crossing(flat: Flat, source: Ints) -> NDArray[np.bool_]:
    """Return where an action's input comes from another rank: the messages of the schedule."""
    data = flat.are(Kind.F, *BACKWARD)
    mask: NDArray[np.bool_] = data & (source != ABSENT) & (flat.rank[source] != flat.rank)
    return mask


_ABSENT, _UNSEEN, _OPEN = -1, -2, -3


def levels(predecessors: Sequence[Sequence[int]], num_nodes: int) -> tuple[list[int], tuple[int, ...]]:
    """Return each node's level (longest number of edges from a source) and a cycle, empty if there is none.

    Parameters
    ----------
    predecessors
        Columns; column k holds for each node its k-th predecessor or -1.
    num_nodes
        Length of every column.

    Returns
    -------
    tuple
        Levels (meaningless where a cycle was found) and the nodes of one cycle in order.
    """
    columns = [list(column) for column in predecessors]
    while len(columns) < 2:
        columns.append([_ABSENT] * num_nodes)
    level = [_UNSEEN] * num_nodes
    level.append(_ABSENT)  # what a negative predecessor finds: a level below all others
    first, second, *others = columns
    for root in range(num_nodes):
        if level[root] != _UNSEEN:
            continue
        stack = [root]
        level[root] = _OPEN
        while stack:
            node = stack[-1]
            before = first[node]
            highest = level[before]
            if highest >= _ABSENT:
                before = second[node]
                result = level[before]
                if result > highest:  # noqa: PLR1730 -- this loop is hot
                    highest = result
                if result >= _ABSENT:
                    before, highest = _third(others, node, level, highest) if others else (_ABSENT, highest)
                    if before == _ABSENT:
                        level[node] = highest + 1
                        stack.pop()
                        continue
            if level[before] == _OPEN:
                return level[:-1], tuple(stack[stack.index(before) :])[::-1]
            level[before] = _OPEN
            stack.append(before)
    return level[:-1], ()


def _third(columns: Sequence[Sequence[int]], node: int, level: list[int], highest: int) -> tuple[int, int]:
    """Return a predecessor beyond the second column without a level, if any, and the highest level found."""
    for column in columns:
        result = level[column[node]]
        if result < _ABSENT:
            return column[node], highest
        highest = max(highest, result)
    return _ABSENT, highest


NUM_KINDS = 6


class Sizes(Struct, frozen=True, kw_only=True):
    """Counts that fix the numbering of duration and delay classes."""

    num_stages: int
    """Stage ids, replicas included."""
    num_splits: int

    @property
    def num_compute(self) -> int:
        """Duration classes of single actions: (split, kind, stage)."""
        return self.num_splits * NUM_KINDS * self.num_stages

    @property
    def no_delay(self) -> int:
        """Delay class of an edge without delay; the others are (split, direction, sending stage)."""
        return self.num_splits * 2 * self.num_stages

    def compute_class(self, flat: Flat) -> Ints:
        """Return the duration class of each action."""
        split = flat.unit % self.num_splits
        classes: Ints = (split * NUM_KINDS + flat.kind) * self.num_stages + flat.stage
        return classes

    def message_class(self, flat: Flat, sender: Ints) -> Ints:
        """Return the (split, direction, stage) class of messages sent by actions `sender`."""
        backward = (flat.kind[sender] != Kind.F).astype(np.int64)
        split = flat.unit[sender] % self.num_splits
        classes: Ints = (split * 2 + backward) * self.num_stages + flat.stage[sender]
        return classes


class Program(Struct, frozen=True, kw_only=True, eq=False):
    """Nodes of a schedule; arrays of shape (num_nodes,) unless said otherwise."""

    stream: Ints
    """Stream of each node; 0 to p - 1 are the ranks' compute streams."""
    duration: Ints
    """Index into the duration classes."""
    columns: tuple[tuple[Ints, Ints], ...]
    """Waits beside the stream's own order: (node waited for or ABSENT, delay class)."""
    level: Ints
    blocks: Ints
    """Pairs (forward class, backward class) of overlapped blocks, shape (num_blocks, 2)."""
    node_of_action: Ints
    """Node of each action of `flat`."""
    flat: Flat
    source: Ints
    """Per action, the action whose output it needs."""
    num_streams: int
    num_messages: int
    sizes: Sizes


def build(schedule: Schedule, *, early: bool = False) -> Program:
    """Return the program of a schedule whose messages delay their receivers only.

    An overlapped block is one node; if messages leave `early` its parts are two, and each waits for its own input.

    Raises
    ------
    ScheduleError
        If an input is missing or actions wait for each other in a circle; the message names them.
    """
    flat = flatten(schedule.orders)
    source = sources(schedule, flat)
    node, first = _blocks(flat, early=early)
    size = Sizes(num_stages=len(schedule.placement.rank_of_stage), num_splits=schedule.num_splits)
    duration, blocks = _durations(flat, node, first, size, early=early)
    stream, num_streams = _streams(schedule, flat, first)
    columns = _compute_columns(schedule, flat, source, node=node, num_nodes=int(first.size), size=size)
    level = _levels(schedule.name, flat, first, [previous(stream), *(c for c, _ in columns)])
    num_messages = int(np.count_nonzero(crossing(flat, source)))
    program = Program(
        stream=stream,
        duration=duration,
        columns=columns,
        level=level,
        blocks=blocks,
        node_of_action=node,
        flat=flat,
        source=source,
        num_streams=num_streams,
        num_messages=num_messages,
        sizes=size,
    )
    return _without_local(program)


def _blocks(flat: Flat, *, early: bool) -> tuple[Ints, Ints]:
    """Return the node of each action and the first action of each node."""
    if early:
        return np.arange(flat.code.size), np.arange(flat.code.size)
    follows = np.concatenate(([False], flat.joined[:-1])) if flat.code.size else flat.joined
    node = np.cumsum(~follows) - 1
    return node, np.nonzero(~follows)[0]


def _durations(flat: Flat, node: Ints, first: Ints, size: Sizes, *, early: bool) -> tuple[Ints, Ints]:
    classes = size.compute_class(flat)
    duration = classes[first].copy()
    starts = np.nonzero(flat.joined)[0]
    if not starts.size:
        return duration, np.empty((0, 2), dtype=np.int64)
    pairs = np.stack((classes[starts], classes[starts + 1]), axis=1)
    blocks, inverse = np.unique(pairs, axis=0, return_inverse=True)
    duration[node[starts + early]] = size.num_compute + inverse.reshape(-1)
    return duration, blocks


def _streams(schedule: Schedule, flat: Flat, first: Ints) -> tuple[Ints, int]:
    p = schedule.num_ranks
    kind, rank = flat.kind[first], flat.rank[first]
    copies = (kind == Kind.OFFLOAD) | (kind == Kind.RELOAD)
    if not copies.any():
        return rank, p
    return rank + p * (kind == Kind.OFFLOAD) + 2 * p * (kind == Kind.RELOAD), 3 * p


def previous(stream: Ints, order: Ints | None = None) -> Ints:
    """Return each node's predecessor on its own stream.

    `order` lists the nodes stream after stream; by default each stream runs its own in the order of their
    numbers.
    """
    order = np.argsort(stream, kind="stable") if order is None else order
    before = np.full(stream.size, ABSENT, dtype=np.int64)
    same = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _compute_columns(
    schedule: Schedule, flat: Flat, source: Ints, *, node: Ints, num_nodes: int, size: Sizes
) -> tuple[tuple[Ints, Ints], ...]:
    """Return the data waits of nodes: first actions of nodes, second actions of blocks, copies."""
    second = np.concatenate(([False], flat.joined[:-1])) if flat.code.size else flat.joined
    has = source != ABSENT
    delay = np.where(crossing(flat, source), size.message_class(flat, source), size.no_delay)
    columns: list[tuple[Ints, Ints]] = []
    for mask in (has & ~second, has & second):
        where = np.nonzero(mask & (node[source] != node))[0]
        if where.size or not columns:
            columns.append(_column(num_nodes, node[where], node[source[where]], delay[where], size))
    reloads = reload_sources(schedule, flat)
    if (waiting := np.nonzero(reloads != ABSENT)[0]).size:
        zero = np.full(waiting.size, size.no_delay)
        columns.append(_column(num_nodes, node[waiting], node[reloads[waiting]], zero, size))
    copies = np.nonzero(flat.are(Kind.OFFLOAD, Kind.RELOAD))[0]
    if copies.size:
        issue = _issue_points(flat)[copies]
        keep = issue != ABSENT
        zero = np.full(int(keep.sum()), size.no_delay)
        columns.append(_column(num_nodes, node[copies[keep]], node[issue[keep]], zero, size))
    return tuple(columns)


def _issue_points(flat: Flat) -> Ints:
    """Return, for each action, the last compute action before it on its rank."""
    compute = ~flat.are(Kind.OFFLOAD, Kind.RELOAD)
    index = np.where(compute, np.arange(flat.code.size), ABSENT)
    last = np.maximum.accumulate(index)
    return np.where(last >= flat.bounds[flat.rank], last, ABSENT)


def _column(num_nodes: int, at: Ints, waits: Ints, delay: Ints, size: Sizes) -> tuple[Ints, Ints]:
    before = np.full(num_nodes, ABSENT, dtype=np.int64)
    delays = np.full(num_nodes, size.no_delay, dtype=np.int64)
    before[at], delays[at] = waits, delay
    return before, delays


def _levels(name: str, flat: Flat, first: Ints, columns: list[Ints]) -> Ints:
    result, cycle = levels([column.tolist() for column in columns], int(first.size))
    if cycle:
        shown = " -> ".join(flat.label(int(first[node])) for node in cycle[:6])
        raise ScheduleError(
            deadlock(name, f"actions wait for each other: {shown}{' ...' if len(cycle) > 6 else ''}")
        )
    return np.array(result, dtype=np.int64)


def _without_local(program: Program) -> Program:
    """Drop waits inside one stream: the stream's own order, acyclic by now, implies them."""
    columns = []
    for before, delay in program.columns:
        local = (before == ABSENT) | (program.stream[before] == program.stream)
        kept = np.where(local, ABSENT, before)
        if (kept != ABSENT).any():
            columns.append((kept, np.where(local, program.sizes.no_delay, delay)))
    return replace(program, columns=tuple(columns))

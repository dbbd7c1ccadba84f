"""From a schedule to nodes on streams: what waits for what, before any duration is known.

A stream runs its nodes one after the other: a rank's compute, its copies to and from the host, and (where
messages queue or block) links. Every other wait is an edge with a delay class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from forescale.schedule.actions import Kind
from forescale.schedule.errors import ScheduleError
from forescale.schedule.flat import ABSENT, Flat, Ints, crossing, flatten, reload_sources, sources
from forescale.schedule.model import Schedule
from forescale.schedule.topology import levels

Comm: TypeAlias = Literal["overlapped", "serial", "blocking"]
NUM_KINDS = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
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


def sizes(schedule: Schedule) -> Sizes:
    """Return the class counts of a schedule."""
    return Sizes(num_stages=len(schedule.placement.rank_of_stage), num_splits=schedule.num_splits)


def build(schedule: Schedule, comm: Comm) -> Program:
    """Return the program of a schedule under a way of communicating.

    Raises
    ------
    ScheduleError
        If an input is missing or actions wait for each other in a circle; the message names them.
    """
    flat = flatten(schedule.orders)
    source = sources(schedule, flat)
    node, first = _blocks(flat)
    size = sizes(schedule)
    duration, blocks = _durations(flat, node, first, size)
    stream, num_streams = _streams(schedule, flat, first)
    columns = _compute_columns(schedule, flat, source, node=node, num_nodes=int(first.size), size=size)
    level = _levels(schedule.name, flat, first, [_previous(stream), *(c for c, _ in columns)])
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
    )
    if comm == "overlapped" or not num_messages:
        return _without_local(program, size)
    from forescale.schedule.messages import with_messages

    return with_messages(program, size, comm)


def _blocks(flat: Flat) -> tuple[Ints, Ints]:
    """Return the node of each action and the first action of each node."""
    follows = np.concatenate(([False], flat.joined[:-1])) if flat.code.size else flat.joined
    node = np.cumsum(~follows) - 1
    return node, np.nonzero(~follows)[0]


def _durations(flat: Flat, node: Ints, first: Ints, size: Sizes) -> tuple[Ints, Ints]:
    classes = size.compute_class(flat)
    duration = classes[first].copy()
    starts = np.nonzero(flat.joined)[0]
    if not starts.size:
        return duration, np.empty((0, 2), dtype=np.int64)
    pairs = np.stack((classes[starts], classes[starts + 1]), axis=1)
    blocks, inverse = np.unique(pairs, axis=0, return_inverse=True)
    duration[node[starts]] = size.num_compute + inverse.reshape(-1)
    return duration, blocks


def _streams(schedule: Schedule, flat: Flat, first: Ints) -> tuple[Ints, int]:
    p = schedule.num_ranks
    kind, rank = flat.kind[first], flat.rank[first]
    copies = (kind == Kind.OFFLOAD) | (kind == Kind.RELOAD)
    if not copies.any():
        return rank, p
    return rank + p * (kind == Kind.OFFLOAD) + 2 * p * (kind == Kind.RELOAD), 3 * p


def _previous(stream: Ints) -> Ints:
    """Return each node's predecessor on its own stream (nodes are numbered in the order of each rank)."""
    order = np.argsort(stream, kind="stable")
    previous = np.full(stream.size, ABSENT, dtype=np.int64)
    same = stream[order[1:]] == stream[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


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
    copies = np.nonzero((flat.kind == Kind.OFFLOAD) | (flat.kind == Kind.RELOAD))[0]
    if copies.size:
        issue = _issue_points(flat)[copies]
        keep = issue != ABSENT
        zero = np.full(int(keep.sum()), size.no_delay)
        columns.append(_column(num_nodes, node[copies[keep]], node[issue[keep]], zero, size))
    return tuple(columns)


def _issue_points(flat: Flat) -> Ints:
    """Return, for each action, the last compute action before it on its rank."""
    compute = (flat.kind != Kind.OFFLOAD) & (flat.kind != Kind.RELOAD)
    index = np.where(compute, np.arange(flat.code.size), ABSENT)
    last = np.maximum.accumulate(index)
    return np.where(last >= flat.bounds[flat.rank], last, ABSENT)


def _column(num_nodes: int, at: Ints, waits: Ints, delay: Ints, size: Sizes) -> tuple[Ints, Ints]:
    before = np.full(num_nodes, ABSENT, dtype=np.int64)
    delays = np.full(num_nodes, size.no_delay, dtype=np.int64)
    before[at], delays[at] = waits, delay
    return before, delays


def _levels(name: str, flat: Flat, first: Ints, columns: list[Ints]) -> Ints:
    found, cycle = levels([column.tolist() for column in columns], int(first.size))
    if cycle:
        shown = " -> ".join(flat.label(int(first[node])) for node in cycle[:6])
        msg = f"{name}: actions wait for each other in a circle: {shown}{' ...' if len(cycle) > 6 else ''}"
        raise ScheduleError(msg)
    return np.array(found, dtype=np.int64)


def _without_local(program: Program, size: Sizes) -> Program:
    """Drop waits inside one stream: the stream's own order, acyclic by now, implies them."""
    columns = []
    for before, delay in program.columns:
        local = (before == ABSENT) | (program.stream[before] == program.stream)
        kept = np.where(local, ABSENT, before)
        if (kept != ABSENT).any():
            columns.append((kept, np.where(local, size.no_delay, delay)))
    return replace(program, columns=tuple(columns))

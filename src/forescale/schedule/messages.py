"""Messages of a schedule: sends and receives among a rank's actions, and what messages do to the timing.

`lower` places a receive when its sender is reached in one global order (topological level, then rank), so both
ends of every rank pair see messages in one order, and merging each send with its receive leaves no circle.
`with_messages` makes them nodes of the program: queueing on their link, or holding both ranks' compute.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from msgspec.structs import replace

from forescale.schedule.actions import MICROBATCH_SHIFT, STAGE_SHIFT, Kind, pack
from forescale.schedule.model import Schedule
from forescale.schedule.program import ABSENT, Flat, Ints, Program, Sizes, build, crossing, levels, previous
from forescale.struct import Struct

Comm: TypeAlias = Literal["overlapped", "serial", "blocking"]
"""Whether messages delay their receivers only, queue on their link too, or hold both ranks' compute."""
Sends: TypeAlias = Literal["early", "late"]
"""Whether an overlapped block's forward output leaves before its backward runs, or after the whole block."""


class LoweredSchedule(Struct, frozen=True, kw_only=True):
    """A schedule with its communication: per rank, packed actions in the order they are issued."""

    schedule: Schedule
    orders: tuple[tuple[int, ...], ...]


def lower(
    schedule: Schedule, *, reduce_grad: bool = False, program: Program | None = None
) -> LoweredSchedule:
    """Return the schedule with sends and receives, and REDUCE_GRAD after each stage's last backward if asked.

    Raises
    ------
    ScheduleError
        If the schedule cannot run.
    """
    program = build(schedule) if program is None else program
    flat, source = program.flat, program.source
    consumer = np.nonzero(crossing(flat, source))[0]
    producer = source[consumer]
    level = program.level[program.node_of_action]
    backward = (flat.kind[consumer] != Kind.F).astype(np.int64)
    send = _codes(flat, producer, Kind.SEND_F + 2 * backward)
    receive = _codes(flat, consumer, Kind.RECV_F + 2 * backward)
    parts = [
        (flat.code, flat.rank, 2 * level, np.arange(flat.code.size)),
        (send, flat.rank[producer], 2 * level[producer] + 1, producer),
        (receive, flat.rank[consumer], 2 * level[producer] + 1, producer),
    ]
    if reduce_grad:
        parts.append(_reductions(flat, level))
    code, rank, when, tie = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((tie, when, rank))
    bounds = np.searchsorted(rank[order], np.arange(schedule.num_ranks + 1))
    issued = code[order].tolist()
    orders = tuple(tuple(issued[low:high]) for low, high in pairwise(bounds))
    return LoweredSchedule(schedule=schedule, orders=orders)


def _codes(flat: Flat, at: Ints, kind: Ints) -> Ints:
    return flat.unit[at] << MICROBATCH_SHIFT | flat.stage[at] << STAGE_SHIFT | kind


def _reductions(flat: Flat, level: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    last: dict[int, int] = {}
    done = np.nonzero(flat.are(Kind.W, Kind.B))[0]
    for index in done.tolist():
        last[int(flat.stage[index])] = index
    at = np.array(list(last.values()), dtype=np.int64)
    code = np.array([pack(Kind.REDUCE_GRAD, stage) for stage in last], dtype=np.int64)
    return code, flat.rank[at], 2 * level[at], at + flat.code.size


class Messages(Struct, frozen=True, kw_only=True, eq=False):
    """Messages between ranks, arrays of shape (num_messages,), in order of (pair of ranks, sending node)."""

    sender: Ints
    """Node that produces the payload."""
    receiver: Ints
    """Node that needs it."""
    kind: Ints
    """(split, direction, stage) class."""


def _sent(program: Program) -> Messages:
    """Return the messages that the program's delayed waits stand for."""
    result = []
    for before, delay in program.columns:
        at = np.nonzero((before != ABSENT) & (delay != program.sizes.no_delay))[0]
        result.append(np.stack((before[at], at, delay[at])))
    sender, receiver, kind = np.concatenate(result, axis=1)
    order = np.lexsort((kind, sender, program.stream[receiver], program.stream[sender]))
    return Messages(sender=sender[order], receiver=receiver[order], kind=kind[order])


def with_messages(program: Program, comm: Comm) -> Program:
    """Return the program with a node per message ("serial") or per end of a message ("blocking")."""
    if comm == "overlapped" or not program.num_messages:
        return program
    return _serial(program, _sent(program)) if comm == "serial" else _blocking(program, _sent(program))


def _serial(program: Program, sent: Messages) -> Program:
    size = program.sizes
    old, new = program.stream.size, sent.sender.size
    pairs = program.stream[sent.sender] * program.num_streams + program.stream[sent.receiver]
    links, link = np.unique(pairs, return_inverse=True)
    stream = np.concatenate((program.stream, program.num_streams + link.reshape(-1)))
    columns = []
    for before, delay in program.columns:
        free = np.where(delay == size.no_delay, before, ABSENT)
        columns.append((_padded(free, new), np.full(old + new, size.no_delay)))
    produced = np.full(old + new, ABSENT)
    produced[old:] = sent.sender
    columns.append((produced, np.full(old + new, size.no_delay)))
    columns += _arrivals(sent.receiver, old + np.arange(new), sent.kind, old + new, size)
    return _assemble(program, sent, stream, columns, num_streams=program.num_streams + links.size)


def _blocking(program: Program, sent: Messages) -> Program:
    size = program.sizes
    old, new = program.stream.size, sent.sender.size
    both = Messages(
        sender=np.tile(sent.sender, 2), receiver=np.tile(sent.receiver, 2), kind=np.tile(sent.kind, 2)
    )
    ends = np.concatenate((program.stream[sent.sender], program.stream[sent.receiver]))
    stream = np.concatenate((program.stream, ends))
    # One global order, by level of the sender: a rank posts a receive when the sender reaches its send.
    when = np.concatenate((2 * program.level, 2 * program.level[both.sender] + 1))
    tie = np.concatenate((np.zeros(old, dtype=np.int64), both.sender * (size.no_delay + 1) + both.kind))
    order = np.lexsort((tie, when, stream))
    before = previous(stream, order)
    partner = np.concatenate((np.arange(old + new, old + 2 * new), np.arange(old, old + new)))
    rendezvous = np.full(old + 2 * new, ABSENT)
    rendezvous[old:] = before[partner]
    none = np.full(old + 2 * new, size.no_delay)
    columns = [(before, none), (rendezvous, none)]
    for waits, delay in program.columns:
        free = np.where(delay == size.no_delay, waits, ABSENT)
        columns.append((_padded(free, 2 * new), none))
    columns += _arrivals(sent.receiver, old + new + np.arange(new), sent.kind, old + 2 * new, size)
    return _assemble(program, both, stream, columns, num_streams=program.num_streams)


def _arrivals(at: Ints, waits: Ints, delay: Ints, num_nodes: int, size: Sizes) -> list[tuple[Ints, Ints]]:
    """Return the receivers' waits; a block may receive two messages, so up to two columns."""
    columns = []
    left = np.arange(at.size)
    while left.size:
        _, selected = np.unique(at[left], return_index=True)
        pick = left[selected]
        before = np.full(num_nodes, ABSENT)
        delays = np.full(num_nodes, size.no_delay)
        before[at[pick]], delays[at[pick]] = waits[pick], delay[pick]
        columns.append((before, delays))
        left = np.delete(left, selected)
    return columns


def _assemble(
    program: Program,
    sent: Messages,
    stream: Ints,
    columns: list[tuple[Ints, Ints]],
    *,
    num_streams: int,
) -> Program:
    kept = [(before, delay) for before, delay in columns if (before != ABSENT).any()]
    # Without explicit order columns, nodes of a stream run in the order of their numbers.
    explicit = stream.size > program.stream.size and num_streams == program.num_streams
    waits = [before.tolist() for before, _ in kept] + ([] if explicit else [previous(stream).tolist()])
    level, cycle = levels(waits, stream.size)
    assert not cycle, "messages follow one global order"
    duration = np.concatenate((program.duration, program.sizes.num_compute + len(program.blocks) + sent.kind))
    return replace(
        program,
        stream=stream,
        duration=duration,
        columns=tuple(_without_order(kept, stream, program.sizes)),
        level=np.array(level, dtype=np.int64),
        num_streams=num_streams,
    )


def _without_order(columns: list[tuple[Ints, Ints]], stream: Ints, size: Sizes) -> list[tuple[Ints, Ints]]:
    kept = []
    for before, delay in columns:
        implied = (before == ABSENT) | ((stream[before] == stream) & (delay == size.no_delay))
        cut = np.where(implied, ABSENT, before)
        if (cut != ABSENT).any():
            kept.append((cut, delay))
    return kept


def _padded(column: Ints, count: int) -> Ints:
    return np.concatenate((column, np.full(count, ABSENT)))

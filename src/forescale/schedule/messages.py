"""Messages as nodes: queueing on their link, or holding both ranks' compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forescale.schedule.flat import ABSENT, Ints
from forescale.schedule.program import Comm, Program, Sizes
from forescale.schedule.topology import levels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Messages between ranks, arrays of shape (num_messages,), in order of (pair of ranks, sending node)."""

    sender: Ints
    """Node that produces the payload."""
    receiver: Ints
    """Node that needs it."""
    kind: Ints
    """(split, direction, stage) class."""


def messages(program: Program, size: Sizes) -> Messages:
    """Return the messages that the program's delayed waits stand for."""
    found = []
    for before, delay in program.columns:
        at = np.nonzero((before != ABSENT) & (delay != size.no_delay))[0]
        found.append(np.stack((before[at], at, delay[at])))
    sender, receiver, kind = np.concatenate(found, axis=1)
    order = np.lexsort((kind, sender, program.stream[receiver], program.stream[sender]))
    return Messages(sender=sender[order], receiver=receiver[order], kind=kind[order])


def with_messages(program: Program, size: Sizes, comm: Comm) -> Program:
    """Return the program with a node per message ("serial") or per end of a message ("blocking")."""
    sent = messages(program, size)
    return _serial(program, size, sent) if comm == "serial" else _blocking(program, size, sent)


def _serial(program: Program, size: Sizes, sent: Messages) -> Program:
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
    return _assemble(program, size, sent, stream, columns, num_streams=program.num_streams + links.size)


def _blocking(program: Program, size: Sizes, sent: Messages) -> Program:
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
    before = np.full(order.size, ABSENT)
    same = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    partner = np.concatenate((np.arange(old + new, old + 2 * new), np.arange(old, old + new)))
    rendezvous = np.full(old + 2 * new, ABSENT)
    rendezvous[old:] = before[partner]
    none = np.full(old + 2 * new, size.no_delay)
    columns = [(before, none), (rendezvous, none)]
    for waits, delay in program.columns:
        free = np.where(delay == size.no_delay, waits, ABSENT)
        columns.append((_padded(free, 2 * new), none))
    columns += _arrivals(sent.receiver, old + new + np.arange(new), sent.kind, old + 2 * new, size)
    return _assemble(program, size, both, stream, columns, num_streams=program.num_streams)


def _arrivals(at: Ints, waits: Ints, delay: Ints, num_nodes: int, size: Sizes) -> list[tuple[Ints, Ints]]:
    """Return the receivers' waits; a block may receive two messages, so up to two columns."""
    columns = []
    left = np.arange(at.size)
    while left.size:
        _, chosen = np.unique(at[left], return_index=True)
        pick = left[chosen]
        before = np.full(num_nodes, ABSENT)
        delays = np.full(num_nodes, size.no_delay)
        before[at[pick]], delays[at[pick]] = waits[pick], delay[pick]
        columns.append((before, delays))
        left = np.delete(left, chosen)
    return columns


def _assemble(
    program: Program,
    size: Sizes,
    sent: Messages,
    stream: Ints,
    columns: list[tuple[Ints, Ints]],
    *,
    num_streams: int,
) -> Program:
    kept = [(before, delay) for before, delay in columns if (before != ABSENT).any()]
    # Without explicit order columns, nodes of a stream run in the order of their numbers.
    order = np.argsort(stream, kind="stable")
    previous = np.full(stream.size, ABSENT)
    same = stream[order[1:]] == stream[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    explicit = stream.size > program.stream.size and num_streams == program.num_streams
    waits = [before.tolist() for before, _ in kept] + ([] if explicit else [previous.tolist()])
    level, cycle = levels(waits, stream.size)
    assert not cycle, "messages follow one global order"
    duration = np.concatenate((program.duration, size.num_compute + len(program.blocks) + sent.kind))
    return replace(
        program,
        stream=stream,
        duration=duration,
        columns=tuple(_without_order(kept, stream, size)),
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

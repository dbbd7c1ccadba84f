"""Matching of messages, and deadlock under three semantics of communication.

Each send is merged with its receive into one node; the schedule deadlocks where the graph has a circle.
"eager": sends are buffered (gloo, MPI), only data order counts. "pair": one communicator per rank pair runs
its messages in the order both ranks issued them, each after the compute issued before it. "single": each rank
runs everything, messages included, on one stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forescale.schedule.actions import Kind, unpack
from forescale.schedule.flat import ABSENT, Flat, Ints, flatten
from forescale.schedule.model import Schedule
from forescale.schedule.topology import levels

Semantics: TypeAlias = Literal["eager", "pair", "single"]
SEMANTICS: tuple[Semantics, ...] = ("eager", "pair", "single")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Issued:
    """Everything a lowered schedule issues; arrays of shape (num_issued,) in the order of `flat`."""

    flat: Flat
    send: NDArray[np.bool_]
    receive: NDArray[np.bool_]
    peer: Ints
    """Stage at the other end of a message; ABSENT for compute."""
    key: Ints
    """Number of the message, equal on both ends; ABSENT for compute."""
    home: Ints
    """Rank of each stage."""

    @property
    def message(self) -> NDArray[np.bool_]:
        """Which actions are sends or receives."""
        return self.send | self.receive


def issued(schedule: Schedule, orders: tuple[tuple[int, ...], ...]) -> Issued:
    """Return a lowered schedule's actions as arrays."""
    flat = flatten(orders)
    kind = flat.kind
    send = (kind == Kind.SEND_F) | (kind == Kind.SEND_B)
    receive = (kind == Kind.RECV_F) | (kind == Kind.RECV_B)
    up = (kind == Kind.SEND_F) | (kind == Kind.RECV_B)  # the other end is the next stage
    message = send | receive
    peer = np.where(message, np.where(up, flat.stage + 1, flat.stage - 1), ABSENT)
    backward = (kind == Kind.SEND_B) | (kind == Kind.RECV_B)
    sender = np.where(send, flat.stage, peer)
    stages = len(schedule.placement.rank_of_stage)
    key = (flat.unit * (stages + 2) + sender + 1) * 2 + backward
    home = np.array(schedule.placement.rank_of_stage)
    return Issued(
        flat=flat, send=send, receive=receive, peer=peer, key=np.where(message, key, ABSENT), home=home
    )


def find_mismatch(table: Issued) -> str:
    """Return what is wrong with the messages' pairing or order between two ranks; empty if nothing.

    Messages of one ordered rank pair carry no distinguishing tag in torch, so both ends must list them in
    the same order: a swapped pair would give wrong gradients and no error.
    """
    flat, stages = table.flat, table.home.size
    beyond = np.nonzero(table.message & ((table.peer < 0) | (table.peer >= stages) | (flat.stage >= stages)))[
        0
    ]
    if beyond.size:
        return f"{flat.label(int(beyond[0]))} goes beyond the stages of the model"
    sides = []
    for mask, swap in ((table.send, False), (table.receive, True)):
        at = np.nonzero(mask)[0]
        here, there = flat.rank[at], table.home[table.peer[at]]
        pair = there * flat.bounds.size + here if swap else here * flat.bounds.size + there
        order = np.argsort(pair, kind="stable")
        sides.append((pair[order], at[order]))
    (pair_a, sent), (pair_b, received) = sides
    if np.array_equal(pair_a, pair_b) and np.array_equal(table.key[sent], table.key[received]):
        return ""
    return _first_mismatch(table, sides)


def _first_mismatch(table: Issued, sides: Sequence[tuple[Ints, Ints]]) -> str:
    for pair in np.union1d(sides[0][0], sides[1][0]).tolist():
        ours, theirs = (at[pairs == pair] for pairs, at in sides)
        for index in range(max(ours.size, theirs.size)):
            texts = [
                table.flat.label(int(side[index])) if index < side.size else "nothing"
                for side in (ours, theirs)
            ]
            if "nothing" in texts or table.key[ours[index]] != table.key[theirs[index]]:
                source, target = divmod(pair, table.flat.bounds.size)
                return (
                    f"message {index} from rank {source} to rank {target} is {texts[0]}, "
                    f"but {texts[1]} is received there"
                )
    return "sends and receives do not pair"


def find_deadlock(table: Issued, semantics: Semantics) -> tuple[int, ...]:
    """Return a circle of waits as indices of issued actions; empty where there is none."""
    node, owner = _merge(table)
    columns = _single(table, node, owner) if semantics == "single" else _looser(table, node, owner, semantics)
    _, cycle = levels([column.tolist() for column in columns], int(owner.size))
    return tuple(int(owner[number]) for number in cycle)


def _merge(table: Issued) -> tuple[Ints, Ints]:
    """Return the node of each action, a receive sharing its send's, and one action of each node."""
    num = table.key.size
    node = np.arange(num)
    sends, receives = np.nonzero(table.send)[0], np.nonzero(table.receive)[0]
    sends = sends[np.argsort(table.key[sends], kind="stable")]
    receives = receives[np.argsort(table.key[receives], kind="stable")]
    node[receives] = sends
    keep = node == np.arange(num)
    number = np.cumsum(keep) - 1
    return number[node], np.nonzero(keep)[0]


def _previous(table: Issued, mask: NDArray[np.bool_]) -> Ints:
    """Return, for each action, the last action before it on its rank for which `mask` holds."""
    index = np.where(mask, np.arange(mask.size), ABSENT)
    last = np.concatenate(([ABSENT], np.maximum.accumulate(index)[:-1])) if mask.size else index
    return np.where(last >= table.flat.bounds[table.flat.rank], last, ABSENT)


def _single(table: Issued, node: Ints, owner: Ints) -> list[Ints]:
    before = _previous(table, np.ones(node.size, dtype=bool))
    waits = np.where(before == ABSENT, ABSENT, node[before])
    own, other = waits[owner], np.full(owner.size, ABSENT)
    other[node[table.receive]] = waits[table.receive]
    return [own, other]


def _looser(table: Issued, node: Ints, owner: Ints, semantics: Semantics) -> list[Ints]:
    """Return predecessor columns under "eager" or "pair"."""
    flat = table.flat
    compute = _previous(table, ~table.message)
    after = np.where(compute == ABSENT, ABSENT, node[compute])
    first = np.full(owner.size, ABSENT)
    plain = ~table.message | table.send
    first[node[plain]] = after[plain]
    columns = [first, *_arrivals(table, node, owner)]
    if semantics == "eager":
        return columns
    second, third, fourth = (np.full(owner.size, ABSENT) for _ in range(3))
    second[node[table.receive]] = after[table.receive]
    pair = np.where(table.message, flat.rank * table.home.size + table.home[table.peer], ABSENT)
    order = np.lexsort((np.arange(pair.size), pair))
    follows = (pair[order[1:]] == pair[order[:-1]]) & (pair[order[1:]] != ABSENT)
    earlier = np.full(pair.size, ABSENT)
    earlier[order[1:][follows]] = node[order[:-1][follows]]
    third[node[table.send]] = earlier[table.send]
    fourth[node[table.receive]] = earlier[table.receive]
    return [*columns, second, third, fourth]


def _arrivals(table: Issued, node: Ints, owner: Ints) -> list[Ints]:
    """Return, for each compute action, the receive of its input."""
    flat = table.flat
    width = table.home.size * 2
    at = np.nonzero(table.receive)[0]
    column = np.full(owner.size, ABSENT)
    if not at.size:
        return [column]
    keys = flat.unit[at] * width + flat.stage[at] * 2 + (flat.kind[at] == Kind.RECV_B)
    slot = dict(zip(keys.tolist(), node[at].tolist(), strict=True))
    takes = np.nonzero((flat.kind == Kind.F) | (flat.kind == Kind.B) | (flat.kind == Kind.I))[0]
    wanted = flat.unit[takes] * width + flat.stage[takes] * 2 + (flat.kind[takes] != Kind.F)
    column[node[takes]] = [slot.get(key, ABSENT) for key in wanted.tolist()]
    return [column]


def describe(table: Issued, cycle: tuple[int, ...]) -> str:
    """Return the first actions of a circle, readable."""
    shown = [f"{unpack(int(table.flat.code[i]))} (rank {table.flat.rank[i]})" for i in cycle[:6]]
    return " -> ".join(shown) + (" ..." if len(cycle) > 6 else "")

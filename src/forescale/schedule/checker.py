"""Whether a schedule is right: complete, ordered, free of deadlock, within memory. Names what is not.

Deadlock is looked for under three semantics of communication. Each send is merged with its receive into one
node; the schedule deadlocks where the graph has a circle. "eager": sends are buffered (gloo, MPI), only data
order counts. "pair": one communicator per rank pair runs its messages in the order both ranks issued them,
each after the compute issued before it. "single": each rank runs everything, messages included, on one stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forescale.errors import ScheduleError
from forescale.numeric import Array
from forescale.schedule.actions import BACKWARD, Kind, unpack
from forescale.schedule.memory import ActivationSizes, memory_during, peak_memory
from forescale.schedule.messages import LoweredSchedule
from forescale.schedule.model import Schedule
from forescale.schedule.program import (
    ABSENT,
    Flat,
    Ints,
    Program,
    build,
    check_ids,
    flatten,
    levels,
    positions,
)
from forescale.struct import Struct
from forescale.units import counted

Semantics: TypeAlias = Literal["eager", "pair", "single"]
SEMANTICS: tuple[Semantics, ...] = ("eager", "pair", "single")
_MEANING: dict[Semantics, str] = {
    "eager": "buffered (gloo, MPI)",
    "pair": "on one communicator per rank pair",
    "single": "on one stream per rank",
}


class Violation(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where."""

    rule: str
    """ids, placement, complete, order, cycle, fifo, deadlock or memory."""
    message: str
    rank: int | None = None
    position: int | None = None
    """Index among the rank's actions."""


class CheckReport(Struct, frozen=True, kw_only=True):
    """What the checker found; `valid` if it found nothing."""

    violations: tuple[Violation, ...]
    deadlock_free: tuple[Semantics, ...]
    """Semantics of messages under which the schedule runs to its end."""

    @property
    def valid(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations


def check(
    schedule: Schedule,
    *,
    lowered: LoweredSchedule | None = None,
    memory_limit: float | Array | None = None,
    sizes: ActivationSizes | None = None,
    program: Program | None = None,
) -> CheckReport:
    """Return everything that is wrong with a schedule.

    Parameters
    ----------
    schedule
        The schedule.
    lowered
        Its communication, where it comes from elsewhere; derived if left out.
    memory_limit
        Most that a rank may hold, a number or one per rank, in the unit of `sizes`.
    sizes
        Activation sizes; by default micro-batches of a device's full share.
    program
        The schedule's program, if it is there already.
    """
    flat = flatten(schedule.orders)
    ids = _ids(schedule, flat)
    if not ids:
        ids = _complete(schedule, flat) + _blocks(flat)
    if not ids:
        ids = _local_order(schedule, flat)
    free: tuple[Semantics, ...] = ()
    if not ids:
        try:
            program = build(schedule) if program is None else program
        except ScheduleError as error:
            ids = [Violation(rule="cycle", message=str(error))]
        else:
            # what `lower` makes of a schedule that runs has one global order of messages, so it needs no proof
            ids, free = ([], SEMANTICS) if lowered is None else _communication(schedule, lowered)
    if memory_limit is not None and not any(v.rule in {"ids", "complete"} for v in ids):
        ids += out_of_memory(schedule, memory_limit, sizes)
    return CheckReport(violations=tuple(ids), deadlock_free=free)


def _at(flat: Flat, index: int, rule: str, problem: str) -> Violation:
    rank = int(flat.rank[index])
    return Violation(
        rule=rule,
        message=f"{flat.label(index)} {problem}",
        rank=rank,
        position=index - int(flat.bounds[rank]),
    )


def _ids(schedule: Schedule, flat: Flat) -> list[Violation]:
    stages, units = len(schedule.placement.rank_of_stage), schedule.num_units
    bad = check_ids(schedule, flat)
    if bad.size:
        known_ids = f"stages are 0 to {stages - 1}, micro-batches 0 to {units - 1}"
        ask = f"names a stage or micro-batch that does not exist; {known_ids}"
        return [_at(flat, int(i), "ids", ask) for i in bad]
    known = np.nonzero(flat.kind > Kind.RELOAD)[0]
    if known.size:
        return [
            _at(flat, int(i), "ids", "is no compute action; a schedule has F, B, I, W, OFFLOAD, RELOAD")
            for i in known
        ]
    home = np.array(schedule.placement.rank_of_stage)
    away = np.nonzero(home[flat.stage] != flat.rank)[0]
    ats = [_at(flat, int(i), "placement", f"belongs on rank {home[flat.stage[i]]}") for i in away]
    routes = np.arange(schedule.num_units) // schedule.num_splits * schedule.placement.num_replicas
    replica = routes // schedule.num_microbatches
    wrong = np.nonzero(flat.stage // schedule.num_stages != replica[flat.unit])[0]
    return ats + [
        _at(flat, int(i), "placement", f"belongs to replica {replica[flat.unit[i]]}") for i in wrong
    ]


def _counts(schedule: Schedule, flat: Flat) -> dict[Kind, Ints]:
    shape = (len(schedule.placement.rank_of_stage), schedule.num_units)
    counts = {}
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W, Kind.OFFLOAD, Kind.RELOAD):
        at = np.nonzero(flat.kind == kind)[0]
        cells = flat.stage[at] * shape[1] + flat.unit[at]
        counts[kind] = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    return counts


def _complete(schedule: Schedule, flat: Flat) -> list[Violation]:
    n = _counts(schedule, flat)
    replicas = schedule.placement.num_replicas
    units = np.arange(schedule.num_units) // schedule.num_splits * replicas // schedule.num_microbatches
    due = (np.arange(len(schedule.placement.rank_of_stage)) // schedule.num_stages)[:, None] == units[None, :]
    split = (n[Kind.I] > 0) | (n[Kind.W] > 0)
    rules = (
        (n[Kind.F] != due, "needs F once"),
        (due & (n[Kind.B] + n[Kind.I] != 1), "needs one of B and I once"),
        (due & split & (n[Kind.I] != n[Kind.W]), "needs as many W as I"),
        (due & split & (n[Kind.B] > 0), "has both B and its parts"),
        (
            (n[Kind.OFFLOAD] != n[Kind.RELOAD]) | (n[Kind.OFFLOAD] > 1),
            "needs OFFLOAD and RELOAD once or never",
        ),
    )
    result = []
    for bad, need in rules:
        for stage, unit in np.argwhere(bad)[:8].tolist():
            rank = schedule.placement.rank_of_stage[stage]
            has = ", ".join(
                f"{stage}{kind.name}{unit} {counted(int(n[kind][stage, unit]), 'time')}"
                for kind in n
                if n[kind][stage, unit]
            )
            message = f"stage {stage}, micro-batch {unit} (rank {rank}) {need}; it has {has or 'nothing'}"
            result.append(Violation(rule="complete", message=message, rank=rank))
    return result


def _blocks(flat: Flat) -> list[Violation]:
    starts = np.nonzero(flat.joined)[0]
    if not starts.size:
        return []
    ends = starts + 1
    fits = (ends < flat.code.size) & (ends < flat.bounds[flat.rank[starts] + 1])
    safe = np.minimum(ends, flat.code.size - 1)
    backward = (flat.kind[safe] == Kind.B) | (flat.kind[safe] == Kind.I)
    good = fits & backward & (flat.kind[starts] == Kind.F) & ~flat.joined[safe]
    same = good & (flat.stage[starts] == flat.stage[safe]) & (flat.unit[starts] == flat.unit[safe])
    bad = starts[~good | same]
    ask = "is joined with what follows; a block is one F and one B or I of another micro-batch or stage"
    return [_at(flat, int(i), "order", ask) for i in bad]


def _local_order(schedule: Schedule, flat: Flat) -> list[Violation]:
    where = {
        kind: positions(schedule, flat, *(BACKWARD if kind is Kind.I else (kind,)))
        for kind in (Kind.F, Kind.I, Kind.W, Kind.OFFLOAD, Kind.RELOAD)
    }
    result = []
    pairs = (
        (Kind.F, Kind.I),
        (Kind.I, Kind.W),
        (Kind.F, Kind.OFFLOAD),
        (Kind.OFFLOAD, Kind.RELOAD),
        (Kind.RELOAD, Kind.I),
    )
    for first, second in pairs:
        early, late = where[first], where[second]
        for stage, unit in np.argwhere((early >= 0) & (late >= 0) & (early >= late))[:8].tolist():
            index = int(late[stage, unit])
            result.append(
                _at(
                    flat,
                    index,
                    "order",
                    f"comes before {flat.label(int(early[stage, unit]))}, which it needs",
                )
            )
    return result + _split_order(schedule, flat, where)


def _split_order(schedule: Schedule, flat: Flat, where: dict[Kind, Ints]) -> list[Violation]:
    """Pieces of one sequence go forward in order and backward in reverse (Seq1F1B)."""
    splits = schedule.num_splits
    if splits == 1:
        return []
    result = []
    for kind, sign in ((Kind.F, 1), (Kind.I, -1)):
        table = where[kind].reshape(where[kind].shape[0], -1, splits)
        for stage, microbatch, piece in np.argwhere(sign * np.diff(table, axis=2) < 0)[:8].tolist():
            index = int(table[stage, microbatch, piece])
            result.append(_at(flat, index, "order", "is out of order among the pieces of its sequence"))
    return result


def _communication(
    schedule: Schedule, lowered: LoweredSchedule
) -> tuple[list[Violation], tuple[Semantics, ...]]:
    table = issued(schedule, lowered.orders)
    if mismatch := find_mismatch(table):
        return [Violation(rule="fifo", message=mismatch)], ()
    if unmet := _exchanged(schedule, table):
        return unmet, ()
    if not find_deadlock(table, "single"):
        return [], SEMANTICS  # one stream per rank is the strictest: the others have fewer waits
    free, result = [], []
    for semantics in SEMANTICS:
        cycle = find_deadlock(table, semantics)
        if not cycle:
            free.append(semantics)
            continue
        message = f"deadlock if messages are {_MEANING[semantics]}: {describe(table, cycle)}"
        rank = int(table.flat.rank[cycle[0]])
        position = cycle[0] - int(table.flat.bounds[rank])
        result.append(Violation(rule="deadlock", message=message, rank=rank, position=position))
    return result, tuple(free)


def out_of_memory(
    schedule: Schedule, limit: float | Array, sizes: ActivationSizes | None = None
) -> list[Violation]:
    """Return the first action of each rank that brings it above a limit."""
    limits = np.broadcast_to(np.asarray(limit, dtype=np.float64), (schedule.num_ranks,)) * (1.0 + 1e-9)
    result = []
    for rank in np.nonzero(peak_memory(schedule, sizes) > limits)[0].tolist():
        flat = flatten([order if item == rank else () for item, order in enumerate(schedule.orders)])
        curve = memory_during(schedule, sizes, flat)
        index = int(np.argmax(curve > limits[rank]))
        problem = f"brings the rank to {curve[index]:g}; the limit is {limits[rank]:g}"
        result.append(_at(flat, index, "memory", problem))
    return result


class Issued(Struct, frozen=True, kw_only=True, eq=False):
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
    send, receive = flat.are(Kind.SEND_F, Kind.SEND_B), flat.are(Kind.RECV_F, Kind.RECV_B)
    up = flat.are(Kind.SEND_F, Kind.RECV_B)  # the other end is the next stage
    message = send | receive
    peer = np.where(message, np.where(up, flat.stage + 1, flat.stage - 1), ABSENT)
    backward = flat.are(Kind.SEND_B, Kind.RECV_B)
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


def _exchanged(schedule: Schedule, table: Issued) -> list[Violation]:
    """Return inputs that are not received before the pass that takes them, or sent before they are there."""
    flat, logical = table.flat, schedule.num_stages
    actions = list(zip(flat.kind.tolist(), flat.stage.tolist(), flat.unit.tolist(), strict=True))
    where = {(Kind.B if kind == Kind.I else kind, *place): i for i, (kind, *place) in enumerate(actions)}
    result, needed = [], 0
    for index in np.nonzero(flat.are(Kind.F, *BACKWARD))[0].tolist():
        kind, stage, unit = actions[index]
        forward = kind == Kind.F
        source = stage - 1 if forward else stage + 1
        if not 0 <= stage % logical + source - stage < logical or table.home[source] == table.home[stage]:
            continue
        needed += 1
        sends, receives = (Kind.SEND_F, Kind.RECV_F) if forward else (Kind.SEND_B, Kind.RECV_B)
        received, sent = where.get((receives, stage, unit)), where.get((sends, source, unit))
        if received is None or sent is None or received > index:
            result.append(_at(flat, index, "fifo", "runs before its input is received"))
        elif sent < where[Kind.F if forward else Kind.B, source, unit]:
            result.append(_at(flat, sent, "fifo", "sends what is not there yet"))
    if not result and needed != np.count_nonzero(table.send):
        msg = f"{np.count_nonzero(table.send)} messages are sent; the schedule has {needed}"
        result.append(Violation(rule="fifo", message=msg))
    return result


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
    wait, other = waits[owner], np.full(owner.size, ABSENT)
    other[node[table.receive]] = waits[table.receive]
    return [wait, other]


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
    takes = np.nonzero(flat.are(Kind.F, *BACKWARD))[0]
    requested = flat.unit[takes] * width + flat.stage[takes] * 2 + (flat.kind[takes] != Kind.F)
    column[node[takes]] = [slot.get(key, ABSENT) for key in requested.tolist()]
    return [column]


def describe(table: Issued, cycle: tuple[int, ...]) -> str:
    """Return the first actions of a circle, readable."""
    shown = [f"{unpack(int(table.flat.code[i]))} (rank {table.flat.rank[i]})" for i in cycle[:6]]
    return " -> ".join(shown) + (" ..." if len(cycle) > 6 else "")

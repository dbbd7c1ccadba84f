"""Sends, receives and gradient reductions derived from compute actions.

A receive is placed when its sender is reached in one global order (topological level, then rank), so both
ends of every rank pair see messages in one order, and merging each send with its receive leaves no circle.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from forescale.schedule.actions import MICROBATCH_SHIFT, STAGE_SHIFT, Kind, pack
from forescale.schedule.flat import Flat, Ints, crossing
from forescale.schedule.model import Schedule
from forescale.schedule.program import Program, build


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredSchedule:
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
    program = build(schedule, "overlapped") if program is None else program
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
    done = np.nonzero((flat.kind == Kind.W) | (flat.kind == Kind.B))[0]
    for index in done.tolist():
        last[int(flat.stage[index])] = index
    at = np.array(list(last.values()), dtype=np.int64)
    code = np.array([pack(Kind.REDUCE_GRAD, stage) for stage in last], dtype=np.int64)
    return code, flat.rank[at], 2 * level[at], at + flat.code.size

"""Actions of a pipeline rank in the notation of torch.distributed.pipelining.

An action is kept as one int, so that large schedules are cheap to build, compare and turn into arrays:
bits 0-3 hold the kind, bit 4 says "one block with the next action", bits 5-19 the stage, the rest the
micro-batch. `Action` is the same thing for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from forescale.schedule.errors import ScheduleError

KIND_BITS, STAGE_SHIFT, MICROBATCH_SHIFT = 0xF, 5, 20
JOINED = 1 << 4
STAGE_BITS = (1 << (MICROBATCH_SHIFT - STAGE_SHIFT)) - 1


class Kind(IntEnum):
    """What an action does; B is I and W in one."""

    F = 0
    B = 1
    I = 2  # noqa: E741 -- the field's letter for the input gradient
    W = 3
    OFFLOAD = 4
    RELOAD = 5
    SEND_F = 6
    RECV_F = 7
    SEND_B = 8
    RECV_B = 9
    UNSHARD = 10
    RESHARD = 11
    REDUCE_GRAD = 12


COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W)
BACKWARD = (Kind.B, Kind.I)
_WITHOUT_MICROBATCH = (Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD)
_PATTERN = re.compile(
    r"^(\d+)(" + "|".join(sorted((k.name for k in Kind), key=len, reverse=True)) + r")(\d*)$"
)
_OVERLAPPED = re.compile(r"^\(([^;()]+);([^;()]+)\)OVERLAP_F_B$")


@dataclass(frozen=True, slots=True)
class Action:
    """One action: `Action(Kind.F, stage=2, microbatch=0)` prints as `2F0`."""

    kind: Kind
    stage: int
    microbatch: int = 0

    def __str__(self) -> str:
        """Return torch's notation."""
        tail = "" if self.kind in _WITHOUT_MICROBATCH else str(self.microbatch)
        return f"{self.stage}{self.kind.name}{tail}"


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A forward and a backward that run as one block; prints as `(1F3;2B0)OVERLAP_F_B`."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        """Return torch's notation."""
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Cell: TypeAlias = Action | Overlapped


def pack(kind: int, stage: int, microbatch: int = 0) -> int:
    """Return an action as one int."""
    return microbatch << MICROBATCH_SHIFT | stage << STAGE_SHIFT | kind


def unpack(code: int) -> Action:
    """Return the action behind an int; the block bit is left out."""
    return Action(Kind(code & KIND_BITS), code >> STAGE_SHIFT & STAGE_BITS, code >> MICROBATCH_SHIFT)


def encode(cell: Cell) -> tuple[int, ...]:
    """Return the one or two ints of a cell."""
    if isinstance(cell, Overlapped):
        first, second = cell.forward, cell.backward
        return (pack(first.kind, first.stage, first.microbatch) | JOINED, *encode(second))
    return (pack(cell.kind, cell.stage, cell.microbatch),)


def decode(codes: tuple[int, ...]) -> tuple[Cell, ...]:
    """Return the cells of one rank's ints."""
    cells: list[Cell] = []
    pending: Action | None = None
    for code in codes:
        action = unpack(code)
        if code & JOINED:
            pending = action
        elif pending is not None:
            cells.append(Overlapped(pending, action))
            pending = None
        else:
            cells.append(action)
    return tuple(cells)


def parse(text: str) -> Cell:
    """Return the cell written in torch's notation.

    Raises
    ------
    ScheduleError
        If the text is not an action.
    """
    stripped = text.strip()
    if block := _OVERLAPPED.match(stripped):
        first, second = parse(block[1]), parse(block[2])
        if isinstance(first, Action) and isinstance(second, Action):
            if first.kind in BACKWARD:
                first, second = second, first
            if first.kind is Kind.F and second.kind in BACKWARD:
                return Overlapped(first, second)
    elif match := _PATTERN.match(stripped):
        kind = Kind[match[2]]
        if match[3] or kind in _WITHOUT_MICROBATCH:
            return Action(kind, int(match[1]), int(match[3] or 0))
    ask = "write stage, kind and micro-batch such as 0F3, 2I1, 1W0 or (1F3;2B0)OVERLAP_F_B"
    msg = f"{text!r} is not an action; {ask}"
    raise ScheduleError(msg)

"""Actions of a pipeline rank in the notation of torch.distributed.pipelining.

An action is kept as one int, so that large schedules are cheap to build, compare and turn into arrays:
bits 0-3 hold the kind, bit 4 says "one block with the next action", bits 5-19 the stage, the rest the
micro-batch. `Action` is the same thing for people.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from forescale.errors import ScheduleError, cannot_parse, out_of_range
from forescale.struct import Struct

KIND_BITS, STAGE_SHIFT, MICROBATCH_SHIFT = 0xF, 5, 20
JOINED = 1 << 4
STAGE_BITS = (1 << (MICROBATCH_SHIFT - STAGE_SHIFT)) - 1
DIGITS = 9
"""Longest number of a stage or micro-batch in an action's text."""


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
    r"^([0-9]+)(" + "|".join(sorted((k.name for k in Kind), key=len, reverse=True)) + r")([0-9]*)$"
)
_OVERLAPPED = re.compile(r"^\(([^;()]+);([^;()]+)\)OVERLAP_F_B$")


class Action(Struct, frozen=True):
    """One action: `Action(Kind.F, stage=2, microbatch=0)` prints as `2F0`."""

    kind: Kind
    stage: int
    microbatch: int = 0

    def __str__(self) -> str:
        """Return torch's notation."""
        tail = "" if self.kind in _WITHOUT_MICROBATCH else str(self.microbatch)
        return f"{self.stage}{self.kind.name}{tail}"


class Overlapped(Struct, frozen=True):
    """A forward and a backward that run as one block; prints as `(1F3;2B0)OVERLAP_F_B`."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        """Return torch's notation."""
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Cell: TypeAlias = Action | Overlapped


class Order(Sequence[int]):
    """Packed actions of one rank in an array: reads like a tuple of ints at a fifth of the memory."""

    __slots__ = ("codes",)

    def __init__(self, codes: NDArray[np.int64]) -> None:
        self.codes = codes

    def __len__(self) -> int:
        return self.codes.size

    def __iter__(self) -> Iterator[int]:
        return iter(self.codes.tolist())

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        code = self.codes[at].tolist()
        return tuple(code) if isinstance(at, slice) else code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Order, tuple)) and np.array_equal(self.codes, as_codes(other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Order({', '.join(map(str, decode(self[:8])))}{', ...' if len(self) > 8 else ''})"


def as_codes(order: Sequence[int]) -> NDArray[np.int64]:
    """Return packed actions as an array."""
    return order.codes if isinstance(order, Order) else np.array(order, dtype=np.int64)


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


def decode(codes: Sequence[int]) -> tuple[Cell, ...]:
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
        stage, microbatch = match[1].lstrip("0") or "0", match[3].lstrip("0") or "0"
        if len(stage) > DIGITS or len(microbatch) > DIGITS or int(stage) > STAGE_BITS:
            raise ScheduleError(out_of_range("the stage", stripped[:40], f"from 0 to {STAGE_BITS}"))
        if match[3] or kind in _WITHOUT_MICROBATCH:
            return Action(kind, int(stage), int(microbatch))
    ask = "write stage, kind and micro-batch such as 0F3, 2I1, 1W0 or (1F3;2B0)OVERLAP_F_B"
    shown = text if len(text) <= 80 else f"{text[:80]}..."
    raise ScheduleError(cannot_parse("action", shown, ask))

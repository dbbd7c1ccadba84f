"""Pieces that several schedules are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from forescale.schedule.actions import JOINED, MICROBATCH_SHIFT, STAGE_SHIFT, Kind, Order, pack
from forescale.schedule.family import Orders, Request, keep_first
from forescale.schedule.program import Ints

Pass: TypeAlias = tuple[int, int]
"""(stage, micro-batch)."""


def passes(stage: int | Ints, units: Ints) -> Ints:
    """Return the passes of micro-batches through a stage (or stages), packed without a kind."""
    return units << MICROBATCH_SHIFT | stage << STAGE_SHIFT


def one_forward_one_backward(
    *, forward: Ints, backward: Ints, warmup: int, delay: int | None = None
) -> Order:
    """Return warm-up forwards, then a forward and a backward in turn, then the remaining backwards.

    With `delay`, backwards are split and each weight gradient runs `delay` backwards later.
    """
    warmup, ahead = min(warmup, forward.size), forward | Kind.F
    if delay is None:
        return Order(np.concatenate((ahead[:warmup], in_turn(ahead[warmup:], backward | Kind.B))))
    late = np.concatenate((np.full(min(delay, backward.size), -1), backward | Kind.W))
    return Order(np.concatenate((ahead[:warmup], in_turn(ahead[warmup:], backward | Kind.I, late))))


def in_turn(*columns: Ints) -> Ints:
    """Return the first of every column, then the second, and so on; a column may be short, -1 is nothing."""
    rows = np.full((max(column.size for column in columns), len(columns)), -1, dtype=np.int64)
    for index, column in enumerate(columns):
        rows[: column.size, index] = column
    return rows[rows >= 0]


def depth_first(request: Request, warmup: Sequence[int], delay: Sequence[int] | None = None) -> Orders:
    """Return (interleaved) 1F1B: rank r goes warmup[r] + (v - 1)g passes forward, then backward and forward in turn.

    A chunk takes g micro-batches before the next does, `group_size` or p; fewer that remain form the last group, and
    where it would be shorter than g and p, longer ones are built and cut. `delay` puts off weight gradients.
    """
    pp, vpp, count = request.pp, request.vpp, request.num_microbatches
    group = request.group_size or pp
    rest = count % group
    built = count if rest == 0 or rest >= pp else count - rest + min(pp, group)
    orders = []
    for rank in range(pp):
        forward, backward = _interleaved(rank=rank, pp=pp, vpp=vpp, num_microbatches=built, group_size=group)
        late = None if delay is None else delay[rank]
        ahead = warmup[rank] + (vpp - 1) * group
        orders.append(one_forward_one_backward(forward=forward, backward=backward, warmup=ahead, delay=late))
    return keep_first(orders, count) if built > count else orders


def _interleaved(
    *, rank: int, pp: int, vpp: int, num_microbatches: int, group_size: int
) -> tuple[Ints, Ints]:
    """Return a rank's forward and backward passes, depth-first: `group_size` micro-batches per chunk in turn.

    Source: Megatron-Core's schedule table; Narayanan et al. 2021, arXiv:2104.04473.
    """
    whole = num_microbatches - num_microbatches % group_size
    units = np.arange(num_microbatches)
    groups = (units[:whole].reshape(-1, 1, min(group_size, max(whole, 1))), units[whole:].reshape(1, 1, -1))
    stages = (np.arange(vpp) * pp + rank)[None, :, None]
    forward, backward = (
        np.concatenate([passes(turn, group).reshape(-1) for group in groups])
        for turn in (stages, stages[:, ::-1])
    )
    return forward, backward


class Emitter:
    """Writes one rank's actions; weight gradients that were put off are taken oldest first."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.pending: list[Pass] = []

    def forward(self, item: Pass) -> None:
        """Add F."""
        self.order.append(pack(Kind.F, *item))

    def backward(self, item: Pass, *, split: bool = False) -> None:
        """Add B, or I with W put off."""
        self.order.append(pack(Kind.I if split else Kind.B, *item))
        if split:
            self.pending.append(item)

    def weight(self) -> None:
        """Add the oldest W that was put off."""
        self.order.append(pack(Kind.W, *self.pending.pop(0)))

    def overlapped(self, forward: Pass, backward: Pass) -> None:
        """Add F and B as one block."""
        self.order += [pack(Kind.F, *forward) | JOINED, pack(Kind.B, *backward)]

    def finish(self, backward: Sequence[Iterator[Pass]], *, both: int, alone: int) -> None:
        """Add the last backwards of DualPipe: both directions in turn, then the first alone, then all W.

        Weight gradients are put off from the middle of the first part on.
        """
        split = False
        for index in range(both):
            split = split or (index == both // 2 and both % 2 == 0)
            self.backward(next(backward[1]), split=split)
            split = split or (index == both // 2 and both % 2 == 1)
            self.backward(next(backward[0]), split=split)
        for _ in range(alone):
            self.weight()
            self.backward(next(backward[0]), split=True)
        while self.pending:
            self.weight()


def counter(stage: int, start: int = 0) -> Iterator[Pass]:
    """Yield (stage, start), (stage, start + 1) and so on."""
    unit = start
    while True:
        yield stage, unit
        unit += 1


def opposite_ways(
    first: Pass, second: Pass, *, near: int, reach: int, num_microbatches: int
) -> tuple[int, ...]:
    """Return one rank's order where micro-batches come from two sides and run as overlapped blocks.

    The eight steps of DeepSeek-AI's published code of DualPipe; DualPipeV is the same on half of the ranks, with
    the other half's stages folded onto them.

    Parameters
    ----------
    first, second
        (stage, first micro-batch) of the side that reaches this rank earlier, and of the other.
    near
        Ranks between this one and the end where the first side enters.
    reach
        Ranks from that end to where the sides meet.
    num_microbatches
        Of each side.
    """
    forward, backward = ([counter(*first), counter(*second)] for _ in range(2))
    emit, inner = Emitter(), reach - 1 - near
    for _ in range(2 * inner):
        emit.forward(next(forward[0]))
    for _ in range(near + 1):
        emit.forward(next(forward[0]))
        emit.forward(next(forward[1]))
    for _ in range(inner):
        emit.backward(next(backward[1]), split=True)
        emit.weight()
        emit.forward(next(forward[1]))
    for index in range(num_microbatches - 2 * reach + near + 1):
        if index == 0 and inner == 0:  # not overlapped here: a smaller bubble
            emit.forward(next(forward[0]))
            emit.backward(next(backward[1]))
        else:
            emit.overlapped(next(forward[0]), next(backward[1]))
        emit.overlapped(next(forward[1]), next(backward[0]))
    for _ in range(inner):
        emit.backward(next(backward[1]))
        emit.overlapped(next(forward[1]), next(backward[0]))
    emit.finish(backward, both=near + 1, alone=inner)
    return tuple(emit.order)

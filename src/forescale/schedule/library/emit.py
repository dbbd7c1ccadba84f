"""Pieces that several schedules are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from forescale.schedule.actions import JOINED, Kind, pack

Pass: TypeAlias = tuple[int, int]
"""(stage, micro-batch)."""


def one_forward_one_backward(
    *, forward: Sequence[Pass], backward: Sequence[Pass], warmup: int, delay: int | None = None
) -> tuple[int, ...]:
    """Return warm-up forwards, then a forward and a backward in turn, then the remaining backwards.

    With `delay`, backwards are split and each weight gradient runs `delay` backwards later.
    """
    warmup = min(warmup, len(forward))
    order = [pack(Kind.F, *each) for each in forward[:warmup]]
    ahead = iter(forward[warmup:])
    for index, each in enumerate(backward):
        following = next(ahead, None)
        if following is not None:
            order.append(pack(Kind.F, *following))
        if delay is None:
            order.append(pack(Kind.B, *each))
            continue
        order.append(pack(Kind.I, *each))
        if index >= delay:
            order.append(pack(Kind.W, *backward[index - delay]))
    if delay is not None:
        order += [pack(Kind.W, *each) for each in backward[max(0, len(backward) - delay) :]]
    return tuple(order)


def interleaved_passes(
    *, rank: int, pp: int, vpp: int, num_microbatches: int, group_size: int
) -> tuple[list[Pass], list[Pass]]:
    """Return a rank's forward and backward passes, depth-first: `group_size` micro-batches per chunk in turn.

    A remainder of fewer micro-batches forms the last group. Source: Megatron-Core's schedule table;
    Narayanan et al. 2021, arXiv:2104.04473.
    """
    forward, backward = [], []
    for low in range(0, num_microbatches, group_size):
        group = range(low, min(low + group_size, num_microbatches))
        for chunk in range(vpp):
            forward += [(chunk * pp + rank, unit) for unit in group]
            backward += [((vpp - 1 - chunk) * pp + rank, unit) for unit in group]
    return forward, backward


def padded(num_microbatches: int, group_size: int, pp: int) -> int:
    """Return the micro-batch count to build for, so that no remainder group is shorter than pp."""
    rest = num_microbatches % group_size
    return num_microbatches if rest == 0 or rest >= pp else num_microbatches - rest + min(pp, group_size)


class Emitter:
    """Writes one rank's actions; weight gradients that were put off are taken oldest first."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.pending: list[Pass] = []

    def forward(self, each: Pass) -> None:
        """Add F."""
        self.order.append(pack(Kind.F, *each))

    def backward(self, each: Pass, *, split: bool = False) -> None:
        """Add B, or I with W put off."""
        self.order.append(pack(Kind.I if split else Kind.B, *each))
        if split:
            self.pending.append(each)

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

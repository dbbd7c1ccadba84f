"""ZBV: zero bubble on a V placement in a fixed order; the loss and the input live on the same rank.

v = 2, built for m >= 2p - 1 and cut to fewer micro-batches where asked. For tb >= tf: makespan idle
(p - 1)tb/2, span idle (p - 1)(tb - tw); peak p. Qi et al. 2023, arXiv:2401.10241, section 6;
torch.distributed.pipelining has it as ScheduleZBVZeroBubble.
"""

from __future__ import annotations

import numpy as np

from forescale.numeric import Numeric
from forescale.schedule.family import Family, RankShape, Request, keep_first
from forescale.schedule.library.emit import Emitter, counter
from forescale.schedule.model import Schedule
from forescale.schedule.placement import wave


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    built = max(request.num_microbatches, 2 * request.pp - 1)
    schedule = Schedule(
        name="zbv",
        placement=wave(request.pp, 2),
        num_microbatches=built,
        orders=tuple(_rank(rank, request.pp, built) for rank in range(request.pp)),
    )
    return keep_first(schedule, request.num_microbatches)


def _rank(rank: int, pp: int, num_microbatches: int) -> tuple[int, ...]:
    stages = (rank, 2 * pp - 1 - rank)
    forward = [counter(stage) for stage in stages]
    backward = [counter(stage) for stage in stages]
    emit = Emitter()

    def back_and_weight(chunk: int) -> None:
        emit.backward(next(backward[chunk]), split=True)
        emit.weight()

    for _ in range(2 * (pp - rank) - 1):
        emit.forward(next(forward[0]))
    for _ in range(rank):
        emit.forward(next(forward[1]))
        emit.forward(next(forward[0]))
    for _ in range(pp - rank):
        emit.forward(next(forward[1]))
        back_and_weight(1)
    started = 2 * pp - 1 - rank
    for index in range(num_microbatches - pp):
        if started + index < num_microbatches:
            emit.forward(next(forward[0]))
        back_and_weight(0)
        emit.forward(next(forward[1]))
        back_and_weight(1)
    for _ in range(rank):
        emit.backward(next(backward[0]), split=True)
        emit.backward(next(backward[1]), split=True)
    emit.pending.sort()  # the first chunk's weight gradients come first: they follow its backwards closely
    for _ in range(pp - rank):
        emit.backward(next(backward[0]), split=True)
        emit.weight()
    while emit.pending:
        emit.weight()
    return tuple(emit.order)


def held(of: RankShape) -> Numeric:
    """As many as there are ranks, where there are enough to fill all of them; else one is sure."""
    return np.where(np.asarray(of.num_microbatches) >= 2.0 * of.pp - 1.0, of.pp, 1.0)


FAMILY = Family(
    name="zbv",
    aliases=("zb-v", "zbv-formatted", "ScheduleZBVZeroBubble", "zbvzerobubble"),
    title="ZBV",
    placement="V",
    vpp=(2, 2),
    constraint="any m (native m >= 2p-1)",
    idle="tb >= tf: (p-1)tb/2; span (p-1)(tb-tw)",
    peak="p",
    source="Qi et al. 2023, arXiv:2401.10241",
    construct=construct,
    held=held,
    splits_backward=True,
)

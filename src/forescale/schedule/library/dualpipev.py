"""DualPipeV: DualPipe folded on a V placement, so that parameters exist once.

v = 2, m >= 2p. Idle 2(p - 1) chunk passes at equal times with blocks run one after the other, peak p + 1/2.
DeepSeek-AI's DualPipe repository (after Sea AI Lab's cut-in-half); torch.distributed.pipelining has it as
ScheduleDualPipeV. The order of each rank follows the eight steps of the published code.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Request
from forescale.schedule.library.emit import Emitter, counter
from forescale.schedule.model import Schedule
from forescale.schedule.placement import wave


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    return Schedule(
        name="dualpipev",
        placement=wave(request.pp, 2),
        num_microbatches=request.num_microbatches,
        orders=tuple(_rank(rank, request.pp, request.num_microbatches) for rank in range(request.pp)),
    )


def _rank(rank: int, pp: int, num_microbatches: int) -> tuple[int, ...]:
    stages = (rank, 2 * pp - 1 - rank)
    forward = [counter(stage) for stage in stages]
    backward = [counter(stage) for stage in stages]
    emit, later = Emitter(), pp - 1 - rank
    for _ in range(2 * later):
        emit.forward(next(forward[0]))
    for _ in range(rank + 1):
        emit.forward(next(forward[0]))
        emit.forward(next(forward[1]))
    for _ in range(later):
        emit.backward(next(backward[1]), split=True)
        emit.weight()
        emit.forward(next(forward[1]))
    for index in range(num_microbatches - 2 * pp + rank + 1):
        if index == 0 and rank == pp - 1:  # not overlapped here: a smaller bubble
            emit.forward(next(forward[0]))
            emit.backward(next(backward[1]))
        else:
            emit.overlapped(next(forward[0]), next(backward[1]))
        emit.overlapped(next(forward[1]), next(backward[0]))
    for _ in range(later):
        emit.backward(next(backward[1]))
        emit.overlapped(next(forward[1]), next(backward[0]))
    emit.finish(backward, both=rank + 1, alone=later)
    return tuple(emit.order)


def refusal(request: Request) -> str:
    """Return why m does not do."""
    if request.num_microbatches < 2 * request.pp:
        return f"micro-batches must be at least 2 pp = {2 * request.pp}; got {request.num_microbatches}"
    return ""


FAMILY = Family(
    name="dualpipev",
    aliases=("dualpipe-v", "ScheduleDualPipeV"),
    title="DualPipeV",
    placement="V",
    vpp=(2, 2),
    constraint="m >= 2p",
    idle="2(p-1) chunk passes at equal times",
    peak="p+1/2",
    source="deepseek-ai/DualPipe; torch.distributed.pipelining",
    construct=construct,
    refusal=refusal,
    splits_backward=True,
)

"""DualPipe: two opposite pipelines whose forwards and backwards run as overlapped blocks.

p even, m even, m >= 2p; parameters twice. Idle (p/2 - 1)(F&B + B - 3W), peak p + 1. DeepSeek-AI 2024,
arXiv:2412.19437, section 3.2.1; the order of each rank follows the eight steps of the published code.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Request
from forescale.schedule.library.emit import Emitter, counter
from forescale.schedule.model import Schedule
from forescale.schedule.placement import bidirectional


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    return Schedule(
        name="dualpipe",
        placement=bidirectional(request.pp),
        num_microbatches=request.num_microbatches,
        orders=tuple(_rank(rank, request) for rank in range(request.pp)),
    )


def _rank(rank: int, request: Request) -> tuple[int, ...]:
    pp, each = request.pp, request.num_microbatches // 2
    near = min(rank, pp - 1 - rank)
    directions = [(rank, 0), (2 * pp - 1 - rank, each)]
    if rank >= pp // 2:
        directions.reverse()
    forward = [counter(*direction) for direction in directions]
    backward = [counter(*direction) for direction in directions]
    middle = near == pp // 2 - 1
    emit, inner = Emitter(), pp // 2 - 1 - near
    for _ in range(2 * inner):
        emit.forward(next(forward[0]))
    for _ in range(near + 1):
        emit.forward(next(forward[0]))
        emit.forward(next(forward[1]))
    for _ in range(inner):
        emit.backward(next(backward[1]), split=True)
        emit.weight()
        emit.forward(next(forward[1]))
    for index in range(each - pp + near + 1):
        if index == 0 and middle:  # not overlapped here: a smaller bubble
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


def refusal(request: Request) -> str:
    """Return why p or m does not do."""
    if request.pp % 2 or request.num_microbatches % 2 or request.num_microbatches < 2 * request.pp:
        got = f"got pp {request.pp} and {request.num_microbatches} micro-batches"
        return f"pp must be even and micro-batches even and at least 2 pp; {got}"
    return ""


FAMILY = Family(
    name="dualpipe",
    aliases=("ScheduleDualPipe",),
    title="DualPipe",
    placement="bidirectional",
    vpp=(1, 1),
    constraint="p even, m even, m >= 2p",
    idle="(p/2-1)(F&B+B-3W)",
    peak="p+1",
    source="DeepSeek-AI 2024, arXiv:2412.19437",
    construct=construct,
    refusal=refusal,
    splits_backward=True,
    parameter_copies=2,
)

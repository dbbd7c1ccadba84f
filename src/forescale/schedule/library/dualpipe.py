"""DualPipe and DualPipeV: micro-batches from two sides, whose forwards and backwards run as overlapped blocks.

DualPipe has two opposite pipelines and parameters twice. DualPipeV is DualPipe folded on a V placement, so that they
exist once (DeepSeek-AI's repository, after Sea AI Lab's cut-in-half; torch has it as ScheduleDualPipeV). The order of
each rank follows the eight steps of the published code.
"""

from __future__ import annotations

from forescale.schedule.family import MOST_IN_FULL, Family, Orders, Request, one_per_rank
from forescale.schedule.library.emit import opposite_ways
from forescale.units import counted


def _two_ways(request: Request) -> Orders:
    return [_rank(rank, request) for rank in range(request.pp)]


def _rank(rank: int, request: Request) -> tuple[int, ...]:
    pp, each = request.pp, request.num_microbatches // 2
    sides = [(rank, 0), (2 * pp - 1 - rank, each)]
    if rank >= pp // 2:
        sides.reverse()
    near = min(rank, pp - 1 - rank)
    return opposite_ways(*sides, near=near, reach=pp // 2, num_microbatches=each)


def _odd_or_few(request: Request) -> str:
    if request.pp % 2 or request.num_microbatches % 2 or request.num_microbatches < 2 * request.pp:
        got = f"got pp {request.pp} and {counted(request.num_microbatches, 'micro-batch')}"
        return f"pp must be even and micro-batches even and at least 2 pp; {got}"
    return ""


def _folded(request: Request) -> Orders:
    pp, count = request.pp, request.num_microbatches
    return [
        opposite_ways((rank, 0), (2 * pp - 1 - rank, 0), near=rank, reach=pp, num_microbatches=count)
        for rank in range(pp)
    ]


def _few(request: Request) -> str:
    if request.num_microbatches < 2 * request.pp:
        return f"micro-batches must be at least 2 pp = {2 * request.pp}; got {request.num_microbatches}"
    return ""


DUALPIPE = Family(
    name="dualpipe",
    aliases=("ScheduleDualPipe",),
    title="DualPipe",
    placement="bidirectional",
    constraint="p even, m even, m >= 2p",
    idle="(p/2-1)(F&B+B-3W)",
    peak="p+1",
    source="DeepSeek-AI 2024, arXiv:2412.19437",
    orders=_two_ways,
    most_actions=MOST_IN_FULL,
    held=one_per_rank,
    refusal=_odd_or_few,
    splits_backward=True,
    parameter_copies=2,
)
DUALPIPE_V = Family(
    name="dualpipev",
    aliases=("dualpipe-v", "ScheduleDualPipeV"),
    title="DualPipeV",
    placement="V",
    vpp=(2, 2),
    constraint="m >= 2p",
    idle="2(p-1) chunk passes at equal times",
    peak="p+1/2",
    source="deepseek-ai/DualPipe; torch.distributed.pipelining",
    orders=_folded,
    most_actions=MOST_IN_FULL,
    held=one_per_rank,
    refusal=_few,
    splits_backward=True,
)

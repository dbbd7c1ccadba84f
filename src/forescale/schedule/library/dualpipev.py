"""DualPipeV: DualPipe folded on a V placement, so that parameters exist once.

v = 2, m >= 2p. Idle 2(p - 1) chunk passes at equal times with blocks run one after the other, peak p + 1/2.
DeepSeek-AI's DualPipe repository (after Sea AI Lab's cut-in-half); torch.distributed.pipelining has it as
ScheduleDualPipeV. The order of each rank follows the eight steps of the published code.
"""

from __future__ import annotations

from forescale.schedule.family import MOST_IN_FULL, Family, Orders, Request, one_per_rank
from forescale.schedule.library.emit import opposite_ways


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    pp, count = request.pp, request.num_microbatches
    return [
        opposite_ways((rank, 0), (2 * pp - 1 - rank, 0), near=rank, reach=pp, num_microbatches=count)
        for rank in range(pp)
    ]


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
    orders=orders,
    most_actions=MOST_IN_FULL,
    held=one_per_rank,
    refusal=refusal,
    splits_backward=True,
)

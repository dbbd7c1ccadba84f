"""DualPipe: two opposite pipelines whose forwards and backwards run as overlapped blocks.

p even, m even, m >= 2p; parameters twice. Idle (p/2 - 1)(F&B + B - 3W), peak p + 1. DeepSeek-AI 2024,
arXiv:2412.19437, section 3.2.1; the order of each rank follows the eight steps of the published code.
"""

from __future__ import annotations

from forescale.schedule.family import MOST_IN_FULL, Family, Orders, Request, one_per_rank
from forescale.schedule.library.emit import opposite_ways
from forescale.units import counted


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    return [_rank(rank, request) for rank in range(request.pp)]


def _rank(rank: int, request: Request) -> tuple[int, ...]:
    pp, each = request.pp, request.num_microbatches // 2
    sides = [(rank, 0), (2 * pp - 1 - rank, each)]
    if rank >= pp // 2:
        sides.reverse()
    near = min(rank, pp - 1 - rank)
    return opposite_ways(*sides, near=near, reach=pp // 2, num_microbatches=each)


def refusal(request: Request) -> str:
    """Return why p or m does not do."""
    if request.pp % 2 or request.num_microbatches % 2 or request.num_microbatches < 2 * request.pp:
        got = f"got pp {request.pp} and {counted(request.num_microbatches, 'micro-batch')}"
        return f"pp must be even and micro-batches even and at least 2 pp; {got}"
    return ""


FAMILY = Family(
    name="dualpipe",
    aliases=("ScheduleDualPipe",),
    title="DualPipe",
    placement="bidirectional",
    constraint="p even, m even, m >= 2p",
    idle="(p/2-1)(F&B+B-3W)",
    peak="p+1",
    source="DeepSeek-AI 2024, arXiv:2412.19437",
    orders=orders,
    most_actions=MOST_IN_FULL,
    held=one_per_rank,
    refusal=refusal,
    splits_backward=True,
    parameter_copies=2,
)

"""Interleaved zero bubble: depth-first with (p - 1 - r) + (v - 1)p warm-up passes, W put off r passes.

Any m. Idle (p - 1)(tf + tb - tw)/v, peak p for any v. As in torch.distributed.pipelining
(ScheduleInterleavedZeroBubble) after Qi et al. 2023, arXiv:2401.10241.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Orders, Request, one_per_rank
from forescale.schedule.library.emit import depth_first
from forescale.schedule.library.interleaved import refusal


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    ranks = range(request.pp)
    return depth_first(request, [request.pp - 1 - rank for rank in ranks], ranks)


FAMILY = Family(
    name="interleaved-zb",
    aliases=("interleaved-zero-bubble", "zbb", "ScheduleInterleavedZeroBubble", "interleavedzerobubble"),
    title="Interleaved zero bubble",
    vpp=(2, None),
    constraint="any m; group size >= p",
    idle="(p-1)(tf+tb-tw)/v",
    peak="p",
    source="Qi et al. 2023, arXiv:2401.10241; torch.distributed.pipelining",
    orders=orders,
    held=one_per_rank,
    refusal=refusal,
    splits_backward=True,
)

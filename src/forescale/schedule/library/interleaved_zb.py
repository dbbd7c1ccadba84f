"""Interleaved zero bubble: depth-first with (p - 1 - r) + (v - 1)p warm-up passes, W put off r passes.

Any m. Idle (p - 1)(tf + tb - tw)/v, peak p for any v. As in torch.distributed.pipelining
(ScheduleInterleavedZeroBubble) after Qi et al. 2023, arXiv:2401.10241.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Request, one_per_rank
from forescale.schedule.library.interleaved import refusal, with_warmup
from forescale.schedule.model import Schedule


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    ranks = range(request.pp)
    return with_warmup(request, [request.pp - 1 - rank for rank in ranks], list(ranks))


FAMILY = Family(
    name="interleaved-zb",
    aliases=("interleaved-zero-bubble", "zbb", "ScheduleInterleavedZeroBubble", "interleavedzerobubble"),
    title="Interleaved zero bubble",
    placement="loop",
    vpp=(2, None),
    constraint="any m; group size >= p",
    idle="(p-1)(tf+tb-tw)/v",
    peak="p",
    source="Qi et al. 2023, arXiv:2401.10241; torch.distributed.pipelining",
    construct=construct,
    held=one_per_rank,
    refusal=refusal,
    splits_backward=True,
)

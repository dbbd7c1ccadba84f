"""ZB-H1: the order of 1F1B with W put off r micro-batches, so that all ranks hold p micro-batches.

Any m and p. Idle (p - 1)(tf + tb - tw) for tw <= tb. Qi et al. 2023, arXiv:2401.10241, section 2.1.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Request, one_per_rank
from forescale.schedule.library.one_f_one_b import with_warmup
from forescale.schedule.model import Schedule


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    ranks = range(request.pp)
    return with_warmup(request, [request.pp - 1 - rank for rank in ranks], list(ranks))


FAMILY = Family(
    name="zb-h1",
    aliases=("zbh1", "zerobubble", "zero-bubble", "ScheduleZeroBubble"),
    title="ZB-H1",
    placement="loop",
    vpp=(1, 1),
    constraint="any",
    idle="(p-1)(tf+tb-tw)",
    peak="min(m, p)",
    source="Qi et al. 2023, arXiv:2401.10241",
    construct=construct,
    held=one_per_rank,
    splits_backward=True,
)

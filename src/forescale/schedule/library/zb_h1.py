"""ZB-H1: the order of 1F1B with W put off r micro-batches, so that all ranks hold p micro-batches.

Any m and p. Idle (p - 1)(tf + tb - tw) for tw <= tb. Qi et al. 2023, arXiv:2401.10241, section 2.1.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Orders, Request, one_per_rank
from forescale.schedule.library.emit import depth_first


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    ranks = range(request.pp)
    return depth_first(request, [request.pp - 1 - rank for rank in ranks], ranks)


FAMILY = Family(
    name="zb-h1",
    aliases=("zbh1", "zerobubble", "zero-bubble", "ScheduleZeroBubble"),
    title="ZB-H1",
    idle="(p-1)(tf+tb-tw)",
    peak="min(m, p)",
    source="Qi et al. 2023, arXiv:2401.10241",
    orders=orders,
    held=one_per_rank,
    splits_backward=True,
)

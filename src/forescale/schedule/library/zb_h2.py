"""ZB-H2: 2(p - 1 - r) warm-up forwards and W put off 2r micro-batches; no bubble in any rank's own span.

Any m and p (m >= 2p - 1 to fill it). Span idle (p - 1)(tf + tb - 2tw), makespan idle (p - 1)tf at equal
times, peak 2p - 1. Qi et al. 2023, arXiv:2401.10241, section 2.2.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Orders, Request, one_per_rank
from forescale.schedule.library.emit import depth_first


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    ranks = range(request.pp)
    return depth_first(request, [2 * (request.pp - 1 - rank) for rank in ranks], [2 * rank for rank in ranks])


FAMILY = Family(
    name="zb-h2",
    aliases=("zbh2",),
    title="ZB-H2",
    idle="(p-1)tf; span (p-1)(tf+tb-2tw)",
    peak="min(m, 2p-1)",
    source="Qi et al. 2023, arXiv:2401.10241",
    orders=orders,
    held=one_per_rank,
    splits_backward=True,
)

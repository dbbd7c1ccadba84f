"""ZB-H2: 2(p - 1 - r) warm-up forwards and W put off 2r micro-batches; no bubble in any rank's own span.

Any m and p (m >= 2p - 1 to fill it). Span idle (p - 1)(tf + tb - 2tw), makespan idle (p - 1)tf at equal
times, peak 2p - 1. Qi et al. 2023, arXiv:2401.10241, section 2.2.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Request, one_per_rank
from forescale.schedule.library.one_f_one_b import with_warmup
from forescale.schedule.model import Schedule


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    ranks = range(request.pp)
    return with_warmup(request, [2 * (request.pp - 1 - r) for r in ranks], [2 * r for r in ranks])


FAMILY = Family(
    name="zb-h2",
    aliases=("zbh2",),
    title="ZB-H2",
    placement="loop",
    vpp=(1, 1),
    constraint="any",
    idle="(p-1)tf; span (p-1)(tf+tb-2tw)",
    peak="min(m, 2p-1)",
    source="Qi et al. 2023, arXiv:2401.10241",
    construct=construct,
    held=one_per_rank,
    splits_backward=True,
)

"""Eager 1F1B: 2(p - 1 - r) warm-up forwards, so that messages hide behind compute; more memory than 1F1B.

Any m and p. Idle as 1F1B without communication, peak min(m, 2(p - 1 - r) + 1).
Zhuang et al. 2022, arXiv:2211.05322, section 4; the building block with zero offset between a forward and
the next rank's forward in arXiv:2405.15362.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Orders, Request, filled
from forescale.schedule.library.emit import depth_first


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    return depth_first(request, [2 * (request.pp - 1 - rank) for rank in range(request.pp)])


FAMILY = Family(
    name="eager-1f1b",
    aliases=("1f1b-eager",),
    title="Eager 1F1B",
    idle="(p-1)(tf+tb+tw)",
    peak="min(m, 2(p-1-r)+1) on rank r",
    source="Zhuang et al. 2022, arXiv:2211.05322",
    orders=orders,
    held=filled,
)

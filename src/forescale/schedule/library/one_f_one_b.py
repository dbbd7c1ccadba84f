"""1F1B (PipeDream-flush): min(p - 1 - r, m) warm-up forwards on rank r, then one F and one B in turn.

Any m and p. Idle (p - 1)(tf + tb + tw), peak min(m, p - r). Narayanan et al. 2021, arXiv:2104.04473.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Orders, Request, filled
from forescale.schedule.library.emit import depth_first


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    return depth_first(request, [request.pp - 1 - rank for rank in range(request.pp)])


FAMILY = Family(
    name="1f1b",
    aliases=("basic-1f1b", "Schedule1F1B", "pipedream-flush", "dapple"),
    title="1F1B",
    idle="(p-1)(tf+tb+tw)",
    peak="min(m, p-r) on rank r",
    source="Narayanan et al. 2021, arXiv:2104.04473",
    orders=orders,
    held=filled,
)

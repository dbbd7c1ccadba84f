"""GIS: interleaved with split backward, W not put off, and groups of g micro-batches, ceil(p/2) <= g <= p.

(p - 1 - r) + (v - 1)g warm-up passes. Any m. Idle (p - 1)(tf + tb)/v plus (p - g)(v - 1) passes, peak
g(v - 1) + p chunks. Wan et al. 2025 (PipeOffload), arXiv:2503.01328, table 1.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Orders, Request, filled
from forescale.schedule.library.emit import depth_first


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    return depth_first(request, [request.pp - 1 - rank for rank in range(request.pp)], [0] * request.pp)


def refusal(request: Request) -> str:
    """Return why the group size does not do."""
    low, group = -(-request.pp // 2), request.group_size or request.pp
    if not low <= group <= request.pp:
        return f"the micro-batch group size must be ceil(p/2) to p, {low} to {request.pp}; got {group}"
    return ""


FAMILY = Family(
    name="gis",
    aliases=("pipeoffload-gis",),
    title="GIS (generalised interleaved)",
    vpp=(2, None),
    constraint="any m; ceil(p/2) <= group size <= p",
    idle="(p-1)(tf+tb)/v + (p-g)(v-1) passes",
    peak="(g(v-1)+p)/v",
    source="Wan et al. 2025, arXiv:2503.01328",
    orders=orders,
    held=filled,
    refusal=refusal,
    splits_backward=True,
)

"""GIS: interleaved with split backward, W not put off, and groups of g micro-batches, ceil(p/2) <= g <= p.

(p - 1 - r) + (v - 1)g warm-up passes. Any m. Idle (p - 1)(tf + tb)/v plus (p - g)(v - 1) passes, peak
g(v - 1) + p chunks. Wan et al. 2025 (PipeOffload), arXiv:2503.01328, table 1.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Request, filled, keep_first
from forescale.schedule.library.emit import interleaved_passes, one_forward_one_backward
from forescale.schedule.model import Schedule, loop


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    pp, vpp = request.pp, request.vpp
    group = request.group_size or pp
    built = -(-request.num_microbatches // group) * group
    orders = []
    for rank in range(pp):
        forward, backward = interleaved_passes(
            rank=rank, pp=pp, vpp=vpp, num_microbatches=built, group_size=group
        )
        warmup = pp - 1 - rank + (vpp - 1) * group
        orders.append(one_forward_one_backward(forward=forward, backward=backward, warmup=warmup, delay=0))
    schedule = Schedule(name="gis", placement=loop(pp, vpp), num_microbatches=built, orders=tuple(orders))
    return keep_first(schedule, request.num_microbatches)


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
    placement="loop",
    vpp=(2, None),
    constraint="any m; ceil(p/2) <= group size <= p",
    idle="(p-1)(tf+tb)/v + (p-g)(v-1) passes",
    peak="(g(v-1)+p)/v",
    source="Wan et al. 2025, arXiv:2503.01328",
    construct=construct,
    held=filled,
    refusal=refusal,
    splits_backward=True,
)

"""Interleaved 1F1B, depth-first: v chunks per rank in a loop, groups of g micro-batches per chunk in turn.

2(p - 1 - r) + (v - 1)g warm-up chunk passes. Any g >= p (default p) and any m: a remainder group may be
shorter than g but not than p (as Megatron-Core allows); shorter remainders are built longer and cut.
Idle (p - 1)(tf + tb + tw)/v, peak p + (p - 1)/v for g = p. Narayanan et al. 2021, arXiv:2104.04473.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Orders, Request, filled
from forescale.schedule.library.emit import depth_first


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    return depth_first(request, [2 * (request.pp - 1 - rank) for rank in range(request.pp)])


def refusal(request: Request) -> str:
    """Return why the group size does not do."""
    if request.group_size is not None and request.group_size < request.pp:
        return f"the micro-batch group size must be at least pp = {request.pp}; got {request.group_size}"
    return ""


FAMILY = Family(
    name="interleaved-1f1b",
    aliases=("1f1b-interleaved", "interleaved", "ScheduleInterleaved1F1B", "interleaved1f1b", "vpp"),
    title="Interleaved 1F1B (depth-first)",
    vpp=(2, None),
    constraint="any m; group size >= p",
    idle="(p-1)(tf+tb+tw)/v",
    peak="p+(p-1)/v",
    source="Narayanan et al. 2021, arXiv:2104.04473",
    orders=orders,
    held=filled,
    refusal=refusal,
)

"""Interleaved 1F1B with one warm-up pass less per rank downstream: (p - 1 - r) + (v - 1)p.

The zero-offset counterpart of interleaved 1F1B: peak p micro-batches instead of p + (p - 1)/v, but messages
are exposed. Same idle without communication where tb + tw >= tf ... exactly (p - 1)(tf + tb + tw)/v.
Building blocks of Qi et al. 2024, arXiv:2405.15362.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Orders, Request, filled
from forescale.schedule.library.emit import depth_first
from forescale.schedule.library.interleaved import refusal


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    return depth_first(request, [request.pp - 1 - rank for rank in range(request.pp)])


FAMILY = Family(
    name="interleaved-zero-offset",
    aliases=("interleaved-lean",),
    title="Interleaved 1F1B, zero offset",
    vpp=(2, None),
    constraint="any m; group size >= p",
    idle="simulate",
    peak="p on rank 0, less on later ranks",
    source="Qi et al. 2024, arXiv:2405.15362",
    orders=orders,
    held=filled,
    refusal=refusal,
)

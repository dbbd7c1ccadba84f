"""Interleaved 1F1B with one warm-up pass less per rank downstream: (p - 1 - r) + (v - 1)p.

The zero-offset counterpart of interleaved 1F1B: peak p micro-batches instead of p + (p - 1)/v, but messages
are exposed. Same idle without communication where tb + tw >= tf ... exactly (p - 1)(tf + tb + tw)/v.
Building blocks of Qi et al. 2024, arXiv:2405.15362.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Request, filled
from forescale.schedule.library.interleaved import refusal, with_warmup
from forescale.schedule.model import Schedule


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    return with_warmup(request, [request.pp - 1 - rank for rank in range(request.pp)])


FAMILY = Family(
    name="interleaved-zero-offset",
    aliases=("interleaved-lean",),
    title="Interleaved 1F1B, zero offset",
    placement="loop",
    vpp=(2, None),
    constraint="any m; group size >= p",
    idle="simulate",
    peak="p on rank 0, less on later ranks",
    source="Qi et al. 2024, arXiv:2405.15362",
    construct=construct,
    held=filled,
    refusal=refusal,
)

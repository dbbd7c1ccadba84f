"""GPipe, all forward then all backward (AFAB): every rank runs all F, then all B.

Any m and p. Idle (p - 1)(tf + tb + tw), peak m micro-batches. Huang et al. 2019, arXiv:1811.06965.
"""

from __future__ import annotations

from forescale.schedule.actions import Kind, pack
from forescale.schedule.family import Family, Request, every_microbatch
from forescale.schedule.model import Schedule
from forescale.schedule.placement import loop


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    units = range(request.num_microbatches)
    orders = tuple(
        tuple([pack(Kind.F, rank, unit) for unit in units] + [pack(Kind.B, rank, unit) for unit in units])
        for rank in range(request.pp)
    )
    return Schedule(
        name="gpipe", placement=loop(request.pp), num_microbatches=request.num_microbatches, orders=orders
    )


FAMILY = Family(
    name="gpipe",
    aliases=("afab", "ScheduleGPipe"),
    title="GPipe / all forward, all backward",
    placement="loop",
    vpp=(1, 1),
    constraint="any",
    idle="(p-1)(tf+tb+tw)",
    peak="m",
    source="Huang et al. 2019, arXiv:1811.06965",
    construct=construct,
    held=every_microbatch,
)

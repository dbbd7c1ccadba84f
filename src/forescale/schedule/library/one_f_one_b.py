"""1F1B (PipeDream-flush): min(p - 1 - r, m) warm-up forwards on rank r, then one F and one B in turn.

Any m and p. Idle (p - 1)(tf + tb + tw), peak min(m, p - r). Narayanan et al. 2021, arXiv:2104.04473.
"""

from __future__ import annotations

import numpy as np

from forescale.schedule.family import Family, Request, filled
from forescale.schedule.library.emit import one_forward_one_backward
from forescale.schedule.library.emit import passes as stage_passes
from forescale.schedule.model import Schedule, loop


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    return with_warmup(request, [request.pp - 1 - rank for rank in range(request.pp)])


def with_warmup(request: Request, warmup: list[int], delay: list[int] | None = None) -> Schedule:
    """Return a 1F1B order with the given warm-up forwards, and put-off weight gradients, of each rank."""
    orders = []
    for rank in range(request.pp):
        passes = stage_passes(rank, np.arange(request.num_microbatches))
        orders.append(
            one_forward_one_backward(
                forward=passes,
                backward=passes,
                warmup=warmup[rank],
                delay=None if delay is None else delay[rank],
            )
        )
    return Schedule(
        name="1f1b",
        placement=loop(request.pp),
        num_microbatches=request.num_microbatches,
        orders=tuple(orders),
    )


FAMILY = Family(
    name="1f1b",
    aliases=("basic-1f1b", "Schedule1F1B", "pipedream-flush", "dapple"),
    title="1F1B",
    placement="loop",
    vpp=(1, 1),
    constraint="any",
    idle="(p-1)(tf+tb+tw)",
    peak="min(m, p-r) on rank r",
    source="Narayanan et al. 2021, arXiv:2104.04473",
    construct=construct,
    held=filled,
)

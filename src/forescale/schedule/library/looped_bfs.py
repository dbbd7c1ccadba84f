"""Looped breadth-first: all micro-batches through chunk 0, then chunk 1 and so on; backward in reverse.

Any m and p. Idle (p - 1)(tf + tb + tw)/v for m >= p, peak m. Lamy-Poirier 2022, arXiv:2211.05953.
"""

from __future__ import annotations

import numpy as np

from forescale.schedule.actions import Kind, Order
from forescale.schedule.family import Family, Request, every_microbatch
from forescale.schedule.library.emit import passes
from forescale.schedule.model import Schedule, loop


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    units, chunks = np.arange(request.num_microbatches), request.pp * np.arange(request.vpp)[:, None]
    orders = tuple(
        Order(np.concatenate((forward | Kind.F, forward[::-1] | Kind.B), axis=None))
        for forward in (passes(chunks + rank, units) for rank in range(request.pp))
    )
    return Schedule(
        name="looped-bfs",
        placement=loop(request.pp, request.vpp),
        num_microbatches=request.num_microbatches,
        orders=orders,
    )


FAMILY = Family(
    name="looped-bfs",
    aliases=("breadth-first", "ScheduleLoopedBFS", "loopedbfs"),
    title="Looped breadth-first",
    placement="loop",
    vpp=(1, None),
    constraint="any",
    idle="(p-1)(tf+tb+tw)/v for m >= p",
    peak="m",
    source="Lamy-Poirier 2022, arXiv:2211.05953",
    construct=construct,
    held=every_microbatch,
)

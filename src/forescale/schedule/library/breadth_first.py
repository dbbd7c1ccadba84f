"""Looped breadth-first: all micro-batches through chunk 0, then chunk 1 and so on; backward in reverse.

With one chunk it is GPipe, all forward then all backward. Any m and p.
"""

from __future__ import annotations

import numpy as np

from forescale.schedule.actions import Kind, Order
from forescale.schedule.family import Family, Orders, Request, every_microbatch
from forescale.schedule.library.emit import passes


def _breadth_first(request: Request) -> Orders:
    """Return what each rank does."""
    units, chunks = np.arange(request.num_microbatches), request.pp * np.arange(request.vpp)[:, None]
    forward = [passes(chunks + rank, units) for rank in range(request.pp)]
    return [Order(np.concatenate((each | Kind.F, each[::-1] | Kind.B), axis=None)) for each in forward]


GPIPE = Family(
    name="gpipe",
    aliases=("afab", "ScheduleGPipe"),
    title="GPipe / all forward, all backward",
    idle="(p-1)(tf+tb+tw)",
    peak="m",
    source="Huang et al. 2019, arXiv:1811.06965",
    orders=_breadth_first,
    held=every_microbatch,
)
LOOPED_BFS = Family(
    name="looped-bfs",
    aliases=("breadth-first", "ScheduleLoopedBFS", "loopedbfs"),
    title="Looped breadth-first",
    vpp=(1, None),
    idle="(p-1)(tf+tb+tw)/v for m >= p",
    peak="m",
    source="Lamy-Poirier 2022, arXiv:2211.05953",
    orders=_breadth_first,
    held=every_microbatch,
)

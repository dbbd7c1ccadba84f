"""Looped breadth-first: all micro-batches through chunk 0, then chunk 1 and so on; backward in reverse.

With one chunk it is GPipe, all forward then all backward. Any m and p.
"""

from __future__ import annotations

import numpy as np

from forescale.schedule.actions import Kind, Order
from forescale.schedule.family import Orders, Request, described, every_microbatch
from forescale.schedule.library.emit import passes


def _breadth_first(request: Request) -> Orders:
    """Return what each rank does."""
    units, chunks = np.arange(request.num_microbatches), request.pp * np.arange(request.vpp)[:, None]
    forward = [passes(chunks + rank, units) for rank in range(request.pp)]
    return [Order(np.concatenate((item | Kind.F, item[::-1] | Kind.B), axis=None)) for item in forward]


GPIPE = described("gpipe", orders=_breadth_first, held=every_microbatch)
LOOPED_BFS = described("looped-bfs", orders=_breadth_first, held=every_microbatch)

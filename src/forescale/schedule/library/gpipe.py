"""GPipe, all forward then all backward (AFAB): every rank runs all F, then all B.

Any m and p. Idle (p - 1)(tf + tb + tw), peak m micro-batches. Huang et al. 2019, arXiv:1811.06965.
"""

from __future__ import annotations

from forescale.schedule.family import Family, every_microbatch
from forescale.schedule.library.looped_bfs import orders

FAMILY = Family(
    name="gpipe",
    aliases=("afab", "ScheduleGPipe"),
    title="GPipe / all forward, all backward",
    idle="(p-1)(tf+tb+tw)",
    peak="m",
    source="Huang et al. 2019, arXiv:1811.06965",
    orders=orders,
    held=every_microbatch,
)

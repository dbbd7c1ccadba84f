"""Seq1F1B: each sequence is cut into k pieces that run forward in order and backward in reverse.

(p - 1 - r) + (k - 1) warm-up pieces on rank r, then one piece forward and one backward in turn. Any m.
Idle (p - 1)(tf + tb + tw)/k for equal pieces, peak (p - r + k - 1)/k. Ao et al. 2024, arXiv:2406.03488.
"""

from __future__ import annotations

import numpy as np

from forescale.schedule.family import MOST_IN_FULL, Family, Orders, Request
from forescale.schedule.library.emit import one_forward_one_backward, passes


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    pieces = request.num_splits
    units = np.arange(request.num_microbatches * pieces).reshape(-1, pieces)
    found = []
    for rank in range(request.pp):
        forward, backward = (passes(rank, each.reshape(-1)) for each in (units, units[:, ::-1]))
        warmup = request.pp - 1 - rank + pieces - 1
        found.append(one_forward_one_backward(forward=forward, backward=backward, warmup=warmup))
    return found


def refusal(request: Request) -> str:
    """Return why the number of pieces does not do."""
    return "" if request.num_splits >= 1 else f"it needs at least one piece; got {request.num_splits}"


FAMILY = Family(
    name="seq1f1b",
    aliases=("seq-1f1b",),
    title="Seq1F1B",
    idle="(p-1)(tf+tb+tw)/k, k pieces per sequence",
    peak="(p-r+k-1)/k on rank r",
    source="Ao et al. 2024, arXiv:2406.03488",
    orders=orders,
    most_actions=MOST_IN_FULL,
    refusal=refusal,
    splits_sequences=True,
)

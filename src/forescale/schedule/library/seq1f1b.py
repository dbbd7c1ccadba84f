"""Seq1F1B: each sequence is cut into k pieces that run forward in order and backward in reverse.

(p - 1 - r) + (k - 1) warm-up pieces on rank r, then one piece forward and one backward in turn. Any m.
Idle (p - 1)(tf + tb + tw)/k for equal pieces, peak (p - r + k - 1)/k. Ao et al. 2024, arXiv:2406.03488.
"""

from __future__ import annotations

from forescale.schedule.family import Family, Request
from forescale.schedule.library.emit import one_forward_one_backward
from forescale.schedule.model import Schedule
from forescale.schedule.placement import loop


def construct(request: Request) -> Schedule:
    """Return the schedule."""
    pieces, units = request.num_splits, range(request.num_microbatches)
    orders = []
    for rank in range(request.pp):
        forward = [(rank, unit * pieces + piece) for unit in units for piece in range(pieces)]
        backward = [(rank, unit * pieces + piece) for unit in units for piece in reversed(range(pieces))]
        warmup = request.pp - 1 - rank + pieces - 1
        orders.append(one_forward_one_backward(forward=forward, backward=backward, warmup=warmup))
    return Schedule(
        name="seq1f1b",
        placement=loop(request.pp),
        num_microbatches=request.num_microbatches,
        orders=tuple(orders),
        num_splits=pieces,
    )


def refusal(request: Request) -> str:
    """Return why the number of pieces does not do."""
    return "" if request.num_splits >= 1 else f"it needs at least one piece; got {request.num_splits}"


FAMILY = Family(
    name="seq1f1b",
    aliases=("seq-1f1b",),
    title="Seq1F1B",
    placement="loop",
    vpp=(1, 1),
    constraint="any",
    idle="(p-1)(tf+tb+tw)/k, k pieces per sequence",
    peak="(p-r+k-1)/k on rank r",
    source="Ao et al. 2024, arXiv:2406.03488",
    construct=construct,
    refusal=refusal,
    splits_sequences=True,
)

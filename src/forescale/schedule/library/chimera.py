"""Chimera: two pipelines in opposite directions on the same ranks, half of the micro-batches each.

In slots of one pass, micro-batch i of a direction runs stage s forward at s + 2i and backward at
2p - 1 - s + 2i; units of p micro-batches follow each other every 2p slots. Nothing collides for even p.
p even, m even; parameters twice. Idle (p - 2)/2 (tf + tb + tw) where tf = tb + tw. Li and Hoefler 2021,
arXiv:2107.06925.
"""

from __future__ import annotations

from forescale.schedule.actions import Kind, pack
from forescale.schedule.family import MOST_IN_FULL, Family, Orders, Request


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    pp, half = request.pp, request.num_microbatches // 2
    slots: list[list[tuple[int, int]]] = [[] for _ in range(pp)]
    for direction in range(2):
        for index in range(half):
            base, within = divmod(index, pp // 2)
            start = base * 2 * pp + 2 * within
            for stage in range(pp):
                rank = stage if direction == 0 else pp - 1 - stage
                where = (direction * pp + stage, direction * half + index)
                slots[rank].append((start + stage, pack(Kind.F, *where)))
                slots[rank].append((start + 2 * pp - 1 - stage, pack(Kind.B, *where)))
    return [[code for _, code in sorted(row)] for row in slots]


def refusal(request: Request) -> str:
    """Return why p or m does not do."""
    if request.pp % 2 or request.num_microbatches % 2:
        return f"pp and micro-batches must be even; got {request.pp} and {request.num_microbatches}"
    return ""


FAMILY = Family(
    name="chimera",
    title="Chimera",
    placement="bidirectional",
    constraint="p even, m even",
    idle="(p-2)/2 (tf+tb+tw) where tf = tb+tw",
    peak="p/2+1 to p",
    source="Li and Hoefler 2021, arXiv:2107.06925",
    orders=orders,
    most_actions=MOST_IN_FULL,
    refusal=refusal,
    parameter_copies=2,
)

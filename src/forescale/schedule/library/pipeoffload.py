"""PipeOffload: GIS whose longest-lived chunks go to host memory between forward and backward.

The first half of the chunks is offloaded: the copy out is issued after the compute action that follows the
forward, the copy back one compute action before the backward. Free where both copies take no longer than the
compute between them. Any m. Wan et al. 2025, arXiv:2503.01328.
"""

from __future__ import annotations

from collections.abc import Sequence

from forescale.schedule.actions import KIND_BITS, STAGE_SHIFT, Kind, pack, unpack
from forescale.schedule.family import MOST_IN_FULL, Family, Orders, Request, nothing_sure
from forescale.schedule.library.depth_first import GIS

MIN_GAP = 4
"""Compute actions between a forward and its backward below which a copy out and back is not worth issuing."""


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    offloaded = request.pp * (request.vpp // 2)
    return [with_offload(order, offloaded) for order in GIS.orders(request)]


def with_offload(order: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """Return the order with copies out and back for the stages below `num_stages`."""
    where = {(code & KIND_BITS, code >> STAGE_SHIFT): index for index, code in enumerate(order)}
    after: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for index, code in enumerate(order):
        action = unpack(code)
        if action.kind is not Kind.F or action.stage >= num_stages:
            continue
        back = where[(Kind.I, code >> STAGE_SHIFT)]
        if back - index >= MIN_GAP:
            copy = (action.stage, action.microbatch)
            after.setdefault(index + 1, []).append(pack(Kind.OFFLOAD, *copy))
            before.setdefault(back - 1, []).append(pack(Kind.RELOAD, *copy))
    placed: list[int] = []
    for index, code in enumerate(order):
        placed += [*before.get(index, ()), code, *after.get(index, ())]
    return tuple(placed)


FAMILY = Family(
    name="pipeoffload",
    aliases=("pipe-offload",),
    title="PipeOffload (GIS with host offload)",
    vpp=(2, None),
    constraint="any m; ceil(p/2) <= group size <= p",
    idle="as GIS while copies hide",
    peak="simulate",
    source="Wan et al. 2025, arXiv:2503.01328",
    orders=orders,
    most_actions=MOST_IN_FULL,
    held=nothing_sure,
    refusal=GIS.refusal,
    splits_backward=True,
)

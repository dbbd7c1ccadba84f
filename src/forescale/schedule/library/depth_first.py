"""1F1B and all that go depth first as it does: chunks in turn, so many forwards ahead, weight gradients put off or not.

Rank r of p runs (p - 1 - r) or twice as many warm-up passes beside those of v - 1 whole groups of g micro-batches,
then a forward and a backward in turn. Twice as many hide messages behind compute and hold more (Zhuang et al. 2022,
arXiv:2211.05322, section 4). A remainder group may be shorter than g but not than p (as Megatron-Core allows); shorter
remainders are built longer and cut. The zero-bubble ones put off W so that all ranks hold as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from forescale.numeric import Numeric
from forescale.schedule.actions import KIND_BITS, STAGE_SHIFT, Kind, pack, unpack
from forescale.schedule.family import (
    MOST_IN_FULL,
    Held,
    Orders,
    RankShape,
    Request,
    described,
    filled,
    nothing_sure,
    twice_filled,
)
from forescale.schedule.library.emit import depth_first, one_forward_one_backward, passes


def _orders(*, ahead: int, delay: int | None = None) -> Callable[[Request], Orders]:
    """Return how to build with `ahead` warm-up passes per rank downstream, W put off `delay` per rank upstream."""

    def orders(request: Request) -> Orders:
        warmup = [ahead * (request.pp - 1 - rank) for rank in range(request.pp)]
        late = None if delay is None else [delay * rank for rank in range(request.pp)]
        return depth_first(request, warmup, late)

    return orders


def _put_off(kept: Held, *, delay: int) -> Held:
    """Return what waits for W beside what is `kept` of one chunk: all that W is put off by, once it has come back."""

    def waits(of: RankShape) -> Numeric:
        return np.minimum(delay * of.rank, of.num_microbatches - kept(of))

    return waits


def _short_group(request: Request) -> str:
    """Return why the group size of an interleaved schedule does not do."""
    if request.group_size is not None and request.group_size < request.pp:
        return f"the micro-batch group size must be at least pp = {request.pp}; got {request.group_size}"
    return ""


def _far_group(request: Request) -> str:
    """Return the same of GIS."""
    low, group = -(-request.pp // 2), request.pp if request.group_size is None else request.group_size
    if not low <= group <= request.pp:
        return f"the micro-batch group size must be ceil(p/2) to p, {low} to {request.pp}; got {group}"
    return ""


ONE_F_ONE_B = described("1f1b", orders=_orders(ahead=1), held=filled)
EAGER = described("eager-1f1b", orders=_orders(ahead=2), held=twice_filled)
INTERLEAVED_1F1B = described(
    "interleaved-1f1b", orders=_orders(ahead=2), held=filled, request_violation=_short_group
)
LEAN = described(
    "interleaved-zero-offset", orders=_orders(ahead=1), held=filled, request_violation=_short_group
)
"""Less memory than interleaved 1F1B, but its messages are exposed."""
ZB_H1 = described("zb-h1", orders=_orders(ahead=1, delay=1), held=filled, waits=_put_off(filled, delay=1))
"""Section 2.1; for tw <= tb."""
ZB_H2 = described(
    "zb-h2", orders=_orders(ahead=2, delay=2), held=twice_filled, waits=_put_off(twice_filled, delay=2)
)
"""Section 2.2: no bubble in any rank's own span; m >= 2p - 1 fill it."""
INTERLEAVED_ZB = described(
    "interleaved-zb", orders=_orders(ahead=1, delay=1), held=filled, request_violation=_short_group
)
GIS = described("gis", orders=_orders(ahead=1, delay=0), held=filled, request_violation=_far_group)
"""Split backward with W not put off; PipeOffload is made of it (table 1 there)."""


def _in_pieces(request: Request) -> Orders:
    """Return Seq1F1B: each sequence is cut into k pieces that run forward in order and backward in reverse.

    (p - 1 - r) + (k - 1) warm-up pieces on rank r, then one piece forward and one backward in turn. Any m.
    Idle (p - 1)(tf + tb + tw)/k for equal pieces, peak (p - r + k - 1)/k. Ao et al. 2024, arXiv:2406.03488.
    """
    pieces = request.num_splits
    units = np.arange(request.num_microbatches * pieces).reshape(-1, pieces)
    result = []
    for rank in range(request.pp):
        forward, backward = (passes(rank, item.reshape(-1)) for item in (units, units[:, ::-1]))
        warmup = request.pp - 1 - rank + pieces - 1
        result.append(one_forward_one_backward(forward=forward, backward=backward, warmup=warmup))
    return result


def _no_piece(request: Request) -> str:
    """Return why the number of pieces does not do."""
    return "" if request.num_splits >= 1 else f"it needs at least one piece; got {request.num_splits}"


SEQ1F1B = described("seq1f1b", orders=_in_pieces, most_actions=MOST_IN_FULL, request_violation=_no_piece)


MIN_GAP = 4
"""Compute actions between a forward and its backward below which a copy out and back is not worth issuing."""


def _offloaded(request: Request) -> Orders:
    """Return PipeOffload: GIS whose longest-lived chunks go to host memory between forward and backward.

    The first half of the chunks is offloaded: the copy out is issued after the compute action that follows the
    forward, the copy back one compute action before the backward. Free where both copies take no longer than the
    compute between them. Any m. Wan et al. 2025, arXiv:2503.01328.
    """
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


PIPEOFFLOAD = described(
    "pipeoffload",
    orders=_offloaded,
    most_actions=MOST_IN_FULL,
    held=nothing_sure,
    request_violation=GIS.request_violation,
)

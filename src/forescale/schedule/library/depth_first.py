"""1F1B and all that go depth first as it does: chunks in turn, so many forwards ahead, weight gradients put off or not.

Rank r of p runs (p - 1 - r) or twice as many warm-up passes beside those of v - 1 whole groups of g micro-batches,
then a forward and a backward in turn. Twice as many hide messages behind compute and hold more (Zhuang et al. 2022,
arXiv:2211.05322, section 4). A remainder group may be shorter than g but not than p (as Megatron-Core allows); shorter
remainders are built longer and cut. The zero-bubble ones put off W so that all ranks hold as much.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forescale.numeric import Numeric
from forescale.schedule.family import Family, Held, Orders, RankShape, Request, filled, twice_filled
from forescale.schedule.library.emit import depth_first

INTERLEAVED = "Narayanan et al. 2021, arXiv:2104.04473"
ZERO_BUBBLE = "Qi et al. 2023, arXiv:2401.10241"


def _orders(*, ahead: int, delay: int | None = None) -> Callable[[Request], Orders]:
    """Return how to build with `ahead` warm-up passes per rank downstream, W put off `delay` per rank upstream."""

    def orders(request: Request) -> Orders:
        warmup = [ahead * (request.pp - 1 - rank) for rank in range(request.pp)]
        late = None if delay is None else [delay * rank for rank in range(request.pp)]
        return depth_first(request, warmup, late)

    return orders


def _put_off(held: Held, *, delay: int) -> Held:
    """Return what waits for W beside what is `held` of one chunk: all that W is put off by, once it has come back."""

    def waits(of: RankShape) -> Numeric:
        return np.minimum(delay * of.rank, of.num_microbatches - held(of))

    return waits


def _short_group(request: Request) -> str:
    """Return why the group size of an interleaved schedule does not do."""
    if request.group_size is not None and request.group_size < request.pp:
        return f"the micro-batch group size must be at least pp = {request.pp}; got {request.group_size}"
    return ""


def _far_group(request: Request) -> str:
    """Return the same of GIS."""
    low, group = -(-request.pp // 2), request.group_size or request.pp
    if not low <= group <= request.pp:
        return f"the micro-batch group size must be ceil(p/2) to p, {low} to {request.pp}; got {group}"
    return ""


ONE_F_ONE_B = Family(
    name="1f1b",
    aliases=("basic-1f1b", "Schedule1F1B", "pipedream-flush", "dapple"),
    title="1F1B",
    idle="(p-1)(tf+tb+tw)",
    peak="min(m, p-r) on rank r",
    source=INTERLEAVED,
    orders=_orders(ahead=1),
    held=filled,
)
EAGER = Family(
    name="eager-1f1b",
    aliases=("1f1b-eager",),
    title="Eager 1F1B",
    idle="(p-1)(tf+tb+tw)",
    peak="min(m, 2(p-1-r)+1) on rank r",
    source="Zhuang et al. 2022, arXiv:2211.05322",
    orders=_orders(ahead=2),
    held=twice_filled,
)
INTERLEAVED_1F1B = Family(
    name="interleaved-1f1b",
    aliases=("1f1b-interleaved", "interleaved", "ScheduleInterleaved1F1B", "interleaved1f1b", "vpp"),
    title="Interleaved 1F1B (depth-first)",
    vpp=(2, None),
    constraint="any m; group size >= p",
    idle="(p-1)(tf+tb+tw)/v",
    peak="p+(p-1)/v",
    source=INTERLEAVED,
    orders=_orders(ahead=2),
    held=filled,
    refusal=_short_group,
)
LEAN = Family(
    name="interleaved-zero-offset",
    aliases=("interleaved-lean",),
    title="Interleaved 1F1B, zero offset",
    vpp=(2, None),
    constraint="any m; group size >= p",
    idle="simulate",
    peak="p on rank 0, less on later ranks",
    source="Qi et al. 2024, arXiv:2405.15362",
    orders=_orders(ahead=1),
    held=filled,
    refusal=_short_group,
)
"""Less memory than interleaved 1F1B, but its messages are exposed."""
ZB_H1 = Family(
    name="zb-h1",
    aliases=("zbh1", "zerobubble", "zero-bubble", "ScheduleZeroBubble"),
    title="ZB-H1",
    idle="(p-1)(tf+tb-tw)",
    peak="min(m, p)",
    source=ZERO_BUBBLE,
    orders=_orders(ahead=1, delay=1),
    held=filled,
    waits=_put_off(filled, delay=1),
    splits_backward=True,
)
"""Section 2.1; for tw <= tb."""
ZB_H2 = Family(
    name="zb-h2",
    aliases=("zbh2",),
    title="ZB-H2",
    idle="(p-1)tf; span (p-1)(tf+tb-2tw)",
    peak="min(m, 2p-1)",
    source=ZERO_BUBBLE,
    orders=_orders(ahead=2, delay=2),
    held=twice_filled,
    waits=_put_off(twice_filled, delay=2),
    splits_backward=True,
)
"""Section 2.2: no bubble in any rank's own span; m >= 2p - 1 fill it."""
INTERLEAVED_ZB = Family(
    name="interleaved-zb",
    aliases=("interleaved-zero-bubble", "zbb", "ScheduleInterleavedZeroBubble", "interleavedzerobubble"),
    title="Interleaved zero bubble",
    vpp=(2, None),
    constraint="any m; group size >= p",
    idle="(p-1)(tf+tb-tw)/v",
    peak="p",
    source=f"{ZERO_BUBBLE}; torch.distributed.pipelining",
    orders=_orders(ahead=1, delay=1),
    held=filled,
    refusal=_short_group,
    splits_backward=True,
)
GIS = Family(
    name="gis",
    aliases=("pipeoffload-gis",),
    title="GIS (generalised interleaved)",
    vpp=(2, None),
    constraint="any m; ceil(p/2) <= group size <= p",
    idle="(p-1)(tf+tb)/v + (p-g)(v-1) passes",
    peak="(g(v-1)+p)/v",
    source="Wan et al. 2025, arXiv:2503.01328",
    orders=_orders(ahead=1, delay=0),
    held=filled,
    refusal=_far_group,
    splits_backward=True,
)
"""Split backward with W not put off; PipeOffload is made of it (table 1 there)."""

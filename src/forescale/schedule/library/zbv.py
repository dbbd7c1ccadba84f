"""ZBV: zero bubble on a V placement in a fixed order; the loss and the input live on the same rank.

v = 2, built for m >= 2p - 1 and cut to fewer micro-batches where asked. For tb >= tf: makespan idle
(p - 1)tb/2, span idle (p - 1)(tb - tw); peak p. Qi et al. 2023, arXiv:2401.10241, section 6;
torch.distributed.pipelining has it as ScheduleZBVZeroBubble.
"""

from __future__ import annotations

import numpy as np

from forescale.numeric import Numeric
from forescale.schedule.actions import Kind, Order
from forescale.schedule.family import Family, Orders, RankShape, Request, keep_first
from forescale.schedule.library.emit import in_turn, passes


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    built = max(request.num_microbatches, 2 * request.pp - 1)
    return keep_first(
        [_rank(rank, request.pp, built) for rank in range(request.pp)], request.num_microbatches
    )


def _rank(rank: int, pp: int, num_microbatches: int) -> Order:
    units, near = np.arange(num_microbatches), pp - rank
    down, up = passes(rank, units), passes(2 * pp - 1 - rank, units)
    first, second = down | Kind.F, up | Kind.F
    back, back_up = down | Kind.I, up | Kind.I
    weight, weight_up = down | Kind.W, up | Kind.W
    warm, steady = 2 * near - 1, num_microbatches - pp
    ends = steady + rank
    # the first chunk's weight gradients come first: they follow its backwards closely
    left = np.concatenate((weight[steady:ends], weight_up[near + steady :], weight[ends:]))
    parts = (
        first[:warm],
        in_turn(second[:rank], first[warm : warm + rank]),
        in_turn(second[rank:pp], back_up[:near], weight_up[:near]),
        in_turn(
            first[warm + rank :], back[:steady], weight[:steady],
            second[pp:], back_up[near : near + steady], weight_up[near : near + steady],
        ),
        in_turn(back[steady:ends], back_up[near + steady :]),
        in_turn(back[ends:], left[:near]),
        left[near:],
    )  # fmt: skip
    return Order(np.concatenate(parts))


def held(of: RankShape) -> Numeric:
    """As many as there are ranks, where there are enough to fill all of them; else one is sure."""
    return np.where(np.asarray(of.num_microbatches) >= 2.0 * of.pp - 1.0, of.pp, 1.0)


FAMILY = Family(
    name="zbv",
    aliases=("zb-v", "zbv-formatted", "ScheduleZBVFormatted", "ScheduleZBVZeroBubble", "zbvzerobubble"),
    title="ZBV",
    placement="V",
    vpp=(2, 2),
    constraint="any m (native m >= 2p-1)",
    idle="tb >= tf: (p-1)tb/2; span (p-1)(tb-tw)",
    peak="p",
    source="Qi et al. 2023, arXiv:2401.10241",
    orders=orders,
    held=held,
    splits_backward=True,
)

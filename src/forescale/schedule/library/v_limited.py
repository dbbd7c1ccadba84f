"""V-Half, V-Min and V-ZB: V schedules under a memory limit, from squeezed building blocks.

v = 2, any m. In chunks, V-Half holds 2 floor((p + 2)/2), V-Min 2 floor((p + 4)/3), V-ZB any limit (default
2p, that of 1F1B). At unit times their idle time follows max(p - 1, 6p - 1 - 3k) chunk passes at a limit of
k chunks, or comes close. Qi et al. 2024, arXiv:2405.15362.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from forescale.numeric import Numeric
from forescale.schedule.closed_form import v_half_limit_chunks, v_min_limit_chunks
from forescale.schedule.errors import ScheduleError
from forescale.schedule.family import MOST_IN_FULL, Family, RankShape, Request
from forescale.schedule.library import zbv
from forescale.schedule.library.timed import at_equal_times, never_worse
from forescale.schedule.library.v_block import search, search_by_time
from forescale.schedule.model import Schedule
from forescale.schedule.placement import wave
from forescale.units import counted

MOST_RANKS = 64
"""Ranks of the largest pipeline whose block is found in seconds."""


def construct_with(request: Request, limit: int) -> Schedule:
    """Return the best squeezed block within a limit in chunks.

    Raises
    ------
    ScheduleError
        If no block fits the limit.
    """
    if at_equal_times(request) == request:
        orders = search(request.pp, request.num_microbatches, limit)
    else:
        orders = search_by_time(request, limit)
    if orders is None:
        least = int(v_min_limit_chunks(pp=request.pp)) / 2
        held = f"{counted(limit / 2, 'micro-batch')} at pp {request.pp}"
        msg = f"no V schedule fits {held}; allow {least:g} (V-Min) or more"
        raise ScheduleError(msg)
    return Schedule(
        name="v",
        placement=wave(request.pp, 2),
        num_microbatches=request.num_microbatches,
        orders=tuple(tuple(order) for order in orders),
    )


def _limit(request: Request, default: int) -> int:
    if request.memory_limit is None:
        return default
    return math.floor(min(2 * request.memory_limit + 1e-9, 2 * max(request.pp, request.num_microbatches)))


def _family(
    name: str,
    title: str,
    aliases: tuple[str, ...],
    limit: Callable[[int], int],
    *,
    idle: str,
    peak: str,
    most: Callable[[Numeric], Numeric],
) -> Family:
    def construct(request: Request) -> Schedule:
        return construct_with(request, _limit(request, limit(request.pp)))

    def others(request: Request) -> list[Schedule]:
        return [zbv.construct(request)] if _limit(request, limit(request.pp)) >= 2 * request.pp else []

    def refusal(request: Request) -> str:
        if request.pp > MOST_RANKS:
            return f"its search takes up to {MOST_RANKS} ranks; got {request.pp}"
        least = min(int(v_min_limit_chunks(pp=request.pp)), 2 * request.pp)
        if _limit(request, limit(request.pp)) < least:
            return f"no V schedule fits {request.memory_limit:g} micro-batches; allow {least / 2:g} or more"
        return ""

    def held(of: RankShape) -> Numeric:
        return np.minimum(of.num_microbatches, most(of.pp))

    return Family(
        name=name,
        aliases=aliases,
        title=title,
        placement="V",
        vpp=(2, 2),
        constraint="any",
        idle=idle,
        peak=peak,
        source="Qi et al. 2024, arXiv:2405.15362",
        construct=never_worse(construct, others),
        most_actions=MOST_IN_FULL,
        held=held,
        refusal=refusal,
        splits_backward=True,
    )


V_HALF = _family(
    "v-half",
    "V-Half",
    ("vhalf", "zbv-greedy-half"),
    lambda pp: min(int(v_half_limit_chunks(pp=pp)), 2 * pp),
    idle="unit times: 3p-7 (even p), 3p-4 (odd) chunk passes",
    peak="floor((p+2)/2)",
    most=lambda pp: (pp + 2) // 2,
)
V_MIN = _family(
    "v-min",
    "V-Min",
    ("vmin", "zbv-greedy-min"),
    lambda pp: min(int(v_min_limit_chunks(pp=pp)), 2 * pp),
    idle="unit times: at most 4p-{7,5,6}[p mod 3] chunk passes",
    peak="floor((p+4)/3)",
    most=lambda pp: (pp + 4) // 3,
)
V_ZB = _family(
    "v-zb",
    "V-ZB (any memory limit)",
    ("v-limited", "zbv-greedy", "ScheduleZBVGreedy"),
    lambda pp: 2 * pp,
    idle="unit times: about max(p-1, 6p-1-3k) chunk passes at k chunks",
    peak="the limit given; p by default",
    most=lambda pp: pp,
)

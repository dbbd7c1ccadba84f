"""ZBV in a fixed order, and V-Half, V-Min and V-ZB: V schedules under a memory limit, from squeezed building blocks.

Of the latter v = 2, any m. In chunks, V-Half holds 2 floor((p + 2)/2), V-Min 2 floor((p + 4)/3), V-ZB any limit
(default 2p, that of 1F1B). At unit times their idle time follows max(p - 1, 6p - 1 - 3k) chunk passes at a limit of
k chunks, or comes close. Qi et al. 2024, arXiv:2405.15362, sections 3 and 4.

A block says at which tick each rank runs F of its first chunk, F of its second, and their input gradients;
all passes take one tick. Repeating it every six ticks (four passes and two weight gradients) keeps every rank
busy in the steady state, and its memory is the lifetimes divided by six. Squeezing then pulls passes of the
warm-up and cool-down into idle ticks as the memory limit allows, and weight gradients fill the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from forescale.errors import ScheduleError, out_of_memory
from forescale.numeric import Numeric
from forescale.schedule.actions import MICROBATCH_SHIFT, Kind, Order, pack
from forescale.schedule.family import MOST_IN_FULL, Family, Orders, RankShape, Request, described, keep_first
from forescale.schedule.library.emit import in_turn, passes
from forescale.schedule.library.timed import SLACKS, WeightsByTime, at_equal_times, never_worse
from forescale.schedule.model import wave
from forescale.struct import Struct
from forescale.units import counted


def zbv_orders(request: Request) -> Orders:
    """Return ZBV: zero bubble on a V placement in a fixed order; the loss and the input live on the same rank.

    v = 2, built for m >= 2p - 1 and cut to fewer micro-batches where asked. For tb >= tf: makespan idle
    (p - 1)tb/2, span idle (p - 1)(tb - tw); peak p. Qi et al. 2023, arXiv:2401.10241, section 6;
    torch.distributed.pipelining has it as ScheduleZBVZeroBubble.
    """
    built = max(request.num_microbatches, 2 * request.pp - 1)
    return keep_first(
        [_zbv_rank(rank, request.pp, built) for rank in range(request.pp)], request.num_microbatches
    )


def _zbv_rank(rank: int, pp: int, num_microbatches: int) -> Order:
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


def _all_ranks(of: RankShape) -> Numeric:
    """As many as there are ranks, where there are enough to fill all of them; else one is sure."""
    return np.where(np.asarray(of.num_microbatches) >= 2.0 * of.pp - 1.0, of.pp, 1.0)


ZBV = described("zbv", orders=zbv_orders, held=_all_ranks)


MOST_RANKS = 64
"""Ranks of the largest pipeline whose block is found in seconds."""
PERIOD = 6
F0, F1, B1, B0, W = range(5)
_FAR = 1 << 60
Plan: TypeAlias = list[list[list[int]]]
"""Tick of [pass type][rank][micro-batch]."""

# Ticks between neighbouring ranks of (F0, F1, B1, B0), and gaps at the turns (F0 to F1, F1 to B1, B1 to B0):
# the V-Min and V-Half blocks of the paper, and those with more room, up to ZBV's.
_STEPS_AND_GAPS = (
    ((1, 1, 1, 1), tuple(product((1,), (1, 3, 5), (1, 3)))),
    ((2, 1, 2, 1), ((1, 4, 2), (1, 1, 2), (1, 5, 1), (1, 1, 5))),
    ((1, 2, 1, 2), ((1, 4, 2), (2, 4, 2), (4, 2, 2), (5, 1, 1))),
    ((2, 2, 2, 2), ((1, 5, 3), (1, 3, 5), (3, 3, 3), (3, 5, 1), (3, 1, 3), (1, 1, 3))),
    ((1, 2, 4, 2), ((1, 1, 2), (1, 3, 4), (1, 1, 3))),
    ((4, 2, 4, 2), tuple(product((1, 3, 5), (1, 2, 4), (1, 2, 3)))),
    ((4, 4, 4, 4), ((1, 3, 1), (1, 1, 1))),
)


@dataclass(slots=True, kw_only=True)
class Squeezed:
    """A squeezed schedule: length in ticks, most chunks held, the ticks it chose, and each rank's passes."""

    length: int
    peak: int
    plan: Plan
    orders: list[list[int]]


def blocks(pp: int) -> Iterator[list[list[int]]]:
    """Yield the start ticks [pass type][rank] of every block whose repetitions do not collide."""
    for (a, b, c, d), gaps in _STEPS_AND_GAPS:
        for turn, loss, back in gaps:
            f0 = [a * r for r in range(pp)]
            f1 = [f0[-1] + turn + b * (pp - 1 - r) for r in range(pp)]
            b1 = [f1[0] + loss + c * r for r in range(pp)]
            b0 = [b1[-1] + back + d * (pp - 1 - r) for r in range(pp)]
            if all(len({t[r] % PERIOD for t in (f0, f1, b1, b0)}) == 4 for r in range(pp)):
                yield [f0, f1, b1, b0]


@dataclass(slots=True, kw_only=True)
class Squeezer:
    """Runs a plan tick by tick, pulling passes into idle ticks."""

    pp: int
    num_microbatches: int
    limit: int
    """Most chunks a rank may hold."""
    plan: Plan
    pull_always: bool
    """Pull passes in the steady state too, not only in warm-up and cool-down."""
    done: list[list[int]] = field(default_factory=list)
    ends: list[list[list[int]]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    pending: list[list[int]] = field(default_factory=list)

    def run(self) -> Squeezed | None:
        """Return the squeezed schedule; None where the limit leaves it stuck."""
        pp, m = self.pp, self.num_microbatches
        self.done = [[0] * pp for _ in range(4)]
        self.ends = [[[_FAR] * m for _ in range(pp)] for _ in range(4)]
        self.held, self.pending = [0] * pp, [[] for _ in range(pp)]
        orders: list[list[int]] = [[] for _ in range(pp)]
        left, tick, peak = PERIOD * m * pp, 0, 0
        last_tick = 3 * (max(self.plan[B0][0]) + PERIOD * m + PERIOD * pp)
        while left and tick < last_tick:
            chooses = [self._choose(r, tick) for r in range(pp)]
            for r, item in enumerate(chooses):
                if item >= 0:
                    orders[r].append(self._execute(r, item, tick))
                    left -= 1
                    peak = max(peak, self.held[r])
            tick += 1
        if left:
            return None
        starts = [[[end - 1 for end in row] for row in rows] for rows in self.ends]
        return Squeezed(length=tick, peak=peak, plan=starts, orders=orders)

    def _choose(self, r: int, tick: int) -> int:
        """Return the pass type rank r runs at a tick; -1 for none."""
        ready = self._ready(r, tick)
        for planned, item in ready:
            if planned > tick:
                break
            if item >= B1 or self.held[r] < self.limit:
                return item
        waiting = bool(self.pending[r])
        steady = self.plan[B0][0][0] <= tick <= self.plan[F0][0][-1]
        if waiting and steady and not self.pull_always:
            return W
        for planned, item in ready:
            if item >= B1 or self._fits(r, item, tick, planned):
                return item
        return W if waiting else -1

    def _ready(self, r: int, tick: int) -> list[tuple[int, int]]:
        """Return (planned tick, pass type) of the passes whose input is there, in planned order."""
        m, ends, last, result = self.num_microbatches, self.ends, self.pp - 1, []
        for index in range(4):
            unit = self.done[index][r]
            if unit >= m:
                continue
            if index == F0:
                before = ends[F0][r - 1][unit] if r else 0
            elif index == F1:
                before = ends[F1][r + 1][unit] if r < last else ends[F0][r][unit]
            elif index == B1:
                before = ends[B1][r - 1][unit] if r else ends[F1][r][unit]
            else:
                before = ends[B0][r + 1][unit] if r < last else ends[B1][r][unit]
            if before <= tick:
                result.append((self.plan[index][r][unit], index))
        result.sort()
        return result

    def _fits(self, r: int, value: int, tick: int, planned: int) -> bool:
        """Return whether a forward may run now with the rest of the plan kept until its planned tick."""
        kept, pending, limit = self.held[r] + 1, len(self.pending[r]), self.limit
        if kept > limit:
            return False
        events: dict[int, int] = {}
        for other in range(4):
            row, unit = self.plan[other][r], self.done[other][r] + (other == value)
            while unit < self.num_microbatches and row[unit] <= planned:
                when = max(row[unit], tick + 1)
                events[when] = events.get(when, 0) + (1 if other < B1 else PERIOD)
                unit += 1
        for when in range(tick + 1, planned + 1):
            due = events.get(when, 0)
            if due:
                kept, pending = kept + due % PERIOD, pending + due // PERIOD
                if kept > limit:
                    return False
            elif pending:
                kept, pending = kept - 1, pending - 1
        return True

    def _execute(self, r: int, value: int, tick: int) -> int:
        if value == W:
            self.held[r] -= 1
            return self.pending[r].pop(0)
        unit = self.done[value][r]
        self.done[value][r] = unit + 1
        self.ends[value][r][unit] = tick + 1
        stage = r if value in (F0, B0) else 2 * self.pp - 1 - r
        if value < B1:
            self.held[r] += 1
            return pack(Kind.F, stage, unit)
        self.pending[r].append(pack(Kind.W, stage, unit))
        return pack(Kind.I, stage, unit)


_BUDGET = 400_000
"""Rank-ticks that the comparison may simulate."""
_BUDGET_BY_TIME = 100_000
"""The same where no goal ends it early."""
_FINALISTS = 2
"""Candidates built in full."""


class _Candidate(Struct, frozen=True, kw_only=True):
    """A block and how it was squeezed; `excess` is what it takes for the comparison's micro-batches."""

    excess: float
    block: list[list[int]]
    pull: bool
    rounds: int


def orders_within(request: Request, limit: int) -> Orders:
    """Return each rank's passes of the shortest squeezed block within a limit in chunks, at a request's durations.

    Blocks are compared at few micro-batches, each squeezed again while that helps; the best ones are then built in
    full. At equal durations the search ends early where the unit-time law max(p - 1, 6p - 1 - 3k) is met; at others
    weight gradients go where ranks wait.

    Raises
    ------
    ScheduleError
        If no block fits the limit.
    """
    pp, count = request.pp, request.num_microbatches
    tried = count if count <= 4 * pp + 4 else 2 * pp + 2
    equal = at_equal_times(request) == request
    goal = idle_v_limited(pp=pp, limit_chunks=limit) if equal else None

    def timed(squeezed: Squeezed, slacks: Sequence[float] = SLACKS) -> tuple[float, list[list[int]]]:
        if equal:
            return squeezed.length, squeezed.orders
        result = (WeightsByTime(request, limit, slack).run(squeezed.orders) for slack in slacks)
        return min(result, key=itemgetter(0))

    best: list[tuple[float, list[list[int]]]] = []
    compared = _compare(pp, tried, limit, goal, lambda squeezed: timed(squeezed, SLACKS[1:2])[0])
    for candidate in compared[:_FINALISTS]:
        built = _squeezed(pp, count, limit, candidate)
        if built is not None:
            best = [min((*best, timed(built)), key=itemgetter(0))]
        if best and goal is not None and best[0][0] - PERIOD * count <= goal:
            break
    if not best:
        least, text = v_min_limit_chunks(pp) / 2, f"{counted(limit / 2, 'micro-batch')} at pp {pp}"
        raise ScheduleError(out_of_memory("a V schedule", f"{least:g} (V-Min) or more", text))
    return best[0][1]


def _compare(
    pp: int,
    tried: int,
    limit: int,
    goal: int | None,
    measured: Callable[[Squeezed], float],
) -> list[_Candidate]:
    """Return candidates, best first; ends early with as many finalists as needed that meet the goal, if any."""
    result: list[_Candidate] = []
    spent = meeting = 0
    budget = _BUDGET if goal is not None else _BUDGET_BY_TIME
    for block, pull in product(list(blocks(pp)), (False, True)):
        if meeting >= _FINALISTS or (spent > budget and result):
            break
        plan, length = _repeated(block, tried), _FAR
        for rounds in range(1, 5):
            squeezed = _squeezer(pp, tried, limit, plan, pull).run()
            spent += PERIOD * tried * pp
            if squeezed is None or squeezed.length >= length:
                break
            plan, length = squeezed.plan, squeezed.length
            excess = measured(squeezed)
            result.append(_Candidate(excess=excess, block=block, pull=pull, rounds=rounds))
        meeting += goal is not None and length - PERIOD * tried <= goal
    return sorted(result, key=lambda candidate: (candidate.excess, candidate.rounds))


def _squeezed(pp: int, num_microbatches: int, limit: int, candidate: _Candidate) -> Squeezed | None:
    """Return a candidate in full; its steady state is repeated rather than squeezed where that is periodic."""
    few = 6 * pp + 12
    if num_microbatches > few:
        short = _squeezed(pp, few, limit, candidate)
        longer = None if short is None else repeat_steady(short, num_microbatches - few, few // 2)
        if longer is not None:
            return longer
    plan = _repeated(candidate.block, num_microbatches)
    best: Squeezed | None = None
    for _ in range(candidate.rounds):
        squeezed = _squeezer(pp, num_microbatches, limit, plan, candidate.pull).run()
        if squeezed is None:
            break
        plan = squeezed.plan
        if best is None or squeezed.length < best.length:
            best = squeezed
    return best


def repeat_steady(short: Squeezed, extra: int, middle: int) -> Squeezed | None:
    """Return the schedule with `extra` more micro-batches in its steady state; None if it has none.

    The steady state of a rank is there where, from the input gradient of micro-batch `middle` on, three
    periods of six passes each repeat the one before for the next micro-batch, at the same pace.
    """
    one = 1 << MICROBATCH_SHIFT
    orders = []
    for rank, order in enumerate(short.orders):
        at = order.index(pack(Kind.I, rank, middle))
        period = order[at : at + PERIOD]
        for count in range(1, 4):
            following = order[at + count * PERIOD : at + (count + 1) * PERIOD]
            if following != [code + count * one for code in period]:
                return None
        for row in (rows[rank] for rows in short.plan):
            ticks = row[middle : middle + 4]
            if [late - early for early, late in pairwise(ticks)] != [PERIOD] * 3:
                return None
        inserted = [code + count * one for count in range(extra) for code in period]
        orders.append(order[:at] + inserted + [code + extra * one for code in order[at:]])
    return Squeezed(length=short.length + PERIOD * extra, peak=short.peak, plan=short.plan, orders=orders)


def _squeezer(pp: int, num_microbatches: int, limit: int, plan: Plan, pull: bool) -> Squeezer:
    return Squeezer(pp=pp, num_microbatches=num_microbatches, limit=limit, plan=plan, pull_always=pull)


def _repeated(block: list[list[int]], num_microbatches: int) -> Plan:
    return [[[start + PERIOD * unit for unit in range(num_microbatches)] for start in row] for row in block]


def idle_v_limited(*, pp: int, limit_chunks: int) -> int:
    """Return makespan minus work of a V schedule under a limit on live chunks, in unit chunk passes.

    max(p - 1, 6p - 1 - 3k). Source: laws of the greedy tables of Qi et al. 2024, arXiv:2405.15362.
    """
    return max(pp - 1, 6 * pp - 1 - 3 * limit_chunks)


def v_half_limit_chunks(pp: Numeric) -> Numeric:
    """Return the live chunks that V-Half may hold: 2 floor((p + 2)/2). Source: arXiv:2405.15362."""
    return 2 * ((pp + 2) // 2)


def v_min_limit_chunks(pp: Numeric) -> Numeric:
    """Return the live chunks that V-Min may hold: 2 floor((p + 4)/3). Source: arXiv:2405.15362."""
    return 2 * ((pp + 4) // 3)


def _family(name: str, limit: Callable[[Numeric], Numeric]) -> Family:
    """Return the family whose ranks hold `limit(pp)` chunks, or what a request allows."""

    def allowed(request: Request) -> int:
        if request.memory_limit is None:
            return int(limit(request.pp))
        return math.floor(min(2 * request.memory_limit + 1e-9, 2 * max(request.pp, request.num_microbatches)))

    def orders(request: Request) -> Orders:
        return orders_within(request, allowed(request))

    def others(request: Request) -> list[Orders]:
        return [zbv_orders(request)] if allowed(request) >= 2 * request.pp else []

    def request_violation(request: Request) -> str:
        if request.pp > MOST_RANKS:
            return f"its search takes up to {MOST_RANKS} ranks; got {request.pp}"
        least = v_min_limit_chunks(request.pp)
        if allowed(request) < least:
            return f"no V schedule fits {request.memory_limit:g} micro-batches; allow {least / 2:g} or more"
        return ""

    def held(of: RankShape) -> Numeric:
        return np.minimum(of.num_microbatches / 2.0, limit(of.pp) // 2)

    built = never_worse(orders, wave, others)
    return described(
        name, orders=built, most_actions=MOST_IN_FULL, held=held, request_violation=request_violation
    )


V_HALF, V_MIN = _family("v-half", v_half_limit_chunks), _family("v-min", v_min_limit_chunks)
V_ZB = _family("v-zb", lambda pp: 2 * pp)
"""V schedules under any memory limit."""

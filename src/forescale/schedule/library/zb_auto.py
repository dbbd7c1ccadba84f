"""ZB-1P, ZB-2P and the same without a limit: the automatic zero-bubble heuristic, best of eight settings.

Durations are simulated while the order is built: warm-up forwards as memory allows until the first backward
arrives, then per micro-batch one optional forward and one backward, with weight gradients put where a rank
would wait. The eight settings: allow a bubble before the first backward, put backward before forward, fill
every wait with a weight gradient. Any m and p. Limits of p and 2p micro-batches; Qi et al. 2023,
arXiv:2401.10241, section 3.1 and appendix; its code gives the settings.

Time is counted in whole ticks, so that a round which leaves all ranks as the one before did is known to come
back: the rounds until the first rank runs out of forwards are then copied.

Without a limit a rank puts weight gradients off as long as it has anything else to do, and holds all micro-batches:
zero-bubble-heuristic of AMD's Primus where pp_max_mem says nothing.
"""

from __future__ import annotations

from itertools import product
from typing import TypeAlias

import numpy as np

from forescale.errors import ScheduleError
from forescale.schedule.actions import Kind, Order
from forescale.schedule.family import Family, Orders, Request, described, filled
from forescale.schedule.library.emit import passes
from forescale.schedule.library.timed import never_worse
from forescale.schedule.model import loop
from forescale.units import counted

_SLACK = 1e-9
_TICKS = 1 << 40
"""Ticks of the longest duration."""
_F, _I, _W = int(Kind.F), int(Kind.I), int(Kind.W)
EvalContext: TypeAlias = tuple[bool, bool, bool]
"""Early bubble, backward first, fill."""


class _Builder:
    """Builds the order of all ranks for one setting; lists are over ranks, times in ticks."""

    def __init__(self, request: Request, limit: float, setting: EvalContext) -> None:
        self.pp, self.count, self.part = request.pp, request.num_microbatches, request.weight_part
        self.limit = limit + _SLACK
        self.early_bubble, self.backward_first, self.fill = setting
        value = (request.forward, request.input_grad, request.weight_grad, request.comm)
        scale = _TICKS / (max(value) or 1.0)
        self.forward, self.input_grad, self.weight_grad, self.comm = (round(item * scale) for item in value)
        ranks = range(request.pp)
        self.kinds = [bytearray() for _ in ranks]
        self.ends_f: list[list[int]] = [[] for _ in ranks]
        self.ends_b: list[list[int]] = [[] for _ in ranks]
        self.first, self.end, self.bubble, self.num_w = ([0] * request.pp for _ in range(4))
        self.mattered = [False, False, False]
        """Whether the other choice of each setting may give another order."""

    def build(self) -> None:
        """Run all ranks to their end."""
        for r in range(self.pp):
            self._run_forward(r)
            self.first[r] = self.end[r] - self.forward
        extras = self._extra_forwards(early_bubble=True), self._extra_forwards(early_bubble=False)
        self.mattered[0] = extras[0] != extras[1]
        for r, extra in enumerate(extras[0 if self.early_bubble else 1]):
            for _ in range(extra):
                self._run_forward(r)
        for r in reversed(range(self.pp)):
            self._run_backward(r)
        rounds, known, jumped = 1, self._state(0), False
        while rounds < self.count:
            begun, clock = [len(kinds) for kinds in self.kinds], self.end[0]
            self._round()
            if not jumped:
                state = self._state(rounds)
                if jumped := state == known:
                    rounds += self._jump(begun, self.end[0] - clock)
                known = state
            rounds += 1
        for r in range(self.pp):
            while self.num_w[r] < self.count:
                self._run_weight(r)

    def span(self) -> int:
        """Return the longest time of a rank from its first start to its last end."""
        return max(end - first for end, first in zip(self.end, self.first, strict=True))

    def orders(self) -> tuple[Order, ...]:
        """Return the packed order of each rank."""
        return tuple(_packed(rank, kinds) for rank, kinds in enumerate(self.kinds))

    def _round(self) -> None:
        for r, wanted_forward in enumerate(self._wanted_forwards()):
            if wanted_forward:
                self._forward(r)
        for r in reversed(range(self.pp)):
            self._backward(r)

    def _state(self, rounds: int) -> tuple[object, ...]:
        """Return all that the rounds to come depend on, relative to the first rank's clock."""
        clock, idle = self.end[0], self.bubble[0]
        after = [len(ends) for ends in self.ends_f[1:]]
        return (
            [end - clock for end in self.end],
            [idle - item for item in self.bubble],
            [len(ends) - rounds for ends in self.ends_f],
            [item - rounds for item in self.num_w],
            [
                [end - clock for end in ends[used:]]
                for ends, used in zip(self.ends_f[:-1], after, strict=True)
            ],
        )

    def _jump(self, begun: list[int], took: int) -> int:
        """Copy the round that began at those actions until a rank has one forward left; return how often."""
        rounds = max(0, self.count - 1 - max(map(len, self.ends_f)))
        for r, kinds in enumerate(self.kinds):
            again = kinds[begun[r] :]
            work = sum((self.forward, 0, self.input_grad, self.weight_grad)[kind] for kind in again)
            kinds.extend(again * rounds)
            self.end[r] += took * rounds
            self.bubble[r] += (took - work) * rounds
            self.num_w[r] += again.count(_W) * rounds
            for ends in (self.ends_f[r], self.ends_b[r]):
                ends[:] = [0] * rounds + [end + took * rounds for end in ends]
        return rounds

    def _run_forward(self, r: int) -> None:
        arrival = self.ends_f[r - 1][len(self.ends_f[r])] + self.comm if r else 0
        self._wait(r, arrival)
        self.end[r] += self.forward
        self.ends_f[r].append(self.end[r])
        self.kinds[r].append(_F)

    def _run_backward(self, r: int) -> None:
        self._wait(r, self._gradient(r))
        self.end[r] += self.input_grad
        self.ends_b[r].append(self.end[r])
        self.kinds[r].append(_I)

    def _run_weight(self, r: int) -> None:
        self.end[r] += self.weight_grad
        self.num_w[r] += 1
        self.kinds[r].append(_W)

    def _wait(self, r: int, arrival: int) -> None:
        if arrival > self.end[r]:
            if self.ends_f[r]:
                self.bubble[r] += arrival - self.end[r]
            self.end[r] = arrival

    def _gradient(self, r: int) -> int:
        """Return when the input of the rank's next backward arrives."""
        return self.ends_b[r + 1][len(self.ends_b[r])] + self.comm if r + 1 < self.pp else 0

    def _held(self, r: int) -> float:
        """Return the micro-batches a rank holds."""
        backward = len(self.ends_b[r])
        return len(self.ends_f[r]) - backward + self.part * (backward - self.num_w[r])

    def _extra_forwards(self, *, early_bubble: bool) -> list[int]:
        """Return how many forwards each rank runs before its first backward, after the first of all ranks."""
        pp, count = self.pp, self.count
        extra = [0] * pp
        arrival = self.end[-1] + self.input_grad
        for r in range(pp - 2, -1, -1):
            clock, kept = self.end[r], self._held(r)
            while 1 + extra[r] < count and kept + 1.0 <= self.limit:
                late = clock + self.forward if early_bubble else clock
                due = arrival + self.comm
                if late > due or (not early_bubble and late >= due):
                    break
                clock, kept, extra[r] = clock + self.forward, kept + 1.0, extra[r] + 1
            arrival = max(clock, arrival + self.comm) + self.input_grad
        for r in range(1, pp):
            while extra[r] > 0 and extra[r] >= extra[r - 1] and 1 + extra[r] < count:
                extra[r] -= 1
        return extra

    def _wanted_forwards(self) -> list[bool]:
        """Return which ranks run a forward before their next backward."""
        wants_forwards = [self._wants_forward(r) for r in range(self.pp)]
        for r in range(self.pp - 2, -1, -1):
            wants_forwards[r] = wants_forwards[r] and wants_forwards[r + 1]
        return wants_forwards

    def _wants_forward(self, r: int) -> bool:
        if len(self.ends_f[r]) >= self.count:
            return False
        if not self.backward_first or r + 1 == self.pp:
            return True
        if len(self.ends_f[r]) < len(self.ends_f[r + 1]) + 2 or self._comes_before(r):
            return True
        self.mattered[1] = True
        return False

    def _comes_before(self, r: int) -> bool:
        """Return whether a forward is over before the next gradient arrives, or the wait for it does no harm."""
        end = self.end[r]
        arrival = self.end[r + 1] + self.forward + self.input_grad + self.comm
        if end >= arrival:
            return False
        freed, kept, taken = 0, self._held(r) + 1.0, 0
        while kept > self.limit and self.num_w[r] + taken < len(self.ends_b[r]):
            freed, kept, taken = freed + self.weight_grad, kept - self.part, taken + 1
        return end + self.forward + freed <= arrival or arrival - end > max(self.bubble) - self.bubble[r]

    def _forward(self, r: int) -> None:
        while self._held(r) + 1.0 > self.limit:
            if self.num_w[r] >= len(self.ends_b[r]):
                msg = f"the memory limit of {counted(self.limit, 'micro-batch')} is too low for rank {r}"
                raise ScheduleError(msg)
            self._run_weight(r)
        if r > 0:
            self._fill_wait(r, self.ends_f[r - 1][len(self.ends_f[r])] + self.comm)
        self._run_forward(r)

    def _backward(self, r: int) -> None:
        if r + 1 < self.pp:
            self._fill_wait(r, self._gradient(r))
        if r == 0 and len(self.ends_f[0]) == self.count:
            while self.num_w[0] < len(self.ends_b[0]):
                self._run_weight(0)
        self._run_backward(r)

    def _fill_wait(self, r: int, arrival: int) -> None:
        """Run weight gradients while the input of the next action has not arrived."""
        due = len(self.ends_b[r])
        while self.num_w[r] < due and self.end[r] + self.weight_grad <= arrival:
            self._run_weight(r)
        if self.num_w[r] < due and self.end[r] < arrival:
            tolerable = arrival - self.end[r] <= max(self.bubble) - self.bubble[r]
            self.mattered[2] = self.mattered[2] or tolerable
            if self.fill or not tolerable:
                self._run_weight(r)


def _packed(rank: int, kinds: bytearray) -> Order:
    """Return kinds as packed actions: those of one kind take the micro-batches in order."""
    kind = np.frombuffer(kinds, dtype=np.uint8).astype(np.int64)
    units = np.empty(kind.size, dtype=np.int64)
    for item in (_F, _I, _W):
        mine = kind == item
        units[mine] = np.arange(np.count_nonzero(mine))
    return Order(passes(rank, units) | kind)


def orders_within(request: Request, limit: float) -> Orders:
    """Return the best of the eight settings under a limit in micro-batches."""
    best: tuple[int, tuple[Order, ...]] | None = None
    same: set[EvalContext] = set()
    for setting in product((True, False), (True, False), (True, False)):
        if setting in same:
            continue
        builder = _Builder(request, limit, setting)
        builder.build()
        if best is None or builder.span() < best[0]:
            best = (builder.span(), builder.orders())
        early, first, fill = (
            (item,) if mattered else (item, False)
            for item, mattered in zip(setting, builder.mattered, strict=True)
        )
        same |= set(product(early, first, fill))
    assert best is not None
    return best[1]


def _family(name: str, factor: int | None) -> Family:
    def orders(request: Request) -> Orders:
        num_microbatches = request.num_microbatches if factor is None else factor * request.pp
        return orders_within(
            request, num_microbatches if request.memory_limit is None else request.memory_limit
        )

    def request_violation(request: Request) -> str:
        if request.memory_limit is not None and request.memory_limit < 1:
            return f"the memory limit must be at least one micro-batch; got {request.memory_limit:g}"
        return ""

    return described(name, orders=never_worse(orders, loop), held=filled, request_violation=request_violation)


ZB_1P, ZB_2P, ZB_UNLIMITED = _family("zb-1p", 1), _family("zb-2p", 2), _family("zb-unlimited", None)

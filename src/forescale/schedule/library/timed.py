"""Schedules for durations as they are: the fastest of candidates, and weight gradients put where ranks wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from forescale.schedule.actions import KIND_BITS, MICROBATCH_SHIFT, STAGE_BITS, STAGE_SHIFT, Kind
from forescale.schedule.family import Orders, Request
from forescale.schedule.model import Placement, Schedule
from forescale.schedule.times import LinkTimes, from_share
from forescale.schedule.timing import compile_schedule

SLACKS = (0.0, 0.5, 1.0)
"""Parts of a weight gradient that may make the next pass late."""


def fastest(candidates: Iterable[Orders], request: Request, placement: Placement) -> Orders:
    """Return the orders with the least makespan at a request's durations; the first of equals."""
    times = from_share(
        forward=request.forward,
        input_grad=request.input_grad,
        weight_grad=request.weight_grad,
        vpp=request.vpp,
    )
    links, count = LinkTimes(latency=request.comm), request.num_microbatches

    def makespan(orders: Orders) -> float:
        built = Schedule(name="candidate", placement=placement, num_microbatches=count, orders=tuple(orders))
        return float(compile_schedule(built).time(times, links).makespan)

    return min(candidates, key=makespan)


def never_worse(
    orders: Callable[[Request], Orders],
    place: Callable[[int, int], Placement],
    others: Callable[[Request], Sequence[Orders]] = lambda _: (),
) -> Callable[[Request], Orders]:
    """Return how to build for durations without being slower under them than what is built for equal ones.

    `others` are more orders that meet a request, which it must not be slower than either.
    """

    def build(request: Request) -> Orders:
        local = orders(request)
        equal = at_equal_times(request)
        if equal == request:
            return local
        return fastest((local, orders(equal), *others(request)), request, place(request.pp, request.vpp))

    return build


def at_equal_times(request: Request) -> Request:
    """Return a request with passes of one duration and free messages; itself if it is one."""
    if request.forward == request.input_grad == request.weight_grad and not request.comm:
        return request
    return replace(request, forward=1.0, input_grad=1.0, weight_grad=1.0, comm=0.0)


class WeightsByTime:
    """Puts the weight gradients of a V schedule where its ranks wait; all else keeps its order.

    A weight gradient runs if it is over before the next pass can start, or late by less than `slack` of itself,
    and where a forward would else hold more than `limit` chunks. Wherever the given order had room, there is.
    """

    def __init__(self, request: Request, limit: int, slack: float) -> None:
        share = request.vpp
        self.pp, self.limit, self.comm = request.pp, limit, request.comm
        self.cost = {
            Kind.F: request.forward / share,
            Kind.I: request.input_grad / share,
            Kind.W: request.weight_grad / share,
        }
        self.late = (slack - 1.0) * self.cost[Kind.W]
        self.ends: dict[int, float] = {}
        """By the code of the pass."""
        self.clock = [0.0] * request.pp
        self.orders: list[list[int]] = [[] for _ in range(request.pp)]
        self.held = [0] * request.pp
        self.waiting: list[list[int]] = [[] for _ in range(request.pp)]

    def run(self, orders: Sequence[Sequence[int]]) -> tuple[float, list[list[int]]]:
        """Return the makespan and the orders; those given need not be without weight gradients."""
        passes = [[code for code in order if code & KIND_BITS != Kind.W] for order in orders]
        at, moved = [0] * self.pp, True
        while moved:
            moved = False
            for rank, order in enumerate(passes):
                while at[rank] < len(order) and self._pass(rank, order[at[rank]]):
                    at[rank] += 1
                    moved = True
        for rank in range(self.pp):
            while self.waiting[rank]:
                self._weight(rank)
        return max(self.clock), self.orders

    def _pass(self, rank: int, code: int) -> bool:
        """Run a pass if its input is there."""
        arrival = self._arrival(rank, code)
        if arrival is None:
            return False
        forward = code & KIND_BITS == Kind.F
        waiting = self.waiting[rank]
        while waiting and forward and self.held[rank] >= self.limit:
            self._weight(rank)
        while waiting and self.clock[rank] <= arrival + self.late:
            self._weight(rank)
        kind = Kind.F if forward else Kind.I
        self.clock[rank] = self.ends[code] = max(self.clock[rank], arrival) + self.cost[kind]
        self.orders[rank].append(code)
        if forward:
            self.held[rank] += 1
        else:
            waiting.append(code + Kind.W - Kind.I)
        return True

    def _weight(self, rank: int) -> None:
        self.orders[rank].append(self.waiting[rank].pop(0))
        self.clock[rank] += self.cost[Kind.W]
        self.held[rank] -= 1

    def _arrival(self, rank: int, code: int) -> float | None:
        """Return when a pass's input is there; None while it is not known."""
        stage, forward = code >> STAGE_SHIFT & STAGE_BITS, code & KIND_BITS == Kind.F
        unit = code >> MICROBATCH_SHIFT << MICROBATCH_SHIFT
        if forward and stage == 0:
            return 0.0
        last = stage == 2 * self.pp - 1
        before = stage - 1 if forward else stage if last else stage + 1
        kind = Kind.F if forward or last else Kind.I
        end = self.ends.get(unit | before << STAGE_SHIFT | kind)
        if end is None:
            return None
        away = min(before, 2 * self.pp - 1 - before) != rank
        return end + self.comm if away else end

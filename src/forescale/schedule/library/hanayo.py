"""Hanayo: v = 2w chunks per rank in w waves down and up the ranks, backward not split.

Greedy in time: a rank runs the backward that is ready, else the deepest forward; a new micro-batch starts
while the first rank holds fewer than v p chunks. Any m. Idle has no closed form here. Liu et al. 2023,
arXiv:2308.15762.
"""

from __future__ import annotations

import heapq
from typing import TypeAlias

from forescale.schedule.actions import Kind, pack
from forescale.schedule.family import Orders, Request, described
from forescale.schedule.library.timed import never_worse
from forescale.schedule.model import Placement, wave

_Priority: TypeAlias = tuple[int, int, int]
"""(minus kind, depth, micro-batch); smallest first."""


def orders(request: Request) -> Orders:
    """Return what each rank does."""
    return _Greedy(request, wave(request.pp, request.vpp)).run()


class _Greedy:
    """Runs the ranks in time: backward before forward, deeper before shallower, older before newer."""

    def __init__(self, request: Request, placement: Placement) -> None:
        self.request, self.home = request, placement.rank_of_stage
        self.num_stages, self.limit = placement.num_stages, request.vpp * request.pp
        self.costs = {
            Kind.F: request.forward / request.vpp,
            Kind.B: (request.input_grad + request.weight_grad) / request.vpp,
        }
        self.orders: list[list[int]] = [[] for _ in range(request.pp)]
        self.ready: list[list[tuple[_Priority, float]]] = [[] for _ in range(request.pp)]
        self.free = [0.0] * request.pp
        self.clock: list[tuple[float, int]] = []
        self.held = 0
        """Chunks on the first rank."""

    def run(self) -> list[list[int]]:
        """Return each rank's actions."""
        for unit in range(self.request.num_microbatches):
            self._arrive(Kind.F, 0, unit, 0.0)
        while self.clock:
            now, rank = heapq.heappop(self.clock)
            if self.free[rank] > now:
                continue
            there = [item for item in self.ready[rank] if item[1] <= now and self._allowed(item[0])]
            if there:
                selected = min(there)
                self.ready[rank].remove(selected)
                self._execute(rank, selected[0], now)
        return self.orders

    def _allowed(self, priority: _Priority) -> bool:
        """Return whether the first rank has room for a new micro-batch."""
        return priority[:2] != (-Kind.F, 0) or self.held < self.limit

    def _arrive(self, kind: Kind, stage: int, unit: int, when: float) -> None:
        depth = -stage if kind is Kind.F else stage
        heapq.heappush(self.ready[self.home[stage]], ((-kind, depth, unit), when))
        heapq.heappush(self.clock, (when, self.home[stage]))

    def _execute(self, rank: int, priority: _Priority, now: float) -> None:
        kind, unit = Kind(-priority[0]), priority[2]
        stage = abs(priority[1])
        self.orders[rank].append(pack(kind, stage, unit))
        end = self.free[rank] = now + self.costs[kind]
        heapq.heappush(self.clock, (end, rank))
        if rank == 0:
            self.held += 1 if kind is Kind.F else -1
        following = (kind, stage + 1) if kind is Kind.F else (kind, stage - 1)
        if following == (Kind.F, self.num_stages):
            following = (Kind.B, stage)
        if following[1] >= 0:
            late = self.request.comm if self.home[following[1]] != rank else 0.0
            self._arrive(following[0], following[1], unit, end + late)


FAMILY = described(
    "hanayo",
    orders=never_worse(orders, wave),
    most_actions=1 << 20,
    request_violation=lambda request: "" if request.vpp % 2 == 0 else f"vpp must be even; got {request.vpp}",
)

"""ZB-1P and ZB-2P: the automatic zero-bubble heuristic, best of eight settings under a memory limit.

Durations are simulated while the order is built: warm-up forwards as memory allows until the first backward
arrives, then per micro-batch one optional forward and one backward, with weight gradients put where a rank
would wait. The eight settings: allow a bubble before the first backward, put backward before forward, fill
every wait with a weight gradient. Any m and p. Limits of p and 2p micro-batches; Qi et al. 2023,
arXiv:2401.10241, section 3.1 and appendix; its code gives the settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from forescale.schedule.actions import Kind, pack
from forescale.schedule.errors import ScheduleError
from forescale.schedule.family import Family, Request, one_per_rank
from forescale.schedule.model import Schedule
from forescale.schedule.placement import loop
from forescale.units import counted

_SLACK = 1e-9


@dataclass(slots=True, kw_only=True)
class _Rank:
    """What one rank has done so far."""

    order: list[int] = field(default_factory=list)
    ends_f: list[float] = field(default_factory=list)
    ends_b: list[float] = field(default_factory=list)
    num_w: int = 0
    held: float = 0.0
    end: float = 0.0
    bubble: float = 0.0


class _Builder:
    """Builds the order of all ranks for one setting."""

    def __init__(self, request: Request, limit: float, setting: tuple[bool, bool, bool]) -> None:
        self.request, self.limit = request, limit + _SLACK
        self.early_bubble, self.backward_first, self.fill = setting
        self.ranks = [_Rank() for _ in range(request.pp)]

    def build(self) -> list[_Rank]:
        """Return the finished ranks."""
        self._warm_up()
        for _ in range(1, self.request.num_microbatches):
            for r, wanted in enumerate(self._wanted_forwards()):
                if wanted:
                    self._forward(r)
            for r in reversed(range(self.request.pp)):
                self._backward(r)
        for r, rank in enumerate(self.ranks):
            while rank.num_w < self.request.num_microbatches:
                self._put(r, Kind.W)
        return self.ranks

    def span(self) -> float:
        """Return the longest time of a rank from its first start to its last end."""
        return max(rank.end - rank.ends_f[0] + self.request.forward for rank in self.ranks)

    def _put(self, r: int, kind: Kind) -> None:
        rank, ask = self.ranks[r], self.request
        cost = {Kind.F: ask.forward, Kind.I: ask.input_grad, Kind.W: ask.weight_grad}[kind]
        free = rank.end
        arrival = self._arrival(r, kind)
        start = max(free, arrival)
        if rank.ends_f:
            rank.bubble += start - free
        rank.end = start + cost
        if kind is Kind.F:
            rank.order.append(pack(kind, r, len(rank.ends_f)))
            rank.ends_f.append(rank.end)
            rank.held += 1.0
        elif kind is Kind.I:
            rank.order.append(pack(kind, r, len(rank.ends_b)))
            rank.ends_b.append(rank.end)
            rank.held -= 1.0 - ask.weight_part
        else:
            rank.order.append(pack(kind, r, rank.num_w))
            rank.num_w += 1
            rank.held -= ask.weight_part

    def _arrival(self, r: int, kind: Kind) -> float:
        """Return when the input of the rank's next F or I arrives."""
        rank, comm = self.ranks[r], self.request.comm
        if kind is Kind.F and r > 0:
            return self.ranks[r - 1].ends_f[len(rank.ends_f)] + comm
        if kind is Kind.I and r + 1 < self.request.pp:
            return self.ranks[r + 1].ends_b[len(rank.ends_b)] + comm
        return 0.0

    def _warm_up(self) -> None:
        ask, pp = self.request, self.request.pp
        for r in range(pp):
            self._put(r, Kind.F)
        extra = [0] * pp
        arrival = self.ranks[-1].end + ask.input_grad
        for r in range(pp - 2, -1, -1):
            clock, held = self.ranks[r].end, self.ranks[r].held
            while 1 + extra[r] < ask.num_microbatches and held + 1.0 <= self.limit:
                late = clock + ask.forward if self.early_bubble else clock
                if late > arrival + ask.comm or (not self.early_bubble and late >= arrival + ask.comm):
                    break
                clock, held, extra[r] = clock + ask.forward, held + 1.0, extra[r] + 1
            arrival = max(clock, arrival + ask.comm) + ask.input_grad
        for r in range(1, pp):
            while extra[r] > 0 and extra[r] >= extra[r - 1] and 1 + extra[r] < ask.num_microbatches:
                extra[r] -= 1
        for r in range(pp):
            for _ in range(extra[r]):
                self._put(r, Kind.F)
        for r in reversed(range(pp)):
            self._put(r, Kind.I)

    def _wanted_forwards(self) -> list[bool]:
        """Return which ranks run a forward before their next backward."""
        wanted = [self._wants_forward(r) for r in range(self.request.pp)]
        for r in range(self.request.pp - 2, -1, -1):
            wanted[r] = wanted[r] and wanted[r + 1]
        return wanted

    def _wants_forward(self, r: int) -> bool:
        ask, rank = self.request, self.ranks[r]
        if len(rank.ends_f) >= ask.num_microbatches:
            return False
        if not self.backward_first or r + 1 == ask.pp:
            return True
        after = self.ranks[r + 1]
        if len(rank.ends_f) < len(after.ends_f) + 2:
            return True
        next_arrival = after.end + ask.forward + ask.input_grad + ask.comm
        if rank.end >= next_arrival:
            return False
        freed, held, count = 0.0, rank.held + 1.0, 0
        while held > self.limit and rank.num_w + count < len(rank.ends_b):
            freed, held, count = freed + ask.weight_grad, held - ask.weight_part, count + 1
        if rank.end + ask.forward + freed <= next_arrival:
            return True
        return next_arrival - rank.end > self._worst_bubble() - rank.bubble

    def _worst_bubble(self) -> float:
        return max(rank.bubble for rank in self.ranks)

    def _forward(self, r: int) -> None:
        rank = self.ranks[r]
        while rank.held + 1.0 > self.limit:
            if rank.num_w >= len(rank.ends_b):
                msg = f"the memory limit of {counted(self.limit, 'micro-batch')} is too low for rank {r}"
                raise ScheduleError(msg)
            self._put(r, Kind.W)
        if r > 0:
            self._fill_wait(r, Kind.F)
        self._put(r, Kind.F)

    def _backward(self, r: int) -> None:
        rank, ask = self.ranks[r], self.request
        if r + 1 < ask.pp:
            self._fill_wait(r, Kind.I)
        if r == 0 and len(rank.ends_f) == ask.num_microbatches:
            while rank.num_w < len(rank.ends_b):
                self._put(r, Kind.W)
        self._put(r, Kind.I)

    def _fill_wait(self, r: int, kind: Kind) -> None:
        """Run weight gradients while the input of the next action has not arrived."""
        rank, cost = self.ranks[r], self.request.weight_grad
        arrival = self._arrival(r, kind)
        while rank.num_w < len(rank.ends_b) and rank.end + cost <= arrival:
            self._put(r, Kind.W)
        if rank.num_w < len(rank.ends_b) and rank.end < arrival:
            tolerable = arrival - rank.end <= self._worst_bubble() - rank.bubble
            if self.fill or not tolerable:
                self._put(r, Kind.W)


def construct_with(request: Request, limit: float) -> Schedule:
    """Return the best of the eight settings under a limit in micro-batches."""
    best: tuple[float, tuple[tuple[int, ...], ...]] | None = None
    flags = (True, False)
    for setting in product(flags, flags, flags):
        builder = _Builder(request, limit, setting)
        orders = tuple(tuple(rank.order) for rank in builder.build())
        if best is None or builder.span() < best[0]:
            best = (builder.span(), orders)
    assert best is not None
    return Schedule(
        name="zb", placement=loop(request.pp), num_microbatches=request.num_microbatches, orders=best[1]
    )


def _family(name: str, factor: int, alias: tuple[str, ...]) -> Family:
    def construct(request: Request) -> Schedule:
        limit = request.memory_limit if request.memory_limit is not None else factor * request.pp
        return construct_with(request, limit)

    def refusal(request: Request) -> str:
        if request.memory_limit is not None and request.memory_limit < 1:
            return f"the memory limit must be at least one micro-batch; got {request.memory_limit:g}"
        return ""

    return Family(
        name=name,
        aliases=alias,
        title=f"{name.upper()} (automatic, memory limit {'p' if factor == 1 else '2p'})",
        placement="loop",
        vpp=(1, 1),
        constraint="any",
        idle="simulate",
        peak=f"{'p' if factor == 1 else '2p'}, or the limit given",
        source="Qi et al. 2023, arXiv:2401.10241",
        construct=construct,
        held=one_per_rank,
        refusal=refusal,
        splits_backward=True,
    )


ZB_1P = _family("zb-1p", 1, ("zb1p", "zerobubble-heuristic", "zero-bubble-heuristic"))
ZB_2P = _family("zb-2p", 2, ("zb2p",))

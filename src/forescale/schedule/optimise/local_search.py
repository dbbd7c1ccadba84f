"""Better orders by local search: neighbouring passes on the critical path change places.

Simulated annealing over the orders of the ranks. A move shifts one pass of the critical path past its
neighbours on the same rank; moves that break a wait, or the memory limit, are not made. The same seed and
number of moves give the same result.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from forescale import wording
from forescale.errors import ScheduleError
from forescale.numeric import Array
from forescale.schedule.actions import KIND_BITS, Kind
from forescale.schedule.family import LONGEST
from forescale.schedule.measured import MeasuredStep, stage_times_for
from forescale.schedule.memory import ActivationSizes, peak_memory
from forescale.schedule.model import Placement, Schedule
from forescale.schedule.program import crossing, flatten, sources
from forescale.schedule.times import LinkTimes, StageTimes
from forescale.schedule.timing import compile_schedule
from forescale.struct import Struct
from forescale.units import counted

MOST_PASSES = 1 << 17
"""Passes of the largest problem that is taken on."""
KINDS = (Kind.F, Kind.I, Kind.W)


class Problem(Struct, frozen=True, kw_only=True, eq=False):
    """Find the order of all passes with the least makespan.

    Durations are those of one pass of a stage; arrays over stages (num_stages,) and boundaries
    (num_stages - 1,). Activations are held from F to W; the input gradient frees all but `weight_part`.
    """

    placement: Placement
    num_microbatches: int
    forward: Array
    input_grad: Array
    weight_grad: Array
    comm: Array
    saved: Array
    """What a stage saves of one micro-batch, in micro-batches of a device's full share."""
    memory_limit: float | None = None
    weight_part: float = 1.0

    def __post_init__(self) -> None:
        """Check shapes and that the limit lets one micro-batch through."""
        stages = self.placement.num_stages
        if self.placement.num_replicas != 1:
            value = "bidirectional placements, which hold two copies of the model"
            raise ScheduleError(wording.unsupported_by("the optimiser", value))
        lengths = {
            "forward": stages,
            "input_grad": stages,
            "weight_grad": stages,
            "saved": stages,
            "comm": stages - 1,
        }
        for name, length in lengths.items():
            if getattr(self, name).shape != (length,):
                value = getattr(self, name).shape[0]
                allowed = counted(length, "value")
                raise ScheduleError(wording.wrong_count(name, value, "the schedule", allowed))
            if not np.all((getattr(self, name) >= 0.0) & (getattr(self, name) <= LONGEST)):
                raise ScheduleError(wording.out_of_range(name, ..., f"numbers from 0 to {LONGEST:g}"))
        if not np.any(self.forward + self.input_grad + self.weight_grad):
            raise ScheduleError(wording.out_of_range("the sum of all durations", 0, "greater than 0"))
        passes = 3 * stages * self.num_microbatches
        if passes > MOST_PASSES:
            raise ScheduleError(
                wording.too_large("the schedule", f"{passes:,} passes", f"{MOST_PASSES:,} for the optimiser")
            )
        least = max(self.saved[list(mine)].sum() for mine in self.stages_of_rank)
        if self.memory_limit is not None and least > self.memory_limit * (1 + 1e-9):
            got = f"got {self.memory_limit:g}"
            raise ScheduleError(wording.out_of_memory("one micro-batch", least, "less", got))

    @property
    def stages_of_rank(self) -> tuple[tuple[int, ...], ...]:
        """Stages on each rank."""
        home = self.placement.rank_of_stage
        return tuple(
            tuple(s for s, rank in enumerate(home) if rank == index)
            for index in range(self.placement.num_ranks)
        )

    @property
    def times(self) -> StageTimes:
        """Durations as the simulator takes them."""
        return StageTimes(forward=self.forward, input_grad=self.input_grad, weight_grad=self.weight_grad)

    @property
    def links(self) -> LinkTimes:
        """Messages as the simulator takes them."""
        return LinkTimes(latency=self.comm)

    @property
    def sizes(self) -> ActivationSizes:
        """What the stages hold as the simulator takes it."""
        return ActivationSizes(saved=self.saved, weight_part=self.weight_part)

    def duration(self, kind: Kind, stage: int) -> float:
        """Return how long a pass takes."""
        return float({Kind.F: self.forward, Kind.I: self.input_grad, Kind.W: self.weight_grad}[kind][stage])

    def makespan(self, schedule: Schedule) -> float:
        """Return the makespan of a schedule under these durations."""
        return float(compile_schedule(schedule).time(self.times, self.links).makespan)

    def fits(self, schedule: Schedule) -> bool:
        """Return whether a schedule stays within the memory limit."""
        if self.memory_limit is None:
            return True
        return bool(peak_memory(schedule, self.sizes).max() <= self.memory_limit * (1 + 1e-9))

    def lower_bound(self) -> float:
        """Return a makespan that no order can beat: a rank's work between its earliest start and tail."""
        home = np.array(self.placement.rank_of_stage)
        hop = np.where(home[1:] != home[:-1], self.comm, 0.0)
        down = np.concatenate(([0.0], np.cumsum(self.forward[:-1] + hop)))
        chain = float(down[-1] + self.forward[-1] + self.input_grad.sum() + hop.sum())
        best = chain + float(self.weight_grad[0])
        forward = self.forward + self.input_grad + self.weight_grad
        for mine in self.stages_of_rank:
            work = self.num_microbatches * float(forward[list(mine)].sum())
            best = max(best, float(down[list(mine)].min()) + work)
        return best


def measured_problem(
    step: MeasuredStep,
    placement: Placement,
    num_microbatches: int,
    *,
    memory_limit: float | None = None,
    weight_part: float = 1.0,
) -> Problem:
    """Return the question of the best order for a measured step's stages; milliseconds.

    What ranks spend between passes counts as part of them: the optimiser knows passes and messages only.

    Raises
    ------
    ScheduleError
        If the step has another number of stages than the placement.
    """
    plain = Schedule(
        name="the optimiser's schedule",
        placement=placement,
        num_microbatches=num_microbatches,
        orders=((),) * placement.num_ranks,
    )
    times, links = stage_times_for(step, plain)
    home = np.array(placement.rank_of_stage)
    posted = np.zeros(placement.num_stages + 1)
    posted[1:-1] = (home[1:] != home[:-1]) * np.asarray(links.host)
    host, messages = np.asarray(times.host), posted[:-1] + posted[1:]
    taken = (np.asarray(links.transfer) + np.asarray(links.backward_transfer)) / 2.0
    return Problem(
        placement=placement,
        num_microbatches=num_microbatches,
        forward=np.asarray(times.forward) + host + messages,
        input_grad=np.asarray(times.input_grad) + host + messages,
        weight_grad=np.asarray(times.weight_grad) + host,
        comm=np.maximum(taken - host[:-1] - messages[:-1], 0.0),
        saved=np.full(placement.num_stages, 1.0 / placement.vpp),
        memory_limit=memory_limit,
        weight_part=weight_part,
    )


def split_backward(schedule: Schedule) -> Schedule:
    """Return the schedule with every B as I and W: never later, and the form the optimiser works on."""

    def parts(code: int) -> tuple[int, ...]:
        whole = code & KIND_BITS == Kind.B
        return (code - Kind.B + Kind.I, code - Kind.B + Kind.W) if whole else (code,)

    orders = (tuple(part for code in order for part in parts(code)) for order in schedule.orders)
    return replace(schedule, orders=tuple(orders))


_FAR = math.inf


class _State:
    """Orders of all ranks as node numbers, and how to time them."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem = problem
        flat = flatten(schedule.orders)
        self.codes, self.stage = flat.code.tolist(), flat.stage.tolist()
        self.orders = [list(range(low, high)) for low, high in pairwise(flat.bounds.tolist())]
        self.kind = [Kind(kind) for kind in flat.kind.tolist()]
        self.cost = [problem.duration(k, s) for k, s in zip(self.kind, self.stage, strict=True)]
        source = sources(schedule, flat)
        boundary = np.minimum(flat.stage, flat.stage[source])
        delay = np.where(crossing(flat, source), np.append(problem.comm, 0.0)[boundary], 0.0)
        self.source, self.delay = source.tolist(), delay.tolist()
        saved, part = problem.saved, problem.weight_part
        change = {Kind.F: 1.0, Kind.I: part - 1.0, Kind.W: -part}
        self.change = [change[k] * float(saved[s]) for k, s in zip(self.kind, self.stage, strict=True)]
        self.end = [0.0] * len(self.codes)
        self.previous = [-1] * len(self.codes)

    def evaluate(self) -> float:
        """Return the makespan; infinite where the orders deadlock."""
        end, previous, source, delay, cost = self.end, self.previous, self.source, self.delay, self.cost
        done = bytearray(len(end))
        at = [0] * len(self.orders)
        clock = [0.0] * len(self.orders)
        left, moved = len(end), True
        while moved:
            moved = False
            for rank, order in enumerate(self.orders):
                index, now = at[rank], clock[rank]
                before = order[index - 1] if index else -1
                while index < len(order):
                    node = order[index]
                    needed = source[node]
                    if needed >= 0:
                        if not done[needed]:
                            break
                        ready = end[needed] + delay[node]
                        if ready > now:  # noqa: PLR1730 -- this loop is hot
                            now = ready
                    now += cost[node]
                    end[node], done[node], previous[node] = now, 1, before
                    before = node
                    index += 1
                if index != at[rank]:
                    moved, left = True, left - index + at[rank]
                    at[rank], clock[rank] = index, now
        return _FAR if left else max(clock)

    def critical(self) -> list[int]:
        """Return nodes on a critical path that wait for their rank's previous node, last first."""
        node = max((order[-1] for order in self.orders if order), key=lambda n: self.end[n])
        result = []
        while node >= 0:
            start = self.end[node] - self.cost[node]
            before, needed = self.previous[node], self.source[node]
            if before >= 0 and self.end[before] >= start - 1e-12 * max(1.0, start):
                result.append(node)
                node = before
            elif needed >= 0:
                node = needed
            else:
                node = before if before >= 0 and self.end[before] >= start else -1
        return result

    def move(self, rank: int, at: int, to: int) -> bool:
        """Move a rank's pass from one position to another if no local wait or the limit forbids it."""
        order = self.orders[rank]
        node = order[at]
        passed = order[at + 1 : to + 1] if to > at else order[to:at]
        for other in passed:
            early, late = (node, other) if to > at else (other, node)
            if self.source[late] == early:
                return False
        order.insert(to, order.pop(at))
        limit = self.problem.memory_limit
        if limit is not None and not self._fits(rank, limit):
            order.insert(at, order.pop(to))
            return False
        return True

    def _fits(self, rank: int, limit: float) -> bool:
        kept, most = 0.0, limit * (1.0 + 1e-9)
        for node in self.orders[rank]:
            kept += self.change[node]
            if kept > most:
                return False
        return True


def improve(problem: Problem, schedule: Schedule, *, num_moves: int, seed: int = 0) -> Schedule:
    """Return the best order found in `num_moves` tried moves, never worse than the given one.

    The schedule's backwards must be split.
    """
    state = _State(problem, schedule)
    rank_of = {node: rank for rank, order in enumerate(state.orders) for node in order}
    random = np.random.default_rng(seed)
    now = best = state.evaluate()
    best_orders = [order.copy() for order in state.orders]
    bound = problem.lower_bound()
    heat = 0.01 * now
    path = state.critical()
    for step in range(num_moves):
        if best <= bound * (1.0 + 1e-12) or not path:
            break
        node = path[int(random.integers(len(path)))]
        rank = rank_of[node]
        order = state.orders[rank]
        at = order.index(node)
        reach = int(random.integers(1, 5))
        if random.random() < 0.5:  # the pass itself earlier, or the one before it later
            to = max(0, at - reach)
        else:
            at, to = at - 1, min(len(order) - 1, at - 1 + reach)
        if at < 0 or at == to or not state.move(rank, at, to):
            continue
        evaluate = state.evaluate()
        accept = evaluate <= now or random.random() < math.exp(-(evaluate - now) / heat)
        if not accept:
            order.insert(at, order.pop(to))
            state.evaluate()
            continue
        now, path = evaluate, state.critical()
        if now < best - 1e-12 * best:
            best, best_orders = now, [order.copy() for order in state.orders]
        heat = 0.01 * best * max(0.02, 1.0 - step / num_moves)
    orders = tuple(tuple(state.codes[node] for node in order) for order in best_orders)
    return replace(schedule, orders=orders)

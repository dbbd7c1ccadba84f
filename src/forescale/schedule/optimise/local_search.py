"""Better orders by local search: neighbouring passes on the critical path change places.

Simulated annealing over the orders of the ranks. A move shifts one pass of the critical path past its
neighbours on the same rank; moves that break a wait, or the memory limit, are not made. The same seed and
number of moves give the same result.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from forescale.schedule.actions import Kind
from forescale.schedule.model import Schedule
from forescale.schedule.optimise.problem import Problem
from forescale.schedule.program import crossing, flatten, sources

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
        found = []
        while node >= 0:
            start = self.end[node] - self.cost[node]
            before, needed = self.previous[node], self.source[node]
            if before >= 0 and self.end[before] >= start - 1e-12 * max(1.0, start):
                found.append(node)
                node = before
            elif needed >= 0:
                node = needed
            else:
                node = before if before >= 0 and self.end[before] >= start else -1
        return found

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
        held, most = 0.0, limit * (1.0 + 1e-9)
        for node in self.orders[rank]:
            held += self.change[node]
            if held > most:
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
        found = state.evaluate()
        accept = found <= now or random.random() < math.exp(-(found - now) / heat)
        if not accept:
            order.insert(at, order.pop(to))
            state.evaluate()
            continue
        now, path = found, state.critical()
        if now < best - 1e-12 * best:
            best, best_orders = now, [each.copy() for each in state.orders]
        heat = 0.01 * best * max(0.02, 1.0 - step / num_moves)
    orders = tuple(tuple(state.codes[node] for node in order) for order in best_orders)
    return replace(schedule, orders=orders)

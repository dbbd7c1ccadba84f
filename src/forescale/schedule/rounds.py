"""Times of a schedule of millions of actions, in little memory: all ranks go on together, an action at a time.

In each round, every rank whose next input is there runs its next action. The recurrence and the order of its
additions are those of `CompiledSchedule`, so ranks start and end at the same bits; what the single actions do
is not kept.
"""

from __future__ import annotations

import numpy as np

from forescale.numeric import Array
from forescale.schedule.actions import (
    JOINED,
    KIND_BITS,
    MICROBATCH_SHIFT,
    STAGE_BITS,
    STAGE_SHIFT,
    Kind,
    as_codes,
)
from forescale.schedule.model import Schedule
from forescale.schedule.program import Ints
from forescale.schedule.times import LinkTimes, StageTimes, lay_out
from forescale.schedule.timing import Timing, layered_runs

NUM_PASSES = 4
"""Kinds of passes: F, B, I, W."""
_PLACE = (1 << MICROBATCH_SHIFT) - 1
_NO_BLOCKS = np.empty((0, 2), dtype=np.int64)


def only_passes(schedule: Schedule) -> bool:
    """Return whether a schedule has passes of whole sequences only: no blocks, no copies, no pieces."""
    other = JOINED | (KIND_BITS - (NUM_PASSES - 1))
    return schedule.num_splits == 1 and not any(
        np.bitwise_or.reduce(as_codes(order), initial=0) & other for order in schedule.orders
    )


def num_messages(schedule: Schedule) -> int:
    """Return the messages between ranks of a whole step: activations down, gradients back."""
    home, logical = np.array(schedule.placement.rank_of_stage), schedule.num_stages
    apart = int(np.count_nonzero(home[1:logical] != home[: logical - 1]))
    return 2 * apart * schedule.num_units


def time_by_rounds(schedule: Schedule, times: StageTimes, links: LinkTimes) -> Timing | None:
    """Return what a step takes for one candidate; None if the schedule is not whole or cannot run.

    Parameters
    ----------
    schedule
        One of `only_passes`.
    times, links
        Durations of one candidate; messages only delay their receivers.
    """
    laid = lay_out(schedule, times, links, blocks=_NO_BLOCKS, passing=True)
    table = _Table(schedule, laid.spent, laid.delays)
    found = table.run(schedule)
    if found is None:
        return None
    return Timing(
        first_start=found[0], last_end=found[1], runs=_runs(schedule, len(table.home)), nodes=laid.nodes
    )


class _Table:
    """What an action waits for, costs and leaves, by its kind and stage; ends of all passes.

    Rows of the ends: F, B or I, and W (which B fills too) of each stage, then one of zeros, one that never
    ends, one for what nobody waits for.
    """

    def __init__(self, schedule: Schedule, nodes: Array, delays: Array) -> None:
        self.home = np.array(schedule.placement.rank_of_stage)
        stages, units = self.home.size, schedule.num_units
        self.stages, self.units = stages, units
        self.ends = np.full((3 * stages + 3, units), np.inf)
        self.ends[3 * stages] = 0.0
        nothing, never, nobody = (3 * stages + each for each in range(3))
        stage = np.arange(stages)
        place = stage % schedule.num_stages
        first, last = place == 0, place == schedule.num_stages - 1
        shape = (stages, 1 << STAGE_SHIFT)
        source, leaves, also = (np.full(shape, row, dtype=np.int64) for row in (never, nobody, nobody))
        cost, delay = np.zeros(shape), np.zeros(shape)
        source[:, Kind.F] = np.where(first, nothing, stage - 1)
        leaves[:, Kind.F] = stage
        for kind in (Kind.B, Kind.I):
            source[:, kind] = np.where(last, stage, stages + stage + 1)
            leaves[:, kind] = stages + stage
        source[:, Kind.W] = stages + stage
        also[:, Kind.B] = also[:, Kind.W] = 2 * stages + stage
        cost[:, :NUM_PASSES] = nodes[: NUM_PASSES * stages].reshape(NUM_PASSES, stages).T
        before, after = np.maximum(stage - 1, 0), np.minimum(stage + 1, stages - 1)
        sent = np.where(first | (self.home[before] == self.home), 0.0, delays[before])
        back = np.where(last | (self.home[after] == self.home), 0.0, delays[stages + after])
        delay[:, Kind.F], delay[:, Kind.B], delay[:, Kind.I] = sent, back, back
        self.source, self.leaves, self.also = ((rows * units).reshape(-1) for rows in (source, leaves, also))
        self.cost, self.delay = cost.reshape(-1), delay.reshape(-1)

    def run(self, schedule: Schedule) -> tuple[Array, Array] | None:
        """Return first starts and last ends of all ranks; None where ranks wait for ever or passes are missing."""
        end_of_order = np.array([KIND_BITS], dtype=np.int64)
        orders = [part for order in schedule.orders for part in (as_codes(order), end_of_order)]
        codes = np.concatenate(orders)
        bounds = np.cumsum([0, *(len(order) + 1 for order in schedule.orders)])
        at, clock, ends = bounds[:-1].copy(), np.zeros(len(bounds) - 1), self.ends.reshape(-1)
        while True:
            code = codes.take(at)
            unit = code >> MICROBATCH_SHIFT
            row = code & _PLACE
            start = ends.take(self.source.take(row) + unit) + self.delay.take(row)
            ready = np.flatnonzero(start < np.inf)
            if ready.size < at.size:
                if not ready.size:
                    break
                row, unit = row[ready], unit[ready]
                end = np.maximum(start[ready], clock[ready]) + self.cost.take(row)
                clock[ready] = end
                at[ready] += 1
            else:
                end = clock = np.maximum(start, clock) + self.cost.take(row)
                at += 1
            ends[self.leaves.take(row) + unit] = end
            ends[self.also.take(row) + unit] = end
        first = codes[bounds[:-1]]
        row = first & _PLACE
        start = ends.take(self.source.take(row) + (first >> MICROBATCH_SHIFT)) + self.delay.take(row)
        done = np.array_equal(at, bounds[1:] - 1) and self._whole(schedule)
        return (np.where(start < np.inf, start, 0.0), clock) if done else None

    def _whole(self, schedule: Schedule) -> bool:
        """Return whether every pass that is due has run, on its rank, and nothing twice."""
        counts = np.zeros(NUM_PASSES, dtype=np.int64)
        for rank, order in enumerate(schedule.orders):
            codes = as_codes(order)
            if np.any(self.home[codes >> STAGE_SHIFT & STAGE_BITS] != rank):
                return False
            counts += np.bincount(codes & KIND_BITS, minlength=NUM_PASSES)
        replicas = schedule.placement.num_replicas
        route = np.arange(self.units) * replicas // schedule.num_microbatches
        due = (np.arange(self.stages) // schedule.num_stages)[:, None] == route
        forward, backward, weight = np.isfinite(self.ends[: 3 * self.stages]).reshape(3, *due.shape)
        n_forward, n_whole, n_input, n_weight = counts.tolist()
        return bool(
            all(np.array_equal(there, due) for there in (forward, backward, weight))
            and n_forward == n_whole + n_input == n_whole + n_weight == np.count_nonzero(due)
        )


def _runs(schedule: Schedule, stages: int) -> tuple[tuple[Ints, Array], ...]:
    """Return how often each rank runs which duration class; see `Timing.runs`."""
    found = []
    for order in schedule.orders:
        codes = as_codes(order)
        classes = (codes & KIND_BITS) * stages + (codes >> STAGE_SHIFT & STAGE_BITS)
        found.append(np.bincount(classes, minlength=NUM_PASSES * stages))
    counts = np.array(found)
    ranks, classes = np.nonzero(counts)
    return layered_runs(ranks, classes, counts[ranks, classes], len(found))

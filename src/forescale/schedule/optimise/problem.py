"""What the optimiser is asked: stages on ranks, their durations, messages, micro-batches and a memory limit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forescale.errors import ScheduleError
from forescale.numeric import Array
from forescale.schedule.actions import KIND_BITS, Kind
from forescale.schedule.family import LONGEST
from forescale.schedule.measured import MeasuredStep, stage_times_for
from forescale.schedule.memory import ActivationSizes, peak_memory
from forescale.schedule.model import Placement, Schedule
from forescale.schedule.times import LinkTimes, StageTimes
from forescale.schedule.timing import compile_schedule
from forescale.units import counted

MOST_PASSES = 1 << 17
"""Passes of the largest problem that is taken on."""
KINDS = (Kind.F, Kind.I, Kind.W)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
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
            msg = "the optimiser places one copy of the model; bidirectional placements hold two"
            raise ScheduleError(msg)
        lengths = {
            "forward": stages,
            "input_grad": stages,
            "weight_grad": stages,
            "saved": stages,
            "comm": stages - 1,
        }
        for name, length in lengths.items():
            if getattr(self, name).shape != (length,):
                msg = f"{name}: give {counted(length, 'value')}; got {getattr(self, name).shape[0]}"
                raise ScheduleError(msg)
            if not np.all((getattr(self, name) >= 0.0) & (getattr(self, name) <= LONGEST)):
                msg = f"{name}: give numbers from 0 to {LONGEST:g}"
                raise ScheduleError(msg)
        if not np.any(self.forward + self.input_grad + self.weight_grad):
            msg = "all durations are zero; the optimiser needs at least one pass that takes time"
            raise ScheduleError(msg)
        passes = 3 * stages * self.num_microbatches
        if passes > MOST_PASSES:
            msg = f"{passes:,} passes are too many to optimise; it takes up to {MOST_PASSES:,}"
            raise ScheduleError(msg)
        least = max(self.saved[list(mine)].sum() for mine in self.stages_of_rank)
        if self.memory_limit is not None and least > self.memory_limit * (1 + 1e-9):
            got = f"got {self.memory_limit:g}"
            msg = f"the memory limit must let one micro-batch through: {least:g} or more; {got}"
            raise ScheduleError(msg)

    @property
    def stages_of_rank(self) -> tuple[tuple[int, ...], ...]:
        """Stages on each rank."""
        home = self.placement.rank_of_stage
        return tuple(
            tuple(s for s, rank in enumerate(home) if rank == each)
            for each in range(self.placement.num_ranks)
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
        each = self.forward + self.input_grad + self.weight_grad
        for mine in self.stages_of_rank:
            work = self.num_microbatches * float(each[list(mine)].sum())
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

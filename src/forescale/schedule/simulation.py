"""One simulated step: times, bubbles, memory and messages of a schedule for given durations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forescale.brief import Brief
from forescale.numeric import Array
from forescale.schedule.checker import CheckReport, check, out_of_memory
from forescale.schedule.compiled import CompiledSchedule, compile_schedule
from forescale.schedule.deadlock import SEMANTICS
from forescale.schedule.errors import ScheduleError
from forescale.schedule.family import MOST_IN_FULL
from forescale.schedule.layout import Durations
from forescale.schedule.memory import ActivationSizes, memory_curve, peak_activations, unit_sizes
from forescale.schedule.model import Schedule
from forescale.schedule.program import Comm
from forescale.schedule.step import NO_STEP_COSTS, StepCosts, releases, step_end
from forescale.schedule.times import FREE, LinkTimes, StageTimes
from forescale.schedule.timing import Timing
from forescale.schedule.wave import num_messages, only_passes, time_by_rounds

MANY_ACTIONS = 1 << 17
"""Actions beyond which a step is timed without keeping each."""
SCHEMA = "forescale.pipeline/1"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Step(Brief):
    """What one step of a schedule takes and holds; made by `time_step`."""

    schedule: Schedule
    timing: Timing
    sizes: ActivationSizes
    report: CheckReport
    num_messages: int
    """Messages between ranks."""
    step_time: float
    """Makespan, then gradient reductions that outlast it, then the optimizer."""

    def essentials(self) -> dict[str, Any]:
        """Return the schedule, its time, idle share and peak."""
        return {
            "schedule": self.schedule,
            "makespan": self.makespan,
            "step_time": self.step_time,
            "bubble_rate_makespan": self.bubble_rate_makespan,
            "peak_activations": float(self.peak_activations.max()),
        }

    @property
    def makespan(self) -> float:
        """Time from the step's start to the last end of any rank's compute."""
        return float(self.timing.makespan)

    @property
    def longest_span(self) -> float:
        """Longest time of one rank from its first start to its last end."""
        return float(self.timing.longest_span)

    @property
    def bubble_rate_makespan(self) -> float:
        """Idle share of all ranks' time under an optimizer barrier."""
        return float(self.timing.bubble_rate_makespan)

    @property
    def bubble_rate_span(self) -> float:
        """Idle share where each rank's step is as long as the longest span (the zero-bubble papers)."""
        return float(self.timing.bubble_rate_span)

    @property
    def peak_activations(self) -> Array:
        """Most micro-batches of a device's full share each rank holds; (num_ranks,)."""
        return peak_activations(self.schedule, self.sizes.weight_part)

    def to_json(self) -> dict[str, Any]:
        """Return the result under the schema forescale.pipeline/1."""
        placement = self.schedule.placement
        return {
            "schema": SCHEMA,
            "schedule": self.schedule.name,
            "pp": placement.num_ranks,
            "vpp": placement.vpp if placement.vpp % 1 else int(placement.vpp),
            "num_stages": self.schedule.num_stages,
            "num_microbatches": self.schedule.num_microbatches,
            "makespan": self.makespan,
            "longest_span": self.longest_span,
            "bubble_rate_makespan": self.bubble_rate_makespan,
            "bubble_rate_span": self.bubble_rate_span,
            "step_time": self.step_time,
            "peak_activations": self.peak_activations.tolist(),
            "rank_starts": self.timing.first_start.tolist(),
            "rank_ends": self.timing.last_end.tolist(),
            "rank_busy": self.timing.busy.tolist(),
            "num_messages": self.num_messages,
            "valid": self.report.valid,
            "violations": [violation.message for violation in self.report.violations],
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Simulation(Step):
    """What one step of a schedule does when, action by action; made by `simulate`."""

    compiled: CompiledSchedule
    laid: Durations
    start: Array
    """Start of each action, rank after rank; (num_actions,)."""
    end: Array

    @property
    def memory(self) -> Array:
        """What each rank holds after each of its actions, in the unit of the sizes; (num_actions,)."""
        return memory_curve(self.schedule, self.sizes, self.compiled.program.flat)

    def _repr_html_(self) -> str:
        """Show the timeline in a notebook."""
        from forescale.schedule.draw.svg import to_svg

        return to_svg(self)


def simulate(
    schedule: Schedule,
    times: StageTimes,
    links: LinkTimes = FREE,
    *,
    comm: Comm = "overlapped",
    step: StepCosts = NO_STEP_COSTS,
    sizes: ActivationSizes | None = None,
    memory_limit: float | Array | None = None,
) -> Simulation:
    """Return one simulated step.

    Parameters
    ----------
    schedule
        The schedule.
    times, links
        Durations of one candidate: numbers, or one per stage and boundary.
    comm
        How messages share links and compute; see `compile_schedule`.
    step
        Data-parallel communication and optimizer around the pipeline.
    sizes, memory_limit
        Activation sizes for the memory curve, and the most that a rank may hold.

    Raises
    ------
    ScheduleError
        If the schedule cannot run.
    """
    if (count := schedule.num_actions) > MOST_IN_FULL:
        msg = f"{schedule.name}: {count:,} actions are too many to time one by one, {MOST_IN_FULL:,} are not"
        raise ScheduleError(msg)
    compiled = compile_schedule(schedule, comm=comm)
    laid = compiled.durations(times, links)
    state, spent = compiled.run(laid, release=releases(compiled, step))
    cells = compiled.position[compiled.program.node_of_action]
    end = state[cells]
    start = end - spent.reshape(-1)[cells]
    program = compiled.program if comm == "overlapped" else None
    report = check(schedule, memory_limit=memory_limit, sizes=sizes, program=program)
    return Simulation(
        schedule=schedule,
        compiled=compiled,
        laid=laid,
        timing=compiled.summary(laid, state),
        start=start,
        end=end,
        sizes=sizes or unit_sizes(schedule),
        report=report,
        num_messages=compiled.num_messages,
        step_time=step_end(compiled, step, end),
    )


def time_step(
    schedule: Schedule,
    times: StageTimes,
    links: LinkTimes = FREE,
    *,
    comm: Comm = "overlapped",
    sizes: ActivationSizes | None = None,
    memory_limit: float | Array | None = None,
) -> Step:
    """Return what one step takes: `simulate`, or the same without single actions where there are millions.

    Raises
    ------
    ScheduleError
        If the schedule cannot run, or is too large for what is asked.
    """
    many = schedule.num_actions > MANY_ACTIONS and comm == "overlapped" and only_passes(schedule)
    timing = time_by_rounds(schedule, times, links) if many else None
    if timing is None:
        return simulate(schedule, times, links, comm=comm, sizes=sizes, memory_limit=memory_limit)
    above = [] if memory_limit is None else out_of_memory(schedule, memory_limit, sizes)
    return Step(
        schedule=schedule,
        timing=timing,
        sizes=sizes or unit_sizes(schedule),
        report=CheckReport(violations=tuple(above), deadlock_free=SEMANTICS),
        num_messages=num_messages(schedule),
        step_time=float(timing.makespan),
    )

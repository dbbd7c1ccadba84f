"""One simulated step: times, bubbles, memory and messages of a schedule for given durations.

Around the pipeline, a parameter gather comes before a stage's first forward, a gradient reduction after its last
backward, the optimizer behind a barrier of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from forescale.errors import ScheduleError, too_large
from forescale.numeric import Array
from forescale.results import Result
from forescale.schedule.actions import (
    JOINED,
    KIND_BITS,
    MICROBATCH_SHIFT,
    STAGE_BITS,
    STAGE_SHIFT,
    Kind,
    as_codes,
)
from forescale.schedule.checker import SEMANTICS, CheckReport, check, out_of_memory
from forescale.schedule.family import MOST_IN_FULL
from forescale.schedule.memory import ActivationSizes, memory_curve, peak_activations, unit_sizes
from forescale.schedule.messages import Comm, Sends
from forescale.schedule.model import Schedule
from forescale.schedule.program import Ints, crossing
from forescale.schedule.times import FREE, Durations, LinkTimes, StageTimes, from_share, lay_out
from forescale.schedule.timing import CompiledSchedule, Timing, compile_schedule, layered_runs
from forescale.struct import Struct, attributes
from forescale.units import counted

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

    For schedules of millions of actions, in little memory: in each round, every rank whose next input is there runs
    its next action. The recurrence and the order of its additions are those of `CompiledSchedule`, so ranks start and
    end at the same bits; what the single actions do is not kept.

    Parameters
    ----------
    schedule
        One of `only_passes`.
    times, links
        Durations of one candidate; messages only delay their receivers.
    """
    laid = lay_out(schedule, times, links, blocks=_NO_BLOCKS, passing=True)
    table = _Table(schedule, laid.spent, laid.delays)
    result = table.run(schedule)
    if result is None:
        return None
    return Timing(
        first_start=result[0], last_end=result[1], runs=_runs(schedule, len(table.home)), nodes=laid.nodes
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
        nothing, never, nobody = (3 * stages + index for index in range(3))
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
    result = []
    for order in schedule.orders:
        codes = as_codes(order)
        classes = (codes & KIND_BITS) * stages + (codes >> STAGE_SHIFT & STAGE_BITS)
        result.append(np.bincount(classes, minlength=NUM_PASSES * stages))
    counts = np.array(result)
    ranks, classes = np.nonzero(counts)
    return layered_runs(ranks, classes, counts[ranks, classes], len(result))


if TYPE_CHECKING:
    from forescale.schedule.draw.timeline import Timeline
    from forescale.view.page import Chart

MANY_ACTIONS = 1 << 17
"""Actions beyond which a step is timed without keeping each."""
SCHEMA = "forescale.pipeline/1"


class StepCosts(Struct, frozen=True, kw_only=True, eq=False):
    """Data-parallel communication and optimizer of one step; numbers or arrays over stages (num_stages,).

    Each rank runs its gathers, and its reductions, one after the other beside compute.
    """

    param_gather: float | Array = 0.0
    grad_reduce: float | Array = 0.0
    optimizer: float = 0.0
    overlap: bool = True
    """False: gathers come before all compute, reductions after all compute of the rank."""


NO_STEP_COSTS = StepCosts()


class Step(Result, Struct, frozen=True, kw_only=True, eq=False):
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
            **attributes(self, "makespan", "step_time", "bubble_rate_makespan"),
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

    @property
    def title(self) -> str:
        """The schedule, its ranks and micro-batches."""
        schedule = self.schedule
        return (
            f"{schedule.name}, pp {schedule.num_ranks}, {counted(schedule.num_microbatches, 'micro-batch')}"
        )

    @property
    def summary(self) -> str:
        """Time, idle share and peak."""
        return (
            f"makespan {self.makespan:.6g}, bubble {self.bubble_rate_makespan:.1%} "
            f"(longest span {self.longest_span:.6g}, {self.bubble_rate_span:.1%}), "
            f"peak {counted(float(self.peak_activations.max()), 'micro-batch')}"
        )

    @property
    def headline(self) -> str:
        """The schedule, its time, idle share and peak on one line."""
        return f"{self.title}: {self.summary}"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per rank: when it starts and ends, its idle share, and what it holds at most."""
        timing, columns = self.timing, ("start", "end", "busy", "idle_share", "peak_activations")
        busy = np.asarray(timing.busy, dtype=float)
        idle = 1.0 - busy / (self.makespan or 1.0)
        arrays = (timing.first_start, timing.last_end, busy, idle, self.peak_activations)
        values = zip(*(np.asarray(array, dtype=float).tolist() for array in arrays), strict=True)
        return [{"rank": rank, **dict(zip(columns, row, strict=True))} for rank, row in enumerate(values)]

    def to_json(self) -> dict[str, Any]:
        """Return the result under the schema forescale.pipeline/1."""
        placement = self.schedule.placement
        return {
            "schema": SCHEMA,
            **attributes(self.schedule, "schedule=name", "pp=placement.num_ranks"),
            "vpp": placement.vpp if placement.vpp % 1 else int(placement.vpp),
            **attributes(self.schedule, "num_stages", "num_microbatches"),
            **attributes(self, "makespan", "longest_span", "bubble_rate_makespan", "bubble_rate_span"),
            **attributes(self, "step_time", "peak_activations", "rank_starts=timing.first_start"),
            **attributes(self, "rank_ends=timing.last_end", "rank_busy=timing.busy", "num_messages"),
            "valid": self.report.valid,
            "violations": [violation.message for violation in self.report.violations],
        }


class Simulation(Step, frozen=True, kw_only=True, eq=False):
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

    @property
    def timeline(self) -> Timeline:
        """The step as pictures draw it."""
        from forescale.schedule.draw.timeline import Bar, Timeline

        schedule, flat = self.schedule, self.compiled.program.flat
        starts, ends = shared_blocks(self)
        chunk = chunks(schedule.placement.rank_of_stage)
        joined = flat.joined | np.concatenate(([False], flat.joined[:-1]))
        pieces = schedule.num_splits
        bars = tuple(
            Bar(
                rank=int(flat.rank[i]),
                start=float(starts[i]),
                end=float(ends[i]),
                kind=Kind(int(flat.kind[i])),
                microbatch=int(flat.unit[i]),
                chunk=chunk[int(flat.stage[i])],
                name=flat.label(i).split(" ")[0]
                + (f" (piece {flat.unit[i] % pieces} of {pieces})" if pieces > 1 else ""),
                overlapped=bool(joined[i]),
            )
            for i in range(flat.code.size)
        )
        source = self.compiled.program.source
        received = np.nonzero(crossing(flat, source))[0]
        return Timeline(
            title=self.title,
            num_ranks=schedule.num_ranks,
            makespan=self.makespan,
            bars=bars,
            memory=_memory_steps(self),
            messages=tuple(zip(source[received].tolist(), received.tolist(), strict=True)),
            note=self.summary,
        )

    def pictures(self) -> Sequence[Chart]:
        """Return what every rank does when."""
        from forescale.schedule.draw.timeline import FILL, KINDS
        from forescale.view.spans import Span, SpanChart

        names = {kind: KINDS.get(kind, KINDS[Kind.OFFLOAD]) for kind in FILL}
        later = ("", ", later chunks")
        colours = {
            f"{names[kind]}{later[chunk]}": shades[chunk] for kind, shades in FILL.items() for chunk in (0, 1)
        }
        timeline = self.timeline
        spans = tuple(
            Span(
                row=f"rank {bar.rank}", start=bar.start, end=bar.end, remark=bar.name,
                part=f"{names[bar.kind]}{later[min(bar.chunk, 1)]}",
            )
            for bar in timeline.bars
        )  # fmt: skip
        return (
            SpanChart(title=timeline.title, note=timeline.note, unit="time", spans=spans, colours=colours),
        )

    def _repr_html_(self) -> str:
        """Show the headline, the timeline and a row per rank in a notebook."""
        from forescale.schedule.draw.html import to_svg

        title, _, rest = Result._repr_html_(self).partition("</p>")
        return f"{title}</p>{to_svg(self.timeline)}{rest}"


def simulate(
    schedule: Schedule,
    times: StageTimes | None = None,
    links: LinkTimes = FREE,
    *,
    comm: Comm = "overlapped",
    sends: Sends = "late",
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
        Durations of one candidate: numbers, or one per stage and boundary. By default forward, input gradient and
        weight gradient of a device's full share take one unit of time each, and messages none.
    comm, sends
        How messages share links and compute, and when those of overlapped blocks leave; see `compile_schedule`.
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
        allowed = f"{MOST_IN_FULL:,} to time one by one"
        raise ScheduleError(too_large("it", f"{count:,} actions", allowed)).at(schedule.name)
    compiled = compile_schedule(schedule, comm=comm, sends=sends)
    laid = compiled.durations(from_share(vpp=schedule.placement.vpp) if times is None else times, links)
    state = compiled.run(laid, release=releases(compiled, step))
    start, end = compiled.passes(laid, state)
    program = compiled.program if (comm, sends) == ("overlapped", "late") else None
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
    sends: Sends = "late",
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
        return simulate(
            schedule, times, links, comm=comm, sends=sends, sizes=sizes, memory_limit=memory_limit
        )
    above = [] if memory_limit is None else out_of_memory(schedule, memory_limit, sizes)
    return Step(
        schedule=schedule,
        timing=timing,
        sizes=sizes or unit_sizes(schedule),
        report=CheckReport(violations=tuple(above), deadlock_free=SEMANTICS),
        num_messages=num_messages(schedule),
        step_time=float(timing.makespan),
    )


def releases(compiled: CompiledSchedule, step: StepCosts) -> Array | None:
    """Return the earliest start of each cell (num_levels, num_streams) that gathers allow; None if any."""
    if not np.any(step.param_gather):
        return None
    flat, schedule = compiled.program.flat, compiled.schedule
    gather = _per_stage(step.param_gather, len(schedule.placement.rank_of_stage), schedule.num_stages)
    release = np.zeros(compiled.node_class.size)
    for rank in range(schedule.num_ranks):
        low, high = flat.bounds[rank], flat.bounds[rank + 1]
        forwards = low + np.nonzero(flat.kind[low:high] == Kind.F)[0]
        stages, where = np.unique(flat.stage[forwards], return_index=True)
        by_use = np.argsort(where)
        ready = np.cumsum(gather[stages[by_use]])
        if not step.overlap:
            ready[:] = ready[-1:] if ready.size else 0.0
        at = forwards[where[by_use]]
        release[compiled.position[compiled.program.node_of_action[at]]] = ready
    return release.reshape(compiled.node_class.shape)


def step_end(compiled: CompiledSchedule, step: StepCosts, end: Array) -> float:
    """Return the step's end: reductions behind each stage's last backward, a barrier, the optimizer."""
    flat, schedule = compiled.program.flat, compiled.schedule
    last = float(end.max(initial=0.0))
    if np.any(step.grad_reduce):
        reduce = _per_stage(step.grad_reduce, len(schedule.placement.rank_of_stage), schedule.num_stages)
        finished = np.nonzero(flat.are(Kind.W, Kind.B))[0]
        for rank in range(schedule.num_ranks):
            mine = finished[flat.rank[finished] == rank]
            stages, where = np.unique(flat.stage[mine][::-1], return_index=True)
            ready = end[mine[::-1][where]]
            clock = 0.0
            for index in np.argsort(ready, kind="stable"):
                begin = ready[index] if step.overlap else ready.max()
                clock = max(clock, float(begin)) + float(reduce[stages[index]])
            last = max(last, clock)
    return last + step.optimizer


def _per_stage(value: float | Array, num_stages: int, logical: int) -> Array:
    spread = np.broadcast_to(np.asarray(value, dtype=np.float64), (logical,))
    return np.tile(spread, num_stages // logical)


def shared_blocks(simulation: Simulation) -> tuple[Array, Array]:
    """Return starts and ends with each overlapped block shared by its two actions."""
    flat = simulation.compiled.program.flat
    starts, ends = simulation.start.copy(), simulation.end.copy()
    if simulation.compiled.sends == "early":
        return starts, ends
    classes = simulation.compiled.program.sizes.compute_class(flat)
    node = simulation.laid.nodes[classes]
    for i in np.nonzero(flat.joined)[0].tolist():
        total = node[i] + node[i + 1]
        share = node[i] / total if total else 0.5
        ends[i] = starts[i + 1] = starts[i] + share * (ends[i] - starts[i])
    return starts, ends


def chunks(rank_of_stage: tuple[int, ...]) -> list[int]:
    """Return which of its rank's chunks each stage is, 0 first."""
    seen: dict[int, int] = {}
    chunks = []
    for rank in rank_of_stage:
        chunks.append(seen.get(rank, 0))
        seen[rank] = chunks[-1] + 1
    return chunks


def _memory_steps(simulation: Simulation) -> tuple[tuple[tuple[float, float], ...], ...]:
    flat, curve = simulation.compiled.program.flat, simulation.memory
    rows = []
    for rank in range(simulation.schedule.num_ranks):
        low, high = int(flat.bounds[rank]), int(flat.bounds[rank + 1])
        before, steps = 0.0, [(0.0, 0.0)]
        for i in range(low, high):
            kept = float(curve[i])
            if kept != before:
                when = simulation.start[i] if kept > before else simulation.end[i]
                steps.append((float(when), kept))
                before = kept
        rows.append(tuple(steps))
    return tuple(rows)

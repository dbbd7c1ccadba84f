"""A step as it ran: every pass of every rank, what it says of stages and messages, and the simulation fed with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec.structs import replace

from forescale.errors import ScheduleError, wrong_count
from forescale.numeric import Array
from forescale.repr import ReprMixin
from forescale.schedule.actions import BACKWARD, Action, Kind, unpack
from forescale.schedule.draw.timeline import Bar, Timeline
from forescale.schedule.messages import Sends
from forescale.schedule.model import Schedule
from forescale.schedule.program import ABSENT, Flat, Ints, crossing, flatten, sources
from forescale.schedule.simulation import Simulation, chunks, simulate
from forescale.schedule.times import LinkTimes, StageTimes
from forescale.struct import Struct, attributes
from forescale.units import counted

SCHEMA = "forescale.pipeline_run/1"
MESSAGES = (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)
STREAMS = {Kind.OFFLOAD: "to host", Kind.RELOAD: "from host"}
WAITED = 1e-6
"""Least part of a step that a rank waits for a message which then tells how long messages take."""


class Pass(Struct, frozen=True):
    """One action as it ran."""

    action: Action
    start_s: float
    """When its input was there."""
    end_s: float
    waited_s: float = 0.0
    """How long its rank stood waiting for its input before."""
    live: float = 0.0
    """Micro-batches of a full share that the rank holds when it ends."""
    saved_bytes: int = 0
    """Bytes saved for backward passes at its end; 0 unless they are counted."""

    @property
    def stream(self) -> str:
        """What of its rank it keeps busy."""
        return STREAMS.get(self.action.kind, "messages" if self.action.kind in MESSAGES else "compute")

    def after(self, start_s: float) -> Pass:
        """Return the same pass on a clock that starts at `start_s`."""
        return replace(self, start_s=self.start_s - start_s, end_s=self.end_s - start_s)


class Aligned(Struct, frozen=True, kw_only=True, eq=False):
    """A measured step beside its program: arrays over the schedule's actions, rank after rank."""

    flat: Flat
    source: Ints
    """The action whose output each needs."""
    before: Ints
    """The compute action before each on its rank; ABSENT of the first."""
    start: Array
    end: Array
    waited: Array
    """How long each action's rank says that it stood waiting; zeros where it does not say."""

    @property
    def ready(self) -> Array:
        """When each action's rank was free."""
        return np.where(self.before == ABSENT, 0.0, self.end[self.before])

    @property
    def sent(self) -> Array:
        """When the rank that gives each action its input had it; NaN of inputs from the own rank."""
        return np.where(crossing(self.flat, self.source), self.end[self.source], np.nan)

    @property
    def awaited(self) -> Array:
        """Whether each action's rank stood waiting for another rank's message."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.sent > self.ready + WAITED * self.end.max())

    @property
    def message(self) -> Array:
        """Seconds from the end of a pass to the start of one that stood waiting for its output; NaN elsewhere."""
        return np.where(self.awaited, self.start - self.sent, np.nan)

    @property
    def host(self) -> Array:
        """Seconds between passes in which nothing was waited for; NaN where that cannot be told."""
        idle = np.where((self.before == ABSENT) | (self.flat.kind > Kind.W), np.nan, self.start - self.ready)
        if self.waited.any():
            return np.maximum(idle - self.waited, 0.0)
        late = np.nan_to_num(self.sent, nan=-np.inf) + _median(self.message)
        return np.where(late <= self.ready, idle, np.nan)


def step_of_simulation(simulation: Simulation) -> MeasuredStep:
    """Return a simulated step in the form of a measured one, its durations taken as milliseconds.

    Its memory is the number of micro-batches (of a full share) that a rank holds.
    """
    flat, peaks = simulation.compiled.program.flat, simulation.memory
    columns = (flat.code, 1e-3 * simulation.start, 1e-3 * simulation.end, peaks)
    passes = [
        Pass(unpack(code), start, end, live=live)
        for code, start, end, live in zip(*(column.tolist() for column in columns), strict=True)
    ]
    bounds = flat.bounds.tolist()
    return MeasuredStep(
        schedule=simulation.schedule,
        ranks=tuple(tuple(passes[first:last]) for first, last in pairwise(bounds)),
        memory_gib=tuple(simulation.peak_activations.tolist()),
    )


class MeasuredStep(ReprMixin, Struct, frozen=True, kw_only=True):
    """One step of a schedule as it ran; seconds from its start, one clock for all ranks."""

    schedule: Schedule
    """What every rank ran, in its order."""
    ranks: tuple[tuple[Pass, ...], ...]
    """Per rank, every action in the order in which it ran."""
    sends: Sends = "late"
    """When the messages of overlapped blocks left."""
    iteration: int = 0
    total_s: float | None = None
    """Time of the whole step on the first rank, where it was taken apart from the passes."""
    memory_gib: tuple[float, ...] = ()
    """Most memory of each rank, where it was taken."""

    def essentials(self) -> dict[str, Any]:
        """Return what it took."""
        return {"schedule": self.schedule.name, "makespan_s": self.makespan_s}

    @property
    def makespan_s(self) -> float:
        """From the first pass's start to the last one's end."""
        passes = [item for rank in self.ranks for item in computed(rank)]
        return max(pass_.end_s for pass_ in passes) - min(pass_.start_s for pass_ in passes)

    @property
    def idle_share(self) -> float:
        """Share of the makespan, mean over ranks, in which nothing was computed."""
        busy = [sum(item.end_s - item.start_s for item in computed(rank)) for rank in self.ranks]
        return 1.0 - float(np.mean(busy)) / self.makespan_s

    @property
    def peak_activations(self) -> Array:
        """Most micro-batches of a full share that each rank held; shape (num_ranks,)."""
        return np.array([max((item.live for item in rank), default=0.0) for rank in self.ranks])

    @property
    def peak_bytes(self) -> Array:
        """Most bytes that each rank saved for backward passes, where they were counted; shape (num_ranks,)."""
        return np.array(
            [max((item.saved_bytes for item in rank), default=0) for rank in self.ranks], dtype=float
        )

    @property
    def aligned(self) -> Aligned:
        """Start and end of each of the schedule's actions."""
        flat = flatten(self.schedule.orders)
        ranks = {_key(item.action): item for rank in self.ranks for item in rank}
        keys = zip(flat.kind.tolist(), flat.stage.tolist(), flat.unit.tolist(), strict=True)
        passes = [ranks[key] for key in keys]
        compute = np.nonzero(flat.kind <= Kind.W)[0]
        before = np.full(flat.code.size, ABSENT)
        same = flat.rank[compute[1:]] == flat.rank[compute[:-1]]
        before[compute[1:][same]] = compute[:-1][same]
        return Aligned(
            flat=flat,
            source=sources(self.schedule, flat),
            before=before,
            start=np.array([pass_.start_s for pass_ in passes]),
            end=np.array([pass_.end_s for pass_ in passes]),
            waited=np.array([pass_.waited_s for pass_ in passes]),
        )

    @property
    def times(self) -> StageTimes:
        """Mean milliseconds of each stage's passes on a micro-batch, and of what ranks spend between passes.

        Where passes of both kinds ran, I and W are told apart from B; where only B ran, it is all input gradient.
        """
        aligned = self.aligned
        taken = 1e3 * self.schedule.num_splits * (aligned.end - aligned.start)
        forward, whole, inputs, weights = (
            _means(aligned, taken, kind, self.schedule) for kind in (Kind.F, Kind.B, Kind.I, Kind.W)
        )
        apart = np.where(np.isnan(inputs) | np.isnan(whole), 1.0, (inputs + weights) / whole)
        home = np.array(self.schedule.placement.rank_of_stage[: self.schedule.num_stages])
        host = np.array([_mean(aligned.host[aligned.flat.rank == rank]) for rank in range(len(self.ranks))])
        posted = self._posted_s * self._messages_per_pass
        return StageTimes(
            forward=forward,
            input_grad=np.where(np.isnan(inputs), whole, inputs),
            weight_grad=np.where(np.isnan(weights), 0.0, weights),
            apart=apart,
            host=1e3 * np.maximum(host - posted, 0.0)[home],
        )

    @property
    def links(self) -> LinkTimes:
        """Milliseconds of a message over each boundary, forward and backward.

        It is the median time between a pass's end and the start of the pass that stood waiting for its output;
        where nobody waited, that of all other messages.
        """
        aligned, stages = self.aligned, self.schedule.num_stages
        took = 1e3 * self.schedule.num_splits * aligned.message
        stage, back = aligned.flat.stage % stages, aligned.flat.are(*BACKWARD)
        overall = _median(took)
        medians = [
            [_median(took[receives & (stage == at)], overall) for at in boundaries]
            for receives, boundaries in ((~back, range(1, stages)), (back, range(stages - 1)))
        ]
        return LinkTimes(
            transfer=np.array(medians[0]), backward_transfer=np.array(medians[1]), host=1e3 * self._posted_s
        )

    @property
    def _posted_s(self) -> float:
        """Mean time of a rank's own for a send or receive; 0 where they were not recorded."""
        took = [
            item.end_s - item.start_s for rank in self.ranks for item in rank if item.action.kind in MESSAGES
        ]
        return float(np.mean(took)) if took else 0.0

    @property
    def _messages_per_pass(self) -> Array:
        """Sends and receives that each rank posts per pass; (num_ranks,)."""
        counts = [
            sum(item.action.kind in MESSAGES for item in rank) / len(computed(rank)) for rank in self.ranks
        ]
        return np.array(counts)

    @property
    def timeline(self) -> Timeline:
        """The step as pictures draw it, in milliseconds."""
        aligned = self.aligned
        flat, crosses = aligned.flat, np.nonzero(crossing(aligned.flat, aligned.source))[0]
        chunk = chunks(self.schedule.placement.rank_of_stage)
        joined = flat.joined | np.concatenate(([False], flat.joined[:-1]))
        bars = tuple(
            Bar(
                rank=int(flat.rank[i]),
                start=1e3 * float(aligned.start[i]),
                end=1e3 * float(aligned.end[i]),
                kind=Kind(int(flat.kind[i])),
                microbatch=int(flat.unit[i]),
                chunk=chunk[int(flat.stage[i])],
                name=str(unpack(int(flat.code[i]))),
                overlapped=bool(joined[i]),
            )
            for i in range(flat.code.size)
        )
        counted_live = bool(self.peak_activations.any())
        kept = ", ".join(f"{memory:.3g}" for memory in self.memory_gib)
        return Timeline(
            title=f"{self.schedule.name}, measured, iteration {self.iteration}",
            num_ranks=len(self.ranks),
            makespan=max(bar.end for bar in bars),
            bars=bars,
            memory=tuple(
                tuple((1e3 * item.end_s, item.live) for item in computed(rank)) if counted_live else ()
                for rank in self.ranks
            ),
            messages=tuple(zip(aligned.source[crosses].tolist(), crosses.tolist(), strict=True)),
            note=f"{1e3 * self.makespan_s:.1f} ms, {self.idle_share:.1%} idle"
            + (f"; memory by rank in GiB: {kept}" if kept else ""),
        )

    def simulated(self) -> Simulation:
        """Return the simulation, in milliseconds, with the durations and messages that were measured."""
        return simulate(self.schedule, self.times, self.links, sends=self.sends)

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.pipeline_run/1` document."""
        simulated = self.simulated()
        return {
            "schema": SCHEMA,
            **attributes(self.schedule, "schedule=name", "num_ranks", "num_stages", "num_microbatches"),
            "makespan_s": self.makespan_s,
            "simulated_makespan_s": 1e-3 * simulated.makespan,
            "idle_share": self.idle_share,
            "simulated_idle_share": simulated.bubble_rate_makespan,
            **attributes(self, "peak_activations", "peak_bytes"),
            "ranks": [[_row(item) for item in rank] for rank in self.ranks],
        }


def typical(steps: Sequence[MeasuredStep]) -> MeasuredStep:
    """Return the step of median makespan."""
    return sorted(steps, key=lambda step: step.makespan_s)[len(steps) // 2]


def together(
    schedule: Schedule,
    ranks: Sequence[Sequence[Pass]],
    starts_s: Sequence[float],
    *,
    sends: Sends = "early",
    iteration: int = 0,
) -> MeasuredStep:
    """Return one step from all ranks' passes, each on the clock of a rank that began at `starts_s`."""
    first = min(starts_s)
    moved = tuple(
        tuple(item.after(first - start) for item in rank) for rank, start in zip(ranks, starts_s, strict=True)
    )
    return MeasuredStep(schedule=schedule, ranks=moved, sends=sends, iteration=iteration)


def stage_times_for(step: MeasuredStep, schedule: Schedule) -> tuple[StageTimes, LinkTimes]:
    """Return a measured step's durations for another schedule of as many stages.

    Where only whole backward passes were measured, half of each counts as the weight gradient.

    Raises
    ------
    ScheduleError
        If the schedule has another number of stages.
    """
    if schedule.num_stages != step.schedule.num_stages:
        value = counted(schedule.num_stages, "stage")
        raise ScheduleError(wrong_count(schedule.name, value, "the measured step", step.schedule.num_stages))
    times = step.times
    if not np.any(times.weight_grad):
        half = np.asarray(times.input_grad) / 2.0
        times = replace(times, input_grad=half, weight_grad=half)
    return times, step.links


def computed(passes: Sequence[Pass]) -> list[Pass]:
    """Return the passes among a rank's actions."""
    return [pass_ for pass_ in passes if pass_.action.kind <= Kind.W]


def _key(action: Action) -> tuple[int, int, int]:
    return int(action.kind), action.stage, action.microbatch


def _means(aligned: Aligned, taken: Array, kind: Kind, schedule: Schedule) -> Array:
    """Return means by stage; NaN where no pass of the kind ran."""
    stage, of_kind = aligned.flat.stage % schedule.num_stages, aligned.flat.are(kind)
    rows = [taken[of_kind & (stage == index)] for index in range(schedule.num_stages)]
    return np.array([row.mean() if row.size else np.nan for row in rows])


def _mean(values: Array) -> float:
    """Return the mean of what is known; 0 of nothing."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else 0.0


def _median(values: Array, otherwise: float = 0.0) -> float:
    """Return the median of what is known, never below zero."""
    known = values[~np.isnan(values)]
    return max(0.0, float(np.median(known))) if known.size else otherwise


def _row(item: Pass) -> dict[str, Any]:
    names = ("stream", "start_s", "end_s", "waited_s", "live", "saved_bytes")
    return {"action": str(item.action), **attributes(item, *names)}

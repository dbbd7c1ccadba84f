"""What a run took: durations per stage, idle time, messages; and the simulation fed with them beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forescale.brief import Brief
from forescale.numeric import Array
from forescale.runtime.runner import Pass
from forescale.schedule import Kind, LinkTimes, Schedule, Simulation, StageTimes, simulate
from forescale.schedule.draw.timeline import Bar, Timeline

SCHEMA = "forescale.pipeline_run/1"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExecutedStep(Brief):
    """One step of a schedule as it ran; seconds from its start, one clock for all ranks."""

    schedule: Schedule
    ranks: tuple[tuple[Pass, ...], ...]
    """Per rank, every action in the order in which it ran."""

    def essentials(self) -> dict[str, Any]:
        """Return what it took."""
        return {"schedule": self.schedule.name, "makespan_s": self.makespan_s}

    @property
    def makespan_s(self) -> float:
        """From the first pass's start to the last one's end."""
        passes = [each for rank in self.ranks for each in _compute(rank)]
        return max(each.end_s for each in passes) - min(each.start_s for each in passes)

    @property
    def idle_share(self) -> float:
        """Share of the makespan, mean over ranks, in which nothing was computed."""
        busy = [sum(each.end_s - each.start_s for each in _compute(rank)) for rank in self.ranks]
        return 1.0 - float(np.mean(busy)) / self.makespan_s

    @property
    def peak_activations(self) -> Array:
        """Most micro-batches of a full share that each rank held; shape (num_ranks,)."""
        return np.array([max((each.live for each in rank), default=0.0) for rank in self.ranks])

    @property
    def peak_bytes(self) -> Array:
        """Most bytes that each rank saved for backward passes, where they were counted; shape (num_ranks,)."""
        return np.array(
            [max((each.saved_bytes for each in rank), default=0) for rank in self.ranks], dtype=float
        )

    @property
    def times(self) -> StageTimes:
        """Mean milliseconds of each stage's passes on a micro-batch, with what the runner itself spends on each."""
        schedule = self.schedule
        forward, whole, inputs, weights = (self._means(kind) for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
        split = schedule.num_splits
        input_grad = np.where(np.isnan(inputs), whole, inputs)
        weight_grad = np.where(np.isnan(weights), 0.0, weights)
        return StageTimes(
            forward=split * forward, input_grad=split * input_grad, weight_grad=split * weight_grad
        )

    @property
    def links(self) -> LinkTimes:
        """Median milliseconds between the end of a pass and the start of one on another rank that waited for it."""
        ends = {
            (each.action.kind, each.action.stage, each.action.microbatch): (rank, each.end_s)
            for rank, passes in enumerate(self.ranks)
            for each in _compute(passes)
        }
        found = []
        for rank, passes in enumerate(self.ranks):
            for each in _compute(passes):
                sender = next((ends[key] for key in self._sources(each) if key in ends), None)
                if sender is not None and sender[0] != rank and each.start_s - each.waited_s < sender[1]:
                    found.append(1e3 * (each.start_s - sender[1]))
        return LinkTimes(latency=float(np.median(found)) if found else 0.0)

    @property
    def timeline(self) -> Timeline:
        """The step as pictures draw it, in milliseconds."""
        place = self.schedule.placement.rank_of_stage
        bars = tuple(
            Bar(
                rank=rank,
                start=1e3 * each.start_s,
                end=1e3 * each.end_s,
                kind=each.action.kind,
                microbatch=each.action.microbatch,
                chunk=sum(place[stage] == rank for stage in range(each.action.stage)),
                name=str(each.action),
            )
            for rank, passes in enumerate(self.ranks)
            for each in _compute(passes)
        )
        memory = tuple(tuple((1e3 * each.end_s, each.live) for each in _compute(rank)) for rank in self.ranks)
        return Timeline(
            title=f"{self.schedule.name}, measured",
            num_ranks=len(self.ranks),
            makespan=max(bar.end for bar in bars),
            bars=bars,
            memory=memory,
            note=f"{1e3 * self.makespan_s:.1f} ms, {self.idle_share:.1%} idle",
        )

    def simulated(self) -> Simulation:
        """Return the simulation, in milliseconds, with the durations and messages that were measured."""
        return simulate(self.schedule, self.times, self.links)

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.pipeline_run/1` document."""
        simulated = self.simulated()
        return {
            "schema": SCHEMA,
            "schedule": self.schedule.name,
            "num_ranks": self.schedule.num_ranks,
            "num_stages": self.schedule.num_stages,
            "num_microbatches": self.schedule.num_microbatches,
            "makespan_s": self.makespan_s,
            "simulated_makespan_s": 1e-3 * simulated.makespan,
            "idle_share": self.idle_share,
            "simulated_idle_share": simulated.bubble_rate_makespan,
            "peak_activations": self.peak_activations.tolist(),
            "peak_bytes": self.peak_bytes.tolist(),
            "ranks": [[_row(each) for each in _compute(rank)] for rank in self.ranks],
        }

    def _means(self, kind: Kind) -> Array:
        """Return mean durations by stage, overhead included; NaN where no pass of the kind ran."""
        count = self.schedule.num_stages
        spent: list[list[float]] = [[] for _ in range(count)]
        for rank in self.ranks:
            overhead = _overhead(rank)
            for each in _compute(rank):
                if each.action.kind is kind:
                    spent[each.action.stage % count].append(1e3 * (each.end_s - each.start_s + overhead))
        return np.array([np.mean(each) if each else np.nan for each in spent])

    def _sources(self, each: Pass) -> list[tuple[Kind, int, int]]:
        action, last = each.action, self.schedule.num_stages - 1
        stage, unit = action.stage, action.microbatch
        place = stage % self.schedule.num_stages
        if action.kind is Kind.F and place:
            return [(Kind.F, stage - 1, unit)]
        if action.kind in (Kind.B, Kind.I) and place < last:
            return [(Kind.I, stage + 1, unit), (Kind.B, stage + 1, unit)]
        return []


def typical(steps: Sequence[ExecutedStep]) -> ExecutedStep:
    """Return the step of median makespan."""
    return sorted(steps, key=lambda step: step.makespan_s)[len(steps) // 2]


def together(schedule: Schedule, ranks: Sequence[Sequence[Pass]], starts_s: Sequence[float]) -> ExecutedStep:
    """Return one step from all ranks' passes, each on the clock of a rank that began at `starts_s`."""
    first = min(starts_s)
    moved = tuple(
        tuple(
            replace(each, start_s=each.start_s + start - first, end_s=each.end_s + start - first)
            for each in rank
        )
        for rank, start in zip(ranks, starts_s, strict=True)
    )
    return ExecutedStep(schedule=schedule, ranks=moved)


def _compute(passes: Sequence[Pass]) -> list[Pass]:
    return [each for each in passes if each.action.kind <= Kind.W]


def _overhead(passes: Sequence[Pass]) -> float:
    """Return what a rank spends per pass beside computing and waiting: messages posted, the walk itself."""
    computed = _compute(passes)
    if not computed:
        return 0.0
    whole = computed[-1].end_s - computed[0].start_s
    busy = sum(each.end_s - each.start_s for each in computed) + sum(each.waited_s for each in computed[1:])
    return max(0.0, whole - busy) / len(computed)


def _row(each: Pass) -> dict[str, Any]:
    return {
        "action": str(each.action),
        "start_s": each.start_s,
        "end_s": each.end_s,
        "waited_s": each.waited_s,
        "live": each.live,
        "saved_bytes": each.saved_bytes,
    }

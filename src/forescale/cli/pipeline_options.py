"""Options that the pipeline commands share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from annotated_types import Interval

from forescale.cli.options import bounded, given, option
from forescale.io.schedule_table import Listed
from forescale.numeric import Array
from forescale.schedule import (
    ActivationSizes,
    LinkTimes,
    Request,
    Schedule,
    ScheduleError,
    Simulation,
    StageTimes,
    Step,
    compile_schedule,
    family,
    from_share,
    simulate,
    time_step,
)
from forescale.schedule.measured import stage_times_for
from forescale.schedule.model import loop, wave
from forescale.schedule.optimise import Problem
from forescale.schedule.optimise.local_search import measured_problem
from forescale.schedule.times import NO_TRANSPORT, Transport, transport
from forescale.schedule.traces import read_run
from forescale.units import counted

FILE = "Schedule CSV of torch.distributed.pipelining, table of schedules (YAML), or folder of a run."
MOST_DRAWN = 1 << 16
"""Actions of the largest schedule that is drawn."""


DrawFormat: TypeAlias = Literal["terminal", "svg", "html", "perfetto", "csv"]
"""What `draw` writes."""
SHARE = Interval(ge=0, le=1)
pipeline_ranks = partial(option, "Pipeline ranks.")
microbatches_of_step = partial(option, "Micro-batches per step.", flag="--microbatches -m")
schedule_name = partial(option, "Name or alias; see `pipeline list`.", flag="--schedule -s")
memory_held = partial(option, "Most micro-batches (of a full share) a rank may hold.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOptions:
    """Durations of one micro-batch through a device's full share, and how the share is cut."""

    vpp: int | None = option("Chunks per rank; may be left out where fixed.")
    forward: float = option("Forward of a full share.", default=1.0)
    input_grad: float = option("Input gradient of a full share.", default=1.0)
    weight_grad: float = option("Weight gradient of a full share.", default=1.0)
    comm: float = option("Time of one message between ranks.", default=0.0)
    comm_mode: Literal["overlapped", "serial", "blocking"] = option(
        "Messages only delay, queue on their link, or block compute.", default="overlapped"
    )
    memory_limit: float | None = memory_held()
    weight_part: float = option(
        "Part of a pass's memory that its weight gradient still needs.",
        check=bounded(SHARE, whole=False),
        default=1.0,
    )
    group_size: int | None = option("Micro-batches per group (interleaved).")
    splits: int = option("Pieces per sequence (seq1f1b).", default=2)
    transport: str | None = option(
        "Overheads as measured with gloo or rccl where nothing else is said; times are milliseconds."
    )
    sends: Literal["early", "late"] = option(
        "Messages of an overlapped block's forward leave before its backward, or after.", default="late"
    )
    jitter: float | None = option(
        "Standard deviation of a pass over its mean: how steps spread.",
        check=bounded(Interval(ge=0, le=10), whole=False),
    )
    measured: Path | None = option(
        "Folder of a run (pp_rank_*.json): durations and messages of its stages, in ms."
    )

    def request(self, pp: int, microbatches: int) -> Request:
        """Return the request behind the options; its vpp is set by `build`."""
        return Request(
            pp=pp,
            num_microbatches=microbatches,
            forward=self.forward,
            input_grad=self.input_grad,
            weight_grad=self.weight_grad,
            comm=self.comm,
            memory_limit=self.memory_limit,
            weight_part=self.weight_part,
            group_size=self.group_size,
            num_splits=self.splits,
        )

    @property
    def times_given(self) -> bool:
        """Whether options say how long passes take."""
        return (self.forward, self.input_grad, self.weight_grad) != (1.0, 1.0, 1.0)

    @property
    def says_what(self) -> bool:
        """Whether options say what a table of schedules says too."""
        said = {
            "--vpp",
            "--forward",
            "--input-grad",
            "--weight-grad",
            "--memory-limit",
            "--group-size",
            "--splits",
        }
        return not (said | {"--measured"}).isdisjoint(given(self))

    def listed(self, listed: Listed) -> Step:
        """Return what a step of a schedule in a table takes, with these options for the rest."""
        asked = replace(listed.request, comm=self.comm, weight_part=self.weight_part)
        own = replace(
            self,
            forward=asked.forward,
            input_grad=asked.input_grad,
            weight_grad=asked.weight_grad,
            memory_limit=asked.memory_limit,
        )
        return own.run(family(listed.schedule).build(asked).renamed(listed.label))

    def run(self, schedule: Schedule) -> Step:
        """Return what a step of a schedule takes."""
        return time_step(schedule, **self._setting(schedule))

    def picture(self, schedule: Schedule) -> Simulation:
        """Return the simulated step of a schedule, action by action.

        Raises
        ------
        ScheduleError
            If there are more actions than a picture shows.
        """
        if (count := schedule.num_actions) > MOST_DRAWN:
            message = f"{schedule.name}: {count:,} actions are too many to draw; draw up to {MOST_DRAWN:,}"
            raise ScheduleError(message)
        return simulate(schedule, **self._setting(schedule))

    def makespans(self, schedule: Schedule) -> Array | None:
        """Return makespans whose passes vary as `--jitter`, or the transport's, says; None if neither does."""
        jitter = self.jitter if self.jitter is not None else self._transport.jitter
        if not jitter:
            return None
        times, links = self.durations(schedule)
        compiled = compile_schedule(schedule, sends=self.sends)
        return compiled.makespans(compiled.durations(times, links), jitter=jitter)

    def durations(self, schedule: Schedule) -> tuple[StageTimes, LinkTimes]:
        """Return how long passes and messages of a schedule take: as measured, or as the options say."""
        if self.measured is not None:
            if self.times_given or self.comm or self.transport:
                message = f"{self.measured} says how long passes and messages take; leave other durations out"
                raise ScheduleError(message)
            return stage_times_for(read_run(self.measured).typical, schedule)
        times = from_share(
            forward=self.forward,
            input_grad=self.input_grad,
            weight_grad=self.weight_grad,
            vpp=schedule.placement.vpp,
        )
        return self._transport.applied(times, LinkTimes(transfer=self.comm))

    @property
    def _transport(self) -> Transport:
        return NO_TRANSPORT if self.transport is None else transport(self.transport)

    def _setting(self, schedule: Schedule) -> dict[str, Any]:
        times, links = self.durations(schedule)
        vpp = schedule.placement.vpp
        return {
            "times": times,
            "links": links,
            "comm": self.comm_mode,
            "sends": self.sends,
            "sizes": ActivationSizes(saved=1.0 / vpp, weight_part=self.weight_part),
            "memory_limit": self.memory_limit,
        }


PlacementName: TypeAlias = Literal["loop", "V"]
"""Where the stages lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """Durations of single stages, where they differ."""

    stage_forward: str | None = option("One pass of each stage: pp x vpp numbers, commas.")
    stage_input_grad: str | None = option("Input gradient of each stage.")
    stage_weight_grad: str | None = option("Weight gradient of each stage.")

    def seconds(self, schedule: Schedule, passes: PassOptions) -> tuple[tuple[float, float, float], ...]:
        """Return forward, input and weight gradient of each stage on a micro-batch, given in milliseconds."""
        count, vpp = schedule.num_stages, schedule.placement.vpp
        if passes.measured is not None:
            times, _ = passes.durations(schedule)
            taken = np.stack((times.forward, times.input_grad, times.weight_grad), axis=1)
            return tuple(map(tuple, (1e-3 / schedule.num_splits * taken).tolist()))
        given = (
            _numbers(self.stage_forward, count, passes.forward / vpp),
            _numbers(self.stage_input_grad, count, passes.input_grad / vpp),
            _numbers(self.stage_weight_grad, count, passes.weight_grad / vpp),
        )
        share = 1e-3 / schedule.num_splits
        return tuple((share * f, share * i, share * w) for f, i, w in zip(*given, strict=True))

    def problem(
        self, pp: int, microbatches: int, passes: PassOptions, placement: PlacementName | None
    ) -> Problem:
        """Return the optimiser's question."""
        if passes.comm_mode != "overlapped":
            message = f"the optimiser takes messages that only delay; got --comm-mode {passes.comm_mode}"
            raise ScheduleError(message)
        vpp = passes.vpp or 1
        wanted = placement or ("V" if vpp == 2 else "loop")
        where = wave(pp, vpp) if wanted == "V" else loop(pp, vpp)
        stages = pp * vpp
        if passes.measured is not None:
            if any((self.stage_forward, self.stage_input_grad, self.stage_weight_grad)):
                message = (
                    f"{passes.measured} says how long stages take; leave --stage-forward and its like out"
                )
                raise ScheduleError(message)
            return measured_problem(
                read_run(passes.measured).typical,
                where,
                microbatches,
                memory_limit=passes.memory_limit,
                weight_part=passes.weight_part,
            )
        return Problem(
            placement=where,
            num_microbatches=microbatches,
            forward=_numbers(self.stage_forward, stages, passes.forward / vpp),
            input_grad=_numbers(self.stage_input_grad, stages, passes.input_grad / vpp),
            weight_grad=_numbers(self.stage_weight_grad, stages, passes.weight_grad / vpp),
            comm=np.full(stages - 1, passes.comm),
            saved=np.full(stages, 1.0 / vpp),
            memory_limit=passes.memory_limit,
            weight_part=passes.weight_part,
        )


def _numbers(text: str | None, count: int, default: float) -> Array:
    if text is None:
        return np.full(count, default)
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != count:
        message = f"{text!r}: give {counted(count, 'number')} separated by commas, one per stage"
        raise ScheduleError(message)
    return np.array(values)

"""Options that the pipeline commands share, and pictures that they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from forescale import wording
from forescale.cli.console import PLAIN_WIDTH, console
from forescale.cli.declare import Bounded, Group, option
from forescale.cli.options import complete_schedules, given
from forescale.errors import (
    not_one_of,
    wrong_type,
)
from forescale.files import exists
from forescale.io.schedule_table import Listed, read_schedule
from forescale.limits import DEVICES, Interval
from forescale.numeric import Array
from forescale.schedule import (
    ActivationSizes,
    Family,
    LinkTimes,
    LoweredSchedule,
    Request,
    Schedule,
    ScheduleError,
    Simulation,
    StageTimes,
    Step,
    build_schedule,
    compile_schedule,
    families,
    family,
    from_share,
    simulate,
    time_step,
)
from forescale.schedule.difference import Difference
from forescale.schedule.draw import Timeline, to_html, to_perfetto, to_svg, to_terminal
from forescale.schedule.measured import MeasuredStep, stage_times_for
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
RANKS, MICROBATCHES = 4, 8
"""Shape of a schedule that none is given for."""
pipeline_ranks = partial(option, f"Pipeline ranks, {RANKS} by default.")
microbatches_of_step = partial(
    option, f"Micro-batches per step, {MICROBATCHES} by default.", flag="--microbatches -m"
)
schedule_name = partial(
    option, "Name or alias; see `pipeline list`.", flag="--schedule -s", complete=complete_schedules
)
memory_held = partial(option, "Most micro-batches (of a full share) a rank may hold.")


SHAPED: dict[str, Callable[[Family], bool]] = {
    "--group-size": lambda family: family.groups_microbatches,
    "--splits": lambda family: family.splits_sequences,
}
"""Options that shape some schedules only, and which."""
SIMULATED = ("--transport", "--sends")
"""Options of a simulation's messages that shape no schedule."""
SPREAD = ("--jitter",)
"""Options of how steps spread."""
ONE_SPREADS = "how steps spread is told of one schedule, by pipeline simulate"


class PassOptions(Group, frozen=True, kw_only=True):
    """Durations of one micro-batch through a device's full share, and how the share is cut."""

    vpp: int | None = option("Chunks per rank; may be left out where fixed.", check=Bounded(DEVICES))
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
        check=Bounded(SHARE, whole=False),
        default=1.0,
    )
    group_size: int | None = option("Micro-batches per group (interleaved).")
    splits: int | None = option("Pieces per sequence (seq1f1b); 2 by default.")
    transport: str | None = option(
        "Default overheads, as measured with gloo or rccl; times are milliseconds."
    )
    sends: Literal["early", "late"] = option(
        "Messages of an overlapped block's forward leave before its backward, or after.", default="late"
    )
    jitter: float | None = option(
        "Standard deviation of a pass over its mean: how steps spread.",
        check=Bounded(Interval(ge=0, le=10), whole=False),
    )
    measured: Path | None = option(
        "Folder of a run (pp_rank_*.json): durations and messages of its stages, in ms."
    )

    def request(self, pp: int, microbatches: int) -> Request:
        """Return the request behind the options; its vpp is set by `build`."""
        request = Request(
            pp=pp,
            num_microbatches=microbatches,
            forward=self.forward,
            input_grad=self.input_grad,
            weight_grad=self.weight_grad,
            comm=self.comm,
            memory_limit=self.memory_limit,
            weight_part=self.weight_part,
            group_size=self.group_size,
        )
        return request if self.splits is None else replace(request, num_splits=self.splits)

    def build(self, names: Sequence[str], request: Request, *, vpp: int | None = None) -> list[Schedule]:
        """Return schedules by name; of several, each takes of the options what it knows, and `vpp` unless they say.

        Raises
        ------
        ScheduleError
            If a schedule cannot be built so, or none of them knows an option that is given.
        """
        known = [family(name) for name in names]
        for flag, takes in SHAPED.items():
            if flag in given(self) and not any(map(takes, known)):
                able = ", ".join(item.name for item in families() if takes(item))
                message = (
                    f"{flag} means nothing to {', '.join(item.name for item in known)}; it shapes {able}"
                )
                raise ScheduleError(message)
        if len(known) == 1 and self.vpp is not None:
            return [build_schedule(known[0].name, request, vpp=self.vpp)]
        vpp = vpp if self.vpp is None else self.vpp
        return [
            build_schedule(item.name, request, vpp=item.fixed_vpp or vpp or item.least_vpp) for item in known
        ]

    def refuse_shape(self, what: str) -> None:
        """Raise if options shape a schedule that `what` says already."""
        self.refuse(("--vpp", *SHAPED), what)

    def refuse(self, flags: Iterable[str], why: str) -> None:
        """Raise if one of these options is given where it would change nothing."""
        for flag in flags:
            if flag in given(self):
                raise ScheduleError(wording.no_effect(flag, why))

    def refuse_durations(self) -> None:
        """Raise if options say what a measured run does."""
        if self.measured is not None and (self.times_given or self.comm or self.transport):
            reason = f"{self.measured} says how long passes and messages take"
            raise ScheduleError(wording.no_effect("other durations", reason))

    @property
    def times_given(self) -> bool:
        """Whether options say how long passes take."""
        return (self.forward, self.input_grad, self.weight_grad) != (1.0, 1.0, 1.0)

    @property
    def says_what(self) -> bool:
        """Whether options say what a table of schedules says too."""
        names = {
            "--vpp",
            "--forward",
            "--input-grad",
            "--weight-grad",
            "--memory-limit",
            "--group-size",
            "--splits",
        }
        return not (names | {"--measured"}).isdisjoint(given(self))

    def listed(self, listed: Listed) -> tuple[Schedule, PassOptions]:
        """Return a schedule of a table, and these options with its durations and its memory limit."""
        message = listed.request.comm or self.comm
        request = replace(listed.request, comm=message, weight_part=self.weight_part)
        forward, input_grad, weight_grad = listed.durations
        local = replace(
            self,
            forward=forward,
            input_grad=input_grad,
            weight_grad=weight_grad,
            memory_limit=request.memory_limit,
        )
        return family(listed.schedule).build(request).renamed(listed.label), local

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
            allowed = f"{MOST_DRAWN:,} for a picture"
            raise ScheduleError(wording.too_large(schedule.name, f"{count:,} actions", allowed))
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
            self.refuse_durations()
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


class StageOptions(Group, frozen=True, kw_only=True):
    """Durations of single stages, where they differ."""

    stage_forward: str | None = option("One pass of each stage: pp x vpp numbers, commas.")
    stage_input_grad: str | None = option("Input gradient of each stage.")
    stage_weight_grad: str | None = option("Weight gradient of each stage.")

    def refuse(self, why: str) -> None:
        """Raise if options say what single stages take where something else does."""
        if given(self):
            raise ScheduleError(wording.no_effect("--stage-forward and its like", why))

    @property
    def given_times(self) -> dict[str, Array]:
        """Times of single stages that are given, by the field of `StageTimes`."""
        texts = {
            "forward": self.stage_forward,
            "input_grad": self.stage_input_grad,
            "weight_grad": self.stage_weight_grad,
        }
        flags = {name: f"--stage-{name.replace('_', '-')}" for name in texts}
        return {name: _numbers(flags[name], text) for name, text in texts.items() if text is not None}

    def of(self, num_stages: int) -> dict[str, Array]:
        """Return the times that are given, one for each of so many stages.

        Raises
        ------
        ScheduleError
            If an option has another number of them.
        """
        times = self.given_times
        for name, item in times.items():
            if len(item) != num_stages:
                flag, allowed = (
                    f"--stage-{name.replace('_', '-')}",
                    f"{counted(num_stages, 'stage')} (pp × vpp)",
                )
                values = counted(len(item), "number")
                raise ScheduleError(wording.wrong_count(flag, values, "the schedule", allowed))
        return times

    def times(self, num_stages: int, vpp: float, passes: PassOptions) -> dict[str, Any]:
        """Return forward, input and weight gradient: of each stage where given, else of a chunk of a full share."""
        shares = {name: getattr(passes, name) / vpp for name in ("forward", "input_grad", "weight_grad")}
        return shares | self.of(num_stages)

    def seconds(self, schedule: Schedule, passes: PassOptions) -> tuple[tuple[float, float, float], ...]:
        """Return forward, input and weight gradient of each stage on a micro-batch, given in milliseconds."""
        count, vpp = schedule.num_stages, schedule.placement.vpp
        if passes.measured is not None:
            self.refuse(f"{passes.measured} says how long stages take")
            times, _ = passes.durations(schedule)
            taken = np.stack((times.forward, times.input_grad, times.weight_grad), axis=1)
            return tuple(map(tuple, (1e-3 / schedule.num_splits * taken).tolist()))
        message = (np.broadcast_to(item, count) for item in self.times(count, vpp, passes).values())
        share = 1e-3 / schedule.num_splits
        return tuple((share * f, share * i, share * w) for f, i, w in zip(*message, strict=True))

    def problem(
        self, pp: int, microbatches: int, passes: PassOptions, placement: PlacementName | None
    ) -> Problem:
        """Return the optimiser's question."""
        if passes.comm_mode != "overlapped":
            allowed = "one that only delays messages"
            raise ScheduleError(wording.not_one_of("--comm-mode", passes.comm_mode, allowed))
        passes.refuse(SHAPED, "the optimiser orders passes itself")
        passes.refuse(SIMULATED, "the optimiser takes messages that only delay, as --comm says")
        passes.refuse(SPREAD, ONE_SPREADS)
        vpp = passes.vpp or 1
        requested = placement or ("V" if vpp == 2 else "loop")
        where = wave(pp, vpp) if requested == "V" else loop(pp, vpp)
        stages = pp * vpp
        times = self.times(stages, vpp, passes)
        if passes.measured is not None:
            passes.refuse_durations()
            self.refuse(f"{passes.measured} says how long stages take")
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
            **{name: np.broadcast_to(item, stages).copy() for name, item in times.items()},
            comm=np.full(stages - 1, passes.comm),
            saved=np.full(stages, 1.0 / vpp),
            memory_limit=passes.memory_limit,
            weight_part=passes.weight_part,
        )


def _numbers(flag: str, text: str) -> Array:
    """Return the numbers of an option, one for each stage."""
    try:
        return np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise ScheduleError(wrong_type(flag, text, "numbers separated by commas, such as 1,2,1,1")) from None


class SimulatedPasses(PassOptions, frozen=True, kw_only=True):
    """Durations of a step that is simulated: those of a full share, or of each stage."""

    stages: StageOptions = msgspec.field(default_factory=StageOptions)

    def request(self, pp: int, microbatches: int) -> Request:
        """Return the request behind the options, with a rank's mean share of what the stages take."""
        request, times = super().request(pp, microbatches), self.stages.given_times
        return replace(request, **{name: float(item.sum() / pp) for name, item in times.items()})

    def durations(self, schedule: Schedule) -> tuple[StageTimes, LinkTimes]:
        """Return how long passes and messages take: each stage's own where the options give it."""
        times, links = super().durations(schedule)
        if self.measured is not None:
            self.stages.refuse(f"{self.measured} says how long stages take")
        return replace(times, **self.stages.of(schedule.num_stages)), links

    @property
    def times_given(self) -> bool:
        """Whether options say how long passes take."""
        return super().times_given or bool(given(self.stages))

    @property
    def says_what(self) -> bool:
        """Whether options say what a table of schedules says too."""
        return super().says_what or bool(given(self.stages))


COLUMNS = (
    "rank", "pass", "start (ms)", "takes", "start, simulated", "takes, simulated", "lost before", "lost within",
)  # fmt: skip
"""Of the table of passes."""


def measured_step(folder: Path, iteration: int | None = None) -> MeasuredStep:
    """Return one step of the run in a folder."""
    run = read_run(folder)
    return run.typical if iteration is None else run.step(iteration)


def rendered(
    timelines: Sequence[Timeline],
    draw_format: DrawFormat,
    *,
    width: int | None = None,
    colour: bool = False,
    title: str = "Pipeline schedules",
    difference: Difference | None = None,
    command: str = "",
) -> str:
    """Return pictures of steps on one scale, with what tells measured from simulated where that is known."""
    notes = () if difference is None else difference.sentences
    if draw_format == "html":
        rows = () if difference is None else [astuple(pass_) for pass_ in difference.passes]
        return to_html(timelines, title=title, notes=notes, columns=COLUMNS, rows=rows, command=command)
    if draw_format == "svg":
        return to_svg(*timelines)
    if draw_format == "perfetto":
        return json.dumps(to_perfetto(*timelines))
    if draw_format != "terminal":
        raise not_one_of("the format of a picture", draw_format, ("html", "svg", "perfetto", "terminal"))
    screen = console()
    painted = colour and screen.color_system is not None and not screen.no_color
    columns = width or min(screen.width, PLAIN_WIDTH)
    return "\n".join(
        [to_terminal(*timelines, width=columns, colour=painted), *(["", *notes] if notes else [])]
    )


PICTURES: dict[str, DrawFormat] = {".html": "html", ".svg": "svg", ".json": "perfetto"}
WRITTEN: dict[str, DrawFormat] = {**PICTURES, ".csv": "csv"}


def shape_of(pp: int | None, microbatches: int | None) -> tuple[int, int]:
    """Return ranks and micro-batches of a schedule as given, or the usual ones."""
    return RANKS if pp is None else pp, MICROBATCHES if microbatches is None else microbatches


def file_or_names(argument: Path | None, names: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the file that an argument is, and the names of schedules, of which the argument may be one."""
    if argument is None or argument.suffix or len(argument.parts) > 1 or exists(argument):
        return argument, [*names]
    family(str(argument))
    return None, [str(argument), *names]


def schedule_of(
    file: Path | None, name: str | None, pp: int | None, microbatches: int | None, passes: PassOptions
) -> Schedule | LoweredSchedule:
    """Return the schedule of a file, or of that name and shape."""
    file, names = file_or_names(file, [] if name is None else [name])
    if file is None and names[1:]:
        raise wording.given_twice(["--schedule"], fix=f"leave out {names[0]} or {names[1]}")
    if file is not None:
        if pp is not None or microbatches is not None:
            reason = f"{file} gives schedule and shape"
            raise wording.no_effect(["--schedule", "--pp", "--microbatches"], reason)
        passes.refuse_shape(f"{file} says which schedule and shape")
        result, with_messages = read_schedule(file, name)
        return with_messages or result
    if not names:
        raise wording.missing("--schedule", "or give a file of a schedule")
    return passes.build(names, passes.request(*shape_of(pp, microbatches)))[0]

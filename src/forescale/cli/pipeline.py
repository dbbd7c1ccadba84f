"""`forescale pipeline`: list, simulate, compare, draw, check and optimise pipeline schedules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from forescale.atomic_write import writable, write_text
from forescale.cli.codes import Exit
from forescale.cli.console import say, show
from forescale.cli.declare import Bounded, CommandGroup, argument, option
from forescale.cli.formats import Answer
from forescale.cli.options import complete_schedules
from forescale.cli.output import OutputOptions, command_line
from forescale.cli.partition import partition_command
from forescale.cli.pipeline_options import (
    FILE,
    ONE_SPREADS,
    SIMULATED,
    SPREAD,
    WRITTEN,
    DrawFormat,
    PassOptions,
    PlacementName,
    SimulatedPasses,
    StageOptions,
    file_or_names,
    measured_step,
    memory_held,
    microbatches_of_step,
    pipeline_ranks,
    rendered,
    schedule_name,
    schedule_of,
    shape_of,
)
from forescale.cli.pipeline_run import run_command
from forescale.cli.pipeline_table import (
    Built,
    config_option,
    file_of,
    is_table,
    output_dir_of,
    output_dir_option,
    schedules_of,
    table_argument,
    write_steps,
)
from forescale.cli.render.pipeline import (
    checked_view,
    optimised_view,
    schedules_view,
    simulated_view,
    steps_view,
    table_view,
)
from forescale.cli.reproduce import TYPED
from forescale.errors import (
    ForescaleError,
    SpecError,
    conflicts,
    differs,
    no_effect,
    not_one_of,
    out_of_range,
    required_with,
    unsupported_by,
)
from forescale.io.schedule_table import limit_of, read_schedule
from forescale.limits import JOBS, PRICE, Interval
from forescale.report.document import View
from forescale.schedule import (
    CheckReport,
    Family,
    LoweredSchedule,
    Schedule,
    Simulation,
    Step,
    check,
    families,
    family,
    simulate,
)
from forescale.schedule.difference import Difference
from forescale.schedule.draw import Timeline
from forescale.schedule.fewest import fewest_microbatches
from forescale.schedule.measured import MeasuredStep, stage_times_for
from forescale.schedule.simulation import SCHEMA
from forescale.schedule.torch_csv import to_csv
from forescale.struct import attributes

pipeline_app = CommandGroup("Pipeline schedules: build, check, time, draw and optimise.")
pipeline_app.command("partition")(partition_command)
pipeline_app.command("run")(run_command)


@pipeline_app.command("list")
def list_schedules(*, output: OutputOptions) -> None:
    """List the schedules: names, constraints, closed forms of idle time and memory, source."""
    rows = [_row(item) for item in families()]
    _show(lambda: schedules_view(families()), {"schema": SCHEMA, "schedules": rows}, output)


def _show(view: Callable[[], View], document: Mapping[str, Any], output: OutputOptions) -> None:
    show(Answer(view=view, document=lambda: document), output)


@pipeline_app.command("simulate")
def simulate_schedule(
    *,
    table: Path | None = table_argument(),
    config: Path | None = config_option(),
    schedule: str | None = schedule_name(),
    pp: int | None = pipeline_ranks(),
    microbatches: int | None = microbatches_of_step(),
    passes: SimulatedPasses,
    output_dir: Path | None = output_dir_option(),
    printed: OutputOptions,
) -> None:
    """Simulate one step of a schedule, of one in a file, or of each in a table.

    Durations are those of one micro-batch through a device's full share; a chunk takes 1/vpp of them.
    """
    table = file_of(table, config)
    if table is not None and is_table(table):
        built = schedules_of(table, [schedule] if schedule else [], passes, (pp, microbatches))
        steps = [local.run(schedule) for schedule, local in built]
        documents = [item.to_json() for item in steps]
        _show(lambda: table_view(steps), {"schema": SCHEMA, "schedules": documents}, printed)
        _export(built, output_dir_of(table, output_dir), printed)
        return
    what = schedule_of(table, schedule, pp, microbatches, passes)
    lowered = what if isinstance(what, LoweredSchedule) else None
    one = what if isinstance(what, Schedule) else what.schedule
    if table is not None and (wrong := check(one, lowered=lowered).violations):
        raise ForescaleError(f"{table}: {wrong[0].message} (forescale pipeline check {table} lists all)")
    result = passes.run(one)
    spread = passes.makespans(result.schedule)
    levels = (
        {} if spread is None else {f"makespan_p{p}": float(np.percentile(spread, p)) for p in (10, 50, 90)}
    )
    _show(lambda: simulated_view(result, levels), {**result.to_json(), **levels}, printed)
    _export([(one, passes)], output_dir, printed)


def _export(built: Built, folder: Path | None, printed: OutputOptions) -> None:
    """Write the simulated steps of schedules, where a folder is named."""
    if folder is not None:
        write_steps([local.picture(item) for item, local in built], folder, error=not printed.is_text)


@pipeline_app.command("compare")
def compare(
    *,
    schedules: list[str] | None = argument("Schedules to compare; all by default.", "[NAME]"),
    pp: int | None = pipeline_ranks(),
    microbatches: int | None = microbatches_of_step(),
    bubble: str | None = option("Find the fewest micro-batches for this bubble, such as 5%.", "SHARE"),
    passes: SimulatedPasses,
    printed: OutputOptions,
) -> None:
    """Simulate every schedule that applies and list them, shortest step first.

    Schedules that run with any vpp use --vpp, or 2.
    """
    passes.refuse(SPREAD, ONE_SPREADS)
    if bubble is not None and microbatches is not None:
        raise conflicts(["--bubble", "--microbatches"], reason="--bubble finds the micro-batches")
    share = None if bubble is None else _share(bubble)
    results, refused = _compare(schedules or (), passes, *shape_of(pp, microbatches), share)
    if not results:
        name, reason = next(iter(refused.items()))
        raise ForescaleError(f"no schedule applies; {name}: {reason}")
    results.sort(key=lambda item: item.makespan)
    document = {"schema": SCHEMA, "schedules": [item.to_json() for item in results], "refused": refused}
    _show(lambda: steps_view(results, refused, counted=share is not None), document, printed)


@pipeline_app.command("draw")
def draw(
    *,
    table: Path | None = table_argument(),
    config: Path | None = config_option(),
    schedule: list[str] | None = option(
        "Name; repeat to draw several.", flag="--schedule -s", complete=complete_schedules
    ),
    pp: int | None = pipeline_ranks(),
    microbatches: int | None = microbatches_of_step(),
    passes: SimulatedPasses,
    wanted: DrawFormat | None = option(
        "What to write; by default what the name of the file says, else for the terminal.", flag="--format -f"
    ),
    output: Path | None = option("File; default is standard output.", flag="--output -o", check=writable),
    trace: Path | None = option("Folder with pp_rank_*.json of a real run."),
    iteration: int | None = option("Iteration of the run; by default the one of median length."),
    width: int | None = option(
        "Columns of the terminal picture, by default its own.", check=Bounded(Interval(ge=40, le=10_000))
    ),
) -> None:
    """Draw schedules in the terminal, as SVG, as one HTML page, as Perfetto JSON or as torch's CSV.

    With --trace, a measured step is drawn above the simulation of the order that ran (or of --schedule) with what was
    measured (or with --forward, --input-grad, --weight-grad), and it says which passes, messages and pauses differ.
    """
    passes.refuse(SPREAD, ONE_SPREADS)
    table, schedule = file_or_names(file_of(table, config), schedule or [])
    if table is not None:
        built, pictures = _of_file(table, schedule, passes, (pp, microbatches, trace, iteration))
        difference, timelines = None, [picture.timeline for picture in pictures]
    elif trace is None:
        if iteration is not None:
            raise required_with("the run's folder (--trace)", "--iteration")
        request = passes.request(*shape_of(pp, microbatches))
        names = schedule or ["1f1b"]
        built = passes.build(names, request)
        difference, timelines = None, [passes.picture(item).timeline for item in built]
    else:
        if (pp, microbatches) != (None, None):
            raise no_effect(["--pp", "--microbatches"], f"{trace} says which shape")
        step = measured_step(trace, iteration)
        built, difference, timelines = _beside(step, schedule, passes)
    wanted = _format(wanted, output, width)
    if wanted == "csv":
        if len(built) > 1:
            raise unsupported_by("csv", "several schedules", "draw one, or use html")
        text = to_csv(built[0])
    else:
        text = rendered(
            timelines,
            wanted,
            width=width,
            colour=output is None,
            difference=difference,
            command=command_line(TYPED.get()),
        )
    if output is None:
        sys.stdout.write(f"{text}\n")
    else:
        write_text(output, text)
        say(f"wrote {output}: {'; '.join(map(_outcome, timelines))}")


def _outcome(timeline: Timeline) -> str:
    """Return name, step and idle share of a drawn step: the mean of its ranks, and the extremes where they differ."""
    idle = [timeline.bubble(rank) for rank in range(timeline.num_ranks)]
    low, high = f"{min(idle):.1%}", f"{max(idle):.1%}"
    apart = "" if low == high else f" ({low} to {high} by rank)"
    return f"{timeline.title}, step {timeline.makespan:.6g}, bubble {sum(idle) / len(idle):.1%}{apart}"


def _of_file(
    path: Path, labels: Sequence[str], passes: PassOptions, shape: Sequence[object]
) -> tuple[list[Schedule], list[Simulation]]:
    """Return the schedules of a file, of a table those of some labels or all, and what they do when."""
    if is_table(path):
        built = schedules_of(path, labels, passes, shape)
    elif any(item is not None for item in (*shape, *labels)):
        raise no_effect("those options", f"{path} gives schedule and shape")
    else:
        built = [(read_schedule(path)[0], passes)]
    return [schedule for schedule, _ in built], [local.picture(schedule) for schedule, local in built]


def _format(draw_format: DrawFormat | None, output: Path | None, width: int | None) -> DrawFormat:
    """Return what is drawn: as asked for, or as the file's name says; refuse names and widths of other kinds."""
    by_name = None if output is None else WRITTEN.get(output.suffix)
    if output is not None and not by_name and output.suffix not in ("", ".txt"):
        known = f"{', '.join(WRITTEN)}, or .txt for the terminal's picture"
        error = not_one_of("the suffix of --output", output.suffix, known)
        raise SpecError(error, nearest=(".svg",))
    if draw_format is not None and by_name not in (None, draw_format):
        raise differs(f"--output {output}", by_name, "--format", draw_format, "give one of them")
    result = draw_format or by_name or "terminal"
    if width is not None and result != "terminal":
        raise no_effect("--width", f"it is of the terminal's picture, and {result} is written")
    return result


@pipeline_app.command("check")
def check_file(
    *,
    file: Path = argument(FILE, default=...),
    name: str | None = option("Which one of a table.", flag="--schedule -s"),
    memory_limit: float | None = memory_held(),
    printed: OutputOptions,
) -> None:
    """Check a schedule file: completeness, order, deadlock, message order, memory. Exit status 1 if wrong."""
    schedule, lowered = read_schedule(file, name)
    most = limit_of(file, name) if memory_limit is None else memory_limit
    report = check(schedule, lowered=lowered, memory_limit=most)
    _show(lambda: checked_view(schedule, report), _report_json(schedule, report), printed)
    if not report.valid:
        raise Exit(1)


@pipeline_app.command("optimise")
def optimise_schedule(
    *,
    pp: int | None = pipeline_ranks(),
    microbatches: int | None = microbatches_of_step(),
    passes: PassOptions,
    stages: StageOptions,
    placement: PlacementName | None = option("Where stages lie; V for --vpp 2, else loop."),
    time_limit: float = option(
        "Seconds for the exact solver.", check=Bounded(PRICE, whole=False), default=60.0
    ),
    workers: int = option("Threads of the exact solver.", check=Bounded(JOBS), default=2),
    output: Path | None = option("Write the schedule as torch's CSV.", flag="--output -o", check=writable),
    printed: OutputOptions,
) -> None:
    """Find the best schedule for these durations, messages, micro-batches and memory limit.

    Small pipelines are solved exactly, with a proof where it ends in time (needs OR-tools, the extra
    `optimise`); larger ones by local search from the library's best.
    """
    from forescale.schedule.optimise import optimise

    problem = stages.problem(*shape_of(pp, microbatches), passes, placement)
    optimised = optimise(problem, time_limit_s=time_limit, num_workers=workers)
    result = simulate(
        optimised.schedule,
        problem.times,
        problem.links,
        sizes=problem.sizes,
        memory_limit=passes.memory_limit,
    )
    if output is not None:
        write_text(output, to_csv(optimised.schedule))
    more = attributes(optimised, "bound", "proven", "method", "library", "library_makespan")
    _show(lambda: optimised_view(result, optimised), {**result.to_json(), **more}, printed)


def _report_json(schedule: Schedule, report: CheckReport) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "schedule": schedule.name,
        **attributes(schedule, "num_stages", "num_microbatches"),
        **attributes(report, "valid", "deadlock_free"),
        "violations": [attributes(v, "rule", "message", "rank", "position") for v in report.violations],
    }


def _row(item: Family) -> dict[str, Any]:
    return {
        **attributes(item, "name", "aliases", "title", "placement", "vpp", "constraint", "idle"),
        "peak_activations": item.peak,
        **attributes(item, "splits_backward", "parameter_copies", "source"),
    }


def _share(text: str) -> float:
    """Return the share of a step that --bubble gives."""
    from forescale.units import share_of

    share = share_of(text)
    if share is None or not 0.0 < share < 1.0:
        raise out_of_range("--bubble", text, "between 0 and 100 %", "write 5% or 0.05")
    return share


def _compare(
    names: Sequence[str], passes: PassOptions, pp: int, microbatches: int, share: float | None
) -> tuple[list[Step], dict[str, str]]:
    results, refused = [], {}
    for item in [family(name) for name in names] or families():
        vpp = item.fixed_vpp or passes.vpp or item.least_vpp

        def run(count: int, item: Family = item, vpp: int = vpp) -> Step:
            return passes.run(item.build(replace(passes.request(pp, count), vpp=vpp)))

        try:
            result = run(microbatches) if share is None else fewest_microbatches(run, pp, share)
        except ForescaleError as error:
            refused[item.name] = str(error).removeprefix(f"{item.name}: ")
            continue
        if result.report.valid:
            results.append(result)
        else:
            refused[item.name] = result.report.violations[0].message
    return results, refused


def _beside(
    step: MeasuredStep, names: Sequence[str], passes: PassOptions
) -> tuple[list[Schedule], Difference | None, list[Timeline]]:
    """Return schedules beside a measured step, what tells it from its own simulation, and the pictures."""
    ran = step.schedule
    if not passes.times_given:
        local = ("--comm", "--weight-part", "--memory-limit") if not names else ()
        why = "without --forward and its like all is as the run in the folder measured it"
        passes.refuse(("--comm-mode", "--measured", *SIMULATED, *local), why)
    if not names:
        passes.refuse_shape("the run in the folder says which schedule and shape")
        simulated = passes.picture(ran) if passes.times_given else step.simulated()
        difference = Difference(step=step, simulation=simulated)
        return [ran], difference, [difference.timeline, simulated.timeline]
    request = passes.request(ran.num_ranks, ran.num_microbatches)
    vpp = len(ran.placement.rank_of_stage) // ran.num_ranks
    built = passes.build(names, request, vpp=vpp)
    others = [
        passes.picture(item) if passes.times_given else simulate(item, *stage_times_for(step, item))
        for item in built
    ]
    return built, None, [step.timeline, *(other.timeline for other in others)]

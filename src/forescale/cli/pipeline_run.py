"""`forescale pipeline run`: a schedule on ranks of this machine, measured beside simulated."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Literal

import typer
from annotated_types import Interval

from forescale.cli.console import PLAIN_WIDTH, console, print_json, say
from forescale.cli.options import JsonFlag, bounded, command_line, given, grouped, option
from forescale.cli.pipeline_options import (
    FILE,
    DrawFormat,
    PassOptions,
    StageOptions,
    microbatches_of_step,
    pipeline_ranks,
    schedule_name,
)
from forescale.errors import ForescaleError
from forescale.io.schedule_table import read_schedule
from forescale.limits import DEVICES
from forescale.schedule import LoweredSchedule, Schedule, build_schedule
from forescale.schedule.difference import Difference
from forescale.schedule.draw import Timeline, to_html, to_perfetto, to_svg, to_terminal
from forescale.schedule.measured import MeasuredStep, typical
from forescale.schedule.traces import read_run, write_run
from forescale.units import counted
from forescale.written import writable, write_text

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
    wanted: DrawFormat,
    *,
    width: int | None = None,
    colour: bool = False,
    title: str = "Pipeline schedules",
    difference: Difference | None = None,
    command: str = "",
) -> str:
    """Return pictures of steps on one scale, with what tells measured from simulated where that is known."""
    notes = () if difference is None else difference.sentences
    if wanted == "html":
        rows = () if difference is None else [astuple(each) for each in difference.passes]
        return to_html(timelines, title=title, notes=notes, columns=COLUMNS, rows=rows, command=command)
    if wanted == "svg":
        return to_svg(*timelines)
    if wanted == "perfetto":
        return json.dumps(to_perfetto(*timelines))
    if wanted != "terminal":
        message = f"{wanted} is no picture"
        raise ForescaleError(message)
    screen = console()
    painted = colour and screen.color_system is not None and not screen.no_color
    columns = width or min(screen.width, PLAIN_WIDTH)
    return "\n".join(
        [to_terminal(*timelines, width=columns, colour=painted), *(["", *notes] if notes else [])]
    )


PICTURES: dict[str, DrawFormat] = {".html": "html", ".svg": "svg", ".json": "perfetto"}
MOST_RANKS = 64
"""Processes that are started on one machine."""


def picture_writable(path: Path | None) -> Path | None:
    """Return `path` if a picture can be written there: asked before anything runs."""
    if path is not None and path.suffix not in PICTURES:
        *most, last = PICTURES
        message = f"{path}: a picture is FILE{', FILE'.join(most)} or FILE{last}"
        raise ForescaleError(message)
    return writable(path)


@grouped
def run_command(
    *,
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help=FILE)] = None,
    schedule: str | None = schedule_name(),
    pp: int | None = pipeline_ranks(),
    microbatches: int | None = microbatches_of_step(),
    passes: PassOptions,
    stages: StageOptions,
    model: Literal["toy", "sleep"] = option(
        "A small GPT with experts, or stages that take --forward, --input-grad and --weight-grad "
        "(or those of each stage), in milliseconds.",
        default="toy",
    ),
    steps: int = option("Steps that are timed.", check=bounded(Interval(gt=0, le=1000)), default=5),
    output: Path | None = option(
        "Draw both steps into FILE.html, .svg or .json (Perfetto).",
        flag="--output -o",
        check=picture_writable,
    ),
    trace: Path | None = option("Write every timed step into this folder, for draw --trace."),
    slurm: Path | None = option("Write a Slurm script that runs this, and run nothing.", check=writable),
    nodes: int = option("Nodes that the Slurm script asks for.", check=bounded(DEVICES), default=1),
    as_json: JsonFlag = False,
) -> None:
    """Run a schedule on processes of this machine, and set the simulation of what was measured beside it.

    Under torchrun its ranks are the pipeline's. Input and weight gradients run apart, each in its place. With
    --measured, it says what the schedule gained against that run, and stages of --model sleep take as long as its
    stages. Needs torch (the extra `bench`).
    """
    try:
        from forescale.runtime.job import Job, run_job
    except ModuleNotFoundError as error:
        message = "pipeline run needs torch; install it with pip install 'forescale[bench]'"
        raise ForescaleError(message) from error
    what = _schedule(file, schedule, pp, microbatches, passes)
    asked = what.schedule if isinstance(what, LoweredSchedule) else what
    before = None if passes.measured is None else measured_step(passes.measured)
    if slurm is not None:
        options = {"--steps": steps, "--model": model, "--output": output, "--trace": trace}
        shape = {"--schedule": schedule, "--pp": pp, "--microbatches": microbatches, **options}
        words = [*([str(file)] if file else []), *_options(shape | given(passes) | given(stages))]
        write_text(slurm, _slurm_script(asked, words, nodes))
        say(f"wrote {slurm}; sbatch {slurm} runs it")
        return
    if trace is not None:
        _check_folder(trace, asked.num_ranks)
    if asked.num_ranks > MOST_RANKS:
        message = f"{asked.name} has {asked.num_ranks} ranks; this machine is asked for up to {MOST_RANKS} processes"
        raise ForescaleError(message)
    seconds = None if model == "toy" else stages.seconds(asked, passes)
    timed = run_job(Job(what=what, steps=steps, seconds=seconds))
    if not timed:  # another rank of torchrun says what was found
        return
    ran = typical(timed)
    difference = Difference(step=ran, simulation=ran.simulated())
    if trace is not None:
        write_run(trace, timed)
    if output is not None:
        _draw(difference, output, command_line(context.obj))
    if as_json:
        print_json({**ran.to_json(), "difference": list(difference.sentences)})
        return
    _show(difference, before)
    _wrote(output, trace)


def _wrote(*files: Path | None) -> None:
    for written in files:
        if written is not None:
            say(f"wrote {written}")


def _check_folder(folder: Path, num_ranks: int) -> None:
    """Refuse a folder in which a run of so many ranks cannot be written: asked before anything runs."""
    if not folder.is_dir():
        if folder.exists():
            message = f"{folder} is no folder; --trace writes files of all ranks"
            raise ForescaleError(message)
        writable(folder)
        return
    writable(folder / "config.json")
    own = {f"pp_rank_{rank}.json" for rank in range(num_ranks)}
    others = sorted({each.name for each in folder.glob("*pp_rank_*.json")} - own)
    if others:
        message = f"{folder} holds {others[0]} of another run; give another folder"
        raise ForescaleError(message)


def _options(given: Mapping[str, object]) -> list[str]:
    return [word for name, value in given.items() if value is not None for word in (name, str(value))]


def _slurm_script(schedule: Schedule, words: Sequence[str], nodes: int) -> str:
    """Return a script in which torchrun starts the ranks of a schedule on some nodes."""
    if schedule.num_ranks % nodes:
        ranks = counted(schedule.num_ranks, "rank")
        message = f"--nodes {nodes}: {schedule.name} has {ranks}, which must be alike on every node"
        raise ForescaleError(message)
    command = shlex.join(["-m", "forescale", "pipeline", "run", *words])
    return f"""#!/bin/bash
#SBATCH --job-name=pipeline-run
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes {nodes} --nproc-per-node {schedule.num_ranks // nodes} \\
  --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \\
  {command}
"""


def _schedule(
    file: Path | None, name: str | None, pp: int | None, microbatches: int | None, passes: PassOptions
) -> Schedule | LoweredSchedule:
    if file is not None:
        if pp is not None or microbatches is not None:
            message = f"{file} says which schedule and shape; leave --schedule, --pp and --microbatches out"
            raise ForescaleError(message)
        found, with_messages = read_schedule(file, name)
        return with_messages or found
    if name is None or pp is None or microbatches is None:
        message = "give --schedule, --pp and --microbatches, or a file of a schedule"
        raise ForescaleError(message)
    return build_schedule(name, passes.request(pp, microbatches), vpp=passes.vpp)


def _show(difference: Difference, before: MeasuredStep | None) -> None:
    ran, simulated = difference.step, difference.simulation
    say(rendered([difference.timeline, simulated.timeline], "terminal", difference=difference))
    say(f"idle {ran.idle_share:.1%} measured, {simulated.bubble_rate_makespan:.1%} simulated")
    held = ", ".join(f"{value:g}" for value in ran.peak_activations)
    most = ", ".join(f"{value / 1e6:.2f}" for value in ran.peak_bytes)
    saved = f"; saved bytes at most: {most} MB" if ran.peak_bytes.any() else ""
    say(f"micro-batches held at most, by rank: {held}{saved}")
    if before is not None:
        gain, took = 1.0 - ran.makespan_s / before.makespan_s, 1e3 * before.makespan_s
        say(f"{gain:.2%} shorter than {before.schedule.name} measured before ({took:.2f} ms)")


def _draw(difference: Difference, output: Path, command: str) -> None:
    pictures = [difference.timeline, difference.simulation.timeline]
    title = f"{difference.step.schedule.name}: measured and simulated"
    wanted = PICTURES[output.suffix]
    write_text(output, rendered(pictures, wanted, title=title, difference=difference, command=command))

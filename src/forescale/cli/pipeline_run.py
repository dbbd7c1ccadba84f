"""`forescale pipeline run`: a schedule on ranks of this machine, measured beside simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from forescale.cli.console import print_json, say
from forescale.cli.options import grouped
from forescale.cli.pipeline_options import (
    MOST_BYTES,
    AsJson,
    DrawFormat,
    MaybeMicrobatches,
    MaybePp,
    PassOptions,
    ScheduleName,
    StageOptions,
)
from forescale.cli.pipeline_pictures import rendered
from forescale.errors import ForescaleError
from forescale.files import read_text
from forescale.schedule import Schedule, Simulation, build_schedule
from forescale.schedule.difference import Difference
from forescale.schedule.torch_csv import from_csv
from forescale.written import writable, write_text

if TYPE_CHECKING:
    from forescale.schedule.measured import MeasuredStep

PICTURES = {".html": DrawFormat.html, ".svg": DrawFormat.svg, ".json": DrawFormat.perfetto}
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
    file: Annotated[
        Path | None, typer.Argument(help="torch.distributed.pipelining schedule CSV, instead of --schedule.")
    ] = None,
    schedule: ScheduleName = None,
    pp: MaybePp = None,
    microbatches: MaybeMicrobatches = None,
    passes: PassOptions,
    stages: StageOptions,
    model: Annotated[
        Literal["toy", "sleep"],
        typer.Option(
            "--model",
            help="A small GPT with experts, or stages that take --forward, --input-grad and --weight-grad "
            "(or those of each stage), in milliseconds.",
        ),
    ] = "toy",
    steps: Annotated[int, typer.Option("--steps", min=1, max=1000, help="Steps that are timed.")] = 5,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            callback=picture_writable,
            help="Draw both steps into FILE.html, .svg or .json (Perfetto).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a schedule on processes of this machine, and set the simulation of what was measured beside it.

    Input and weight gradients run apart, each in its place. Needs torch (the extra `bench`).
    """
    try:
        from forescale.runtime.job import Job, run_job
    except ModuleNotFoundError as error:
        message = "pipeline run needs torch; install it with pip install 'forescale[bench]'"
        raise ForescaleError(message) from error
    asked = _schedule(file, schedule, pp, microbatches, passes)
    if asked.num_ranks > MOST_RANKS:
        message = f"{asked.name} has {asked.num_ranks} ranks; this machine is asked for up to {MOST_RANKS} processes"
        raise ForescaleError(message)
    seconds = None if model == "toy" else stages.seconds(asked, passes)
    ran = run_job(Job(schedule=asked, steps=steps, seconds=seconds))
    simulated = ran.simulated()
    if output is not None:
        _draw(ran, simulated, output)
    if as_json:
        print_json(ran.to_json())
        return
    _show(ran, simulated)
    if output is not None:
        say(f"wrote {output}")


def _schedule(
    file: Path | None, name: str | None, pp: int | None, microbatches: int | None, passes: PassOptions
) -> Schedule:
    if file is not None:
        if name is not None or pp is not None or microbatches is not None:
            message = f"{file} says which schedule and shape; leave --schedule, --pp and --microbatches out"
            raise ForescaleError(message)
        return from_csv(read_text(file, most=MOST_BYTES), name=file.stem)[0]
    if name is None or pp is None or microbatches is None:
        message = "give --schedule, --pp and --microbatches, or a schedule CSV"
        raise ForescaleError(message)
    return build_schedule(name, passes.request(pp, microbatches), vpp=passes.vpp)


def _show(ran: MeasuredStep, simulated: Simulation) -> None:
    difference = Difference(step=ran, simulation=simulated)
    say(rendered([difference.timeline, simulated.timeline], DrawFormat.terminal, difference=difference))
    error = simulated.makespan / (1e3 * ran.makespan_s) - 1.0
    idle = f"idle {ran.idle_share:.1%} measured, {simulated.bubble_rate_makespan:.1%} simulated"
    say(f"step {1e3 * ran.makespan_s:.2f} ms, simulated {simulated.makespan:.2f} ms ({error:+.1%}); {idle}")
    held = ", ".join(f"{value:g}" for value in ran.peak_activations)
    most = ", ".join(f"{value / 1e6:.2f}" for value in ran.peak_bytes)
    saved = f"; saved bytes at most: {most} MB" if ran.peak_bytes.any() else ""
    say(f"micro-batches held at most, by rank: {held}{saved}")


def _draw(ran: MeasuredStep, simulated: Simulation, output: Path) -> None:
    difference = Difference(step=ran, simulation=simulated)
    pictures, title = (
        [difference.timeline, simulated.timeline],
        f"{ran.schedule.name}: measured and simulated",
    )
    write_text(output, rendered(pictures, PICTURES[output.suffix], title=title, difference=difference))

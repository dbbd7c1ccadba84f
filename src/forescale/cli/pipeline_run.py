"""`forescale pipeline run`: a schedule on processes of this machine, next to its simulation."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from forescale import wording
from forescale.atomic_write import writable, write_text
from forescale.cli.console import say, show
from forescale.cli.declare import Bounded, argument, option
from forescale.cli.formats import Answer
from forescale.cli.options import given
from forescale.cli.output import OutputOptions, command_line
from forescale.cli.pipeline_options import (
    FILE,
    PICTURES,
    SIMULATED,
    SPREAD,
    PassOptions,
    StageOptions,
    measured_step,
    microbatches_of_step,
    pipeline_ranks,
    rendered,
    schedule_name,
    schedule_of,
)
from forescale.cli.progress import interruptible
from forescale.cli.reproduce import TYPED
from forescale.errors import (
    ForescaleError,
    needing,
    wrong_suffix,
)
from forescale.files import exists, is_folder
from forescale.limits import DEVICES, Interval
from forescale.report.document import Sketch, TextLine, View, line
from forescale.schedule import (
    LoweredSchedule,
    Schedule,
)
from forescale.schedule.difference import Difference
from forescale.schedule.measured import MeasuredStep, typical
from forescale.schedule.traces import write_run
from forescale.units import counted

MOST_RANKS = 64
"""Processes that are started on one machine."""


def picture_writable(path: Path | None) -> Path | None:
    """Return `path` if a picture can be written there: asked before anything runs."""
    if path is not None and path.suffix not in PICTURES:
        raise wrong_suffix("a picture", path.name, PICTURES)
    return writable(path)


NOT_TIMED = "no step was timed"


def run_command(
    *,
    file: Path | None = argument(FILE),
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
    steps: int = option("Steps that are timed.", check=Bounded(Interval(gt=0, le=1000)), default=5),
    output: Path | None = option(
        "Draw both steps into FILE.html, .svg or .json (Perfetto).",
        flag="--output -o",
        check=picture_writable,
    ),
    trace: Path | None = option("Write every timed step into this folder, for draw --trace."),
    slurm: Path | None = option("Write a Slurm script that runs this, and run nothing.", check=writable),
    nodes: int | None = option("Nodes that the Slurm script asks for, 1 by default.", check=Bounded(DEVICES)),
    printed: OutputOptions,
) -> None:
    """Run a schedule on processes of this machine, and compare it with its simulation.

    Under torchrun its ranks are the pipeline's. Input and weight gradients run apart, each in its place. With
    --measured, it says what the schedule gained against that run, and stages of --model sleep take as long as its
    stages. Needs torch (the extra `bench`).
    """
    with needing("bench", "pipeline run", "torch"), interruptible(NOT_TIMED):
        from forescale.runtime.job import Job, run_job
    passes.refuse(("--comm-mode", *SIMULATED, *SPREAD), "messages are sent, not simulated")
    if model == "toy":
        stages.refuse("stages of --model sleep take such times, those of toy their own")
    if nodes is not None and slurm is None:
        raise wording.required_with("--slurm FILE", f"--nodes {nodes}")
    what = schedule_of(file, schedule, pp, microbatches, passes)
    question = what.schedule if isinstance(what, LoweredSchedule) else what
    before = None if passes.measured is None else measured_step(passes.measured)
    if slurm is not None:
        options = {"--steps": steps, "--model": model, "--output": output, "--trace": trace}
        shape = {"--schedule": schedule, "--pp": pp, "--microbatches": microbatches, **options}
        parts = [*([str(file)] if file else []), *_options(shape | given(passes) | given(stages))]
        write_text(slurm, _slurm_script(question, parts, nodes or 1))
        say(f"wrote {slurm}; sbatch {slurm} runs it")
        return
    _check_ranks(question, trace)
    seconds = None if model == "toy" else stages.seconds(question, passes)
    with interruptible(NOT_TIMED):
        timed = run_job(Job(what=what, steps=steps, seconds=seconds))
    if not timed:  # another rank of torchrun says what was found
        return
    ran = typical(timed)
    difference = Difference(step=ran, simulation=ran.simulated())
    if trace is not None:
        write_run(trace, timed)
    if output is not None:
        _draw(difference, output, command_line(TYPED.get()))
    document = {**ran.to_json(), "difference": list(difference.sentences)}
    show(Answer(view=lambda: ran_view(difference, before), document=lambda: document), printed)
    if printed.is_text:
        _wrote(output, trace)


def _check_ranks(schedule: Schedule, trace: Path | None) -> None:
    if trace is not None:
        check_folder(trace, schedule.num_ranks)
    if schedule.num_ranks > MOST_RANKS:
        raise wording.not_enough_devices(schedule.name, schedule.num_ranks, MOST_RANKS)


def _wrote(*files: Path | None) -> None:
    for written in files:
        if written is not None:
            say(f"wrote {written}")


def check_folder(folder: Path, num_ranks: int) -> None:
    """Refuse a folder in which a run of so many ranks cannot be written: asked before anything runs."""
    if not is_folder(folder):
        if exists(folder):
            raise wording.wrong_format("a folder", "--trace writes files of all ranks").at(folder)
        writable(folder)
        return
    writable(folder / "config.json")
    texts = {f"pp_rank_{rank}.json" for rank in range(num_ranks)}
    others = sorted({item.name for item in folder.glob("*pp_rank_*.json")} - texts)
    if others:
        raise wording.file_exists(f"{others[0]} of another run in {folder}", "give another folder")


def _options(values: Mapping[str, object]) -> list[str]:
    return [word for name, value in values.items() if value is not None for word in (name, str(value))]


def _slurm_script(schedule: Schedule, names: Sequence[str], nodes: int) -> str:
    """Return a script in which torchrun starts the ranks of a schedule on some nodes."""
    if schedule.num_ranks % nodes:
        ranks = counted(schedule.num_ranks, "rank")
        message = f"--nodes {nodes}: {schedule.name} has {ranks}, which must be alike on every node"
        raise ForescaleError(message)
    command = shlex.join(["-m", "forescale", "pipeline", "run", *names])
    return f"""#!/bin/bash
#SBATCH --job-name=pipeline-run
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes {nodes} --nproc-per-node {schedule.num_ranks // nodes} \\
  --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \\
  {command}
"""


def ran_view(difference: Difference, before: MeasuredStep | None) -> View:
    """Return both steps, what differs, and how much is idle and kept."""
    ran, simulated = difference.step, difference.simulation
    kept = ", ".join(f"{value:g}" for value in ran.peak_activations)
    most = ", ".join(f"{value / 1e6:.2f}" for value in ran.peak_bytes)
    saved = f"; saved bytes at most: {most} MB" if ran.peak_bytes.any() else ""

    def picture(width: int) -> Sequence[TextLine]:
        if not width:
            return [line(text) for text in difference.sentences]
        drawn = rendered([difference.timeline, simulated.timeline], "terminal", difference=difference)
        return [line(text) for text in drawn.splitlines()]

    lines = [
        f"idle {ran.idle_share:.1%} measured, {simulated.bubble_rate_makespan:.1%} simulated",
        f"micro-batches held at most, by rank: {kept}{saved}",
    ]
    if before is not None:
        gain, took = 1.0 - ran.makespan_s / before.makespan_s, 1e3 * before.makespan_s
        lines.append(f"{gain:.2%} shorter than {before.schedule.name} measured before ({took:.2f} ms)")
    return View(contents=(Sketch(picture), *map(line, lines)))


def _draw(difference: Difference, output: Path, command: str) -> None:
    pictures = [difference.timeline, difference.simulation.timeline]
    title = f"{difference.step.schedule.name}: measured and simulated"
    requested = PICTURES[output.suffix]
    write_text(output, rendered(pictures, requested, title=title, difference=difference, command=command))

"""`forescale bench`: measure here what fits, to project there what does not."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec.structs import replace

from forescale.atomic_write import writable
from forescale.cli.codes import INTERRUPTED, Exit
from forescale.cli.console import say, show
from forescale.cli.declare import Bounded, Group, option
from forescale.cli.formats import Answer
from forescale.cli.inputs import read_question, refuse_presets
from forescale.cli.options import LaidOut, given
from forescale.cli.output import OutputOptions
from forescale.errors import ForescaleError, conflicts, needing, no_effect
from forescale.limits import DEVICES, TIME
from forescale.struct import asdict

if TYPE_CHECKING:
    from forescale.io.bench import BenchArtifact
    from forescale.question import Question

Suite: TypeAlias = Literal["device", "memory"]
SECONDS = 30.0
NOTHING = "nothing was measured"
SHOWN = 3
"""Proposals that are shown after a bench."""
IDLE = {
    "--merge": ("--devices-here", "--seconds"),
    "--check": ("--devices-here", "--save"),
    "--suite memory": ("--seconds",),
}
"""Options that a job does not read."""
TRACED = ("bf16", "autocast", "fp32")
"""Precisions in which a module is traced that a function builds."""
_bench = partial(option, panel="Bench")


class BenchRunOptions(Group, frozen=True, kw_only=True):
    """The devices, the duration and the file of a bench."""

    devices_here: int | None = _bench(
        "Devices of this machine; all by default.",
        flag="--devices-here --benchmark-gpus",
        check=Bounded(DEVICES),
    )
    seconds: float = _bench(
        "Time limit after start-up.",
        "S",
        default=SECONDS,
        check=Bounded(TIME, whole=False),
    )
    save: Path | None = _bench(
        "What was measured.", "FILE.json", flag="--save --save-benchmark", check=writable
    )


class MeasureOptions(BenchRunOptions, frozen=True, kw_only=True):
    """What is measured, on what, for how long."""

    suite: Suite | None = _bench("Calibrate a device, or memory without one.")
    check: Path | None = _bench("Run all of it: how far off is its projection?", "FILE.json")
    known: list[Path] | None = _bench("What to time next; with --save, timed.", "FILE.json", flag="--next")
    merge: list[Path] | None = _bench("Put files into one, --save. Repeatable.", "FILE.json")

    @property
    def jobs(self) -> dict[str, object]:
        """Jobs other than a bench by option, None where not asked for."""
        return {"suite": self.suite, "check": self.check, "next": self.known, "merge": self.merge}

    def refuse_idle(self, laid_out: LaidOut) -> None:
        """Raise if two jobs are asked for, or one with options that it does not read."""
        jobs = [f"--{name}" for name, value in self.jobs.items() if value is not None]
        if len(jobs) > 1:
            raise conflicts([f"{jobs[0]}", f"{jobs[1]}"], fix="ask for one at a time")
        job = f"--suite {self.suite}" if self.suite else (jobs or [""])[0]
        for flag in given(self).keys() & IDLE.get(job, ()):
            raise no_effect(flag, f"{job} does not read it")
        if job == "--merge" and laid_out != LaidOut():
            raise no_effect(["MODEL", "its options"], "--merge puts files together and asks nothing")


def bench_command(
    *,
    request: LaidOut,
    bench: MeasureOptions,
    output: OutputOptions,
) -> None:
    """Measure on this machine what fits of a layout: its step, blocks, memory, kernels and messages.

    The layout is scaled down to your GPUs and benchmarked; loading the file extrapolates to the target.
    Needs torch and transformers (the extra `bench`).
    """
    bench.refuse_idle(request)
    if bench.merge is not None:
        from forescale.io.bench import merged, read_bench

        _give(merged({str(file): read_bench(file) for file in bench.merge}), bench.save, output=output)
        return
    question, code = _traced_question(request)
    refuse_presets(question, "bench")
    if bench.check is not None:
        _check(question, bench.check, bench.seconds, code=code, output=output)
        return
    if bench.known is not None:
        _next(question, bench, bench.known, output=output)
        return
    measured = run_bench(question, bench, suite=bench.suite, code=code)
    end(measured, _give(measured, bench.save, output=output))
    if bench.save is not None and bench.suite is None and output.is_text:
        from forescale.bench.suite import propose
        from forescale.cli.render.bench import next_view

        here = bench.devices_here or question.cluster.devices_per_node
        priced = _priced_by(question, [bench.save])
        proposed = propose(priced, devices=here, seconds=bench.seconds)[:SHOWN]
        show(Answer(view=lambda: next_view(proposed), document=dict), output)


def _traced_question(request: LaidOut) -> tuple[Question, str]:
    """Return the question, and the function that MODEL names if it is FILE.py:FUNCTION: its model is traced."""
    code = request.model or ""
    if not code.rpartition(":")[0].endswith(".py"):
        return read_question(request), ""
    from forescale.cli.trace import USUAL_LENGTH, tracer
    from forescale.frameworks.traces import save_trace

    seq_len = request.run.seq_len or USUAL_LENGTH
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.json"
        save_trace(tracer()(code, seq_len=seq_len, precisions=TRACED), place)
        return read_question(replace(request, model=str(place))), code


def _give(bench_artifact: BenchArtifact, save: Path | None, *, output: OutputOptions) -> Path | None:
    """Print what was measured, write it, and return where; what is not whole is written in any case."""
    from forescale.cli.render.bench import bench_view
    from forescale.io.bench import bench_values

    show(
        Answer(view=lambda: bench_view(bench_artifact), document=lambda: bench_values(bench_artifact)), output
    )
    ended = bench_artifact.conditions.interrupted or bench_artifact.conditions.failed
    place = save or (spare() if ended else None)
    if place is not None:
        write_artifact(bench_artifact, place)
        if output.is_text and not ended:
            say(f"wrote {place}")
    return place


def spare() -> Path:
    """Return a new file for what nobody named a place for."""
    handle, name = tempfile.mkstemp(prefix="forescale-bench-", suffix=".json")
    os.close(handle)
    return Path(name)


def write_artifact(bench_artifact: BenchArtifact, place: Path) -> None:
    """Write what was measured; where that fails, to another place, which the error names."""
    from forescale.io.bench import write_bench

    try:
        write_bench(bench_artifact, place)
    except ForescaleError as error:
        other = spare()
        write_bench(bench_artifact, other)
        raise error.worded(f"{error}; the measurements are in {other}") from error


def end(bench_artifact: BenchArtifact, place: Path | None) -> None:
    """Say what kept a bench from measuring everything, and where the rest is; that is no success.

    Raises
    ------
    ForescaleError
        If something failed.
    Exit
        If it was interrupted.
    """
    if bench_artifact.conditions.failed:
        raise ForescaleError(f"{bench_artifact.conditions.failed} (measurements until then: {place})")
    if bench_artifact.conditions.interrupted:
        say(f"interrupted; measurements until then: {place}", error=True)
        raise Exit(INTERRUPTED)


def _next(question: Question, bench: MeasureOptions, known: list[Path], *, output: OutputOptions) -> None:
    """Show what to time next, or time it and add it to what is known."""
    from forescale.bench.suite import propose
    from forescale.cli.progress import BenchBar, interruptible

    priced = _priced_by(question, known)
    if bench.save is not None:
        from forescale.io.bench import merged, read_bench

        files = {str(file): read_bench(file) for file in known}
        with interruptible(NOTHING), BenchBar(bench.seconds) as bar:
            bar.start()
            result = _measuring_part().measure_next(
                priced, devices=bench.devices_here, seconds=bench.seconds, tell=bar
            )
        end(result, _give(merged({**files, "what was timed": result}), bench.save, output=output))
        return
    here = bench.devices_here or question.cluster.devices_per_node
    result = propose(priced, devices=here, seconds=bench.seconds)
    from forescale.cli.render.bench import next_values, next_view

    rows = next_values(result)
    document = {"schema": "forescale.bench_next/1", "proposed": rows}
    show(Answer(view=lambda: next_view(result), document=lambda: document), output)


def _priced_by(question: Question, files: list[Path]) -> Question:
    """Return a question that is restored from what files measured."""
    from forescale.io.question import build_question
    from forescale.io.question_values import question_values

    names = [str(file.absolute()) for file in files]
    values = {**question_values(question), "cost": {"benchmarks": names}}
    return build_question(values, where=", ".join(map(str, files)))


def _check(question: Question, file: Path, seconds: float, *, code: str, output: OutputOptions) -> None:
    from forescale.cli.progress import announce, interruptible

    priced = _priced_by(question, [file])
    announce(seconds)
    with interruptible(NOTHING):
        projection = _measuring_part().check_projection(priced, seconds=seconds, code=code)
    from forescale.cli.render.bench import check_view

    document = {"schema": "forescale.bench_check/1", **asdict(projection)}
    show(Answer(view=lambda: check_view(projection), document=lambda: document), output)


def run_bench(
    question: Question, bench: BenchRunOptions, *, suite: Suite | None = None, code: str = ""
) -> BenchArtifact:
    """Return what was measured on this machine of a layout scaled down to it, or of a suite."""
    from forescale.cli.progress import BenchBar, interruptible

    with interruptible(NOTHING), BenchBar(bench.seconds) as bar:
        if suite == "memory":
            _measuring_part()
            from forescale.bench.tracking import track_memory

            return track_memory(question, devices=bench.devices_here, code=code)
        bar.start()
        measuring = _measuring_part()
        measure = measuring.measure_suite if suite else measuring.measure
        more = {"code": code} if code else {}
        bench_artifact: BenchArtifact = measure(
            question, devices=bench.devices_here, seconds=bench.seconds, **more, tell=bar
        )
        return bench_artifact


def _measuring_part() -> ModuleType:
    with needing("bench", "bench", "torch and transformers"):
        from forescale.bench import measure
    return measure

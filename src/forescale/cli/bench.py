"""`forescale bench`: measure here what fits, to project there what does not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias

from forescale.cli.console import console, print_json, say
from forescale.cli.options import (
    ClusterOptions,
    JsonFlag,
    LayoutOptions,
    ModelArgument,
    PlanOptions,
    RunOptions,
    bounded,
    grouped,
    option,
)
from forescale.errors import ForescaleError
from forescale.limits import DEVICES, TIME
from forescale.written import writable

if TYPE_CHECKING:
    from forescale.io.bench import BenchArtifact
    from forescale.question import Question

Suite: TypeAlias = Literal["device", "memory"]
SECONDS = 30.0
_measuring = "Bench"


@grouped
def bench_command(
    *,
    model: ModelArgument = None,
    cluster: ClusterOptions,
    run: RunOptions,
    layout: LayoutOptions,
    plan: PlanOptions,
    devices_here: int | None = option(
        "Devices of this machine; all by default.",
        panel=_measuring,
        flag="--devices-here --benchmark-gpus",
        check=bounded(DEVICES),
    ),
    seconds: float = option(
        "Time for repeating; models are built besides.",
        "S",
        panel=_measuring,
        default=SECONDS,
        check=bounded(TIME, whole=False),
    ),
    save: Path | None = option(
        "What was measured.",
        "FILE.json",
        panel=_measuring,
        flag="--save --save-benchmark",
        check=writable,
    ),
    suite: Suite | None = option(
        "Calibrate a device, or memory without a device.",
        panel=_measuring,
    ),
    check: Path | None = option(
        "Run all of it: how far off is its projection?",
        "FILE.json",
        panel=_measuring,
    ),
    merge: list[Path] | None = option(
        "Put files into one, --save. Repeatable.",
        "FILE.json",
        panel=_measuring,
    ),
    as_json: JsonFlag = False,
) -> None:
    """Measure on this machine what fits of a layout: its step, blocks, memory, kernels and messages.

    The layout is cut to the devices at hand; what is given up is said and, with the file loaded, restored. Ctrl-C stops
    it with what it has. Needs torch and transformers (the extra `bench`).
    """
    from forescale.cli.inputs import read_question

    if merge is not None:
        from forescale.io.bench import merged, read_bench

        _give(merged({str(file): read_bench(file) for file in merge}), save, as_json=as_json)
        return
    question = read_question(model, plan, cluster, run, layout)
    if check is not None:
        _check(question, check, seconds, as_json=as_json)
        return
    _give(_measured(question, devices_here, seconds, suite), save, as_json=as_json)


def _give(found: BenchArtifact, save: Path | None, *, as_json: bool) -> None:
    """Write, and print, what was measured."""
    if save is not None:
        from forescale.io.bench import write_bench

        write_bench(found, save)
    if as_json:
        from forescale.io.bench import bench_values

        print_json(bench_values(found))
        return
    from forescale.cli.render.bench import bench_view

    console().print(bench_view(found))
    if save is not None:
        say(f"wrote {save}")


def _check(question: Question, file: Path, seconds: float, *, as_json: bool) -> None:
    from forescale.io.question import build_question, question_values

    priced = {**question_values(question), "cost": {"benchmarks": [str(file.absolute())]}}
    found = _measuring_part().check_projection(build_question(priced, where=str(file)), seconds=seconds)
    if as_json:
        print_json({"schema": "forescale.bench_check/1", **asdict(found)})
        return
    from forescale.cli.render.bench import check_view

    console().print(check_view(found))


def _measured(question: Question, devices: int | None, seconds: float, suite: Suite | None) -> BenchArtifact:
    from forescale.cli.progress import BenchBar

    measuring = _measuring_part()
    if suite == "memory":
        from forescale.bench.tracking import track_memory

        return track_memory(question, devices=devices)
    measure = measuring.measure_suite if suite else measuring.measure
    with BenchBar(seconds) as bar:
        found: BenchArtifact = measure(question, devices=devices, seconds=seconds, tell=bar)
    return found


def _measuring_part() -> ModuleType:
    try:
        from forescale.bench import measure
    except ModuleNotFoundError as error:
        message = "bench needs torch and transformers; install them with pip install 'forescale[bench]'"
        raise ForescaleError(message) from error
    return measure

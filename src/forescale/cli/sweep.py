"""`forescale sweep`: full searches over parameters of cluster, device and workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from forescale.cli.console import console, say, show
from forescale.cli.declare import Bounded, Group, argument, option
from forescale.cli.formats import Answer
from forescale.cli.options import output_option
from forescale.cli.output import OutputOptions, command_line
from forescale.cli.reproduce import TYPED
from forescale.errors import no_effect, required_with
from forescale.limits import JOBS

if TYPE_CHECKING:
    from forescale.sweep import Executor, Sweep, SweepResult
    from forescale.sweep.definition import Plot

_workers = partial(option, panel="Workers")
Progress = Callable[[int, int], None]


class WorkerOptions(Group, frozen=True, kw_only=True):
    """Who answers."""

    executor: Literal["local", "ray"] = _workers(
        "Who answers: this machine, or a Ray cluster.", default="local"
    )
    jobs: int | None = _workers("Points worked on at once; by default one per core.", check=Bounded(JOBS))
    ray_address: str | None = _workers(
        "The Ray cluster: auto (the default), HOST:PORT, or local for one of its own.", "ADDRESS"
    )


class TableOptions(Group, frozen=True, kw_only=True):
    """Where the answers go, and how they are shown."""

    output: Path | None = output_option("Keep points, table and pictures here; goes on where it was.", "DIR")
    table_format: Literal["parquet", "csv"] | None = output_option(
        "Of the table; parquet by default.", flag="--format"
    )
    restart: bool = output_option("Discard the points that DIR holds.", default=False)
    plot: list[str] | None = output_option(
        "A picture: scaling, line:x=…,y=…,by=…, bars:x=… or map:x=…,y=…,value=…. Repeatable.",
        "KIND:KEY=COLUMN,...",
    )
    metric: str | None = output_option("What points are compared by.", "COLUMN")


def sweep_command(
    *,
    table: TableOptions,
    workers: WorkerOptions,
    file: Path = argument("What is asked and what is varied.", "SWEEP.toml", default=...),
    sets: list[str] | None = option(
        "Override one value, such as devices=512. Repeatable.", "A.B=C", flag="--set"
    ),
    dry_run: bool = output_option("Say what would be asked, and stop.", default=False),
    output: OutputOptions,
) -> None:
    """Explore designs: a full search at every point of a grid or sample of cluster and workload parameters."""
    from forescale.cli.render.sweep import plan_view, sweep_view
    from forescale.sweep import run
    from forescale.sweep.columns import METRICS
    from forescale.sweep.reading import parse_plot
    from forescale.sweep.result import column_names

    _check(table, METRICS)
    if workers.ray_address is not None and workers.executor != "ray":
        raise required_with("--executor ray", "--ray-address")
    if dry_run and output.format == "json":
        raise no_effect("--json", "--dry-run prints what would be asked, no document")
    sweep = _read(file, sets)
    plots = tuple(parse_plot(text, column_names(sweep.axes)) for text in table.plot or ())
    if dry_run:
        show(Answer(view=lambda: plan_view(sweep), document=dict), output)
        return
    with _resumable(table.output), _progress(sweep) as progress:
        result = run(
            sweep,
            executor=_executor(workers.executor, workers.jobs, workers.ray_address or "auto"),
            output=table.output,
            table_format=table.table_format or "parquet",
            restart=table.restart,
            progress=progress,
        )
    result = replace(result, asked_metric=table.metric)
    question = command_line(TYPED.get())
    pictures = () if table.output is None else _pictures(result, plots, table.output, question)
    answer = Answer(view=lambda: sweep_view(result, pictures), document=result.to_json, rows=result.rows)
    show(answer, output)


def _check(table: TableOptions, known: Mapping[str, str]) -> None:
    from forescale.errors import UnknownNameError

    kept = {"--plot": table.plot, "--restart": table.restart, "--format": table.table_format}
    for flag in (flag for flag, value in kept.items() if value):
        if table.output is None:
            raise required_with("--output", flag)
    if table.metric is not None and table.metric not in known:
        raise UnknownNameError("metric", table.metric, known)


def _read(file: Path, sets: list[str] | None) -> Sweep:
    """Return the sweep that a file describes, with single values over it."""
    from forescale.sweep import read_sweep

    return read_sweep(file, overrides=sets or ())


def _executor(name: str, jobs: int | None, address: str) -> Executor:
    from forescale.sweep import Local, Ray

    return Ray(address=address, jobs=jobs) if name == "ray" else Local(jobs=jobs)


def _pictures(result: SweepResult, plots: tuple[Plot, ...], output: Path, command: str) -> tuple[Path, ...]:
    """Write the pictures asked for: by --plot, else by the file, else those that suit what is varied."""
    from forescale.sweep.pictures import draw, usual_plots, write_pictures

    requested = plots or result.sweep.plots or usual_plots(result)
    return write_pictures(result, draw(result, requested), output, command=command)


@contextmanager
def _resumable(output: Path | None) -> Iterator[None]:
    """Say after an interrupt how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if output is not None:
            say(f"interrupted; the points known so far are in {output}: the same command goes on", error=True)
        raise


@contextmanager
def _progress(sweep: Sweep) -> Iterator[Progress | None]:
    """Show a bar on standard error while points come in, where that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    screen = console(error=True, least=0)
    if not screen.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(sweep.name, total=sweep.axes.num_points)

        def tell(known: int, whole: int) -> None:
            bar.update(task, completed=known, total=whole)

        yield tell

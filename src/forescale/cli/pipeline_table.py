"""Tables of schedules on the command line: which are simulated or drawn, and where simulated steps are written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from forescale.cli.console import say
from forescale.cli.declare import argument, option
from forescale.cli.pipeline_options import ONE_SPREADS, SPREAD, PassOptions
from forescale.cli.pipeline_run import check_folder
from forescale.errors import ForescaleError, no_effect
from forescale.io.schedule_table import TABLES, read_schedule_table
from forescale.schedule import Schedule, Simulation
from forescale.schedule.measured import step_of_simulation
from forescale.schedule.traces import write_run

Built = list[tuple[Schedule, PassOptions]]
"""Schedules with the durations that each is simulated with."""
table_argument = partial(
    argument, "torch's CSV of one schedule, or a table of schedules and durations: YAML of Primus' simulator."
)


def config_option() -> Path | None:
    """Return the option by which Primus' tools take their table."""
    return option("The table, as Primus' tools take it.", "FILE", flag="--config")  # type: ignore[no-any-return]


def output_dir_option() -> Path | None:
    """Return the option that names the folder of simulated steps."""
    return option(  # type: ignore[no-any-return]
        "Write simulated steps into this folder, as Primus' simulator does; the table's by default.", "DIR"
    )


def file_of(argument: Path | None, config: Path | None) -> Path | None:
    """Return the file that the argument or --config names."""
    if argument is not None and config is not None:
        raise ForescaleError(f"{argument} and --config {config} are two files; give one of them")
    return config if argument is None else argument


def is_table(file: Path | None) -> bool:
    """Return whether a file is a table of schedules by its name."""
    return file is not None and file.suffix.lower() in TABLES


def schedules_of(path: Path, labels: Sequence[str], passes: PassOptions, shape: Sequence[object]) -> Built:
    """Return the schedules of a table, all of them where no labels are given; `shape` is what options say of it.

    Raises
    ------
    ForescaleError
        If options say what the table says.
    """
    if any(item is not None for item in shape) or passes.says_what:
        raise no_effect("those options", f"{path} gives schedules, shapes and durations")
    passes.refuse(SPREAD, ONE_SPREADS)
    return [passes.listed(item) for item in read_schedule_table(path).named(labels, path)]


def output_dir_of(path: Path | None, folder: Path | None) -> Path | None:
    """Return the folder of simulated steps: the one given, else the table's."""
    if folder is not None or path is None or not is_table(path):
        return folder
    return read_schedule_table(path).output_dir


def write_steps(simulations: Sequence[Simulation], folder: Path, *, error: bool) -> None:
    """Write simulated steps as Primus' simulator does: a folder per schedule, a file per rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for simulation in simulations:
        check_folder(folder / simulation.schedule.name, simulation.schedule.num_ranks)
    for simulation in simulations:
        write_run(folder / simulation.schedule.name, [step_of_simulation(simulation)])
    names = ", ".join(simulation.schedule.name for simulation in simulations)
    say(f"wrote {folder}: {names}", error=error)

"""Pictures that the pipeline commands make, and measured steps that they read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from forescale.cli.console import PLAIN_WIDTH, console
from forescale.cli.pipeline_options import DrawFormat
from forescale.errors import ForescaleError
from forescale.schedule.difference import Difference
from forescale.schedule.draw import Timeline, to_html, to_perfetto, to_svg, to_terminal
from forescale.schedule.measured import MeasuredStep
from forescale.schedule.traces import read_run

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

"""`forescale project`: one layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forescale.cli.console import console, print_json
from forescale.cli.options import (
    ClusterOptions,
    JsonFlag,
    LayoutOptions,
    ModelArgument,
    PlanOptions,
    RunOptions,
    grouped,
)

if TYPE_CHECKING:
    from forescale.projection.result import Projection


@grouped
def project_command(
    *,
    model: ModelArgument = None,
    cluster: ClusterOptions,
    run: RunOptions,
    layout: LayoutOptions,
    plan: PlanOptions,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            metavar="FILE.json",
            help="What runs lose, as `calibrate` wrote it.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Project step time and memory of one layout."""
    result = _projection(model, cluster, run, layout, plan, calibration)
    if as_json:
        print_json(result.to_json())
        return
    from forescale.cli.render.projection import projection_view

    console().print(projection_view(result))


def _projection(
    model: str | None,
    cluster: ClusterOptions,
    run: RunOptions,
    layout: LayoutOptions,
    plan: PlanOptions,
    calibration: Path | None,
) -> Projection:
    from forescale.cli.inputs import read_question
    from forescale.cost.run_calibration import read_run_calibration
    from forescale.project import project

    question = read_question(model, plan, cluster, run, layout)
    asked = question.plan
    result = project(
        asked.model,
        asked.cluster,
        question.strategy,
        asked.workload,
        preset=asked.preset,
        calibration=None if calibration is None else read_run_calibration(calibration),
    )
    return replace(result, notes=(*result.notes, *question.notes))

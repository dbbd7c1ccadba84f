"""`forescale project`: one layout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forescale.cli.console import console, print_json
from forescale.cli.options import (
    ClusterOptions,
    CostOptions,
    JsonFlag,
    LayoutOptions,
    ModelArgument,
    PlanOptions,
    RunOptions,
    grouped,
)

if TYPE_CHECKING:
    from forescale.cli.inputs import Question
    from forescale.projection.result import Projection


@grouped
def project_command(
    *,
    model: ModelArgument = None,
    cluster: ClusterOptions,
    run: RunOptions,
    layout: LayoutOptions,
    plan: PlanOptions,
    cost: CostOptions,
    as_json: JsonFlag = False,
) -> None:
    """Project step time and memory of one layout."""
    from forescale.cli.inputs import read_question

    result = _projection(read_question(model, plan, cluster, run, layout, cost))
    if as_json:
        print_json(result.to_json())
        return
    from forescale.cli.render.projection import projection_view

    console().print(projection_view(result))


def _projection(question: Question) -> Projection:
    from forescale.project import project

    asked = question.plan
    result = project(
        asked.model,
        asked.cluster,
        question.strategy,
        asked.workload,
        preset=asked.preset,
        costs=asked.costs(),
    )
    return replace(result, notes=(*result.notes, *question.notes))

"""`forescale project`: one layout."""

from __future__ import annotations

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
    from forescale.cli.inputs import answered, read_question

    result = answered(read_question(model, plan, cluster, run, layout, cost))
    if as_json:
        print_json(result.to_json())
        return
    from forescale.cli.render.projection import projection_view

    console().print(projection_view(result))

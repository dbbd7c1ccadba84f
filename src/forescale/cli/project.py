"""`forescale project`: one layout."""

from __future__ import annotations

from forescale.cli.console import console, print_json, say
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
    from forescale.cli.inputs import answered, line_of, read_question

    question = read_question(model, plan, cluster, run, layout, cost)
    result = answered(question)
    simulated = answered(question.simulated) if cost.side_by_side else None
    if as_json:
        from forescale.io.question import question_values

        more = {} if simulated is None else {"simulated": simulated.to_json()}
        print_json({**result.to_json(), **more, "question": question_values(question)})
        return
    from forescale.cli.render.projection import projection_view, sides_view

    console().print(projection_view(result) if simulated is None else sides_view(simulated, result))
    if result.memory.verdict == "OOM" and question.preset == "default":
        say(f"what would make it fit: forescale {line_of('fit', question, result, 'FILE.json')}")

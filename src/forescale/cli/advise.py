"""`forescale advise`: the playbook's decision process on one's own case."""

from __future__ import annotations

from dataclasses import replace

from forescale.cli.console import console, print_json
from forescale.cli.options import (
    ClusterOptions,
    CostOptions,
    JsonFlag,
    ModelArgument,
    OperationsOptions,
    PlanOptions,
    RunOptions,
    grouped,
    memory_limit,
    option,
)


@grouped
def advise_command(
    *,
    model: ModelArgument = None,
    cluster: ClusterOptions,
    run: RunOptions,
    max_memory: str | None = option("Peak per device, such as 70GiB.", "SIZE"),
    exact: bool = option("Say how far the advice is from the exact best.", default=True),
    operated: OperationsOptions,
    cost: CostOptions,
    plan: PlanOptions,
    as_json: JsonFlag = False,
) -> None:
    """Find a layout step by step: what fits, then the batch, then throughput, with the numbers of each."""
    from forescale.advise import advise
    from forescale.cli.inputs import read_question, refuse_presets

    question = read_question(model, plan, cluster, run, cost=cost, operated=operated)
    refuse_presets(question, "advise")
    if (limit := memory_limit(max_memory)) is not None:
        question = replace(question, max_memory=limit)
    result = advise(question, exact=exact)
    if as_json:
        print_json(result.to_json())
        return
    from forescale.cli.render.advise import advice_view

    console().print(advice_view(result, notes=question.notes))

"""`forescale explain`: where a number comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from forescale.cli.console import console, print_json
from forescale.cli.inputs import read_question
from forescale.cli.options import (
    ClusterOptions,
    CostOptions,
    JsonFlag,
    LayoutOptions,
    PlanOptions,
    Priced,
    RunOptions,
    bounded,
    completing,
    grouped,
    output_option,
)
from forescale.errors import SpecError
from forescale.limits import REST

complete_quantities = completing("explain", "quantity_names")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOptions:
    """How much of the tree is shown."""

    depth: int | None = output_option(
        "Levels of the tree; by default what fits one screen.", check=bounded(REST)
    )
    stage: int | None = output_option(
        "Of memory, the pipeline stage meant; the fullest by default.", "RANK", check=bounded(REST)
    )
    cite: bool = output_option("List the sources of all formulas behind it.", default=False)


@grouped
def explain_command(
    *,
    tree: TreeOptions,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] QUANTITY",
            help="A model as for project, and step_time, step_time.data_comm, memory.peak, mfu, ...",
            autocompletion=complete_quantities,
            show_default=False,
        ),
    ],
    cluster: ClusterOptions,
    run: RunOptions,
    layout: LayoutOptions,
    cost: CostOptions,
    plan: PlanOptions,
    as_json: JsonFlag = False,
) -> None:
    """Show how a number comes about: formula, inputs, units and source."""
    from forescale.explain import explain

    if len(words) > 2:
        raise SpecError(f"explain takes a model and one quantity; got {' '.join(words)}")
    model, quantity = (words[0] if len(words) == 2 else None), words[-1]
    asked = Priced(model=model, cluster=cluster, run=run, layout=layout, plan=plan, cost=cost)
    question = read_question(asked)
    node = explain(question, quantity, stage=tree.stage)
    if as_json:
        print_json(node.to_json() if tree.depth is None else node.to_json(depth=tree.depth))
        return
    from forescale.cli.render.explain import explanation_view
    from forescale.cli.render.words import left_out, notes

    view = explanation_view(node, depth=tree.depth, cite=tree.cite)
    console().print(*left_out(question.model), view, *notes(question.notes), sep="\n")

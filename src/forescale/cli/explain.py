"""`forescale explain`: where a number comes from."""

from __future__ import annotations

from forescale.cli.console import show
from forescale.cli.declare import Bounded, Group, argument
from forescale.cli.formats import Answer, answer_of
from forescale.cli.inputs import read_question
from forescale.cli.options import (
    ClusterOptions,
    CostOptions,
    LayoutOptions,
    PlanOptions,
    Priced,
    RunOptions,
    completing,
    output_option,
)
from forescale.cli.output import OutputOptions, command_line
from forescale.cli.reproduce import TYPED
from forescale.errors import MissingError, nearest, no_effect, required_with, wrong_type
from forescale.files import exists, place_of
from forescale.limits import REST
from forescale.struct import asdict
from forescale.synonyms import messages_called

complete_quantities = completing("explain", "quantity_names")


class TreeOptions(Group, frozen=True, kw_only=True):
    """How much of the tree is shown."""

    depth: int | None = output_option(
        "Levels of the tree; by default what fits one screen.", check=Bounded(REST)
    )
    stage: int | None = output_option(
        "Of memory, the pipeline stage meant; the fullest by default.", "RANK", check=Bounded(REST)
    )
    cite: bool = output_option("List the sources of all formulas behind it.", default=False)
    table: bool = output_option(
        "Instead of a quantity: the operators of each block with FLOP, bytes, time and what limits them.",
        default=False,
    )


def explain_command(
    *,
    tree: TreeOptions,
    words: list[str] | None = argument(
        "A model as for project, and step_time, step_time.data_comm, memory.peak, mfu, ...; without a "
        "quantity, all of them are listed.",
        "[MODEL] [QUANTITY]",
        complete=complete_quantities,
    ),
    cluster: ClusterOptions,
    run: RunOptions,
    layout: LayoutOptions,
    cost: CostOptions,
    plan: PlanOptions,
    output: OutputOptions,
) -> None:
    """Show how a number comes about: formula, inputs, units and source."""
    from forescale.cli.render.explain import explanation_view
    from forescale.explain.explain import explain, facts_of
    from forescale.projection.result import left_out

    model, quantity = _model_and_quantity(words or [], plan)
    priced = Priced(model=model, cluster=cluster, run=run, layout=layout, plan=plan, cost=cost)
    if tree.table:
        _operations(priced, quantity, output)
        return
    if quantity is None:
        _list(priced, tree, output)
        return
    quantity = _full_name(quantity)
    question = read_question(priced)
    node, facts = explain(question, quantity, stage=tree.stage), facts_of(question, quantity)
    notes = (*left_out(question.model), *question.notes)
    answer = Answer(
        view=lambda: explanation_view(
            node,
            depth=tree.depth,
            cite=tree.cite,
            notes=notes,
            facts=facts,
            command=command_line(TYPED.get()),
        ),
        document=lambda: {
            **(node.to_json() if tree.depth is None else node.to_json(depth=tree.depth)),
            **({"notes": [asdict(note) for note in notes]} if notes else {}),
        },
    )
    show(answer, output)


def _model_and_quantity(parts: list[str], plan: PlanOptions) -> tuple[str | None, str | None]:
    """Return the model and the quantity of the arguments, in either order.

    A single argument is a quantity if it is named like one. With a plan or a file that may hold the model, a single
    argument that is not a model is a quantity too.
    """
    from forescale.catalogue.models import model_names
    from forescale.explain import quantity_names

    if len(parts) > 2:
        raise wrong_type("the question", " ".join(parts), "a model and one quantity")
    if not parts:
        return None, None
    names, models = quantity_names(), model_names()
    is_model = [word in models or exists(place_of(word)) for word in parts]
    if len(parts) == 2:
        return (parts[1], parts[0]) if is_model == [False, True] else (parts[0], parts[1])
    word = parts[0]
    if is_model[0]:
        return word, None
    kept = plan.plan is not None or plan.config is not None
    like = nearest(word, names) and not nearest(word, models)
    return (None, word) if kept or word in names or like else (word, None)


def _full_name(text: str) -> str:
    """Return the one quantity whose name ends so, such as memory.activations for activations, or that others call so.

    Else the text.
    """
    from forescale.explain import quantity_names

    plain = text.replace("-", "_").lower()
    ends = [name for name in quantity_names() if name == plain or name.endswith(f".{plain}")]
    return ends[0] if len(ends) == 1 else messages_called(plain) or text


def _operations(priced: Priced, quantity: str | None, output: OutputOptions) -> None:
    """Print the operators of every block; under a preset, the operations of a layer as it defines them."""
    from forescale.cli.render.explain import operations_view
    from forescale.presets import preset_of, project_as

    if quantity is not None:
        raise no_effect(quantity, "--table shows the operations of a layer")
    question = read_question(priced)
    if question.preset == "default":
        from forescale.cli.render.operations import operators_view
        from forescale.report.operations import operators_of

        show(answer_of(operators_of(question), operators_view), output)
        return
    operations = preset_of(question, "operations").operations(question)
    project_as(question)
    rows = [asdict(item) for item in operations]
    answer = Answer(
        view=lambda: operations_view(operations, question),
        document=lambda: {"schema": "forescale.operations/1", "preset": question.preset, "operations": rows},
        rows=lambda: rows,
    )
    show(answer, output)


def _list(priced: Priced, tree: TreeOptions, output: OutputOptions) -> None:
    """Print the quantities, with their values where the question is complete."""
    from forescale.cli.render.explain import names_view, quantities_view
    from forescale.explain import quantities, quantity_names

    for flag, value in (("--depth", tree.depth), ("--stage", tree.stage), ("--cite", tree.cite or None)):
        if value is not None:
            raise required_with("a quantity, such as step_time", flag)
    try:
        question = read_question(priced)
    except MissingError as error:
        if output.format == "json":
            raise
        missing = error.missing
        show(Answer(view=lambda: names_view(quantity_names(), missing), document=dict), output)
        return
    result = quantities(question)
    rows = [asdict(item) for item in result]
    answer = Answer(
        view=lambda: quantities_view(result),
        document=lambda: {"schema": "forescale.quantities/1", "quantities": rows},
        rows=lambda: rows,
    )
    show(answer, output)

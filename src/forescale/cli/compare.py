"""`forescale compare`: two plans, term by term."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forescale.cli.console import show
from forescale.cli.formats import answer_of
from forescale.cli.inputs import answered, read_question
from forescale.cli.options import CostOptions, PlanOptions, Priced, grouped, option
from forescale.cli.output import PageOptions
from forescale.cli.scan import amount
from forescale.errors import ReaderError
from forescale.io.document import is_written, numbered, read_layout

if TYPE_CHECKING:
    from forescale.projection.result import Projection
    from forescale.question import Question

KINDS = "a plan (.toml, .yaml), or what project or search printed with --json (.json, FILE#2 is the second layout)"


@grouped
def compare_command(
    *,
    a: Annotated[str, typer.Argument(metavar="A", help=f"What it is compared with: {KINDS}.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What is compared: the same kinds.")],
    equal_budget: str | None = option(
        "Of two plans: the soonest run that each cluster gets for this money, such as 10M.", "AMOUNT"
    ),
    cost: CostOptions,
    output: PageOptions,
) -> None:
    """Compare two plans or projections: time, memory and layout, term by term."""
    from forescale.search.compare import compare

    budget = amount("--equal-budget", equal_budget)
    if budget is not None:
        from forescale.cli.render.run import equal_budget_view
        from forescale.whole_run.plans import at_equal_budget

        questions = {name: _question(name, cost) for name in (a, b)}
        show(answer_of(at_equal_budget(questions, budget), equal_budget_view), output)
        return
    result = compare(_projection(a, cost), _projection(b, cost), name_a=a, name_b=b)
    from forescale.cli.render.compare import comparison_view

    show(answer_of(result, comparison_view), output)


def _projection(text: str, cost: CostOptions) -> Projection | dict[str, Any]:
    """Return what a file holds: a plan is projected, a document taken as it is."""
    path, place = numbered(text)
    if is_written(path) and place is None:
        return answered(_asked(path, cost))
    if path.suffix.lower() != ".json":
        raise ReaderError(text, f"compare takes {KINDS}")
    return _checked(read_layout(text), path)


def _checked(document: Any, path: Path) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    """Return a projection whose question could have been asked; the rest is left to the comparison."""
    from forescale.io.named import build
    from forescale.spec import Layout, Workload

    kinds: dict[str, type[Any]] = {"strategy": Layout, "workload": Workload}
    for name, kind in kinds.items():
        if isinstance(document, dict) and isinstance(document.get(name), dict):
            build(kind, document[name], where=f"{path}, {name}")
    return document  # type: ignore[no-any-return]


def _asked(path: Path, cost: CostOptions) -> Question:
    return read_question(Priced(plan=PlanOptions(plan=path), cost=cost))


def _question(text: str, cost: CostOptions) -> Question:
    path, place = numbered(text)
    if not is_written(path) or place is not None:
        raise ReaderError(text, "--equal-budget takes two plans (.toml, .yaml): layouts are searched")
    return _asked(path, cost)

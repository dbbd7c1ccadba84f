"""The layout of a phase that gives none: the fastest that fits, by a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from forescale.projection.result import Projection
from forescale.question import Question
from forescale.search import SearchResult
from forescale.search.machines import fitting
from forescale.spec.layout import Layout
from forescale.spec.proposal import Constraint
from forescale.units import counted
from forescale.whole_run.run import Phase

Search = Callable[[Question], SearchResult]


def searched_layout(parts: Sequence[Question], search: Search) -> tuple[Layout, str]:
    """Return the fastest layout of one phase, and how it was chosen.

    A layout that fits at the upper end of its memory range is preferred; one that fits as expected is taken where
    there is no such layout.

    Parameters
    ----------
    parts
        The questions of a phase, one per batch where the batch grows, the whole batch last. The layout is that of the
        last one, among those whose dp × micro_batch_size divides every batch.
    search
        Returns the ranking of a question.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits.
    """
    question = parts[-1]
    if len(parts) > 1:
        common = gcd(*(part.site.workload.global_batch_size for part in parts))
        question = question.with_space(rules=(*question.space.rules, _divides(common)))
    result, has_margin = fitting(question, search)
    margin = "with margin" if has_margin else "as expected, but not at the upper end of the 80 % interval"
    layout = result.best[0].strategy
    return layout, f"fastest of {counted(result.num_legal, 'legal layout')} that fits {margin}"


def projected_phases(
    name: str, parts: Sequence[Question], search: Search, project: Callable[[Question], Projection]
) -> list[Phase]:
    """Return the phases of a question, or of the questions of each batch where the batch grows.

    The layout is searched if none is given; `search` and `project` answer a question.
    """
    origin = ""
    if parts[-1].strategy is None:
        layout, origin = searched_layout(parts, search)
        parts = [part.with_layout(layout) for part in parts]
    return [
        Phase(
            name=name if len(parts) == 1 else f"{name}, {part.workload.global_batch_size:,}",
            projection=project(part),
            tokens=part.workload.tokens or 0.0,
            origin=origin,
        )
        for part in parts
    ]


def _divides(batch: int) -> Constraint:
    """Return the rule that dp × micro_batch_size divides every batch of a ramp."""
    return Constraint(
        name="batches of the ramp",
        holds=lambda q: (
            batch % (q.degrees.dp_replicate * q.degrees.dp_shard * q.degrees.micro_batch_size) == 0
        ),
        message=lambda q: (
            f"dp × micro_batch_size = {q.degrees.dp_replicate * q.degrees.dp_shard * q.degrees.micro_batch_size} "
            f"must divide {batch}, the greatest common divisor of the batches of the ramp"
        ),
    )

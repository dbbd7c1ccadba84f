"""Components as an indented tree with exact counts, and the collectives of a step with what is exposed of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forescale.cli.render import words
from forescale.projection.components import CollectiveTime, ComponentBytes
from forescale.projection.result import Projection
from forescale.report.document import Content, TreeNode, line, styled, table

COMMUNICATION = "_comm"
"""Ending of the parts of a step that are communication."""


def components_view(result: Projection, components: Iterable[ComponentBytes]) -> Sequence[Content]:
    """Return the components of a model, with the exact parameters of the model and of pipeline rank 0."""
    below = tuple(map(_node, components))
    if not below:
        return ()
    params = result.params
    on_first = f"{params.per_stage[0]:,} on a device of pipeline rank 0" if params.per_stage else ""
    text = ", ".join(filter(None, (f"parameters {params.total:,}", on_first)))
    heading = line(
        "components: parameters on a device, bytes that one micro-batch keeps without recomputation",
        style="bold",
    )
    return (line(text), TreeNode(heading, below))


def _node(component: ComponentBytes) -> TreeNode:
    times = f" × {component.times}" if component.times != 1 else ""
    figures = f"{component.parameters:,} parameters, {component.kept_bytes:,} bytes"
    return TreeNode(
        line((f"{component.name}{times}", "bold"), f"  {figures}"), tuple(map(_node, component.below))
    )


def communication_view(result: Projection, collectives: Iterable[CollectiveTime]) -> Sequence[Content]:
    """Return the collectives of a step, each alone, and the communication that the step waits for."""
    rows = [
        (
            item.name,
            str(item.num_ranks),
            f"{item.num_bytes / 2**20:,.2f}",
            f"{1e3 * item.seconds:.3f}",
            f"{item.calls:,.0f}",
            f"{1e3 * item.seconds * item.calls:,.3f}",
        )
        for item in collectives
    ]
    if not rows:
        return ()
    alone = table(
        "<collectives of a step, per device", "ranks", "MiB", "ms each", "calls", "ms alone", rows=rows
    )
    if not result.step_time_s:  # an account of memory only
        return (alone,)
    exposed = {
        name: 1e3 * value for name, value in result.time_s.items() if value and name.endswith(COMMUNICATION)
    }
    waited = [(words.time_part(name), f"{value:,.3f}") for name, value in exposed.items()]
    total = styled("bold", (_TOTAL, f"{sum(exposed.values()):,.3f}"))
    return (alone, table("<exposed communication", "ms", rows=[*waited, total]))


_TOTAL = "total communication (critical path)"

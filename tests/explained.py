"""Checks of explanations: every number follows from the numbers below it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator

from forescale.explain.explain import operation_of
from forescale.formula import REGISTRY, Formula, TermNode


def check_explanation(root: TermNode, *, relative: float = 1e-12) -> int:
    """Work every node out again from its inputs; return how many numbers were compared."""
    compared = 0
    for node in each_once(root):
        if node.inputs:
            again = worked_out(node)
            assert math.isclose(again, node.value, rel_tol=relative), (
                node.name,
                node.text,
                again,
                node.value,
            )
            compared += 1
    return compared


def each_once(root: TermNode) -> Iterator[TermNode]:
    """Yield every node of a tree whose equal branches are one object."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            waiting.extend(part for _, part in node.inputs)
            yield node


def worked_out(node: TermNode) -> float:
    """Return what the inputs of a node make: by its arithmetic, or by the formula it names."""
    values = [part.value for _, part in node.inputs]
    match operation_of(node):
        case "+":
            return math.fsum(values)
        case "×":
            return math.prod(values)
        case "/" if len(values) == 2:
            return values[0] / values[1]
        case "-" if len(values) == 2:
            return values[0] - values[1]
    if node.text in {"largest", "smallest"}:
        return max(values) if node.text == "largest" else min(values)
    return float(_formula(node).function(**{label: part.value for label, part in node.inputs}))


def _formula(node: TermNode) -> Formula:
    labels = {label for label, _ in node.inputs}
    entries = [
        entry
        for entry in REGISTRY.values()
        if entry.summary == node.text and labels == set(inspect.signature(entry.function).parameters)
    ]
    assert entries, f"{node.name} ({node.text}) says nothing of how {sorted(labels)} make {node.value}"
    return entries[0]

"""An explanation as plain values for JSON."""

from __future__ import annotations

from typing import Any

from forescale.formula import TermNode

SCHEMA = "forescale.explanation/1"


def document(node: TermNode, *, depth: int) -> dict[str, Any]:
    """Return the `forescale.explanation/1` document, `depth` levels of inputs deep."""
    return {
        "schema": SCHEMA,
        "quantity": node.name,
        "sources": list(sources(node)),
        "tree": _plain(node, "", depth),
    }


def sources(node: TermNode) -> tuple[str, ...]:
    """Return every source behind a number once, in the order of the tree."""
    found: dict[str, None] = {}
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if current.source:
            found[current.source] = None
        waiting.extend(part for _, part in reversed(current.inputs))
    return tuple(found)


def _plain(node: TermNode, label: str, depth: int) -> dict[str, Any]:
    shown = node.inputs if depth > 0 else ()
    return {
        "name": label if label and not label.isdigit() else node.name,
        "value": _finite(node.value),
        "unit": node.unit or "1",
        "stage": node.stage,
        "formula": node.text,
        "source": node.source,
        "inputs": [_plain(part, key, depth - 1) for key, part in shown],
    }


def _finite(value: Any) -> Any:  # noqa: ANN401
    """Return numbers as they are; infinity, which JSON lacks, as text."""
    if isinstance(value, tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and value in {float("inf"), float("-inf")} else value

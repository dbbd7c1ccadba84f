"""A recorded tree as people want to read it: sums and products flat, nothings dropped, choices made visible.

Only what adds no information goes: zeros in sums, ones in products, branches that were not taken keep their
value but not their inputs. No number changes.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from forescale.formula import TermNode

Inputs: TypeAlias = tuple[tuple[str, TermNode], ...]
UNITS = {
    "bytes": "byte",
    "_s": "s",
    "seconds": "s",
    "latency": "s",
    "flops": "FLOP",
    "bandwidth": "byte/s",
    "rate": "FLOP/s",
}
"""Unit of an input by the end of its name, where nothing else says it."""
_OPERATIONS = frozenset({"+", "-", "×", "/", "^", "//", "max", "min", "ceil", "floor"})


def tidy(node: TermNode) -> TermNode:
    """Return the same explanation without what only the machine needs."""
    return _tidy(node, "", {})


def is_operation(node: TermNode) -> bool:
    """Return whether the node is plain arithmetic, not a named quantity."""
    return node.name in _OPERATIONS


def operation_of(node: TermNode) -> str:
    """Return "+", "-", "×" or "/" where the node is that of its inputs, whatever its name; else ""."""
    words = {"sum": "+", "sum of its parts": "+", "product": "×", "quotient": "/", "difference": "-"}
    return words.get(node.text, "")


def is_constant(node: TermNode) -> bool:
    """Return whether the node is a number without a name."""
    return not node.inputs and not node.name


def _tidy(node: TermNode, label: str, seen: dict[int, tuple[TermNode, TermNode]]) -> TermNode:
    """Tidy bottom-up; `seen` keeps the original beside the result, so that its id stays its own."""
    if id(node) not in seen:
        seen[id(node)] = (node, _rebuilt(node, label, seen))
    return seen[id(node)][1]


def _rebuilt(node: TermNode, label: str, seen: dict[int, tuple[TermNode, TermNode]]) -> TermNode:
    if _is(node.value, 0.0):
        return replace(node, inputs=(), unit=node.unit or _unit_of_label(label))
    inputs: Inputs = tuple((name, _tidy(part, name, seen)) for name, part in node.inputs)
    operation = operation_of(node)
    if operation == "+":
        inputs = _spliced(inputs, "+", neutral=0.0)
    elif operation == "×":
        inputs = _spliced(inputs, "×", neutral=1.0)
    elif operation == "/":
        inputs = inputs[:1] if _is(inputs[1][1].value, 1.0) else inputs
    elif operation == "-":
        inputs = inputs[:1] if _is(inputs[1][1].value, 0.0) else inputs
    else:
        inputs = _chosen(node, inputs)
    alone = len(inputs) == 1 and operation and inputs[0][1].value == node.value
    if alone and (inputs[0][0].isdigit() or node.name == operation):  # a labelled part keeps its label
        return inputs[0][1] if is_operation(node) else _adopted(node, inputs[0][1])
    unit = node.unit or _unit(node, inputs) or _unit_of_label(label)
    if operation in {"+", "-"}:
        inputs = tuple((name, part if part.unit else replace(part, unit=unit)) for name, part in inputs)
    return replace(node, inputs=inputs, unit=unit)


def _adopted(node: TermNode, only: TermNode) -> TermNode:
    """Return a named sum or product of one thing: that thing under the name."""
    kept = only.text or node.text
    return replace(
        only, name=node.name, unit=node.unit or only.unit, text=kept, source=node.source or only.source
    )


def _spliced(inputs: Inputs, operation: str, *, neutral: float) -> Inputs:
    """Return the operands of nested sums (or products) side by side, without zeros (or ones)."""
    flat: list[tuple[str, TermNode]] = []
    for label, part in inputs:
        if part.name == operation and part.inputs and label.isdigit():  # a labelled part keeps its label
            flat.extend(part.inputs)
        elif not _is(part.value, neutral):
            flat.append((label, part))
    return tuple(flat)


def _chosen(node: TermNode, inputs: Inputs) -> Inputs:
    """Where a node is one of its inputs, leave the others their value only."""
    if node.unit == "1":  # counts are equal by chance
        return inputs
    winners = [part.value == node.value for _, part in inputs]
    if len(inputs) < 2 or not any(winners) or sum(winners) == len(winners):
        return inputs
    return tuple(
        (label, part if wins else replace(part, inputs=()))
        for wins, (label, part) in zip(winners, inputs, strict=True)
    )


def _unit(node: TermNode, inputs: Inputs) -> str:
    """Return the unit that arithmetic leaves: that of the summands, or of the one factor that has one."""
    units = [part.unit for _, part in inputs]
    operation = operation_of(node) or node.name
    if operation in {"+", "-", "max", "min"}:
        return next((unit for unit in units if unit), "")
    if operation == "×":
        kinds = {unit for unit in units if unit not in {"", "1"}}
        return kinds.pop() if len(kinds) == 1 and kinds <= {"s", "byte"} else ""
    if operation == "/" and len(units) == 2 and units[1] == "1":
        return units[0]
    return ""


def _unit_of_label(label: str) -> str:
    return next((unit for ending, unit in UNITS.items() if label.endswith(ending)), "")


def _is(value: object, number: float) -> bool:
    return value == number or (isinstance(value, tuple) and all(item == number for item in value))

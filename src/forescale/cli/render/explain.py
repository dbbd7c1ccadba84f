"""An explanation as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from forescale.cli.render import words
from forescale.explain.explain import Quantity, is_constant, is_operation, operation_of
from forescale.formula import TermNode
from forescale.presets.preset import ShapedOperation
from forescale.question import Note, Question
from forescale.report.document import (
    Bullets,
    Code,
    Column,
    Content,
    TextLine,
    TreeNode,
    View,
    line,
    listed,
    table,
)
from forescale.units import format_quantity

SCREEN_LINES, MOST_LINES = 22, 30
"""Lines of a tree that is equally deep everywhere, and with what its largest terms are made of."""
MAIN = 0.5
"""Share of its sum from which on a term is followed down."""
LARGEST = 0.2
"""The same of the largest input of a term."""
SMALL = 0.005
"""Summands below this share of a sum of many are shown together."""
MANY, LONG = 8, 40
POSITIONS = ("first", "second")
"""Labels of inputs that only say where they stand."""


def explanation_view(
    node: TermNode,
    *,
    depth: int | None,
    cite: bool,
    notes: Sequence[Note] = (),
    facts: Sequence[str] = (),
    command: str = "",
) -> View:
    """Return the tree down to `depth`, or to what fits a screen, what `facts` say of it, and the sources if asked.

    `command` asks the same question; below a tree that is not whole it is shown with a larger depth.
    """
    selected = fitting_depth(node) if depth is None else depth
    further = _followed(node, selected) if depth is None else frozenset()
    contents: list[Content] = [_grown(node, "", None, selected, (), further), *map(line, facts)]
    if depth is None:
        deeper = f"{command} --depth {selected + max(3, len(max(further, key=len, default=())))}"
        contents.append(Code(f"the tree at depth {selected}; deeper", deeper))
    if cite:
        contents += [line("sources", style="bold"), Bullets(tuple(node.sources))]
    return View(contents=tuple(contents), notes=tuple(notes))


UTILISATIONS = ("mfu", "mfu_full_attention", "hfu")
"""Quantities that are shown in percent."""


def _listed_value(item: Quantity) -> str:
    """Return the value of a quantity with its unit."""
    return words.percent(item.value) if item.name in UTILISATIONS else format_quantity(item.value, item.unit)


_QUANTITIES: tuple[Column[Quantity], ...] = (
    Column("<quantity", lambda item: item.name),
    Column("value", _listed_value),
)


def quantities_view(quantities: Sequence[Quantity]) -> View:
    """Return every quantity with its value, and how to explain one."""
    return View(contents=(listed(_QUANTITIES, quantities), line(HOW, style="dim")))


def names_view(names: Sequence[str], missing: Sequence[str]) -> View:
    """Return the names of all quantities, and what their values require."""
    how = line(f"{HOW}; their values require {', '.join(missing)}", style="dim")
    return View(contents=(*map(line, names), line(), how))


def operations_view(operations: Sequence[ShapedOperation], question: Question) -> View:
    """Return tensors, collectives and FLOP of forward; below, its bytes and the counts of backward."""
    forward, backward = (
        [item for item in operations if item.direction == direction] for direction in ("forward", "backward")
    )
    shapes = (
        [
            item.name if tensor is item.tensors[0] else "",
            tensor.name,
            f"({','.join(tensor.shape)})",
            "×".join(map(str, tensor.size)),
            *(_counts(item)[:-1] if tensor is item.tensors[0] else ("", "", "")),
        ]
        for item in forward
        for tensor in item.tensors
    )
    counts = (
        [item.name, _counts(item)[-1], *_counts(other)] for item, other in zip(forward, backward, strict=True)
    )
    sent = ("<collective", "volume", "FLOP")
    return View(
        title=f"One layer of {question.model.name} on one device, one micro-batch",
        lead=words.lead(question.workload, question.preset),
        contents=(
            table("<forward", "<tensor", "<shape", "size", *sent, rows=shapes, gap=1),
            table(
                "<operation",
                "forward bytes",
                *(f"{name} back" for name in sent),
                "bytes back",
                rows=counts,
                gap=1,
            ),
            line("AG all-gather, RS reduce-scatter, AR all-reduce, B broadcast, R reduce", style="dim"),
        ),
    )


ABBREVIATIONS = {
    "all_gather": "AG",
    "reduce_scatter": "RS",
    "all_reduce": "AR",
    "broadcast": "B",
    "reduce": "R",
}


def _counts(item: ShapedOperation) -> list[str]:
    """Return collectives, their volume, FLOP and bytes."""
    pairs = [part.split(" over ") for part in item.collective.split(", ") if part]
    sent = ", ".join(f"{ABBREVIATIONS[kind]} {axis}" for kind, axis in pairs) or "–"
    volume = format_quantity(item.volume_bytes, "byte") if pairs else "–"
    return [sent, volume, format_quantity(item.flops, "FLOP"), format_quantity(item.num_bytes, "byte")]


HOW = "forescale explain MODEL QUANTITY shows how a value is computed"


def fitting_depth(node: TermNode) -> int:
    """Return the deepest tree that stays within a screen, at least one level."""
    depth = 1
    while depth < 12 and _count(node, depth) < _count(node, depth + 1) <= SCREEN_LINES:
        depth += 1
    return depth


def _count(node: TermNode, depth: int) -> int:
    if depth == 0:
        return 1
    shown, rest = _shown(node)
    return 1 + bool(rest) + sum(_count(part, depth - 1) for _, part in shown)


Place: TypeAlias = tuple[int, ...]
"""Of a node in a tree: the number of each input on the way to it."""


def _followed(node: TermNode, depth: int) -> frozenset[Place]:
    """Return the places below `depth` whose inputs are shown too: the main terms, as far as lines are left."""
    left, followed = MOST_LINES - _count(node, depth), set[Place]()
    waiting: list[tuple[Place, TermNode, float]] = [((), node, 1.0)]
    while waiting:
        place, part, weight = waiting.pop(0)
        shown, rest = _shown(part)
        more = len(shown) + bool(rest)
        if len(place) >= depth:
            if not 0 < more <= left or part.unit != node.unit or isinstance(part.value, tuple):
                continue
            left -= more
            followed.add(place)
        parts = [_part(item, part) for _, item in shown]
        for number, (_, item) in enumerate(shown):
            share = weight * parts[number]
            least = LARGEST if parts[number] == max(parts) else MAIN
            if share >= least or len(place) + 1 < depth:
                waiting.append(((*place, number), item, share))
    return frozenset(followed)


def _part(node: TermNode, parent: TermNode) -> float:
    """Return what part of its parent a summand is; 1 for other inputs."""
    numbers = isinstance(node.value, int | float) and isinstance(parent.value, int | float) and parent.value
    return abs(node.value / parent.value) if numbers and operation_of(parent) == "+" else 1.0


def _grown(
    node: TermNode, label: str, parent: TermNode | None, depth: int, place: Place, further: frozenset[Place]
) -> TreeNode:
    shown, rest = _shown(node) if len(place) < depth or place in further else ((), ())
    below = [
        _grown(part, label, node, depth, (*place, number), further)
        for number, (label, part) in enumerate(shown)
    ]
    if rest:
        together = format_quantity(sum(part.value for _, part in rest), node.unit)
        below.append(TreeNode(line(f"{len(rest)} smaller ones = {together}", style="dim")))
    return TreeNode(_line(node, label, parent), tuple(below))


Inputs = tuple[tuple[str, TermNode], ...]


def _shown(node: TermNode) -> tuple[Inputs, Inputs]:
    """Return the inputs that get a line (summands largest first), and the small summands that share one."""
    inputs = tuple(item for item in node.inputs if not is_constant(item[1]) or operation_of(node) == "+")
    if operation_of(node) != "+" or isinstance(node.value, tuple) or not node.value:
        return inputs, ()
    plain = all(isinstance(part.value, int | float) for _, part in inputs)
    if not plain:
        return inputs, ()
    ranked = tuple(sorted(inputs, key=lambda item: -abs(item[1].value)))
    if len(ranked) <= MANY:
        return tuple(item for item in ranked if item[1].value), ()
    big = tuple(item for item in ranked if abs(item[1].value) >= SMALL * abs(node.value))
    return big, tuple(item for item in ranked[len(big) :] if item[1].value)


def _line(node: TermNode, label: str, parent: TermNode | None) -> TextLine:
    stage = node.stage is not None and (parent is None or parent.stage != node.stage)
    name, text = title(node, label), _expression(node)
    text = "" if text == name else text
    return line(
        (name, "bold"),
        " = ",
        (_value(node), "cyan"),
        _share(node, parent),
        *([(f"  on stage {node.stage}", "magenta")] if stage else []),
        *([(f"  {text}", "dim")] if text else []),
    )


def _share(node: TermNode, parent: TermNode | None) -> str:
    """Return what part of its sum a summand is; empty for other inputs."""
    is_summand = parent is not None and operation_of(parent) == "+" and node.unit == parent.unit
    values = (node.value, parent.value) if parent is not None and is_summand else ()
    if not values or not all(isinstance(value, int | float) and value > 0.0 for value in values):
        return ""
    return f" ({words.percent(values[0] / values[1])})"


def title(node: TermNode, label: str) -> str:
    """Return what a node is called: its place in a formula, its name, or its arithmetic."""
    if label and not label.isdigit() and label not in POSITIONS:
        return label
    if not is_operation(node):
        return node.name or "constant"
    if operation_of(node) == "+":
        names = " + ".join(title(part, name) for name, part in node.inputs)
        return (names or "the other operand") if len(names) <= LONG else f"sum of {len(node.inputs)}"
    return _arithmetic(node) or "constant"


def _value(node: TermNode) -> str:
    if not isinstance(node.value, tuple):
        return format_quantity(node.value, node.unit)
    shown = [format_quantity(item, node.unit) for item in node.value[:4]]
    more = ", …" if len(node.value) > 4 else ""
    return f"[{', '.join(shown)}{more}] by stage"


def _expression(node: TermNode) -> str:
    """Return the formula in words, or the arithmetic over the names of its operands."""
    operation = operation_of(node)
    if not operation:
        return node.text
    return "" if operation == "+" else _arithmetic(node)


def _arithmetic(node: TermNode) -> str:
    """Return arithmetic over the names of its operands; long operands are left to the lines below."""
    names = [_value(part) if is_constant(part) else title(part, label) for label, part in node.inputs]
    inner = [is_operation(part) for _, part in node.inputs]
    names = [
        f"({name})" if nested and len(name) <= LONG else "(…)" if nested else name
        for name, nested in zip(names, inner, strict=True)
    ]
    return f" {operation_of(node)} ".join(names) if len(names) > 1 else ""

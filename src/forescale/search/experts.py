"""Prices of experts for many cells: each operator is priced once for all cells that give it the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace as replace_fields
from functools import partial

import numpy as np
from msgspec.structs import replace

from forescale.graph.operator import Block, Operator
from forescale.graph.ops import Collective
from forescale.graph.per_block import PerBlock
from forescale.graph.sharding import StructuralOptions
from forescale.numeric import Array, Numeric, summed, taking
from forescale.question import Question
from forescale.search.blocks import blocks_of
from forescale.search.layouts import Columns, Rows, as_degrees, distinct, first_rows
from forescale.search.ranks import RelaxedPlacement
from forescale.spec.layout import Overlap
from forescale.time.blocks import launch_interval
from forescale.time.price import PricedBlock, PricedOperator, Seconds, price_blocks
from forescale.time.stacked import Known

PARTS = ("moe", "expert_comm")
"""Parts of a step that depend on how experts are laid out."""
AXES = ("ep", "etp")
"""Axes among which tokens travel to experts and back."""
KEYS_AT_ONCE = 4096
"""Distinct blocks priced at once."""
DENSE = ("tp", "cp", "micro_batch_size")
"""What operators depend on that experts do not change."""
OTHERS = Operator(name="others", part="attention")
"""Stands for all operators that are not of experts, behind whose compute exchanges hide where passes cross."""


def is_of_experts(operator: Operator) -> bool:
    """Return whether an operator is of experts, or sends tokens to them."""
    sent = (primitive.axis for primitive in operator.primitives if isinstance(primitive, Collective))
    return operator.part == "moe" or any(axis in AXES for axis in sent)


def is_routed(operator: Operator) -> bool:
    """Return whether an operator of experts depends on the tokens of a rank, and on no other split of tp and cp."""
    sent = (primitive.axis for primitive in operator.primitives if isinstance(primitive, Collective))
    return "shared_experts" not in operator.modules and all(axis in AXES for axis in sent)


def goes_by_tokens(question: Question, choices: StructuralOptions) -> bool:
    """Return whether tp and cp change routed experts only by the tokens of a rank."""
    return choices.sp and choices.tp_kind == "1d" and question.costs.anchor is None


def priced_experts(
    question: Question,
    placement: RelaxedPlacement,
    cells: Rows,
    columns: Columns,
    choices: StructuralOptions,
    known: Mapping[object, Known],
) -> Iterator[tuple[Rows, PerBlock[PricedBlock]]]:
    """Yield some of the cells, whose columns are given, with the prices of their operators of experts.

    Routed experts are priced once for all cells with the same tokens on a rank, shared ones for all with the same tp,
    cp and micro-batch. `known` has a place for what lists of operators have in common of the same cells, by part.
    """
    keys = placement.keys(cells)
    split = columns["tp"] * columns["cp"]
    common = np.gcd(split, columns["micro_batch_size"])
    tokens = {"micro_batch_size": columns["micro_batch_size"] // common, "tp": split // common}
    by_tokens = {**tokens, **{name: columns[name] for name in AXES}}
    routed, dense = distinct({**by_tokens, **keys}, (*by_tokens, *keys)), distinct(columns, DENSE)
    price = partial(_priced, question, placement, choices)
    first = first_rows(dense.where)
    others = price(
        {name: columns[name][first] for name in DENSE},
        cells[first],
        lambda operator: is_of_experts(operator) and not is_routed(operator),
        known["shared"],
    )
    first = first_rows(routed.where)
    for start in range(0, len(first), KEYS_AT_ONCE):
        some = first[start : start + KEYS_AT_ONCE]
        local = {name: values[some] for name, values in by_tokens.items()}
        experts = price(
            local, cells[some], lambda item: is_of_experts(item) and is_routed(item), known[start]
        )
        rows = np.flatnonzero((routed.where >= start) & (routed.where < start + len(some)))
        taken: dict[int, PricedOperator] = {}
        parts = (taken, routed.where[rows] - start, dense.where[rows])
        yield rows, experts.zipped(others, partial(_of_both, *parts))


def _priced(
    question: Question,
    placement: RelaxedPlacement,
    choices: StructuralOptions,
    columns: Columns,
    cells: Rows,
    wanted: Callable[[Operator], bool],
    known: Known,
) -> PerBlock[PricedBlock]:
    """Return blocks with the prices of their wanted operators."""
    degrees = as_degrees(columns)
    blocks = blocks_of(question, degrees, choices)
    pricing = placement.pricing(question, degrees, choices, cells, known)
    priced = price_blocks(blocks.map(partial(only, wanted)), replace_fields(pricing, without_flops=True))
    return priced.zipped(blocks, lambda item, block: replace(item, block=block))


def compute_of_others(priced: PricedBlock) -> tuple[Numeric, Numeric]:
    """Return the seconds of compute, forward and backward, of the operators that are not of experts."""
    others = [item for item in priced.operators.values() if not is_of_experts(item.operator)]
    backward = (item.backward_input[0] + item.backward_weight[0] for item in others)
    return summed(item.forward[0] for item in others), summed(backward)


def launched(priced: PricedBlock, overlap: Overlap, *, experts: bool) -> Numeric:
    """Return the seconds in which the host launches a block's operators of `experts`, or all others, once each."""
    some = [item for item in priced.operators.values() if is_of_experts(item.operator) == experts]
    calls = summed(item.forward_kernels + item.backward_kernels for item in some)
    return calls * launch_interval(priced, overlap)


def with_others(priced: PricedBlock, seconds: Array) -> PricedBlock:
    """Return experts of a block with the compute of its other operators, (candidates, 2) `compute_of_others`."""
    if not seconds.shape[1]:
        return priced
    others = PricedOperator(
        operator=OTHERS,
        forward=(seconds[:, 0], {}),
        backward_input=(seconds[:, 1], {}),
        backward_weight=(0.0, {}),
        forward_flops=0.0,
        flops=0.0,
    )
    return replace(priced, operators={OTHERS.name: others, **priced.operators})


def only(wanted: Callable[[Operator], bool], block: Block) -> Block:
    """Return a block of the wanted operators."""
    return replace(block, operators=tuple(filter(wanted, block.operators)))


def _of_both(
    known: dict[int, PricedOperator],
    of_routed: Rows,
    of_shared: Rows,
    routed: PricedBlock,
    shared: PricedBlock,
) -> PricedBlock:
    """Return the operators of both for all cells, in the order of the block; those `known` were taken before."""
    both = ((routed, of_routed), (shared, of_shared))
    found = {name: (operator, rows) for priced, rows in both for name, operator in priced.operators.items()}
    operators: dict[str, PricedOperator] = {}
    for name in [item.name for item in shared.block.operators if item.name in found]:
        operator, rows = found[name]
        if id(operator) not in known:
            known[id(operator)] = _taken(operator, rows)
        operators[name] = known[id(operator)]
    return PricedBlock(block=shared.block, operators=operators, pricing=routed.pricing)


def _taken(priced: PricedOperator, rows: Rows) -> PricedOperator:
    """Return the seconds of an operator for some cells, without messages among other ranks."""
    take = taking(rows)

    def taken(seconds: tuple[Numeric, Seconds]) -> tuple[Numeric, Seconds]:
        compute, messages = seconds
        return take(compute), {part: take(messages[part]) for part in messages if part in PARTS}

    return PricedOperator(
        operator=priced.operator,
        forward=taken(priced.forward),
        backward_input=taken(priced.backward_input),
        backward_weight=taken(priced.backward_weight),
        forward_flops=0.0,
        flops=0.0,
        forward_kernels=take(priced.forward_kernels),
        backward_kernels=take(priced.backward_kernels),
    )

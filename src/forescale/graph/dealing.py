"""Deal the experts of traced blocks to ranks, where the type of the model has no plan for it."""

from __future__ import annotations

import json
from math import gcd

from msgspec.structs import replace

from forescale.graph.parallel import Plan, messages, plan_of
from forescale.spec.model import Model
from forescale.spec.trace import Formula, Trace, TracedBlock, TracedOperator, TracedParameter

DEALT = Plan(experts=True)


def with_dealt_experts(model: Model) -> Model:
    """Return a model whose traced experts expert parallelism can deal, those of its grouped products.

    Tokens go to the ranks of their experts and back, as in transformers' expert_parallel.py. The model is the same
    where there are no such experts, or a plan splits its blocks already.
    """
    return replace(model, traces=tuple(map(_of_trace, model.traces)))


def with_whole_experts(model: Model) -> Model:
    """Return a traced model whose experts every rank has, such as where its type has no plan in transformers."""
    return replace(model, traces=tuple(replace(trace, ep=1) for trace in model.traces))


def deals_experts(model: Model) -> bool:
    """Return whether transformers can deal the experts of a model's type."""
    return bool(model.config) and plan_of(json.loads(model.config).get("model_type", "")).experts


def _of_trace(trace: Trace) -> Trace:
    counts = {count for block in trace.blocks.values() for count in _experts_of(block)}
    if trace.ep > 1 or trace.tp > 1 or len(counts) != 1:
        return trace
    [count] = counts
    return replace(
        trace, ep=count, blocks={name: _of_block(block, count) for name, block in trace.blocks.items()}
    )


def _experts_of(block: TracedBlock) -> dict[int, set[str]]:
    """Return the modules of a block that have experts, by their number."""
    result: dict[int, set[str]] = {}
    for operator in block.operators:
        for kernel in operator.forward:
            if kernel.kind.startswith("grouped"):
                result.setdefault(kernel.extents[0].coefficients[0], set()).add(operator.module)
    return result


def _of_block(block: TracedBlock, count: int) -> TracedBlock:
    """Return a block whose weights of experts, and copies of them, are parts of a rank."""
    modules = _experts_of(block).get(count, set())
    parameters = tuple(_of_parameter(item, modules, count) for item in block.parameters)
    unit = gcd(*(item.elements for item in parameters if item.split))
    if not unit:
        return block
    return replace(
        block,
        operators=tuple(
            _of_operator(item, unit) if item.module in modules else item for item in block.operators
        ),
        parameters=parameters,
        saved_bytes=_dealt(block.saved_bytes, unit),
        forward_bytes=tuple(_dealt(item, unit) for item in block.forward_bytes),
        backward_bytes=tuple(_dealt(item, unit) for item in block.backward_bytes),
    )


def _of_parameter(parameter: TracedParameter, modules: set[str], count: int) -> TracedParameter:
    is_dealt = parameter.shape[:1] == (count,) and len(parameter.shape) > 2
    return (
        replace(parameter, split="experts")
        if is_dealt and parameter.name.rpartition(".")[0] in modules
        else parameter
    )


def _of_operator(operator: TracedOperator, unit: int) -> TracedOperator:
    """Return the experts' module with what its ranks send."""
    ahead, behind = messages(DEALT, operator.module, operator.forward)
    forward, backward, weight = (
        tuple(
            replace(kernel, extents=tuple(_dealt(extent, unit) for extent in kernel.extents))
            for kernel in kernels
        )
        for kernels in (operator.forward, operator.backward, operator.weight)
    )
    return replace(operator, forward=(*forward, *ahead), backward=(*backward, *behind), weight=weight)


def _dealt(size: Formula, unit: int) -> Formula:
    """Return a size of which whole multiples of `unit`, the common divisor of the experts' weights, are dealt.

    They are taken for weights of experts and copies of them.
    """
    constant, *others = size.coefficients
    whole = unit * size.divisor
    part = max(constant, 0) // whole * whole
    if not part:
        return size
    return replace(size, coefficients=(constant - part, *others), experts=(part, *(0 for _ in others)))

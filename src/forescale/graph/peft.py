"""Low-rank adapters as PEFT adds them to the linear layers of a recorded model.

The base layers are frozen and recorded without weight gradients. Kernels of an adapter follow PEFT,
tuners/lora/layer.py, Linear.forward: in fp32, or in bf16 under autocast, added to the result of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from forescale.spec.trace import (
    BASIS,
    ZERO,
    Formula,
    KernelKind,
    Trace,
    TracedBlock,
    TracedKernel,
    TracedOperator,
    TracedParameter,
)

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv_proj": ("qkv_proj", "query_key_value", "c_attn", "Wqkv"),
    "q_proj": ("q_proj", "query_key_value", "qkv_proj", "c_attn", "Wqkv"),
    "k_proj": ("k_proj", "query_key_value", "qkv_proj", "c_attn", "Wqkv"),
    "v_proj": ("v_proj", "query_key_value", "qkv_proj", "c_attn", "Wqkv"),
    "o_proj": ("o_proj", "out_proj", "dense", "c_proj"),
    "gate_proj": ("gate_proj", "gate_up_proj"),
    "up_proj": ("up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h"),
    "down_proj": ("down_proj", "fc2", "dense_4h_to_h"),
}
"""Linear layers that a target means, the first that a block has."""
TOKENS: Final = BASIS.index((1, 1))
HOST_LAUNCHES: Final = 25
"""Launches that the Python code of PEFT around one adapter takes as long as."""
AROUND: Final = TracedKernel(
    operator="peft", kind="host", dtype="fp32", extents=(ZERO, ZERO, ZERO), count=HOST_LAUNCHES
)
"""The Python code of PEFT around an adapter, which no kernel runs."""


def adapted(trace: Trace, targets: Sequence[str], rank: int) -> Trace:
    """Return a trace of frozen blocks whose linear layers of some names have adapters."""
    blocks = {name: _adapted_block(block, targets, rank, trace) for name, block in trace.blocks.items()}
    ends = {name: _frozen(getattr(trace, name)) for name in ("embedding", "head")}
    return replace(trace, blocks=blocks, **ends)


def _frozen(block: TracedBlock) -> TracedBlock:
    return replace(block, parameters=tuple(replace(item, trained=False) for item in block.parameters))


def _adapted_block(block: TracedBlock, targets: Sequence[str], rank: int, trace: Trace) -> TracedBlock:
    layers = {
        item.name.removesuffix(".weight"): item.shape
        for item in block.parameters
        if item.name.endswith(".weight") and len(item.shape) == 2
    }
    places: dict[str, tuple[int, ...]] = {}
    for target in targets:
        names = NAMES.get(target, (target,))
        known = {path.rpartition(".")[2] for path in layers}
        name = next((name for name in names if name in known), None)
        places |= {path: shape for path, shape in layers.items() if path.rpartition(".")[2] == name}
    operators = [
        _with_adapter(operator, places[operator.module], rank, trace)
        if operator.module in places
        else operator
        for operator in block.operators
    ]
    parameters = [*_frozen(block).parameters]
    saved = ZERO
    for path, (outputs, inputs) in places.items():
        parameters += [
            TracedParameter(name=f"{path}.lora_A.weight", shape=(rank, inputs)),
            TracedParameter(name=f"{path}.lora_B.weight", shape=(outputs, rank)),
        ]
        width = 2 if trace.autocast else 4
        saved = _sum(saved, _tokens(width * (inputs + rank)))
    return replace(
        block,
        operators=tuple(operators),
        parameters=tuple(parameters),
        saved_bytes=_sum(block.saved_bytes, saved),
        forward_bytes=tuple(_sum(item, saved) for item in block.forward_bytes),
        backward_bytes=tuple(_sum(item, saved) for item in block.backward_bytes),
    )


def _with_adapter(
    operator: TracedOperator, shape: tuple[int, ...], rank: int, trace: Trace
) -> TracedOperator:
    outputs, inputs = shape
    cast = trace.autocast
    product, size = (cast, 2) if cast else ("tf32", 4)
    base = 4 if trace.parameters == "fp32" and not cast else 2

    def moved(name: str, kind: KernelKind, width: int, read: int, written: int) -> TracedKernel:
        sizes = (_tokens(width), _tokens(read * width), _tokens(written * width))
        return TracedKernel(operator=name, kind=kind, dtype="fp32", extents=sizes)

    def times(rows: Formula, columns: Formula, inner: Formula) -> TracedKernel:
        one = Formula(coefficients=(1, 0, 0, 0, 0, 0))
        return TracedKernel(operator="mm", kind="product", dtype=product, extents=(rows, columns, inner, one))

    tokens, low, wide, narrow = _tokens(1), _number(rank), _number(outputs), _number(inputs)
    forward = (
        AROUND,
        moved("_to_copy", "mixed", inputs, 6 - size, size),
        times(tokens, low, narrow),
        times(tokens, wide, low),
        moved("mul", "vector", outputs, size, size),
        moved("add", "vector" if base == size else "mixed", outputs, base + size, max(base, size)),
        *([] if base == size else [moved("_to_copy", "narrowed", outputs, size, base)]),
    )
    backward = (
        *([] if base == size else [moved("_to_copy", "mixed", outputs, base, size)]),
        *([] if base == size else [moved("_to_copy", "narrowed", outputs, size, base)]),
        moved("mul", "vector", outputs, size, size),
        times(tokens, low, wide),
        times(tokens, narrow, low),
        moved("_to_copy", "narrowed", inputs, size, 6 - size),
        moved("add", "vector", inputs, 2 * base, base),
    )
    weight = (times(wide, low, tokens), times(low, narrow, tokens))
    return replace(
        operator,
        forward=(*operator.forward, *forward),
        backward=(*operator.backward, *backward),
        weight=(*operator.weight, *weight),
    )


def _tokens(width: int) -> Formula:
    """Return a width for each token."""
    return Formula(coefficients=tuple(width if index == TOKENS else 0 for index in range(len(BASIS))))


def _number(value: int) -> Formula:
    return Formula(coefficients=(value, *([0] * (len(BASIS) - 1))))


def _sum(one: Formula, other: Formula) -> Formula:
    pairs = zip(one.coefficients, other.coefficients, strict=True)
    return Formula(
        coefficients=tuple(a * other.divisor + b * one.divisor for a, b in pairs),
        divisor=one.divisor * other.divisor,
    )

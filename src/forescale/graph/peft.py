"""Low-rank adapters as PEFT adds them to the linear layers of a recorded model.

The base layers are frozen and recorded without weight gradients. Kernels of an adapter follow PEFT,
tuners/lora/layer.py, Linear.forward: in fp32, or in bf16 under autocast, added to the result of the layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from forescale.errors import not_one_of
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
    total,
)
from forescale.spec.workload import Trainable

_QKV: Final = "qkv_proj|query_key_value|c_attn|Wqkv"
_KEYS_AND_VALUES: Final = "kv_a_proj_with_mqa|kv_b_proj|kv_proj"
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv_proj": (_QKV, "q_proj|k_proj|v_proj"),
    "q_proj": ("q_proj", "q_a_proj|q_b_proj", _QKV),
    "k_proj": ("k_proj", _KEYS_AND_VALUES, _QKV),
    "v_proj": ("v_proj", _KEYS_AND_VALUES, _QKV),
    "o_proj": ("o_proj", "o_b_proj", r".*att(?:n|ention)\w*\.(?:out_proj|dense|c_proj)"),
    "gate_up_proj": ("gate_up_proj|input_linear", "gate_proj|up_proj|w1|w3", "fc1|c_fc|dense_h_to_4h"),
    "gate_proj": ("gate_proj|w1", "gate_up_proj|input_linear"),
    "up_proj": ("up_proj|w3", "gate_up_proj|input_linear", "fc1|c_fc|dense_h_to_4h"),
    "down_proj": ("down_proj|w2", "fc2|dense_4h_to_h|output_linear", r".*mlp\.c_proj"),
}
"""Linear layers that a target means, as patterns of the end of their paths; the first that fits a layer of a block."""
TOKENS: Final = BASIS.index((1, 1))
HOST_LAUNCHES: Final = 25
"""Launches that the Python code of PEFT around one adapter takes as long as."""
AROUND: Final = TracedKernel(
    operator="peft", kind="host", dtype="fp32", extents=(ZERO, ZERO, ZERO), count=HOST_LAUNCHES
)
"""The Python code of PEFT around an adapter, which no kernel runs."""


def adapted(trace: Trace, trainable: Trainable, *, autocast: bool) -> Trace:
    """Return a trace of frozen blocks whose linear layers have adapters.

    Under `autocast` the products of adapters are in bf16, as those of the trace are if it was recorded so.

    Raises
    ------
    SpecError
        If no linear layer is a target.
    """
    places = {name: _places(block, trainable.lora_targets) for name, block in trace.blocks.items()}
    if not any(places.values()):
        known = {path.rpartition(".")[2] for block in trace.blocks.values() for path in linear_layers(block)}
        raise not_one_of("lora_targets", ",".join(trainable.lora_targets), sorted(known))
    maker = _Adapters(trace, trainable, autocast=autocast)
    return replace(trace, blocks={name: maker.block(trace.blocks[name], places[name]) for name in places})


def with_frozen(trace: Trace) -> Trace:
    """Return a trace that trains no parameter."""
    return replace(
        trace,
        blocks={name: _frozen(block) for name, block in trace.blocks.items()},
        embedding=_frozen(trace.embedding),
        head=_frozen(trace.head),
    )


def _frozen(block: TracedBlock) -> TracedBlock:
    return replace(block, parameters=tuple(replace(item, trained=False) for item in block.parameters))


def linear_layers(block: TracedBlock) -> dict[str, tuple[int, ...]]:
    """Return the paths of the linear layers of a block, with the shapes of their weights."""
    return {
        item.name.removesuffix(".weight"): item.shape
        for item in block.parameters
        if item.name.endswith(".weight") and len(item.shape) == 2
    }


def _places(block: TracedBlock, targets: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the linear layers of a block that targets mean."""
    layers, result = linear_layers(block), dict[str, tuple[int, ...]]()
    for target in targets:
        for names in NAMES.get(target, (re.escape(target),)):
            fitting = {
                path: shape for path, shape in layers.items() if re.fullmatch(rf"(?:.*\.)?(?:{names})", path)
            }
            result |= fitting
            if fitting:
                break
    return result


class _Adapters:
    """Adapters of one rank at frozen layers of a trace."""

    def __init__(self, trace: Trace, trainable: Trainable, *, autocast: bool) -> None:
        self.rank, self.dropout = trainable.lora_rank, trainable.lora_dropout
        self.cast = trace.autocast or ("bf16" if autocast else "")
        self.size = 2 if self.cast else 4
        """Bytes of an element that an adapter multiplies."""
        self.base = 4 if trace.parameters == "fp32" and not self.cast else 2
        """Bytes of an element of the layer's result."""

    def block(self, block: TracedBlock, places: Mapping[str, tuple[int, ...]]) -> TracedBlock:
        """Return a block with adapters at some of its linear layers."""
        operators = tuple(
            self._with_adapter(operator, *places[operator.module]) if operator.module in places else operator
            for operator in block.operators
        )
        parameters = [*block.parameters]
        for path, (outputs, inputs) in places.items():
            parameters += [
                TracedParameter(name=f"{path}.lora_A.weight", shape=(self.rank, inputs)),
                TracedParameter(name=f"{path}.lora_B.weight", shape=(outputs, self.rank)),
            ]
        mask = 1 if self.dropout else 0
        saved = total(
            _tokens(self.size * (inputs + self.rank) + mask * inputs) for _, inputs in places.values()
        )
        return replace(
            block,
            operators=operators,
            parameters=tuple(parameters),
            saved_bytes=total([block.saved_bytes, saved]),
            forward_bytes=tuple(total([item, saved]) for item in block.forward_bytes),
            backward_bytes=tuple(total([item, saved]) for item in block.backward_bytes),
        )

    def _with_adapter(self, operator: TracedOperator, outputs: int, inputs: int) -> TracedOperator:
        """Return the operator of a linear layer with its adapter."""
        size, base = self.size, self.base
        tokens, low, wide, narrow = _tokens(1), _number(self.rank), _number(outputs), _number(inputs)
        to_base = [] if base == size else [_moved("_to_copy", "narrowed", outputs, size, base)]
        forward = (
            AROUND,
            _moved("_to_copy", "mixed", inputs, 6 - size, size),
            *([_moved("native_dropout", "dropout", inputs, 4, 5)] if self.dropout else []),
            self._times(tokens, low, narrow),
            self._times(tokens, wide, low),
            _moved("mul", "vector", outputs, size, size),
            _moved("add", "vector" if base == size else "mixed", outputs, base + size, max(base, size)),
            *to_base,
        )
        backward = (
            *([] if base == size else [_moved("_to_copy", "mixed", outputs, base, size)]),
            *to_base,
            _moved("mul", "vector", outputs, size, size),
            self._times(tokens, low, wide),
            self._times(tokens, narrow, low),
            *([_moved("native_dropout_backward", "vector", inputs, 5, 4)] if self.dropout else []),
            _moved("_to_copy", "narrowed", inputs, size, 6 - size),
            _moved("add", "vector", inputs, 2 * base, base),
        )
        weight = (self._times(wide, low, tokens), self._times(low, narrow, tokens))
        return replace(
            operator,
            forward=(*operator.forward, *forward),
            backward=(*operator.backward, *backward),
            weight=(*operator.weight, *weight),
        )

    def _times(self, rows: Formula, columns: Formula, inner: Formula) -> TracedKernel:
        product, extents = self.cast or "tf32", (rows, columns, inner, _number(1))
        return TracedKernel(operator="mm", kind="product", dtype=product, extents=extents)


def _moved(name: str, kind: KernelKind, width: int, read: int, written: int) -> TracedKernel:
    """Return a kernel that reads and writes so many bytes for each of `width` elements of a token."""
    sizes = (_tokens(width), _tokens(read * width), _tokens(written * width))
    return TracedKernel(operator=name, kind=kind, dtype="fp32", extents=sizes)


def _tokens(width: int) -> Formula:
    """Return a width for each token."""
    return Formula(coefficients=tuple(width if index == TOKENS else 0 for index in range(len(BASIS))))


def _number(value: int) -> Formula:
    return Formula(coefficients=(value, *([0] * (len(BASIS) - 1))))

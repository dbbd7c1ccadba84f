"""SUMMA: activations and weights split over a grid of tp1 × tp2, broadcast panel by panel."""

from __future__ import annotations

from forescale.numeric import Numeric
from forescale.presets.subramanian2024 import matmul, shared
from forescale.presets.subramanian2024.operation import Layer, Message, Operation, Split, Work
from forescale.presets.subramanian2024.quirks import Quirks
from forescale.presets.subramanian2024.shape import Shape
from forescale.presets.subramanian2024.sources import FP16_BYTES


def layer_summa(shape: Shape, split: Split, *, vector_weight: float, quirks: Quirks) -> Layer:
    """Return the operations of table A2: nothing is held twice."""
    hidden, ffn = shape.hidden_size, shape.ffn_hidden_size
    tokens = split.micro_batch_size * (shape.seq_len // split.tp2)
    part, inner = hidden // split.tp1, ffn // split.tp1
    return (
        _linear("query, key, value", shape.hidden_size, 3 * hidden, tokens, split),
        shared.fused_attention(shape, split, vector_weight=vector_weight),
        _linear("projection", hidden, hidden, tokens, split),
        shared.bias("projection bias", elements=tokens * part, width=part),
        shared.dropout("attention dropout", elements=tokens * part),
        _norm("attention norm", shape, tokens, split, quirks),
        _linear("first linear", hidden, ffn, tokens, split),
        shared.bias("first bias", elements=tokens * inner, width=inner),
        shared.gelu(elements=tokens * inner),
        shared.dropout("inner dropout", elements=tokens * inner),
        _linear("second linear", ffn, hidden, tokens, split),
        shared.bias("second bias", elements=tokens * part, width=part),
        shared.dropout("ffn dropout", elements=tokens * part),
        _norm("ffn norm", shape, tokens, split, quirks),
    )


def _linear(name: str, inputs: int, outputs: int, tokens: Numeric, split: Split) -> Operation:
    """Return a blocked product: panels of the input along tp1, panels of the weight along tp2."""
    local = outputs // split.tp1
    extents = {"tokens": tokens, "inputs": float(inputs), "outputs": local}
    input_bytes, weight_bytes = FP16_BYTES * tokens * inputs, FP16_BYTES * inputs * local
    send_input = Message(kind="broadcast", axis="tp1", num_bytes=input_bytes)
    send_weight = Message(kind="broadcast", axis="tp2", num_bytes=weight_bytes)
    sum_input = Message(kind="reduce", axis="tp1", num_bytes=input_bytes)
    sum_weight = Message(kind="reduce", axis="tp2", num_bytes=weight_bytes)
    return Operation(
        name=name,
        on_matrix_units=True,
        forward=Work(
            flops=matmul.summa_forward_flops(**extents),
            num_bytes=matmul.summa_forward_bytes(**extents, panels=split.panels),
            messages=(send_input, send_weight),
        ),
        backward=Work(
            flops=matmul.linear_backward_flops(**extents),
            num_bytes=matmul.summa_backward_bytes(**extents, panels=split.panels),
            messages=(send_weight, sum_input, send_input, sum_weight),
        ),
        parameters=(inputs // split.tp2) * local,
        saved_bytes=FP16_BYTES * tokens * (inputs // split.tp1),
        panels=split.panels,
    )


def _norm(name: str, shape: Shape, tokens: Numeric, split: Split, quirks: Quirks) -> Operation:
    """Return a norm whose tokens are split over tp1 too: two sums per token, or per weight, are reduced."""
    held = shape.seq_len if quirks.summa_norm_splits_sequence else shape.hidden_size
    statistics = 2.0 * FP16_BYTES * tokens
    doubled = 2 * split.micro_batch_size * shape.seq_len
    gradients = FP16_BYTES * (2 * shape.hidden_size // split.tp1 + doubled // split.tp2)
    return shared.norm(
        name,
        rows=tokens,
        width=held // split.tp1,
        forward=(Message(kind="all_reduce", axis="tp1", num_bytes=statistics),),
        backward=(Message(kind="all_reduce", axis="tp1", num_bytes=gradients),),
    )

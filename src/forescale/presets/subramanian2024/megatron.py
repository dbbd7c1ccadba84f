"""Tensor parallelism with sequence parallelism ("1d"), and with context parallelism over a second axis ("2d")."""

from __future__ import annotations

from collections.abc import Callable

from forescale.numeric import Numeric
from forescale.presets.subramanian2024 import matmul, shared
from forescale.presets.subramanian2024.operation import Layer, Message, Operation, Split, Work
from forescale.presets.subramanian2024.quirks import Quirks
from forescale.presets.subramanian2024.shape import Shape
from forescale.presets.subramanian2024.sources import FP16_BYTES


def layer_1d(shape: Shape, split: Split, *, vector_weight: float, quirks: Quirks) -> Layer:
    """Return the operations of table I: weights and heads over tp1; norms and dropouts over its tokens.

    Biases of the row-split products are added before the tokens are scattered.
    """
    del quirks
    tokens, hidden = split.micro_batch_size * shape.seq_len, float(shape.hidden_size)
    whole = (tokens * hidden, hidden)
    return _layer(shape, split, vector_weight=vector_weight, after_attention=whole, after_ffn=whole)


def layer_2d(shape: Shape, split: Split, *, vector_weight: float, quirks: Quirks) -> Layer:
    """Return the operations of table II: as `layer_1d`, with the sequence over tp2, and scattered biases."""
    local = shape.seq_len // split.tp2
    hidden = float(shape.hidden_size)
    scattered = (split.micro_batch_size * (local // split.tp1) * hidden, hidden)
    after_attention: tuple[Numeric, Numeric] = scattered
    if quirks.projection_bias_splits_hidden:
        width = hidden // split.tp1
        after_attention = (split.micro_batch_size * local * width, width)
    return _layer(
        shape, split, vector_weight=vector_weight, after_attention=after_attention, after_ffn=scattered
    )


def _layer(
    shape: Shape,
    split: Split,
    *,
    vector_weight: float,
    after_attention: tuple[Numeric, Numeric],
    after_ffn: tuple[Numeric, Numeric],
) -> Layer:
    """Return a layer whose row-split products add biases of the given (elements, width)."""
    batch, hidden, length = split.micro_batch_size, float(shape.hidden_size), shape.seq_len
    local = length // split.tp2
    tokens = batch * local
    ffn, part = shape.ffn_hidden_size // split.tp1, shape.hidden_size // split.tp1
    rows = batch * (local // split.tp1)
    dropped = batch * (length // (split.tp1 * split.tp2)) * hidden
    volume = FP16_BYTES * tokens * hidden
    gather = Message(kind="all_gather", axis="tp1", num_bytes=volume)
    scatter = Message(kind="reduce_scatter", axis="tp1", num_bytes=volume)
    column, row = _columns(tokens, scatter), _rows(tokens, scatter)
    attention_norm, ffn_norm = (
        shared.norm(name, rows=rows, width=hidden, forward=(gather,), backward=(scatter,))
        for name in ("attention norm", "ffn norm")
    )
    return (
        column("query, key, value", hidden, 3 * shape.hidden_size // split.tp1),
        shared.fused_attention(shape, split, vector_weight=vector_weight),
        row("projection", part, hidden),
        shared.bias("projection bias", elements=after_attention[0], width=after_attention[1]),
        shared.dropout("attention dropout", elements=dropped),
        attention_norm,
        column("first linear", hidden, ffn),
        shared.bias("first bias", elements=tokens * ffn, width=ffn),
        shared.gelu(elements=tokens * ffn),
        shared.dropout("inner dropout", elements=tokens * ffn),
        row("second linear", ffn, hidden),
        shared.bias("second bias", elements=after_ffn[0], width=after_ffn[1]),
        shared.dropout("ffn dropout", elements=dropped),
        ffn_norm,
    )


def _columns(tokens: Numeric, scatter: Message) -> Callable[[str, Numeric, Numeric], Operation]:
    """Return what makes a column-split product: its input's gradient is a sum over tp1."""
    return lambda name, inputs, outputs: _linear(name, tokens, inputs, outputs, backward=(scatter,))


def _rows(tokens: Numeric, scatter: Message) -> Callable[[str, Numeric, Numeric], Operation]:
    """Return what makes a row-split product: its output is a sum over tp1."""
    return lambda name, inputs, outputs: _linear(name, tokens, inputs, outputs, forward=(scatter,))


def _linear(
    name: str,
    tokens: Numeric,
    inputs: Numeric,
    outputs: Numeric,
    *,
    forward: tuple[Message, ...] = (),
    backward: tuple[Message, ...] = (),
) -> Operation:
    extents = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
    return Operation(
        name=name,
        on_matrix_units=True,
        forward=Work(
            flops=matmul.linear_forward_flops(**extents),
            num_bytes=matmul.linear_forward_bytes(**extents),
            messages=forward,
        ),
        backward=Work(
            flops=matmul.linear_backward_flops(**extents),
            num_bytes=matmul.linear_backward_bytes(**extents),
            messages=backward,
        ),
        parameters=inputs * outputs,
        saved_bytes=FP16_BYTES * tokens * inputs,
    )

"""The operations of one layer, as each strategy divides it.

Tensor parallelism with sequence parallelism ("1d"), with context parallelism over a second axis ("2d"), and SUMMA,
where activations and weights are split over a grid and broadcast in panels.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from forescale.errors import missing, unsupported_by
from forescale.formula import named
from forescale.graph.ops import CollectiveKind
from forescale.numeric import Numeric
from forescale.presets.subramanian2024 import formulas
from forescale.presets.subramanian2024.formulas import FP16_BYTES
from forescale.spec.attention import FullAttention
from forescale.spec.model import DenseFfn, Model
from forescale.struct import Struct


class Quirks(Struct, frozen=True, kw_only=True):
    """True is the published behaviour, False the formula that was evidently meant."""

    summa_norm_splits_sequence: bool = True
    """Norms of the SUMMA layer hold l / n1 of a token's elements where e / n1 is meant; so does the message
    between pipeline stages. Large: it moves the best configuration in half of the published cases."""
    free_slow_hops: bool = True
    """Slow hops of a pipeline cost nothing where some of its hops are fast."""
    single_level_all_reduce: bool = True
    """An all-reduce counts one pass instead of two where it stays on one network."""
    projection_bias_splits_hidden: bool = True
    """In 2D, the bias of attention's output projection splits the hidden size over tp1 although the tokens
    are already split by then, as they are for the bias of the feed-forward."""

    @classmethod
    def none(cls) -> Quirks:
        """Return the model as it was meant."""
        return cls(**{item.name: False for item in fields(cls)})


class Shape(Struct, frozen=True, kw_only=True):
    """l, e, f, h, d of the paper: equal blocks of full attention and a two-matrix feed-forward."""

    seq_len: int
    hidden_size: int
    ffn_hidden_size: int
    num_heads: int
    num_layers: int

    @property
    def head_dim(self) -> int:
        """Elements per head."""
        return self.hidden_size // self.num_heads


def shape_of(model: Model, *, seq_len: int | None = None) -> Shape:
    """Return the sizes of `model`, with its own sequence length unless one is given.

    Embedding, head, final norm and the mask of causal attention do not exist in the paper's model.

    Raises
    ------
    SpecError
        If the model is not a stack of equal blocks with as many key/value heads as heads, or says no length.
    """
    length = seq_len or model.max_seq_len
    if not length:
        fix = "preset subramanian2024 takes it from there"
        raise missing("the sequence length of the model", fix).at(f"model {model.name}")
    attention, ffn = model.layers[0].attention, model.layers[0].ffn
    known = (
        len(model.layer_kinds) == 1
        and isinstance(attention, FullAttention)
        and isinstance(ffn, DenseFfn)
        and not ffn.gated
        and attention.num_kv_heads == attention.num_heads
        and attention.head_dim * attention.num_heads == model.hidden_size
    )
    if not (known and isinstance(attention, FullAttention) and isinstance(ffn, DenseFfn)):
        value = "this model (only equal layers of multi-head attention and an ungated feed-forward)"
        raise unsupported_by("preset subramanian2024", value).at(f"model {model.name}")
    return Shape(
        seq_len=length,
        hidden_size=model.hidden_size,
        ffn_hidden_size=ffn.ffn_hidden_size,
        num_heads=attention.num_heads,
        num_layers=model.num_layers,
    )


TensorAxis: TypeAlias = Literal["tp1", "tp2"]


class Split(Struct, frozen=True, kw_only=True):
    """How one layer is cut: tensor-parallel ranks of both axes, micro-batch, panels, ranks close together."""

    tp1: Numeric
    tp2: Numeric
    micro_batch_size: Numeric
    panels: Numeric
    near_tp1: Numeric
    """Ranks of tp1 in one fast domain."""
    near_tp2: Numeric
    """Ranks of tp2 in one fast domain."""


class Message(Struct, frozen=True, kw_only=True, eq=False):
    """A collective over one axis; an object that stands in several places is priced once."""

    kind: CollectiveKind
    axis: TensorAxis
    num_bytes: Numeric
    """Bytes of the whole (gathered) tensor."""


class Work(Struct, frozen=True, kw_only=True):
    """One direction of an operation, for one micro-batch."""

    flops: Numeric
    num_bytes: Numeric
    messages: tuple[Message, ...] = ()


class Operation(Struct, frozen=True, kw_only=True):
    """A line of the paper's tables."""

    name: str
    on_matrix_units: bool
    forward: Work
    backward: Work
    parameters: Numeric = 0.0
    """Weights of one device."""
    saved_bytes: Numeric = 0.0
    """What one micro-batch keeps for backward."""
    panels: Numeric | None = None
    """Panels of a blocked product, whose messages hide behind its own work; None exposes all messages."""


Layer: TypeAlias = tuple[Operation, ...]
"""The operations of one layer; the last is the norm whose output travels to the next stage."""


MASK_BYTES = 1.0
"""Bytes of an element of a dropout mask."""
Pair: TypeAlias = tuple[Numeric, Numeric]
"""Forward and backward."""


def vector(name: str, *, flops: Pair, num_bytes: Pair, **more: Any) -> Operation:  # noqa: ANN401
    """Return an operation of the vector units, its counts as in the published code."""
    forward, backward = (
        Work(flops=count, num_bytes=size) for count, size in zip(flops, num_bytes, strict=True)
    )
    return Operation(name=name, on_matrix_units=False, forward=forward, backward=backward, **more)


def bias(name: str, *, elements: Numeric, width: Numeric) -> Operation:
    """Return the addition of a bias of `width` to `elements`; its gradient is a sum, not reduced, as published."""
    traffic = FP16_BYTES * (elements + width)
    return vector(name, flops=(elements, elements), num_bytes=(traffic, traffic), parameters=width)


def dropout(name: str, *, elements: Numeric) -> Operation:
    """Return a dropout: one product per element, read and written, and a mask, which is kept."""
    traffic = (2.0 * FP16_BYTES + MASK_BYTES) * elements
    mask = formulas.kept_bytes(elements=elements, element_bytes=MASK_BYTES)
    return vector(name, flops=(elements, elements), num_bytes=(traffic, traffic), saved_bytes=mask)


def gelu(*, elements: Numeric) -> Operation:
    """Return the activation function: two tensors pass forward and three backward; it keeps its input."""
    tensor = FP16_BYTES * elements
    return vector(
        "gelu",
        flops=(8.0 * elements, 13.0 * elements),
        num_bytes=(2.0 * tensor, 3.0 * tensor),
        saved_bytes=formulas.kept_bytes(elements=elements, element_bytes=FP16_BYTES),
    )


def norm(name: str, *, rows: Numeric, width: Numeric, forward: Message, backward: Message) -> Operation:
    """Return a layer norm of `rows` of `width` elements, which keeps its input.

    Forward passes rows, their mean and deviation, scale and shift; backward five tensors like the rows.
    """
    elements = named(rows * width, "rows × width")
    one = vector(
        name,
        flops=(9.0 * elements, 8.0 * elements + 4.0 * rows * (width - 1.0)),
        num_bytes=(
            2.0 * FP16_BYTES * (elements + rows + width),
            FP16_BYTES * (5.0 * elements + 2.0 * width),
        ),
        parameters=2.0 * width,
        saved_bytes=formulas.kept_bytes(elements=elements, element_bytes=FP16_BYTES),
    )
    sent = replace(one.forward, messages=(forward,)), replace(one.backward, messages=(backward,))
    return replace(one, forward=sent[0], backward=sent[1])


def fused_attention(shape: Shape, split: Split, *, vector_weight: float) -> Operation:
    """Return attention of heads over tp1 and queries over tp2; keys and values are gathered over tp2.

    `vector_weight` is the matrix rate over the vector rate: FLOPs that a vector FLOP stands for.
    """
    length, head_dim = float(shape.seq_len), float(shape.head_dim)
    heads = named(
        split.micro_batch_size * named(shape.num_heads // split.tp1, "heads / tp1"), "micro-batch × heads"
    )
    local = named(shape.seq_len // split.tp2, "sequence / tp2")
    rows = named(heads * local, "rows of queries")
    keys = named(heads * length * head_dim, "elements of keys")
    gathered = 2.0 * FP16_BYTES * keys
    gather = Message(kind="all_gather", axis="tp2", num_bytes=gathered)
    scatter = Message(kind="reduce_scatter", axis="tp2", num_bytes=gathered)
    return Operation(
        name="fused attention",
        on_matrix_units=True,
        forward=Work(
            flops=formulas.fused_forward_flops(
                rows=rows, length=length, head_dim=head_dim, vector_weight=vector_weight
            ),
            num_bytes=formulas.fused_forward_bytes(rows=rows, keys=keys, head_dim=head_dim),
            messages=(gather,),
        ),
        backward=Work(
            flops=formulas.fused_backward_flops(
                rows=rows,
                length=length,
                local_length=local,
                keys=keys,
                head_dim=head_dim,
                vector_weight=vector_weight,
            ),
            num_bytes=formulas.fused_backward_bytes(rows=rows, keys=keys, head_dim=head_dim),
            messages=(gather, scatter),
        ),
        saved_bytes=formulas.fused_saved_bytes(rows=rows, head_dim=head_dim),
    )


def layer_1d(shape: Shape, split: Split, *, vector_weight: float, quirks: Quirks) -> Layer:
    """Return the operations of table I: weights and heads over tp1; norms and dropouts over its tokens.

    Biases of the row-split products are added before the tokens are scattered.
    """
    del quirks
    tokens = named(split.micro_batch_size * shape.seq_len, "tokens")
    hidden = float(shape.hidden_size)
    whole = (tokens * hidden, hidden)
    return _layer(shape, split, vector_weight=vector_weight, after_attention=whole, after_ffn=whole)


def layer_2d(shape: Shape, split: Split, *, vector_weight: float, quirks: Quirks) -> Layer:
    """Return the operations of table II: as `layer_1d`, with the sequence over tp2, and scattered biases."""
    local = named(shape.seq_len // split.tp2, "sequence / tp2")
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
    local = named(length // split.tp2, "sequence / tp2")
    tokens = named(batch * local, "tokens")
    ffn, part = named(shape.ffn_hidden_size // split.tp1, "ffn / tp1"), _hidden_part(shape, split)
    rows = named(batch * named(local // split.tp1, "sequence / (tp1 × tp2)"), "rows")
    dropped = batch * named(length // (split.tp1 * split.tp2), "sequence / (tp1 × tp2)") * hidden
    volume = FP16_BYTES * tokens * hidden
    gather = Message(kind="all_gather", axis="tp1", num_bytes=volume)
    scatter = Message(kind="reduce_scatter", axis="tp1", num_bytes=volume)
    column = partial(_linear, tokens=tokens, backward=(scatter,))  # its input's gradient is a sum over tp1
    row = partial(_linear, tokens=tokens, forward=(scatter,))  # its output is
    attention_norm, ffn_norm = (
        norm(name, rows=rows, width=hidden, forward=gather, backward=scatter)
        for name in ("attention norm", "ffn norm")
    )
    return (
        column(
            "query, key, value",
            inputs=hidden,
            outputs=named(3 * shape.hidden_size // split.tp1, "3 × hidden / tp1"),
        ),
        fused_attention(shape, split, vector_weight=vector_weight),
        row("projection", inputs=part, outputs=hidden),
        bias("projection bias", elements=after_attention[0], width=after_attention[1]),
        dropout("attention dropout", elements=dropped),
        attention_norm,
        column("first linear", inputs=hidden, outputs=ffn),
        bias("first bias", elements=tokens * ffn, width=ffn),
        gelu(elements=tokens * ffn),
        dropout("inner dropout", elements=tokens * ffn),
        row("second linear", inputs=ffn, outputs=hidden),
        bias("second bias", elements=after_ffn[0], width=after_ffn[1]),
        dropout("ffn dropout", elements=dropped),
        ffn_norm,
    )


def _hidden_part(shape: Shape, split: Split) -> Numeric:
    return named(shape.hidden_size // split.tp1, "hidden / tp1")


def _linear(
    name: str,
    *,
    tokens: Numeric,
    inputs: Numeric,
    outputs: Numeric,
    forward: tuple[Message, ...] = (),
    backward: tuple[Message, ...] = (),
) -> Operation:
    extents = {"tokens": tokens, "inputs": inputs, "outputs": outputs}
    return Operation(
        name=name,
        on_matrix_units=True,
        forward=Work(
            flops=formulas.linear_forward_flops(**extents),
            num_bytes=formulas.linear_forward_bytes(**extents),
            messages=forward,
        ),
        backward=Work(
            flops=formulas.linear_backward_flops(**extents),
            num_bytes=formulas.linear_backward_bytes(**extents),
            messages=backward,
        ),
        parameters=formulas.weight_elements(inputs=inputs, outputs=outputs),
        saved_bytes=_kept_input(tokens, inputs),
    )


def _kept_input(tokens: Numeric, inputs: Numeric) -> Numeric:
    """Return the bytes of a product's input."""
    return formulas.kept_bytes(elements=named(tokens * inputs, "tokens × inputs"), element_bytes=FP16_BYTES)


def layer_summa(shape: Shape, split: Split, *, vector_weight: float, quirks: Quirks) -> Layer:
    """Return the operations of table A2: nothing is held twice."""
    hidden, ffn = shape.hidden_size, shape.ffn_hidden_size
    local = named(shape.seq_len // split.tp2, "sequence / tp2")
    tokens = named(split.micro_batch_size * local, "tokens")
    part, inner = _hidden_part(shape, split), named(ffn // split.tp1, "ffn / tp1")
    return (
        _blocked("query, key, value", shape.hidden_size, 3 * hidden, tokens, split),
        fused_attention(shape, split, vector_weight=vector_weight),
        _blocked("projection", hidden, hidden, tokens, split),
        bias("projection bias", elements=tokens * part, width=part),
        dropout("attention dropout", elements=tokens * part),
        _split_norm("attention norm", shape, tokens, split, quirks),
        _blocked("first linear", hidden, ffn, tokens, split),
        bias("first bias", elements=tokens * inner, width=inner),
        gelu(elements=tokens * inner),
        dropout("inner dropout", elements=tokens * inner),
        _blocked("second linear", ffn, hidden, tokens, split),
        bias("second bias", elements=tokens * part, width=part),
        dropout("ffn dropout", elements=tokens * part),
        _split_norm("ffn norm", shape, tokens, split, quirks),
    )


def _blocked(name: str, inputs: int, outputs: int, tokens: Numeric, split: Split) -> Operation:
    """Return a blocked product: panels of the input along tp1, panels of the weight along tp2."""
    local = named(outputs // split.tp1, "outputs / tp1")
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
            flops=formulas.summa_forward_flops(**extents),
            num_bytes=formulas.summa_forward_bytes(**extents, panels=split.panels),
            messages=(send_input, send_weight),
        ),
        backward=Work(
            flops=formulas.linear_backward_flops(**extents),
            num_bytes=formulas.summa_backward_bytes(**extents, panels=split.panels),
            messages=(send_weight, sum_input, send_input, sum_weight),
        ),
        parameters=formulas.weight_elements(inputs=named(inputs // split.tp2, "inputs / tp2"), outputs=local),
        saved_bytes=_kept_input(tokens, named(inputs // split.tp1, "inputs / tp1")),
        panels=split.panels,
    )


def _split_norm(name: str, shape: Shape, tokens: Numeric, split: Split, quirks: Quirks) -> Operation:
    """Return a norm whose tokens are split over tp1 too: two sums per token, or per weight, are reduced."""
    seq_len = shape.seq_len if quirks.summa_norm_splits_sequence else shape.hidden_size
    statistics = 2.0 * FP16_BYTES * tokens
    doubled = 2 * split.micro_batch_size * shape.seq_len
    gradients = FP16_BYTES * (2 * shape.hidden_size // split.tp1 + doubled // split.tp2)
    return norm(
        name,
        rows=tokens,
        width=seq_len // split.tp1,
        forward=Message(kind="all_reduce", axis="tp1", num_bytes=statistics),
        backward=Message(kind="all_reduce", axis="tp1", num_bytes=gradients),
    )

"""Operations that all strategies have, given the extents that each leaves to a device."""

from __future__ import annotations

from forescale.numeric import Numeric
from forescale.presets.subramanian2024 import attention, vector
from forescale.presets.subramanian2024.operation import Message, Operation, Split, Work
from forescale.presets.subramanian2024.shape import Shape
from forescale.presets.subramanian2024.sources import FP16_BYTES


def bias(name: str, *, elements: Numeric, width: Numeric) -> Operation:
    """Return the addition of a bias of `width` to `elements`; its gradient is not reduced, as published."""
    work = Work(
        flops=vector.bias_flops(elements=elements),
        num_bytes=vector.bias_bytes(elements=elements, width=width),
    )
    return Operation(name=name, on_matrix_units=False, forward=work, backward=work, parameters=width)


def dropout(name: str, *, elements: Numeric) -> Operation:
    """Return a dropout, which keeps its mask."""
    work = Work(
        flops=vector.dropout_flops(elements=elements), num_bytes=vector.dropout_bytes(elements=elements)
    )
    saved = vector.mask_bytes(elements=elements)
    return Operation(name=name, on_matrix_units=False, forward=work, backward=work, saved_bytes=saved)


def gelu(*, elements: Numeric) -> Operation:
    """Return the activation function, which keeps its input."""
    return Operation(
        name="gelu",
        on_matrix_units=False,
        forward=Work(
            flops=vector.gelu_forward_flops(elements=elements),
            num_bytes=vector.gelu_bytes(elements=elements, tensors=2.0),
        ),
        backward=Work(
            flops=vector.gelu_backward_flops(elements=elements),
            num_bytes=vector.gelu_bytes(elements=elements, tensors=3.0),
        ),
        saved_bytes=FP16_BYTES * elements,
    )


def norm(
    name: str, *, rows: Numeric, width: Numeric, forward: tuple[Message, ...], backward: tuple[Message, ...]
) -> Operation:
    """Return a layer norm of `rows` of `width` elements, which keeps its input."""
    return Operation(
        name=name,
        on_matrix_units=False,
        forward=Work(
            flops=vector.norm_forward_flops(rows=rows, width=width),
            num_bytes=vector.norm_forward_bytes(rows=rows, width=width),
            messages=forward,
        ),
        backward=Work(
            flops=vector.norm_backward_flops(rows=rows, width=width),
            num_bytes=vector.norm_backward_bytes(rows=rows, width=width),
            messages=backward,
        ),
        parameters=2.0 * width,
        saved_bytes=FP16_BYTES * rows * width,
    )


def fused_attention(shape: Shape, split: Split, *, vector_weight: float) -> Operation:
    """Return attention of heads over tp1 and queries over tp2; keys and values are gathered over tp2.

    `vector_weight` is the matrix rate over the vector rate: FLOPs that a vector FLOP stands for.
    """
    length, head_dim = float(shape.seq_len), float(shape.head_dim)
    heads = split.micro_batch_size * (shape.num_heads // split.tp1)
    local = shape.seq_len // split.tp2
    rows, keys = heads * local, heads * length * head_dim
    gathered = 2.0 * FP16_BYTES * keys
    gather = Message(kind="all_gather", axis="tp2", num_bytes=gathered)
    scatter = Message(kind="reduce_scatter", axis="tp2", num_bytes=gathered)
    return Operation(
        name="fused attention",
        on_matrix_units=True,
        forward=Work(
            flops=attention.fused_forward_flops(
                rows=rows, length=length, head_dim=head_dim, vector_weight=vector_weight
            ),
            num_bytes=attention.fused_forward_bytes(rows=rows, keys=keys, head_dim=head_dim),
            messages=(gather,),
        ),
        backward=Work(
            flops=attention.fused_backward_flops(
                rows=rows,
                length=length,
                local_length=local,
                keys=keys,
                head_dim=head_dim,
                vector_weight=vector_weight,
            ),
            num_bytes=attention.fused_backward_bytes(rows=rows, keys=keys, head_dim=head_dim),
            messages=(gather, scatter),
        ),
        saved_bytes=attention.fused_saved_bytes(rows=rows, head_dim=head_dim),
    )

"""The shapes of tables I, II and A2: what each operation of a layer has of its tensors on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Literal, TypeAlias, get_args

from forescale.files import shipped
from forescale.formula import number_of
from forescale.presets.preset import ShapedOperation, ShapedTensor
from forescale.presets.subramanian2024.layers import Layer, Operation, Shape, Split, Work
from forescale.question import TensorParallel

Direction: TypeAlias = Literal["forward", "backward"]


def shaped_operations(
    layer: Layer, shape: Shape, split: Split, kind: TensorParallel
) -> tuple[ShapedOperation, ...]:
    """Return forward of all operations in the order of the layer, then backward."""
    sizes = _sizes(shape, split)
    return tuple(
        _shaped(operation, direction, tuple(_tensors(operation.name, kind, sizes)), split)
        for direction in get_args(Direction)
        for operation in layer
    )


def _shaped(
    operation: Operation, direction: Direction, tensors: tuple[ShapedTensor, ...], split: Split
) -> ShapedOperation:
    work: Work = getattr(operation, direction)
    sent = [message for message in work.messages if number_of(getattr(split, message.axis)) > 1]
    return ShapedOperation(
        name=operation.name,
        direction=direction,
        tensors=tensors,
        collective=", ".join(f"{message.kind} over {message.axis}" for message in sent),
        volume_bytes=sum(number_of(message.num_bytes) for message in sent),
        flops=number_of(work.flops),
        num_bytes=number_of(work.num_bytes),
    )


def _tensors(operation: str, kind: TensorParallel, sizes: Mapping[str, int]) -> Iterator[ShapedTensor]:
    """Yield the tensors of an operation; 1D is 2D without its second axis, whose n1 is nt."""
    text = _table()[kind].get(operation) or _table()["2d"][operation]
    if kind == "1d":
        text = text.replace("/n2", "").replace("n1", "nt")
    for tensor in text.split("; "):
        name, _, dims = tensor.partition(": ")
        shape = tuple(dims.split(", "))
        yield ShapedTensor(name=name, shape=shape, size=tuple(_size(dim, sizes) for dim in shape))


def _sizes(shape: Shape, split: Split) -> dict[str, int]:
    return {
        "b": int(number_of(split.micro_batch_size)),
        "l": shape.seq_len,
        "e": shape.hidden_size,
        "f": shape.ffn_hidden_size,
        "h": shape.num_heads,
        "eh": shape.head_dim,
        "n1": int(number_of(split.tp1)),
        "nt": int(number_of(split.tp1)),
        "n2": int(number_of(split.tp2)),
    }


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    """Return a dimension such as `l/n1/n2` as a number."""
    whole, *parts = dim.split("/")
    return sizes[whole] // prod(sizes[part] for part in parts)


def _table() -> dict[str, dict[str, str]]:
    """Return tensors and dimensions by kind of tensor parallelism and operation."""
    return shipped("presets/subramanian2024/shapes")  # type: ignore[no-any-return]

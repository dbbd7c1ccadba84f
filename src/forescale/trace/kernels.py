"""Kernels that a CUDA device launches for the operators of a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import TypeAlias

import torch

from forescale.spec.trace import COLLECTIVES
from forescale.trace.recorder import Event, Operand

Extents: TypeAlias = dict[str, int]
Draft: TypeAlias = tuple[str, str, Extents]
"""Kind of kernel, its data type, and its extents."""
TYPES: Mapping[torch.dtype, str] = MappingProxyType(
    {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp32"}
)
COPIES = frozenset({"_to_copy", "clone", "copy_", "contiguous", "copy"})
FILLS = frozenset([
    "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
    "fill_", "zero_", "arange", "linspace", "eye", "bernoulli_", "uniform_", "normal_", "random_", "rand",
    "randn", "rand_like", "randn_like",
])  # fmt: skip
REDUCTIONS = frozenset([
    "sum", "mean", "amax", "amin", "max", "min", "var", "std", "var_mean", "std_mean", "norm",
    "linalg_vector_norm", "prod", "any", "all", "argmax", "argmin", "logsumexp", "count_nonzero",
])  # fmt: skip
SCANS = frozenset(["cumsum", "cumprod", "cummax", "logcumsumexp", "cumsum_backward", "flip", "roll"])
SORTS = frozenset(
    ["sort", "topk", "argsort", "histc", "bincount", "nonzero", "unique", "searchsorted", "kthvalue"]
)
GATHERS = frozenset(
    ["embedding", "index_select", "gather", "index", "take", "take_along_dim", "index_select_backward"]
)
SCATTERS = frozenset([
    "embedding_dense_backward", "index_put_", "index_put", "_index_put_impl_", "index_add_", "index_add",
    "scatter_", "scatter", "scatter_add_", "scatter_add", "scatter_reduce_", "index_copy_",
    "_unsafe_index_put", "masked_scatter_",
])  # fmt: skip
SOFTMAX = frozenset({"_softmax", "_log_softmax", "_safe_softmax"})
SOFTMAX_BACKWARD = frozenset({"_log_softmax_backward_data"})
NORMS = frozenset({"native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm"})
NORMS_BACKWARD = frozenset(
    {
        "native_layer_norm_backward",
        "native_group_norm_backward",
        "_fused_rms_norm_backward",
        "native_batch_norm_backward",
    }
)


def kernels_of(event: Event) -> list[Draft]:
    """Return the kernels that one operator launches, in order; empty if it moves no data."""
    rule = RULES.get(event.name)
    if rule is not None:
        return rule(event)
    if not event.outputs or not any(output.elements for output in event.outputs):
        return []
    for names, kind in _FAMILIES:
        if event.name in names:
            return [traffic(kind, event)]
    if event.name in COPIES:
        return [_copy(event)]
    if event.name in REDUCTIONS:
        return [_reduction(event)]
    return [_elementwise(event)]


def traffic(kind: str, event: Event, *, elements: int | None = None) -> Draft:
    """Return a kernel that reads its inputs once and writes its outputs once."""
    read = sum(item.num_bytes for item in _distinct(event.inputs))
    written = sum(item.num_bytes for item in _distinct(event.outputs))
    largest = max((item.elements for item in (*event.inputs, *event.outputs)), default=0)
    return (
        kind,
        _type(event),
        {"elements": largest if elements is None else elements, "read": read, "written": written},
    )


def _distinct(operands: Iterable[Operand]) -> list[Operand]:
    """Return the operands without repetitions of one tensor."""
    return list({(operand.storage, operand.shape, operand.strides): operand for operand in operands}.values())


def _type(event: Event) -> str:
    """Return the widest type among the tensors of an operator."""
    known = [TYPES[item.dtype] for item in (*event.inputs, *event.outputs) if item.dtype in TYPES]
    return "fp32" if "fp32" in known else (known[0] if known else "int")


def _elementwise(event: Event) -> Draft:
    operands = [item for item in (*event.inputs, *event.outputs) if item.shape]
    shape = event.outputs[0].shape
    same = all(operand.shape == shape and operand.is_dense for operand in operands)
    aligned = same and len({_order(operand) for operand in operands}) == 1
    types = {operand.dtype for operand in operands if operand.dtype in TYPES}
    if not aligned:
        kind = "indexed_mixed" if len(types) > 1 else "indexed"
    elif len({operand.dtype for operand in operands}) > 1:
        kind = "mixed"
    else:
        kind = "vector"
    return traffic(kind, event, elements=prod(shape))


def _copy(event: Event) -> Draft:
    source = event.inputs[-1] if event.name == "copy_" else event.inputs[0]
    target = event.outputs[0]
    dense = (
        source.is_dense
        and target.is_dense
        and _order(source) == _order(target)
        and source.shape == target.shape
    )
    if source.dtype == target.dtype:
        kind = "memcpy" if dense else "indexed"
    elif not dense:
        kind = "indexed"
    else:
        kind = "narrowed" if target.dtype.itemsize < source.dtype.itemsize else "mixed"
    extents = {"elements": prod(target.shape), "read": source.num_bytes, "written": target.num_bytes}
    return kind, _type(event), extents


def _reduction(event: Event) -> Draft:
    """Reductions over the fastest dimension read rows, others read columns."""
    source = event.inputs[0]
    dims = next((item for item in event.scalars if isinstance(item, list | tuple)), None)
    if dims is None:
        dims = next(
            ([item] for item in event.scalars if isinstance(item, int) and not isinstance(item, bool)), None
        )
    requested = range(len(source.shape)) if not dims else [dim % max(len(source.shape), 1) for dim in dims]
    inner = any(source.strides[dim] == 1 and source.shape[dim] > 1 for dim in requested)
    return traffic("row_reduction" if inner else "column_reduction", event, elements=prod(source.shape))


def _order(operand: Operand) -> tuple[int, ...]:
    """Return the dimensions from the slowest to the fastest."""
    extents = [
        (-stride, index)
        for index, (stride, extent) in enumerate(zip(operand.strides, operand.shape, strict=True))
        if extent > 1
    ]
    return tuple(index for _, index in sorted(extents))


def _product(event: Event) -> list[Draft]:
    left, right = event.inputs[-2:]
    batch = left.shape[0] if len(left.shape) == 3 else 1
    kind = TYPES.get(left.dtype, "fp32")
    extents = {"m": left.shape[-2], "n": right.shape[-1], "k": left.shape[-1], "batch": batch}
    if 0 in extents.values():
        return []
    aligned = all(_starts_aligned(item) for item in (left, right, event.outputs[0]))
    added = [item for item in event.inputs[:-2] if len(item.shape) > 1]
    name = "product" if aligned else "product_unaligned"
    return [
        (name, "tf32" if kind == "fp32" else kind, extents),
        *([traffic("vector", event)] if added else []),
    ]


def _starts_aligned(matrix: Operand) -> bool:
    """Return whether the rows (or columns) of a matrix start at multiples of 16 bytes."""
    leading = max(matrix.strides[-2:]) if min(matrix.shape[-2:]) > 1 else 16
    return leading * matrix.dtype.itemsize % 16 == 0


def _grouped(event: Event) -> list[Draft]:
    rows, matrices = event.inputs[:2]
    kind = TYPES.get(rows.dtype, "fp32")
    if event.name == "grouped_mm_weight":
        groups = event.outputs[0].shape[0]
        extents = {"groups": groups, "m": rows.shape[0], "n": matrices.shape[1], "k": rows.shape[1]}
        name = "grouped_weight"
    else:
        groups, inner, columns = matrices.shape
        extents = {"groups": groups, "m": rows.shape[0], "n": columns, "k": inner}
        name = "grouped"
    if kind == "bf16":
        return [(name, kind, extents)]
    return [(f"{name}_loop", "tf32" if kind == "fp32" else kind, extents)]


def _attention(event: Event) -> list[Draft]:
    query, key, value = event.inputs[:3]
    causal, masked = event.scalars[:2]
    batch, heads, q_len, width = query.shape
    extents = {
        "batch": batch,
        "heads": heads,
        "kv_heads": key.shape[1],
        "q_len": q_len,
        "kv_len": key.shape[2],
        "qk_dim": width,
        "v_dim": value.shape[-1],
    }
    name = "attention_backward" if event.name == "attention_backward" else "attention"
    kind = f"{name}{'_masked' if masked else '_causal' if causal else ''}"
    return [(kind, TYPES.get(query.dtype, "bf16"), extents)]


def _convolution(event: Event) -> list[Draft]:
    """Return the products that a convolution amounts to: one forward, two backward."""
    backward = event.name == "convolution_backward"
    if backward:
        gradient, source, weight = event.inputs[:3]
    else:
        source, weight = event.inputs[:2]
        gradient = event.outputs[0]
    groups = max(1, source.shape[1] // max(weight.shape[1], 1))
    inner = prod(weight.shape[1:])
    rows = prod(gradient.shape) // max(gradient.shape[1], 1)
    columns = weight.shape[0] // groups
    if groups > 1 and columns * inner < 64:  # depthwise: bound by memory
        return [traffic("indexed", event)] * (2 if backward else 1)
    kind = "tf32" if source.dtype == torch.float32 else TYPES.get(source.dtype, "bf16")
    products = [{"m": rows, "n": columns, "k": inner, "batch": groups}]
    if backward:
        products = [
            {"m": rows, "n": inner, "k": columns, "batch": groups},
            {"m": columns, "n": inner, "k": rows, "batch": groups},
        ]
    return [("product", kind, product) for product in products]


def _padded_backward(event: Event) -> list[Draft]:
    """Return the fill and the copy of a gradient of a slice."""
    gradient, result = event.inputs[0], event.outputs[0]
    fill = ("fill", _type(event), {"elements": result.elements, "read": 0, "written": result.num_bytes})
    copy = (
        "indexed",
        _type(event),
        {"elements": gradient.elements, "read": gradient.num_bytes, "written": gradient.num_bytes},
    )
    return [fill, copy]


def _fill(event: Event) -> list[Draft]:
    result = event.outputs[0]
    if not result.elements:
        return []
    return [("fill", _type(event), {"elements": result.elements, "read": 0, "written": result.num_bytes})]


def _loss_backward(event: Event) -> list[Draft]:
    result = event.outputs[0]
    small = event.inputs[0].num_bytes
    return [
        ("fill", _type(event), {"elements": result.elements, "read": 0, "written": result.num_bytes}),
        ("indexed", _type(event), {"elements": 1, "read": small, "written": small}),
    ]


def _loss(event: Event) -> list[Draft]:
    rows = event.inputs[0].shape[0]
    return [("row_reduction", _type(event), {"elements": rows, "read": 12 * rows, "written": 4})]


def _gather(event: Event) -> list[Draft]:
    result = event.outputs[0]
    return [
        (
            "gather",
            _type(event),
            {"elements": result.elements, "read": result.num_bytes, "written": result.num_bytes},
        )
    ]


def _scatter(event: Event) -> list[Draft]:
    """Return the kernels of an accumulation by index: a sort of the indices, and a pass over rows."""
    floating = [item for item in event.inputs if item.dtype in TYPES]
    source = floating[-1] if floating else event.inputs[-1]
    if event.name == "embedding_dense_backward":
        source = event.inputs[0]
    result = event.outputs[0]
    filled = ("fill", _type(event), {"elements": result.elements, "read": 0, "written": result.num_bytes})
    moved = (
        "scatter",
        _type(event),
        {"elements": source.elements, "read": source.num_bytes, "written": source.num_bytes},
    )
    rows = max(
        (item.elements for item in event.inputs if item.dtype in (torch.int64, torch.int32)),
        default=source.elements,
    )
    sort = ("sort", "int", {"elements": rows, "read": 16 * rows, "written": 16 * rows})
    if event.name == "embedding_dense_backward":
        return [filled, sort, moved]
    accumulates = "index_put" in event.name and True in event.scalars
    return [sort, moved] if accumulates else [moved]


def _concatenation(event: Event) -> list[Draft]:
    """Return a concatenation; inputs with gaps prevent vectorised copies (aten/native/cuda/Shape.cu)."""
    dense = all(item.is_dense for item in event.inputs)
    return [traffic("concatenation" if dense else "concatenation_strided", event)]


def _power(event: Event) -> list[Draft]:
    """Return a power; CUDA copies where the exponent is 1 (aten/native/Pow.cpp)."""
    if 1 in event.scalars:
        source = event.inputs[0]
        return [
            (
                "memcpy",
                _type(event),
                {"elements": source.elements, "read": source.num_bytes, "written": source.num_bytes},
            )
        ]
    return [_elementwise(event)]


def _softmax_backward(event: Event) -> list[Draft]:
    """Return the product of gradient and result, and the pass that follows (aten/native/cuda/SoftMax.cu)."""
    gradient, result = event.inputs[0], event.outputs[0]
    size = {
        "elements": result.elements,
        "read": gradient.num_bytes + event.inputs[1].num_bytes,
        "written": result.num_bytes,
    }
    return [("vector", _type(event), size), ("softmax_backward", _type(event), size)]


def _norm_backward(event: Event) -> list[Draft]:
    gradient, source = event.inputs[:2]
    moved = {
        "elements": source.elements,
        "read": gradient.num_bytes + source.num_bytes,
        "written": source.num_bytes,
    }
    weights = {"elements": source.elements, "read": gradient.num_bytes + source.num_bytes, "written": 0}
    drafts: list[Draft] = [("norm_backward", _type(event), moved)]
    if len(event.outputs) > 1:
        drafts.append(("norm_weight", _type(event), weights))
    return drafts


_FAMILIES: tuple[tuple[frozenset[str], str], ...] = (
    (SOFTMAX, "softmax"),
    (SOFTMAX_BACKWARD, "log_softmax_backward"),
    (NORMS, "norm"),
    (SCANS, "scan"),
    (SORTS, "sort"),
    (frozenset({"native_dropout"}), "dropout"),
)
Rule: TypeAlias = Callable[[Event], list[Draft]]
RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "addbmm"), _product),
    **dict.fromkeys(("grouped_mm", "grouped_mm_weight", "_grouped_mm"), _grouped),
    **dict.fromkeys(("attention", "attention_backward"), _attention),
    **dict.fromkeys(("convolution", "convolution_backward"), _convolution),
    **dict.fromkeys(("slice_backward", "select_backward", "constant_pad_nd"), _padded_backward),
    **dict.fromkeys(FILLS, _fill),
    **dict.fromkeys(GATHERS, _gather),
    **dict.fromkeys(SCATTERS, _scatter),
    **dict.fromkeys(NORMS_BACKWARD, _norm_backward),
    **dict.fromkeys(("cat", "stack", "_cat"), _concatenation),
    **dict.fromkeys(COLLECTIVES, lambda event: [traffic(event.name, event)]),
    "pow": _power,
    "_softmax_backward_data": _softmax_backward,
    "nll_loss_forward": _loss,
    "nll_loss_backward": _loss_backward,
    "_local_scalar_dense": lambda _: [],
}

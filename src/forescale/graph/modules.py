"""The pieces that all blocks are made of: linear layers, norms, reshards, elementwise steps."""

from __future__ import annotations

from forescale.graph.layout import Extent, Layout
from forescale.graph.operator import NARROWEST_GRADIENT_BYTES, Builder, Names
from forescale.graph.ops import Collective, Elementwise, Gemm, MeshAxis
from forescale.numeric import Numeric
from forescale.spec.model import NormKind
from forescale.spec.workload import STORAGE_BYTES

CAST_BYTES = {
    ("fp8", "none"): 4.0,
    ("fp8", "delayed"): 4.0,
    ("fp8", "current"): 6.0,
    ("fp8", "blockwise"): 4.06,
    ("mxfp8", "none"): 4.06,
    ("mxfp8", "mxfp8"): 4.06,
    ("nvfp4", "none"): 5.12,
}
"""Bytes moved to quantise one 16-bit element: read (twice where the scale is that of the whole tensor, as for
current scaling and NVFP4), and written along rows and along columns for the two products that use it, with the
scales of blocks (Transformer Engine, recipes)."""


def linear(
    b: Builder,
    name: str,
    *,
    source: str,
    result: str,
    rows: Numeric,
    inputs: Extent,
    outputs: Extent,
    bias: bool = False,
    copies: Numeric = 1.0,
    saved: str | None = None,
    own_gradient: bool = False,
    narrow: bool = True,
) -> None:
    """Append rows x inputs -> rows x outputs, with its weight and its three products.

    `copies` multiplies the local output width (key/value heads replicated over tp). `saved` is kept for the
    weight gradient, by default the source; kernels that do not gather it again keep the source, too. Not
    `narrow` are products that stay in 16 bits under 8-bit recipes.
    """
    b.parameter(f"{name}.weight", inputs, outputs, copies=copies, narrow=narrow)
    if bias:
        b.parameter(f"{name}.bias", outputs, copies=copies)
    k = inputs[1] / b.layout.split(inputs[0])
    n = outputs[1] / b.layout.split(outputs[0]) * copies
    product(
        b,
        name,
        source=source,
        results=(result,),
        rows=rows,
        k=k,
        n=n,
        saved=saved or source,
        own_gradient=own_gradient,
        narrow=narrow,
    )


def product(
    b: Builder,
    name: str,
    *,
    source: str,
    results: tuple[str, ...],
    rows: Numeric,
    k: Numeric,
    n: Numeric,
    saved: str,
    own_gradient: bool = False,
    narrow: bool = True,
) -> None:
    """Append a product of rows x k by a weight k x n, and its two products of backward.

    With `own_gradient` the weight gradient exists by itself for a moment, though it is accumulated elsewhere.
    A narrow product of a wide input, which others need as well, keeps a narrow copy of its own.
    """
    dtype = b.layout.precision.compute if narrow else b.layout.wide_type
    if not b.layout.choices.kernels.regathers_inputs:
        saved = source
    size = b.layout.linear_input_bytes
    if narrow and b.tensors[saved].element_bytes > size:
        saved = b.tensor(f"{name}.input", b.tensors[saved].elements, size, copy_of=saved)
    temporaries: Names = () if saved == source else (source,)
    if own_gradient or not b.layout.choices.kernels.accumulate_in_product:
        size = max(STORAGE_BYTES[b.layout.precision.parameters], NARROWEST_GRADIENT_BYTES)
        temporaries += (b.tensor(f"{name}.weight_gradient", k * n, size, differentiable=False),)
    accumulate = STORAGE_BYTES[b.layout.precision.gradients]
    b.operator(
        name,
        forward=(*casts(b.layout, rows * k, dtype), Gemm(m=rows, n=n, k=k, dtype=dtype)),
        backward_input=(*casts(b.layout, rows * n, dtype), Gemm(m=rows, n=k, k=n, dtype=dtype)),
        backward_weight=(Gemm(m=n, n=k, k=rows, dtype=dtype, accumulate_bytes=accumulate),),
        reads=(source,),
        writes=results,
        saves=(saved,),
        backward_temporaries=temporaries,
    )


def casts(
    layout: Layout, elements: Numeric, dtype: str, *, kernels: Numeric = 1.0
) -> tuple[Elementwise, ...]:
    """Return the quantisation of a product's operand: none where it stays in 16 bits.

    Weights are quantised once a step and not counted.
    """
    per_element = CAST_BYTES.get((dtype, layout.precision.recipe)) or CAST_BYTES.get((dtype, "none"))
    if per_element is None:
        return ()
    return (Elementwise(bytes_moved=elements * per_element, family="cast", kernels=kernels),)


def norm(
    b: Builder,
    name: str,
    *,
    source: str,
    result: str,
    tokens: Numeric,
    width: float,
    kind: NormKind,
    narrow: bool = True,
) -> None:
    """Append a norm over `width`: it keeps its input and one or two fp32 statistics per token.

    Its result is one linear layer's input, or where not `narrow`, of the activations' type.
    """
    b.parameter(f"{name}.weight", ("rank", width))
    if kind == "layer":
        b.parameter(f"{name}.bias", ("rank", width))
    num_statistics = 1.0 if kind == "rms" else 2.0
    statistics = b.tensor(f"{result}.statistics", tokens * num_statistics, 4.0)
    if result not in b.tensors:
        size = b.layout.linear_input_bytes if narrow else b.layout.element_bytes
        b.tensor(result, tokens * width, size)
    moved = tokens * width * b.layout.element_bytes
    saves: Names = (source, statistics)
    if not b.layout.choices.kernels.fused:  # x·rsqrt in fp32, then times the weight in the activations' type
        saves = (
            b.tensor(f"{result}.fp32", tokens * width, 4.0),
            statistics,
            b.tensor(f"{result}.normalised", tokens * width),
        )
    with b.module("layernorm"):
        b.operator(
            name,
            forward=(Elementwise(bytes_moved=2.0 * moved, family="norm"),),
            backward_input=(Elementwise(bytes_moved=3.0 * moved, family="norm"),),
            reads=(source,),
            writes=(result,),
            saves=saves,
        )


def elementwise(
    b: Builder,
    name: str,
    *,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    saves: tuple[str, ...] = (),
    forward_bytes: Numeric,
    backward_bytes: Numeric,
    kernels: float = 1.0,
    shares_gradient: bool = False,
) -> None:
    """Append a step bound by memory traffic."""
    b.operator(
        name,
        forward=(Elementwise(bytes_moved=forward_bytes, kernels=kernels),),
        backward_input=(Elementwise(bytes_moved=backward_bytes, kernels=kernels),),
        reads=reads,
        writes=writes,
        saves=saves,
        shares_gradient=shares_gradient,
    )


def gather_sequence(
    b: Builder, name: str, *, source: str, width: float, feeds: str, narrow: bool = True
) -> str:
    """Enter a tensor-parallel region, residual layout -> sequence layout; return the gathered tensor's name.

    With sequence parallelism: all-gather forward, reduce-scatter of the input gradient backward, and the
    input gathered once more for the weight gradient (only the local part is kept), both behind the products
    of the linear layer it `feeds`; inputs travel in 8 bits where the layer takes them so. Kernels that keep
    the gathered input gather it once. Without: nothing forward, all-reduce of the partial input gradient
    backward (Megatron-LM's f).
    """
    lay = b.layout
    elements = lay.tokens("sequence") * width
    size = elements * lay.element_bytes
    if not lay.choices.sp:
        reduce = Collective(kind="all_reduce", axis="tp", num_bytes=size)
        b.operator(
            name,
            backward_input=(reduce,),
            reads=(source,),
            writes=(source,),
            hidden_behind=feeds,
        )
        return source
    gathered = f"{name}.result"
    again = lay.choices.kernels.regathers_inputs
    if gathered not in b.tensors:  # where it is kept, it stands for the input itself at tp 1
        copies = lay.more_than_one("tp") if again else 1.0
        b.tensor(gathered, elements * copies, lay.linear_input_bytes if narrow else lay.element_bytes)
    sent = elements * (lay.sent_input_bytes if narrow else lay.element_bytes)
    gather = Collective(kind="all_gather", axis="tp", num_bytes=sent)
    b.operator(
        name,
        forward=(gather,),
        backward_input=(Collective(kind="reduce_scatter", axis="tp", num_bytes=size),),
        backward_weight=(gather,) if again else (),
        reads=(source,),
        writes=(gathered,),
        hidden_behind=feeds,
    )
    return gathered


def partial_result(b: Builder, name: str, result: str, width: float) -> str:
    """Declare what a row-split product writes before the sum over tp; without sp that is `result` itself."""
    if not b.layout.choices.sp:
        return result
    elements = b.layout.tokens("sequence") * width
    return b.tensor(f"{name}.partial", elements * b.layout.more_than_one("tp"))


def scatter_sequence(b: Builder, name: str, *, source: str, result: str, width: float) -> None:
    """Leave a tensor-parallel region: partial sums over tp -> residual layout."""
    size = b.layout.tokens("sequence") * width * b.layout.element_bytes
    if not b.layout.choices.sp:
        reduce = Collective(kind="all_reduce", axis="tp", num_bytes=size)
        b.operator(name, forward=(reduce,), reads=(source,), writes=(result,), shares_gradient=True)
        return
    b.operator(
        name,
        forward=(Collective(kind="reduce_scatter", axis="tp", num_bytes=size),),
        backward_input=(Collective(kind="all_gather", axis="tp", num_bytes=size),),
        reads=(source,),
        writes=(result,),
    )


def linear_out(
    b: Builder,
    name: str,
    scatter: str,
    *,
    source: str,
    result: str,
    inputs: Extent,
    width: float,
    bias: bool = False,
) -> None:
    """Append the product that ends a tensor-parallel region, and the sum over tp into residual layout."""
    partial, tokens = partial_result(b, name, result, width), b.layout.tokens("sequence")
    outputs: Extent = ("hidden", width)
    linear(b, name, source=source, result=partial, rows=tokens, inputs=inputs, outputs=outputs, bias=bias)
    scatter_sequence(b, scatter, source=partial, result=result, width=width)


def exchange(b: Builder, name: str, *, axis: MeshAxis, num_bytes: Numeric, source: str, result: str) -> None:
    """Append an all-to-all forward and its mirror backward."""
    moved = Collective(kind="all_to_all", axis=axis, num_bytes=num_bytes)
    b.operator(name, forward=(moved,), backward_input=(moved,), reads=(source,), writes=(result,))

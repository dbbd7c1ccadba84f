"""The pieces that all blocks are made of: linear layers, norms, reshards, elementwise steps."""

from __future__ import annotations

from forescale.graph.layout import Dim
from forescale.graph.operator import Builder
from forescale.graph.ops import Collective, Elementwise, Gemm, MeshAxis
from forescale.numeric import Numeric
from forescale.spec.model import NormKind

GRADIENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


def linear(
    b: Builder,
    name: str,
    *,
    source: str,
    result: str | None,
    rows: Numeric,
    inputs: tuple[Dim, float],
    outputs: tuple[Dim, float],
    bias: bool = False,
    copies: Numeric = 1.0,
    saves_input: bool = True,
) -> None:
    """Append rows x inputs -> rows x outputs, with its weight and its three products.

    `copies` multiplies the local output width (key/value heads replicated over tp).
    """
    lay = b.layout
    k = inputs[1] / lay.split(inputs[0])
    n = outputs[1] / lay.split(outputs[0]) * copies
    dtype = lay.precision.compute
    accumulate = GRADIENT_BYTES[lay.precision.gradients]
    b.parameter(f"{name}.weight", inputs, outputs, copies=copies)
    if bias:
        b.parameter(f"{name}.bias", outputs, copies=copies)
    b.operator(
        name,
        forward=(Gemm(m=rows, n=n, k=k, dtype=dtype),),
        backward_input=(Gemm(m=rows, n=k, k=n, dtype=dtype),),
        backward_weight=(Gemm(m=n, n=k, k=rows, dtype=dtype, accumulate_bytes=accumulate),),
        reads=(source,),
        writes=(result,) if result else (),
        saves=(source,) if saves_input else (),
    )


def norm(b: Builder, name: str, *, source: str, result: str, tokens: Numeric, width: float, kind: NormKind) -> None:
    """Append a norm over `width`: it keeps its input and one or two fp32 statistics per token."""
    b.parameter(f"{name}.weight", ("rank", width))
    if kind == "layer":
        b.parameter(f"{name}.bias", ("rank", width))
    statistics = b.tensor(f"{result}.statistics", tokens * (2.0 if kind == "layer" else 1.0), 4.0)
    if result not in b.tensors:
        b.tensor(result, tokens * width, b.layout.linear_input_bytes)
    size = tokens * width * b.layout.element_bytes
    outer, b.modules = b.modules, (*b.modules, "layernorm")
    b.operator(
        name,
        forward=(Elementwise(bytes_moved=2.0 * size, family="norm"),),
        backward_input=(Elementwise(bytes_moved=3.0 * size, family="norm"),),
        reads=(source,),
        writes=(result,),
        saves=(source, statistics),
    )
    b.modules = outer


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
) -> None:
    """Append a step bound by memory traffic."""
    b.operator(
        name,
        forward=(Elementwise(bytes_moved=forward_bytes, kernels=kernels),),
        backward_input=(Elementwise(bytes_moved=backward_bytes, kernels=kernels),),
        reads=reads,
        writes=writes,
        saves=saves,
    )


def gather_sequence(b: Builder, name: str, *, source: str, width: float, feeds: str) -> None:
    """Enter a tensor-parallel region: residual layout -> sequence layout, for column-split weights.

    With sequence parallelism: all-gather forward, reduce-scatter of the input gradient backward, and the input
    gathered once more for the weight gradient (only the local part is kept), both behind the products of the
    linear layer it `feeds`. Without: nothing forward,
    all-reduce of the partial input gradient backward (Megatron's f).
    """
    size = b.layout.tokens("sequence") * width * b.layout.element_bytes
    if b.layout.choices.sp:
        b.operator(
            name,
            forward=(Collective(kind="all_gather", axis="tp", num_bytes=size),),
            backward_input=(Collective(kind="reduce_scatter", axis="tp", num_bytes=size),),
            backward_weight=(Collective(kind="all_gather", axis="tp", num_bytes=size),),
            reads=(source,),
            writes=(source,),
            hidden_behind=feeds,
        )
    else:
        b.operator(
            name,
            backward_input=(Collective(kind="all_reduce", axis="tp", num_bytes=size),),
            reads=(source,),
            writes=(source,),
            hidden_behind=feeds,
        )


def scatter_sequence(b: Builder, name: str, *, source: str, width: float) -> None:
    """Leave a tensor-parallel region: partial sums over tp -> residual layout (reduce-scatter or all-reduce)."""
    size = b.layout.tokens("sequence") * width * b.layout.element_bytes
    if b.layout.choices.sp:
        b.operator(
            name,
            forward=(Collective(kind="reduce_scatter", axis="tp", num_bytes=size),),
            backward_input=(Collective(kind="all_gather", axis="tp", num_bytes=size),),
            reads=(source,),
            writes=(source,),
        )
    else:
        b.operator(
            name, forward=(Collective(kind="all_reduce", axis="tp", num_bytes=size),), reads=(source,), writes=(source,)
        )


def exchange(b: Builder, name: str, *, axis: MeshAxis, forward: Numeric, backward: Numeric, tensor: str) -> None:
    """Append an all-to-all forward and its mirror backward."""
    b.operator(
        name,
        forward=(Collective(kind="all_to_all", axis=axis, num_bytes=forward),),
        backward_input=(Collective(kind="all_to_all", axis=axis, num_bytes=backward),),
        reads=(tensor,),
        writes=(tensor,),
    )

"""The pieces that all blocks are made of: linear layers, norms, reshards, elementwise steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Literal

from msgspec.structs import replace

from forescale.graph.adapters import adapters, parts_of
from forescale.graph.operator import NARROWEST_GRADIENT_BYTES, Builder, Names, ParameterGroup, Work, widened
from forescale.graph.ops import Collective, Elementwise, Gemm, MeshAxis
from forescale.graph.sharding import Extent, ShardingRules
from forescale.numeric import Numeric
from forescale.spec.layout import Module
from forescale.spec.model import NormKind
from forescale.spec.workload import STORAGE_BYTES
from forescale.struct import Struct

CAST_BYTES = {
    ("fp8", "none"): 3.0,
    ("fp8", "delayed"): 3.0,
    ("fp8", "current"): 5.0,
    ("fp8_rowwise", "rowwise"): 8.0,
    ("fp8_blockwise", "blockwise"): 4.06,
    ("mxfp8", "none"): 4.06,
    ("mxfp8", "mxfp8"): 4.06,
    ("nvfp4", "none"): 5.12,
    ("int8", "none"): 10.0,
}
"""Bytes moved to quantise one 16-bit element: read (twice where the scale is that of the whole tensor, as for
current scaling and NVFP4) and written; where scales of blocks differ between rows and columns, along both for the two
products that use it, with the scales (Transformer Engine, recipes). Scales of rows and of columns are made apart: rows
fit a kernel, columns are read twice (torchao, float8 rowwise); AQT reads either twice (MaxText, quantizations.py)."""
FP8_ROW_BYTES = 1.0 + 4.0 / 128.0
"""Bytes per number of a row in fp8 with an fp32 scale per 128 (DeepSeek-V3, arXiv:2412.19437, section 3.3.2)."""
E5M6_ROW_BYTES = 1.5 + 4.0 / 128.0
"""The same of numbers in 12 bits (section 3.3.3)."""
PER_TENSOR = ("none", "delayed", "current")
CURRENT_KERNELS = 4.0
"""Kernels that quantise with current scaling: the largest magnitude set to zero and found, the scale, the cast
(Transformer Engine, common/recipe/current_scaling.cu and pytorch/csrc/quantizer.cpp)."""
TRANSPOSED_BYTES = 1.0
"""Bytes of the transposed copy that one scale per tensor needs on some devices (Transformer Engine,
pytorch/csrc/quantizer.cpp)."""


def casts(
    sharding: ShardingRules, elements: Numeric, dtype: str, *, kernels: Numeric = 1.0
) -> tuple[Elementwise, ...]:
    """Return the quantisation of a product's operand: none where it stays in 16 bits.

    Weights are counted where they are quantised for every product (`Kernels.caches_narrow_weights`).
    """
    per_element = CAST_BYTES.get((dtype, sharding.precision.recipe)) or CAST_BYTES.get((dtype, "none"))
    if per_element is None:
        return ()
    per_tensor = dtype == "fp8" and sharding.precision.recipe in PER_TENSOR
    current = dtype == "fp8" and sharding.precision.recipe == "current"
    return (
        Elementwise(
            bytes_moved=elements * per_element,
            family="cast",
            kernels=kernels * CURRENT_KERNELS if current else kernels,
            transposed_bytes=elements * TRANSPOSED_BYTES if per_tensor else 0.0,
        ),
    )


IN_FLIGHT = 2.0
"""Panels of each operand that exist at once: one is multiplied while the next arrives."""


class Passes(Struct, frozen=True, kw_only=True):
    """The three passes of a linear layer, or what one of `steps` equal steps does in each."""

    forward: Work
    backward_input: Work
    backward_weight: Work
    steps: Numeric | None = None
    buffer_elements: Numeric = 0.0
    """Panels beside the blocks that a device holds, in either direction."""


def panel_passes(
    sharding: ShardingRules, *, rows: Numeric, k: Numeric, n: Numeric, dtype: str, sent_bytes: float
) -> Passes:
    """Return the steps of X·W and of its gradients on a grid of tp x cp devices.

    Every device holds rows x k/tp of the input X, k/cp x n of the weight W and rows x n of the result, `rows`
    and `n` being its own. Forward, a panel of X goes along tp and one of W along cp. The gradient of X takes
    panels of W along cp and sums its own along tp; that of W takes panels of X along tp and sums its own
    along cp (Subramanian et al. 2024, arXiv:2410.00273, appendix A, algorithm 1 and table A2). Sums have the
    type of activations.

    Parameters
    ----------
    rows, n
        Tokens and columns of one device.
    k
        Whole inner extent.
    sent_bytes
        Per element of an operand's panel.
    """
    steps, cp, size = sharding.panel_steps, sharding.degrees.cp, sharding.element_bytes
    width = k / steps
    of_input, of_weight = rows * width, width * n
    send_input = Collective(kind="broadcast", axis="tp", num_bytes=of_input * sent_bytes)
    send_weight = Collective(kind="broadcast", axis="cp", num_bytes=of_weight * sent_bytes)
    sum_input = Collective(kind="reduce", axis="tp", num_bytes=of_input * size)
    sum_weight = Collective(kind="reduce", axis="cp", num_bytes=of_weight * size)
    stored = STORAGE_BYTES[sharding.precision.gradients]
    accumulate = Elementwise(bytes_moved=of_weight / cp * (size + 2.0 * stored), kernels=1.0 / cp)
    quantised = casts(sharding, of_input / sharding.degrees.tp, dtype, kernels=1.0 / sharding.degrees.tp)
    gradient = casts(sharding, rows * n / steps, dtype, kernels=1.0 / steps)
    return Passes(
        steps=steps,
        forward=(
            send_input,
            send_weight,
            *quantised,
            Gemm(m=rows, n=n, k=width, dtype=dtype, accumulate_bytes=size),
        ),
        backward_input=(send_weight, *gradient, Gemm(m=rows, n=width, k=n, dtype=dtype), sum_input),
        backward_weight=(send_input, Gemm(m=n, n=width, k=rows, dtype=dtype), sum_weight, accumulate),
        buffer_elements=IN_FLIGHT * (of_input + of_weight),
    )


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
    padded: Numeric | None = None,
    saved: str | None = None,
    own_gradient: bool = False,
    narrow: bool = True,
    matrices: int = 1,
    adapted: bool = True,
) -> None:
    """Append rows x inputs -> rows x outputs, with its weight, its three products, and its adapters if `adapted`.

    `padded` is the width of all outputs where it is more than theirs. `saved` is kept for the weight gradient, by
    default the source; kernels that do not gather it again keep the source, too. Not `narrow` are products that
    stay in 16 bits under 8-bit recipes. The weight joins `matrices` of a framework that does not fuse them.
    """
    width = outputs[1] if padded is None else padded
    copies = width / outputs[1]
    kept = 1 if b.sharding.choices.kernels.joins_gate else matrices
    b.parameter(
        f"{name}.weight", inputs, outputs, copies=copies, narrow=narrow, matrices=matrices, tensors=kept
    )
    if bias:
        b.parameter(f"{name}.bias", outputs, copies=copies, tensors=kept)
    k = inputs[1] if b.sharding.summa else inputs[1] / b.sharding.split(inputs[0])
    n = width / b.sharding.split(outputs[0])
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
    if adapted:
        parts = parts_of(b, name, result, outputs, matrices=matrices)
        adapters(b, name, parts, source=source, saved=saved or source, rows=rows, inputs=inputs)


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
    """Append a product of rows x k by a weight k x n, and its two products of backward; under SUMMA k is whole.

    With `own_gradient` the weight gradient exists by itself for a moment, though it is accumulated elsewhere.
    A narrow product of a wide input, which others need as well, keeps a narrow copy of its own, unless there is one.
    A frozen weight has no gradient, for which nothing is saved.
    """
    sharding = b.sharding
    dtype = sharding.narrow_type if narrow else sharding.wide_type
    if b.frozen:
        _frozen_product(b, name, source=source, results=results, rows=rows, k=k, n=n, dtype=dtype)
        return
    if not sharding.choices.kernels.regathers_inputs:
        saved = source
    size = sharding.linear_input_bytes
    if narrow and b.tensors[saved].element_bytes > size:
        text = f"{saved}.narrow"  # kept by whoever made it
        if text not in b.tensors:
            text = b.tensor(f"{name}.input", b.tensors[saved].elements, size, copy_of=saved)
        saved = text
    temporaries: Names = () if saved == source else (source,)
    if own_gradient or sharding.choices.kernels.gradient_sum != "in_product":
        temporaries += made_gradient(b, name, k * n / sharding.degrees.cp if sharding.summa else k * n)
    if sharding.summa:
        sent = sharding.sent_input_bytes if narrow else sharding.element_bytes
        passes = panel_passes(sharding, rows=rows, k=k, n=n, dtype=dtype, sent_bytes=sent)
    else:
        passes = _cast_before(sharding, name, passes_of(sharding, rows=rows, k=k, n=n, dtype=dtype))
    joined = flat_gradient(b, k * n)
    buffers: Names = ()
    if passes.steps is not None:
        buffers = (b.tensor(f"{name}.panels", passes.buffer_elements, differentiable=False),)
    b.operator(
        name,
        forward=passes.forward,
        backward_input=passes.backward_input,
        backward_weight=(*passes.backward_weight, *joined),
        reads=(source,),
        writes=results,
        saves=(saved,),
        temporaries=buffers,
        backward_temporaries=(*temporaries, *buffers),
        panels=passes.steps,
    )


CAST_BY_ACTIVATION: Mapping[str, Literal["forward", "backward_input"]] = {
    "ffn.down": "forward",
    "ffn.up": "backward_input",
}
"""Products of a dense feed-forward and their pass whose operand the kernel of the activation, or of its gradient, can
quantise (Transformer Engine, ops/basic/swiglu.py: tex.swiglu and tex.dswiglu take the quantizer of what follows)."""


def _cast_before(sharding: ShardingRules, name: str, passes: Passes) -> Passes:
    """Return the passes of a product without the quantisation that a fused operation before it does."""
    if name not in CAST_BY_ACTIVATION or not sharding.fuses_operations:
        return passes
    of = CAST_BY_ACTIVATION[name]
    first, *others = getattr(passes, of)
    return replace(passes, **{of: tuple(others)}) if isinstance(first, Elementwise) else passes


def summing(sharding: ShardingRules, elements: Numeric, *, kernels: Numeric = 1.0) -> tuple[float, Work]:
    """Return what the product of a weight gradient moves per element to add it up, or what kernels of their own do."""
    apart = sharding.summed_bytes
    if not apart:
        return sharding.accumulate_bytes, ()
    return 0.0, (Elementwise(bytes_moved=elements * apart, family="cast", kernels=kernels),)


def flat_gradient(b: Builder, elements: Numeric) -> Work:
    """Return what joins a weight's gradient to those of its group, and divides it: each reads and writes it once."""
    if not b.sharding.choices.kernels.flat_parameters:
        return ()
    return (Elementwise(bytes_moved=4.0 * elements * b.sharding.element_bytes, family="cast"),)


def made_gradient(b: Builder, name: str, elements: Numeric) -> Names:
    """Return the weight gradient that a product makes before it is added up."""
    size = max(STORAGE_BYTES[b.sharding.precision.parameters], NARROWEST_GRADIENT_BYTES)
    return (b.tensor(f"{name}.weight_gradient", elements, size, differentiable=False),)


def _frozen_product(
    b: Builder,
    name: str,
    *,
    source: str,
    results: tuple[str, ...],
    rows: Numeric,
    k: Numeric,
    n: Numeric,
    dtype: str,
) -> None:
    """Append a product by a frozen weight, and that of its input's gradient; a quantised one is made wide for each."""
    passes = passes_of(b.sharding, rows=rows, k=k, n=n, dtype=dtype)
    widened, wide = widening(b, name, k * n)
    b.operator(
        name,
        forward=(*widened, *passes.forward),
        backward_input=(*widened, *passes.backward_input),
        reads=(source,),
        writes=results,
        temporaries=wide,
        backward_temporaries=wide,
        frozen=True,
    )


def widening(
    b: Builder,
    name: str,
    elements: Numeric,
    *,
    group: ParameterGroup = "dense",
    kernels: Numeric = 1.0,
    at_once: Numeric = 1.0,
) -> tuple[Work, Names]:
    """Return the pass that makes a quantised weight wide, and the wide weight; nothing where it is wide already.

    The share `at_once` of it is wide at a time.
    """
    stored = b.quantised_bytes(group)
    if stored is None:
        return (), ()
    wide = b.tensor(f"{name}.wide_weight", elements * at_once, differentiable=False)
    size = b.sharding.element_bytes
    return (widened(elements, stored_bytes=stored, wide_bytes=size, kernels=kernels),), (wide,)


def passes_of(
    sharding: ShardingRules, *, rows: Numeric, k: Numeric, n: Numeric, dtype: str, batch: Numeric = 1.0
) -> Passes:
    """Return the three products of a linear layer on one device, or of `batch` of them, one for each head."""
    of = partial(Gemm, batch=batch, dtype=dtype)
    beyond, summed = summing(sharding, n * k * batch)
    # With one scale per tensor the shards are quantised, once a step; else each product quantises along its dimension.
    once = dtype == "fp8" or sharding.choices.kernels.caches_narrow_weights
    weight: Work = () if once else casts(sharding, n * k * batch / 2.0, dtype)
    return Passes(
        forward=(*casts(sharding, rows * k * batch, dtype), *weight, of(m=rows, n=n, k=k)),
        backward_input=(*casts(sharding, rows * n * batch, dtype), *weight, of(m=rows, n=k, k=n)),
        backward_weight=(of(m=n, n=k, k=rows, accumulate_bytes=beyond), *summed),
    )


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
    module: Module | None = "layernorm",
) -> None:
    """Append a norm over `width`: it keeps its input and one or two fp32 statistics per token.

    Its result is one linear layer's input, or where not `narrow`, of the activations' type. `module` is what recompute
    calls it.
    """
    extent: Extent = ("hidden", width) if b.sharding.summa else ("rank", width)
    b.parameter(f"{name}.weight", extent)
    if kind == "layer":
        b.parameter(f"{name}.bias", extent)
    num_statistics = 1.0 if kind == "rms" else 2.0
    rows = b.sharding.tokens("sequence") if b.sharding.summa else tokens
    statistics = b.tensor(f"{result}.statistics", rows * num_statistics, 4.0)
    if result not in b.tensors:
        size = b.sharding.linear_input_bytes if narrow else b.sharding.element_bytes
        b.tensor(result, tokens * width, size)
    moved = tokens * width * b.sharding.element_bytes
    saves: Names = (source, statistics)
    kernels = b.sharding.choices.kernels
    if not (
        kernels.fused or kernels.fused_norms
    ):  # x·rsqrt in fp32, then times the weight in the activations' type
        saves = (
            b.tensor(f"{result}.fp32", tokens * width, 4.0),
            statistics,
            *(() if b.frozen else (b.tensor(f"{result}.normalised", tokens * width),)),
        )
    sums: Work = ()
    if b.sharding.summa:  # each rank of tp has a part of every token, and of its sums in either direction
        sums = (Collective(kind="all_reduce", axis="tp", num_bytes=b.bytes_of(statistics)),)
    with nullcontext() if module is None else b.module(module):
        b.operator(
            name,
            forward=(Elementwise(bytes_moved=2.0 * moved, family="norm"), *sums),
            backward_input=(Elementwise(bytes_moved=3.0 * moved, family="norm"), *sums),
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
    of the linear layer it `feeds` unless kernels wait for them; inputs travel in 8 bits where the layer takes
    them so. Kernels that keep the gathered input gather it once, as do frozen layers. Without: nothing forward,
    all-reduce of the partial input gradient backward (Megatron-LM's f). Under SUMMA products take their input as
    it is.
    """
    sharding = b.sharding
    if sharding.summa:
        return source
    elements = sharding.tokens("sequence") * width
    size = elements * sharding.element_bytes
    hides = sharding.choices.kernels.hides_input_sums or sharding.choices.overlapped.tensor
    behind = feeds if hides else None
    if not sharding.choices.sp:
        reduce = Collective(kind="all_reduce", axis="tp", num_bytes=size)
        b.operator(
            name,
            backward_input=(reduce,),
            reads=(source,),
            writes=(source,),
            hidden_behind=behind,
        )
        return source
    gathered = f"{name}.result"
    again = sharding.choices.kernels.regathers_inputs
    if gathered not in b.tensors:  # where it is kept, it stands for the input itself at tp 1
        copies = sharding.more_than_one("tp") if again else 1.0
        bytes_each = sharding.linear_input_bytes if narrow else sharding.element_bytes
        b.tensor(gathered, elements * copies, bytes_each, gradient_elements=elements)
    sent = elements * (sharding.sent_input_bytes if narrow else sharding.element_bytes)
    gather = Collective(kind="all_gather", axis="tp", num_bytes=sent)
    b.operator(
        name,
        forward=(gather,),
        backward_input=(Collective(kind="reduce_scatter", axis="tp", num_bytes=size),),
        backward_weight=(gather,) if again and not b.frozen else (),
        reads=(source,),
        writes=(gathered,),
        hidden_behind=behind,
    )
    return gathered


def partial_result(b: Builder, name: str, result: str, width: float) -> str:
    """Declare what a row-split product writes before the sum over tp; without sp that is `result` itself."""
    if b.sharding.summa or not b.sharding.choices.sp:
        return result
    elements = b.sharding.tokens("sequence") * width
    return b.tensor(f"{name}.partial", elements * b.sharding.more_than_one("tp"))


def scatter_sequence(b: Builder, name: str, *, source: str, result: str, width: float) -> None:
    """Append to `b` the collective that ends a tensor-parallel region: a sum over tp of `width` elements per token."""
    size = b.sharding.tokens("sequence") * width * b.sharding.element_bytes
    if not b.sharding.choices.sp:
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
    adapted_as: str = "",
) -> None:
    """Append the product that ends a tensor-parallel region, and the sum over tp into residual layout.

    SUMMA sums as it goes. `adapted_as` says whose targets of adapters it has, where they are not its name's.
    """
    partial, tokens = partial_result(b, name, result, width), b.sharding.tokens("sequence")
    outputs: Extent = ("hidden", width)
    linear(
        b,
        name,
        source=source,
        result=partial,
        rows=tokens,
        inputs=inputs,
        outputs=outputs,
        bias=bias,
        adapted=False,
    )
    if not b.sharding.summa:
        scatter_sequence(b, scatter, source=partial, result=result, width=width)
    parts = parts_of(b, adapted_as or name, result, outputs, matrices=1)
    adapters(b, name, parts, source=source, saved=source, rows=tokens, inputs=inputs, summed_up=True)


def exchange(b: Builder, name: str, *, axis: MeshAxis, num_bytes: Numeric, source: str, result: str) -> None:
    """Append an all-to-all forward and its mirror backward."""
    moved = Collective(kind="all_to_all", axis=axis, num_bytes=num_bytes)
    b.operator(name, forward=(moved,), backward_input=(moved,), reads=(source,), writes=(result,))

"""Blocks of a model whose operators were recorded.

A traced block has one operator per module. Its memory is that of the recording: what it keeps, and the most that exists
in forward and in backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from forescale.errors import differs
from forescale.graph.attention.core import merging
from forescale.graph.layer import VOCABULARY_WEIGHT
from forescale.graph.operator import (
    Block,
    Operator,
    Parameter,
    Part,
    Tensor,
    Work,
    quantised_bytes,
    widened,
)
from forescale.graph.ops import (
    AttentionCore,
    Collective,
    EagerKernel,
    Gemm,
    GroupedGemm,
    Primitive,
)
from forescale.graph.sharding import ShardingRules
from forescale.numeric import Numeric, maximum, where
from forescale.spec.model import Model
from forescale.spec.trace import (
    COLLECTIVES,
    Formula,
    Trace,
    TracedBlock,
    TracedKernel,
    TracedOperator,
    TracedParameter,
)
from forescale.spec.workload import Precision, frozen_storage

PARTS: tuple[tuple[Part, tuple[str, ...]], ...] = (
    ("moe", ("expert", "moe", "router")),
    ("norm", ("norm", "ln_")),
    ("attention", ("attn", "attention", "mixer", "mamba")),
    ("ffn", ("mlp", "ffn", "feed_forward", "fc")),
)
"""Parts of the step by what a module's path contains, the first that fits."""
STREAM_BYTES = {"bf16": 2.0, "fp16": 2.0}


def trace_of(model: Model, precision: Precision) -> Trace:
    """Return the trace of a model for the precision of a layout; fp16 runs the operators of bf16, on as many bytes.

    Raises
    ------
    SpecError
        If the model was not traced in that precision.
    """
    parameters = frozen_storage(precision)
    requested = parameters, precision.activations if parameters != precision.activations else ""
    for kinds in (requested, tuple("bf16" if kind == "fp16" else kind for kind in requested)):
        for trace in model.traces:
            if (trace.parameters, trace.autocast) == kinds:
                return trace
    known = "; ".join(trace.precision for trace in model.traces)
    text = f"{requested[0]} under autocast to {requested[1]}" if requested[1] else requested[0]
    fix = f"trace it with --precision {'autocast' if requested[1] else requested[0]}"
    raise differs("precision", text, f"the trace of {model.name}", known, fix)


def traced_precision(model: Model) -> Precision:
    """Return a precision that a model was traced in, for what depends on none."""
    first = model.traces[0]
    kind = first.autocast or first.parameters
    return Precision(compute=kind, parameters=first.parameters, activations=kind)  # type: ignore[arg-type]


def traced_blocks(model: Model, sharding: ShardingRules) -> tuple[tuple[Block, ...], Block, Block]:
    """Return the blocks of the layers by kind, of the embedding and of the head."""
    trace = trace_of(model, sharding.precision)
    layers = tuple(_block(trace.blocks[kind.traced], sharding, trace) for kind in model.layer_kinds)
    embedding = _block(trace.embedding, sharding, trace, part="embedding")
    head = _block(trace.head, sharding, trace, part="head", vocabulary=_vocabulary(model, trace))
    return layers, embedding, head


def stream_bytes(model: Model, sharding: ShardingRules) -> Numeric:
    """Return the bytes of one micro-batch between pipeline stages: the largest that a block reads."""
    trace = trace_of(model, sharding.precision)
    sizes = [_at(block.input_bytes, sharding) for block in trace.blocks.values()]
    result: Numeric = 0.0
    for size in sizes:
        result = maximum(result, size)
    return result


def _at(formula: Formula, sharding: ShardingRules) -> Numeric:
    degrees = sharding.degrees
    return formula.at(degrees.micro_batch_size, sharding.seq_len, tp=degrees.tp, ep=degrees.ep, cp=degrees.cp)


def _most(formulas: Sequence[Formula], sharding: ShardingRules) -> Numeric:
    result: Numeric = 0.0
    for formula in formulas:
        result = maximum(result, _at(formula, sharding))
    return result


def _vocabulary(model: Model, trace: Trace) -> TracedParameter | None:
    """Return the matrix of the head: its own, or the embedding's where they are tied."""
    of = trace.embedding if trace.tied else trace.head
    matrices = [
        parameter
        for parameter in of.parameters
        if len(parameter.shape) > 1 and model.vocab_size in parameter.shape
    ]
    return max(matrices, key=lambda item: item.elements, default=None)


def _block(
    traced: TracedBlock,
    sharding: ShardingRules,
    trace: Trace,
    *,
    part: Part | None = None,
    vocabulary: TracedParameter | None = None,
) -> Block:
    """Return a block; `part` is given for the ends of a model, `vocabulary` is the matrix of the head."""
    parameters = _parameters(traced, vocabulary, sharding, part)
    quantised = _quantised_modules(parameters)
    if quantised and trace.autocast:
        traced = _without_narrowing(traced, frozenset(quantised))
    operators = [
        item
        for operator in traced.operators
        for item in _operators(operator, traced, sharding, part, quantised.get(operator.module))
    ]
    tensors = _memory(traced, sharding, trace, _wide_elements(parameters, sharding))
    if operators:
        operators[0] = replace(
            operators[0],
            reads=("input",),
            writes=("output",),
            saves=("saved",),
            temporaries=("forward.work",),
            backward_temporaries=("backward.work",),
        )
        operators[-1] = replace(operators[-1], writes=("output",))
    return Block(
        name=traced.name,
        operators=tuple(operators),
        tensors={tensor.name: tensor for tensor in tensors},
        parameters=parameters,
        input_name="input",
        recorded=True,
    )


def _operators(
    traced: TracedOperator,
    block: TracedBlock,
    sharding: ShardingRules,
    part: Part | None,
    quantised: Numeric | None,
) -> list[Operator]:
    """Return the operator of a module; what activation checkpointing does not run again is one of its own.

    Its `quantised` elements are made wide in either pass.
    """
    wide = _widened(sharding, quantised)
    name, part = traced.module or f"{block.name}.forward", part or _part_of(traced.module)
    again = [kernel for kernel in traced.forward if kernel.replayed]
    once = [kernel for kernel in traced.forward if not kernel.replayed]
    operator = Operator(
        name=name,
        part=part,
        forward=(*wide, *_work(again, sharding)),
        backward_input=(*(wide if traced.backward else ()), *_work(traced.backward, sharding)),
        backward_weight=_work(traced.weight, sharding),
        overlaps_itself=sharding.context.ring
        and any(kernel.kind.startswith("attention") for kernel in traced.forward),
    )
    if not once:
        return [operator]
    return [
        operator,
        Operator(name=f"{name}, result", part=part, forward=_work(once, sharding), replayed=False),
    ]


def _widened(sharding: ShardingRules, elements: Numeric | None) -> Work:
    """Return the pass that makes the quantised weights of a module wide; nothing where it has none."""
    stored = quantised_bytes(sharding.precision, None)
    if elements is None or stored is None:
        return ()
    return (widened(elements, stored_bytes=stored, wide_bytes=sharding.element_bytes),)


def _quantised_modules(parameters: Iterable[Parameter]) -> dict[str, Numeric]:
    """Return the elements on a device of the quantised weights of each module that has some."""
    result: dict[str, Numeric] = {}
    for parameter in parameters:
        if parameter.quantised:
            module = parameter.name.rpartition(".")[0]
            result[module] = result.get(module, 0.0) + parameter.local_elements
    return result


def _wide_elements(parameters: Iterable[Parameter], sharding: ShardingRules) -> Numeric:
    """Return the most elements of quantised weights that are wide at a time: of a matrix, or of one expert's."""
    most: Numeric = 0.0
    for parameter in parameters:
        if parameter.quantised:
            alone = len(parameter.shape) == EXPERTS and not sharding.choices.kernels.grouped_experts
            most = maximum(most, parameter.local_elements / (parameter.shape[0] if alone else 1.0))
    return most


def _without_narrowing(block: TracedBlock, quantised: frozenset[str]) -> TracedBlock:
    """Return a block whose quantised weights are not narrowed by autocast, and whose copies are not kept."""

    def kept(operator: TracedOperator) -> TracedOperator:
        if operator.module not in quantised:
            return operator
        kernels = (
            item for item in operator.forward if item.kind != "narrowed" or not item.extents[0].is_constant
        )
        return replace(operator, forward=tuple(kernels))

    return replace(
        block,
        operators=tuple(map(kept, block.operators)),
        saved_bytes=block.saved_bytes.of_tokens,
        forward_bytes=tuple(item.of_tokens for item in block.forward_bytes),
        backward_bytes=tuple(item.of_tokens for item in block.backward_bytes),
    )


def _memory(traced: TracedBlock, sharding: ShardingRules, trace: Trace, quantised: Numeric) -> list[Tensor]:
    """Return the tensors whose sums are the recorded bytes at the fullest moments of forward and backward.

    All of them exist while the first operator runs. The wide copy of `quantised` elements is added.
    """
    wide = quantised * sharding.element_bytes
    width = STREAM_BYTES.get(trace.parameters, 4.0)
    read, written = _at(traced.input_bytes, sharding), _at(traced.output_bytes, sharding)
    saved = maximum(_at(traced.saved_bytes, sharding), 0.0)
    forward = maximum(_most(traced.forward_bytes, sharding) - saved - written, 0.0) + wide
    backward = maximum(_most(traced.backward_bytes, sharding) - saved - read, 0.0) + wide
    sizes = {
        "input": read,
        "saved": saved,
        "output": written,
        "forward.work": forward,
        "backward.work": backward,
    }
    return [
        Tensor(
            name=name, elements=size / width, element_bytes=width, differentiable=name in ("input", "output")
        )
        for name, size in sizes.items()
    ]


def _part_of(module: str) -> Part:
    path = module.lower()
    return next((part for part, names in PARTS if any(name in path for name in names)), "ffn")


def _work(kernels: Sequence[TracedKernel], sharding: ShardingRules) -> Work:
    if sharding.precision.activations == "fp16":
        kernels = [replace(item, dtype="fp16") if item.dtype == "bf16" else item for item in kernels]
    return tuple(primitive for kernel in kernels for primitive in _primitives(kernel, sharding))


def _primitives(kernel: TracedKernel, sharding: ShardingRules) -> tuple[Primitive, ...]:
    sizes = [_at(extent, sharding) for extent in kernel.extents]
    if kernel.kind.startswith("product"):
        m, n, k, batch = sizes
        aligned = kernel.kind == "product"
        return (Gemm(m=m, n=n, k=k, batch=batch, dtype=kernel.dtype, aligned=aligned),) * kernel.count
    if kernel.kind.startswith("grouped"):
        groups, m, n, k = sizes
        groups = groups / sharding.degrees.ep
        contract: Literal["k", "m"] = "m" if kernel.kind.startswith("grouped_weight") else "k"
        together = not kernel.kind.endswith("loop")
        one = GroupedGemm(
            groups=groups, m=m, n=n, k=k, dtype=kernel.dtype, contract=contract, together=together
        )
        return (one,) * kernel.count
    if kernel.kind.startswith("attention"):
        return _attention(kernel, sizes, sharding) * kernel.count
    elements, read, written = sizes
    if kernel.kind in COLLECTIVES:
        axis, _, kind = kernel.kind.partition("_")
        return (Collective(kind=kind, axis=axis, num_bytes=read),) * kernel.count  # type: ignore[arg-type]
    return (
        EagerKernel(
            operator=kernel.operator,
            kind=kernel.kind,
            dtype=kernel.dtype,
            elements=elements,
            bytes_moved=read + written,
            kernels=float(kernel.count),
        ),
    )


def _attention(kernel: TracedKernel, sizes: Sequence[Numeric], sharding: ShardingRules) -> Work:
    """Return attention with the messages of context parallelism; kernels with a mask compute every pair.

    A causal mask leaves half of them, whether the kernel is given the mask or knows it.
    """
    batch, heads, kv_heads, q_len, local_len, qk_dim, v_dim = sizes
    causal, backward = kernel.kind.endswith("causal"), "backward" in kernel.kind
    kv_len = local_len * sharding.degrees.cp if causal else local_len
    pairs = q_len * kv_len
    core = AttentionCore(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        pairs=0.5 * pairs + 0.5 * q_len if "causal" in kernel.kind else pairs,
        qk_dim=qk_dim,
        v_dim=v_dim,
        backward=backward,
        causal=causal,
        kernel="masked" if kernel.kind.endswith("masked") else "",
        dtype=kernel.dtype,
    )
    if not causal:
        return (core,)
    width = STREAM_BYTES.get(kernel.dtype, 4.0)
    outer = batch * heads * q_len * qk_dim, batch * heads * q_len * v_dim
    inner = batch * kv_heads * local_len * (qk_dim + v_dim)
    return (core, *_sent(sharding, outer, inner, width, backward=backward))


def _sent(
    sharding: ShardingRules, outer: tuple[Numeric, Numeric], inner: Numeric, width: float, *, backward: bool
) -> Iterator[Primitive]:
    """Yield the messages of context parallelism.

    `outer` are the elements of queries and of results, `inner` those of keys and values, each of `width` bytes.
    """
    context, queries = sharding.context, outer[0]
    if context.exchanges is not None:
        num_bytes = width * (sum(outer) + inner)
        yield Collective(kind="all_to_all", axis=context.exchanges, num_bytes=num_bytes)
    if context.around is not None:
        ranks = sharding.degree(context.around)
        gather = Collective(kind="all_gather", axis=context.around, num_bytes=width * inner * ranks)
        yield gather
        if context.ring:
            merged = queries + inner if backward else outer[1]
            yield merging(elements=merged, ranks=ranks, width=width, kernels=3.0 if backward else 1.0)
        if backward:
            yield gather if context.ring else replace(gather, kind="reduce_scatter")


EXPERTS = 3
"""Dimensions of a parameter of all experts of a layer."""


def _parameters(
    traced: TracedBlock, vocabulary: TracedParameter | None, sharding: ShardingRules, part: Part | None
) -> tuple[Parameter, ...]:
    others = (parameter for parameter in traced.parameters if parameter is not vocabulary)
    parameters = [item for parameter in others for item in _parameter(parameter, sharding, part)]
    if vocabulary is not None:
        (matrix,) = _parameter(vocabulary, sharding, part)
        parameters.append(replace(matrix, name=VOCABULARY_WEIGHT))
    return tuple(parameters)


def _parameter(traced: TracedParameter, sharding: ShardingRules, part: Part | None) -> Iterator[Parameter]:
    """Yield a parameter; that of experts twice, as tensor parallelism splits it and as expert parallelism does.

    One of them has no elements on a device. Linear layers and experts can be quantised, as they multiply by matrices.
    """
    degrees, elements = sharding.degrees, float(traced.elements)
    multiplies = len(traced.shape) == (2 if traced.name.endswith(".weight") else EXPERTS)
    skipped = len(traced.shape) == EXPERTS and not sharding.choices.kernels.quantises_experts
    narrow = quantised_bytes(sharding.precision, part) is not None and not skipped
    parameter = Parameter(
        name=traced.name,
        elements=elements,
        local_elements=elements / degrees.tp if traced.split else elements,
        matrix=len(traced.shape) > 1,
        shape=tuple(map(float, traced.shape)),
        frozen=not traced.trained,
        quantised=narrow and multiplies and not traced.trained,
    )
    if traced.split != "experts":
        yield parameter
        return
    dealt = where(degrees.ep > 1.0, 1.0, 0.0)
    yield replace(parameter, local_elements=dealt * elements / degrees.ep, group="expert", tensors=0)
    split = (1.0 - dealt) * parameter.local_elements
    yield replace(parameter, name=f"{traced.name}, split", elements=0.0, local_elements=split)

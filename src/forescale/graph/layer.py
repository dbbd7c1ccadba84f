"""Blocks that stages are made of: decoder layers, embedding, head with loss, multi-token prediction."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from forescale.errors import conflicts
from forescale.formula import formula
from forescale.graph.attention import ATTENTIONS
from forescale.graph.ffn import dense_ffn
from forescale.graph.loss import cross_entropy, fused_linear_loss
from forescale.graph.modules import (
    elementwise,
    exchange,
    gather_sequence,
    linear,
    norm,
    partial_result,
    scatter_sequence,
)
from forescale.graph.operator import Block, Builder
from forescale.graph.ops import Collective, Elementwise
from forescale.graph.sharding import Extent, ShardingRules
from forescale.numeric import Numeric, ceil
from forescale.spec.model import DenseFfn, Layer, Model, MoeFfn

VOCABULARY_WEIGHT = "head.logits.weight"
COPYING_GRAPHS = ("partial", "router")
"""Graphs of parts of a layer, each of which reads and writes buffers of its own."""
PROBABILITY_BYTES = 4.0
"""Bytes of the probability of one token and expert."""


@formula(unit="1", source="Megatron-LM: vocabulary padded to a multiple of make_vocab_size_divisible_by × tp")
def padded_vocab(*, vocab_size: Numeric, multiple: Numeric, tp: Numeric) -> Numeric:
    """⌈V / (multiple·tp)⌉ · multiple · tp."""
    return ceil(vocab_size / (multiple * tp)) * multiple * tp


def layer_block(model: Model, layer: Layer, sharding: ShardingRules) -> Block:
    """Return one decoder layer: norm, attention, add; norm, feed-forward, add."""
    b = Builder(sharding=sharding)
    with b.widened(wide=layer.high_precision):
        return _layer(b, model, layer)


def _layer(b: Builder, model: Model, layer: Layer) -> Block:
    sharding = b.sharding
    local, h = sharding.tokens("residual"), float(model.hidden_size)
    stream = b.tensor("input", local * h)
    num_inner = (layer.attention is not None) + (layer.ffn is not None)
    post_norms = layer.num_norms > num_inner
    if layer.attention is not None:
        source = stream
        with b.widened(
            wide="attention" in sharding.precision.high_precision_modules and not layer.attention.recurrent
        ):
            if layer.num_norms:
                narrow = not _several_linears(layer)
                source = _norm(b, model, "attention.norm", stream, "attention.input", narrow=narrow)
            result = b.tensor("attention.result", local * h)
            ATTENTIONS[type(layer.attention)](b, model, layer.attention, source=source, result=result)
        stream = _join(b, model, "attention", stream, result, post_norm=post_norms)
    if layer.ffn is not None:
        own_norm = not layer.parallel or layer.num_norms > 1 or layer.attention is None
        source = (
            _norm(b, model, "ffn.norm", stream, "ffn.input", narrow=isinstance(layer.ffn, DenseFfn))
            if own_norm and layer.num_norms
            else "attention.input"
        )
        result = b.tensor("ffn.result", local * h)
        ffn = layer.ffn
        if isinstance(ffn, DenseFfn):
            dense_ffn(b, model, ffn, source=source, result=result)
        else:
            from forescale.graph.moe import moe_ffn

            moe_ffn(b, model, ffn, source=source, result=result)
        _join(b, model, "ffn", stream, result, post_norm=post_norms)
    if sharding.choices.graphs in COPYING_GRAPHS:
        _graph_copies(b, model, layer)
    return b.block(block_name(layer), "input")


def _graph_copies(b: Builder, model: Model, layer: Layer) -> None:
    """Append the copies into the fixed buffers of a layer's graph: its input, and the gradients of its results.

    A graph that ends before the experts returns what is sent to them, its probabilities, the shared experts' result
    and the residual (Transformer Engine, graph.py: Graphed; Megatron-LM, transformer_layer.py).
    """
    local, h, b.part = b.sharding.tokens("residual"), float(model.hidden_size), "norm"
    stream = local * h * b.sharding.element_bytes
    gradients, kernels = stream, 1.0
    if isinstance(ffn := layer.ffn, MoeFfn):
        sent = local * float(ffn.latent_size or h) * b.sharding.element_bytes
        gradients, kernels = stream + sent + local * ffn.num_experts * PROBABILITY_BYTES, 3.0
        if ffn.shared_ffn_hidden_size:
            gradients, kernels = gradients + stream, kernels + 1.0
    elif b.sharding.choices.graphs == "router":
        return
    b.operator(
        "graph.copies",
        forward=(Elementwise(bytes_moved=2.0 * stream, called=False),),
        backward_input=(Elementwise(bytes_moved=2.0 * gradients, kernels=kernels, called=False),),
        reads=("input",),
    )


def _several_linears(layer: Layer) -> bool:
    """Whether the norm before attention feeds several linear layers: latent queries, or a parallel block."""
    splits = layer.attention is not None and layer.attention.splits_input
    return splits or (layer.parallel and layer.num_norms == 1)


def block_name(layer: Layer) -> str:
    """Return a short name of a kind of layer: its attention and its feed-forward."""
    if layer.traced:
        return layer.traced
    name = "no-attention" if layer.attention is None else layer.attention.block_name
    name = f"16-bit {name}" if layer.high_precision else name
    return f"{name}+{'moe' if isinstance(layer.ffn, MoeFfn) else 'dense' if layer.ffn else 'no-ffn'}"


def _norm(b: Builder, model: Model, name: str, source: str, result: str, *, narrow: bool = True) -> str:
    b.part, h, local = "norm", float(model.hidden_size), b.sharding.tokens("residual")
    norm(b, name, source=source, result=result, tokens=local, width=h, kind=model.norm, narrow=narrow)
    return result


def _join(b: Builder, model: Model, half: str, stream: str, result: str, *, post_norm: bool) -> str:
    """Append the residual addition (after a norm of the result, where the model has post-norms)."""
    local, h = b.sharding.tokens("residual"), float(model.hidden_size)
    b.part = "norm"
    if post_norm:
        result = _norm(b, model, f"{half}.post_norm", result, f"{half}.normed_result", narrow=False)
    if model.branch_scales:
        result = _scaled(b, half, result, h)
    added = b.tensor(f"{half}.residual", local * h)
    mask: tuple[str, ...] = ()
    if b.sharding.choices.kernels.dropout:
        mask = (b.tensor(f"{half}.dropout_mask", local * h, 1.0, differentiable=False),)
    size = b.bytes_of(added)
    elementwise(
        b,
        f"{half}.add",
        reads=(stream, result),
        writes=(added,),
        saves=mask,
        forward_bytes=3.0 * size,
        backward_bytes=size,
        shares_gradient=not mask,
    )
    return added


def _scaled(b: Builder, half: str, result: str, h: float) -> str:
    """Append the product of a half's result with learned factors, which keeps the result for their gradient."""
    scaled = b.tensor(f"{half}.scaled", b.tensors[result].elements)
    b.parameter(f"{half}.scale.weight", ("hidden", h))
    size = b.bytes_of(scaled)
    elementwise(
        b,
        f"{half}.scale",
        reads=(result,),
        writes=(scaled,),
        saves=(result,),
        forward_bytes=2.0 * size,
        backward_bytes=3.0 * size,
    )
    return scaled


def embedding_block(model: Model, sharding: ShardingRules) -> Block:
    """Return the input side: token embedding (rows over tp) and positions, or the patch projection."""
    b = Builder(sharding=sharding, part="embedding")
    tokens, local = sharding.tokens("sequence"), sharding.tokens("residual")
    h = float(model.hidden_size)
    ids = b.tensor("token_ids", tokens, 8.0, differentiable=False)
    result = b.tensor("embedding.result", local * h)
    if (patches := model.patches) is not None:
        elements = float(patches.patch_elements)
        if patches.class_tokens:
            b.parameter("embedding.class_tokens", ("rank", float(patches.class_tokens)), ("hidden", h))
            tokens = tokens - sharding.degrees.micro_batch_size * float(patches.class_tokens)
        patch = b.tensor("patches", tokens * elements / sharding.split("hidden"), differentiable=False)
        whole: Extent = ("rank", elements)
        linear(
            b,
            "embedding.patch",
            source=patch,
            result=result,
            rows=tokens,
            inputs=whole,
            outputs=("hidden", h),
            bias=patches.bias,
        )
    elif model.vocab_size:
        _token_embedding(b, model, ids=ids, result=result)
    if model.learned_positions:
        b.parameter("embedding.positions", ("rank", float(model.learned_positions)), ("hidden", h))
    if model.embedding_norm:
        name, normed = "embedding.norm", "embedding.normed"
        norm(b, name, source=result, result=normed, tokens=local, width=h, kind=model.norm, narrow=False)
    return b.block("embedding", "token_ids")


def _columns(model: Model, sharding: ShardingRules) -> Numeric:
    """Return the vocabulary as the matrices of embedding and head have it."""
    multiple = float(model.vocab_multiple) if sharding.choices.kernels.pads_vocabulary else 1.0
    return padded_vocab(vocab_size=float(model.vocab_size), multiple=multiple, tp=sharding.degrees.tp)


def _token_embedding(b: Builder, model: Model, *, ids: str, result: str) -> None:
    sharding, h, vocab = b.sharding, float(model.hidden_size), float(model.vocab_size)
    width, tokens = float(model.embedding_size or h), b.sharding.tokens("sequence")
    padding = _columns(model, sharding) / vocab
    b.parameter("embedding.weight", ("vocab", vocab), ("hidden", width), copies=padding)
    partial = (
        b.tensor("embedding.partial", tokens * h)
        if sharding.summa
        else partial_result(b, "embedding", result, h)
    )
    looked_up = partial if width == h else b.tensor("embedding.narrow", tokens * width)
    moved = tokens * width * sharding.element_bytes
    b.operator(
        "embedding.lookup",
        forward=(Elementwise(bytes_moved=2.0 * moved, family="embedding"),),
        backward_weight=() if b.frozen else (Elementwise(bytes_moved=5.0 * moved, family="embedding"),),
        reads=(ids,),
        writes=(looked_up,),
        saves=() if b.frozen else (ids,),
    )
    if width != h:
        name = "embedding.project"
        narrow: Extent = ("rank", width)
        linear(b, name, source=looked_up, result=partial, rows=tokens, inputs=narrow, outputs=("hidden", h))
    if not sharding.summa:
        scatter_sequence(b, "embedding.scatter", source=partial, result=result, width=h)
        return
    # The table lies as the head's matrix does, so all tokens are looked up in a part of the hidden size.
    rows = b.tensor("embedding.rows", b.tensors[result].elements)
    scatter_sequence(b, "embedding.scatter", source=partial, result=rows, width=h)
    exchange(b, "embedding.turn", axis="cp", num_bytes=b.bytes_of(rows), source=rows, result=result)


def head_block(model: Model, sharding: ShardingRules) -> Block:
    """Return the output side: final norm, projection to the vocabulary, cross-entropy over its shards."""
    b = Builder(sharding=sharding, part="head")
    local, h = sharding.tokens("residual"), float(model.hidden_size)
    stream = b.tensor("head.stream", local * h)
    source = stream
    if model.final_norm:
        source = "head.input"
        norm(
            b, "head.norm", source=stream, result=source, tokens=local, width=h, kind=model.norm, narrow=False
        )
    if model.vocab_size:
        _vocabulary_head(b, model, source=source)
    return b.block("head", "head.stream")


def _vocabulary_head(b: Builder, model: Model, *, source: str) -> None:
    sharding, h, vocab = b.sharding, float(model.hidden_size), float(model.vocab_size)
    tokens = sharding.tokens("sequence")
    columns = _columns(model, sharding)
    if sharding.choices.sp and sharding.choices.kernels.cross_entropy == "fused_linear":
        b.tensor("head.gather.result", tokens * h)  # at tp 1 the input itself, which no product keeps
    gathered = gather_sequence(b, "head.gather", source=source, width=h, feeds="head.logits", narrow=False)
    width: Extent = ("hidden", h)
    if model.embedding_size and model.embedding_size != model.hidden_size:
        name, narrow = "head.project", b.tensor("head.narrow", tokens * model.embedding_size)
        inner: Extent = ("rank", float(model.embedding_size))
        linear(
            b, name, source=gathered, result=narrow, rows=tokens, inputs=width, outputs=inner, saved=source
        )
        gathered, source, width = narrow, narrow, inner
    local = columns / sharding.split("vocab")
    if sharding.choices.kernels.cross_entropy == "fused_linear":
        if sharding.summa:
            raise conflicts(["cross_entropy fused_linear", "tp_kind summa"], reason="it needs the whole head")
        b.parameter(VOCABULARY_WEIGHT, width, ("vocab", vocab), copies=columns / vocab)
        if model.head_bias:
            b.parameter("head.logits.bias", ("vocab", vocab), copies=columns / vocab)
        fused_linear_loss(b, source=gathered, rows=tokens, k=width[1], n=local)
        return
    b.tensor("head.logits", tokens * local)
    linear(
        b,
        "head.logits",
        source=gathered,
        result="head.logits",
        rows=tokens,
        inputs=width,
        outputs=("vocab", vocab),
        bias=model.head_bias,
        padded=columns,
        saved=source,
        own_gradient=True,
        narrow=sharding.narrows_head and not model.tied_embeddings,
    )
    cross_entropy(b, "head.logits")


def mtp_block(
    model: Model,
    sharding: ShardingRules,
    *,
    known: Mapping[Layer, Block] = MappingProxyType({}),
    head: Block | None = None,
) -> Block:
    """Return one multi-token-prediction layer: two norms, the join, a decoder layer, the shared head.

    `known` and `head` are the model's layers and its head, where they are built already.
    """
    kind = model.mtp_layer or model.layers[-1]
    wide = "mtp" in sharding.precision.high_precision_modules
    kind = replace(kind, high_precision=wide)
    inner = known.get(kind) or layer_block(model, kind, sharding)
    b = Builder(sharding=sharding)
    if wide:
        b.sharding = sharding.widened
    local, h = sharding.tokens("residual"), float(model.hidden_size)
    stream = b.tensor("mtp.stream", local * h)
    b.tensor("mtp.embedding", local * h)
    for name in (stream, "mtp.embedding"):
        result = f"{name}_normed"
        norm(
            b,
            f"{name}_norm",
            source=name,
            result=result,
            tokens=local,
            width=h,
            kind=model.norm,
            narrow=False,
        )
    joined = b.tensor("mtp.joined", 2.0 * local * h)
    size = b.bytes_of(joined)
    normed = ("mtp.stream_normed", "mtp.embedding_normed")
    elementwise(
        b, "mtp.concatenate", reads=normed, writes=(joined,), forward_bytes=2.0 * size, backward_bytes=size
    )
    _join_streams(b, joined, h)
    head = head or head_block(model, sharding)
    shared = tuple(parameter for parameter in head.parameters if "norm" in parameter.name)
    return Block(
        name="mtp",
        operators=(*b.operators, *inner.operators, *head.operators),
        tensors={**b.tensors, **inner.tensors, **head.tensors},
        parameters=(*b.parameters, *inner.parameters, *shared),
        input_name=stream,
    )


def _join_streams(b: Builder, joined: str, h: float) -> None:
    """Append the projection of both streams to one: columns over tp, gathered after it (Megatron-LM eh_proj)."""
    sharding, tokens = b.sharding, b.sharding.tokens("sequence")
    both: Extent = ("rank", 2.0 * h)
    gathered = gather_sequence(b, "mtp.gather", source=joined, width=2.0 * h, feeds="mtp.join")
    columns: Extent = ("ffn", h)
    part = b.tensor("mtp.part", tokens * h / sharding.split("ffn"))
    linear(
        b, "mtp.join", source=gathered, result=part, rows=tokens, inputs=both, outputs=columns, saved=joined
    )
    whole = b.tensor("mtp.whole", tokens * h * sharding.more_than_one("tp"))
    gather = Collective(kind="all_gather", axis="tp", num_bytes=tokens * h * sharding.element_bytes)
    b.operator(
        "mtp.gather_columns",
        forward=(gather,),
        backward_input=(gather,) if sharding.choices.sp else (),
        reads=(part,),
        writes=("input",),
        temporaries=(whole,),
    )

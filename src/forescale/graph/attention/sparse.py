"""Latent attention to the keys that an indexer picks (DeepSeek-V3.2, section 2.1; GLM-5).

All heads read one latent per key, as wide as the compressed keys and values and their rotary part, so what would
project keys and values up is multiplied into queries and results instead. Follows Megatron-LM of August 2026,
core/transformer/experimental_attention_variant: dsa.py and absorbed_mla.py, with its fused kernels.
"""

from __future__ import annotations

from functools import partial

from forescale.graph.attention.core import QKV, CoreShape, attention_core, core_pairs, rotary
from forescale.graph.modules import elementwise, flat_gradient, passes_of
from forescale.graph.operator import Builder, Names, Work
from forescale.graph.ops import Collective, Elementwise, Gemm
from forescale.graph.sharding import Extent
from forescale.numeric import Numeric, minimum
from forescale.spec.attention import Indexer, LatentAttention
from forescale.spec.model import Model

PICK_BYTES = 4.0
"""Picked keys are int32, scores and what they are taught fp32."""
SCORE_PASSES = 4.0
"""Scores are written once, and read as often as picking takes: 2 times where the best stand out, 5 where none does
(SGLang's fast_topk_transform on H100 and H200; ai-dynamo/aiconfigurator @095f58a51, sparse_attention/sglang/0.5.14)."""
LEARNT = 3.0
"""Backward makes the scores of picked keys again, and the gradients of both their factors."""


def sparse_core(b: Builder, spec: LatentAttention, *, query: str, gathered: str) -> str:
    """Append queries made as wide as latents, the core on those picked, and its results made values of every head."""
    sharding, heads = b.sharding, float(spec.num_heads)
    tokens, local = sharding.tokens("sequence"), heads / sharding.split("heads")
    rank, rope = float(spec.kv_lora_rank), float(spec.qk_rope_head_dim)
    nope, value, both = float(spec.qk_nope_head_dim), float(spec.v_head_dim), rank + rope
    b.tensor(QKV[0], tokens * local * both)
    b.tensor(QKV[1], tokens * both)
    b.tensor(QKV[2], 0.0 * tokens)  # the compressed part of the keys
    b.parameter("attention.kv_up.weight", ("rank", rank), ("heads", heads * (nope + value)))
    with b.module("mla_up_proj"):
        _per_head(b, "attention.absorb", source=query, result=QKV[0], heads=local, k=nope, n=rank)
        moved = 2.0 * b.bytes_of(QKV[1])
        elementwise(
            b,
            "attention.join_key",
            reads=(gathered,),
            writes=(QKV[1],),
            forward_bytes=moved,
            backward_bytes=moved,
        )
        rotary(b, queries=rope / both, keys=rope / both)
    shape = CoreShape(
        heads=heads,
        kv_heads=1.0,
        kv_copies=sharding.split("heads"),
        qk_dim=both,
        v_dim=rank,
        causal=True,
        window=float(spec.top_k or 0),
        picks=True,
    )
    latents = attention_core(b, shape)
    result = b.tensor("attention.values", tokens * local * value)
    _per_head(b, "attention.expand", source=latents, result=result, heads=local, k=rank, n=value)
    return result


def _per_head(b: Builder, name: str, *, source: str, result: str, heads: Numeric, k: float, n: float) -> None:
    """Append a product of every head's rows by its own k x n part of a weight, in 16 bits."""
    sharding, rows = b.sharding, b.sharding.tokens("sequence")
    passes = passes_of(sharding, rows=rows, k=k, n=n, dtype=sharding.wide_type, batch=heads)
    weight: Work = (*passes.backward_weight, *flat_gradient(b, heads * k * n))
    b.operator(
        name,
        forward=passes.forward,
        backward_input=passes.backward_input,
        backward_weight=() if b.frozen else weight,
        reads=(source,),
        writes=(result,),
        saves=() if b.frozen else (source,),
        frozen=b.frozen,
    )


def indexer(
    b: Builder, model: Model, spec: LatentAttention, local: Indexer, *, source: str, latent: str
) -> None:
    """Append what picks keys: projections whole on every tensor-parallel rank, scores of all keys, the best of them.

    Nothing of it reaches the hidden states backward: only its own loss trains it.
    """
    sharding, hidden = b.sharding, float(model.hidden_size)
    tokens, heads, width = sharding.tokens("sequence"), float(local.num_heads), float(local.head_dim)
    rank = float(spec.q_lora_rank or model.hidden_size)
    learns = local.trained and not b.frozen
    inputs: Names = (source, latent)
    if sharding.choices.sp:  # both are gathered, and kept so for the gradients of weights
        wide = tokens * (hidden + rank) * sharding.more_than_one("tp")
        gathered = b.tensor("attention.index_input", wide, differentiable=False)
        size = tokens * (hidden + rank) * sharding.element_bytes
        gather = Collective(kind="all_gather", axis="tp", num_bytes=size)
        b.operator("attention.index_gather", forward=(gather,), reads=inputs, writes=(gathered,))
        inputs = (gathered,)
    whole: Extent = ("hidden", hidden)
    narrow: Extent = ("rank", rank)
    projections: tuple[tuple[str, Extent, float], ...] = (
        ("query", narrow, heads * width), ("key", whole, width), ("weights", whole, heads)
    )  # fmt: skip
    for name, extent, n in projections:
        b.parameter(f"attention.index_{name}.weight", extent, ("rank", n))
        _projection(b, f"attention.index_{name}", inputs=inputs, k=extent[1], n=n, learns=learns)
    for part in ("weight", "bias"):
        b.parameter(f"attention.index_key_norm.{part}", ("rank", width))
    _turn(b, learns=learns)
    _pick(b, spec, local, learns=learns)
    if learns:
        _loss(b, spec, local)


def _projection(b: Builder, name: str, *, inputs: Names, k: float, n: float, learns: bool) -> None:
    """Append a product on all tokens of a rank of context parallelism, without a gradient of its input."""
    sharding, rows = b.sharding, b.sharding.tokens("sequence")
    result = b.tensor(name, rows * n, differentiable=False)
    passes = passes_of(sharding, rows=rows, k=k, n=n, dtype=sharding.narrow_type)
    b.operator(
        name,
        forward=passes.forward,
        backward_weight=(*passes.backward_weight, *flat_gradient(b, k * n)) if learns else (),
        reads=inputs,
        writes=(result,),
        saves=inputs if learns else (),
        frozen=b.frozen,
    )


def _turn(b: Builder, *, learns: bool) -> None:
    """Append the norm of keys, and the rotary embedding and the Hadamard transform of both."""
    names = ("attention.index_query", "attention.index_key")
    moved = 4.0 * b.bytes_of(*names) + 2.0 * b.bytes_of(names[1])
    elementwise(
        b,
        "attention.index_rotary",
        reads=names,
        writes=names,
        forward_bytes=moved,
        backward_bytes=moved if learns else 0.0,
        kernels=5.0,
    )


def _pick(b: Builder, spec: LatentAttention, local: Indexer, *, learns: bool) -> None:
    """Append the scores of all keys before a query, summed over the indexer's heads, and the picking of the best."""
    sharding, batch = b.sharding, b.sharding.degrees.micro_batch_size
    queries, pairs = core_pairs(b, causal=True)
    scores = Gemm(
        m=queries,
        n=pairs / queries,
        k=float(local.num_heads * local.head_dim),
        batch=batch,
        dtype=sharding.wide_type,
    )
    moved = Elementwise(bytes_moved=SCORE_PASSES * PICK_BYTES * batch * pairs, family="softmax", kernels=2.0)
    met: Work = ()
    if sharding.context.around is not None:
        size = b.bytes_of("attention.index_key") * sharding.degree(sharding.context.around)
        met = (Collective(kind="all_gather", axis=sharding.context.around, num_bytes=size),)
    picked = sharding.tokens("sequence") * minimum(float(spec.top_k or 0), sharding.seq_len)
    tensor = b.tensor("attention.picked", picked, PICK_BYTES, differentiable=False)
    read = ("attention.index_query", "attention.index_key", "attention.index_weights")
    b.operator(
        "attention.index_scores",
        forward=(*met, scores, moved),
        reads=read,
        writes=(tensor,),
        saves=(tensor, *read) if learns else (tensor,),
    )


def _loss(b: Builder, spec: LatentAttention, local: Indexer) -> None:
    """Append the indexer's loss on the keys picked: attention's own scores, summed over all heads, and its gradient."""
    sharding, batch = b.sharding, b.sharding.degrees.micro_batch_size
    queries, pairs = core_pairs(b, causal=True, window=float(spec.top_k or 0))
    heads = float(spec.num_heads) / sharding.split("heads")
    of = partial(Gemm, m=queries, n=pairs / queries, dtype=sharding.wide_type)
    taught = PICK_BYTES * b.tensors["attention.picked"].elements
    b.operator(
        "attention.index_target",
        forward=(
            of(k=heads * float(spec.kv_lora_rank + spec.qk_rope_head_dim), batch=batch),
            Collective(kind="all_reduce", axis="tp", num_bytes=taught),
            Elementwise(bytes_moved=SCORE_PASSES * taught, family="softmax"),
        ),
        reads=QKV[:2],
    )
    learning = of(k=float(local.num_heads * local.head_dim), batch=LEARNT * batch)
    b.operator("attention.index_loss", backward_input=(learning,))

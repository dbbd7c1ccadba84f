"""Multi-head latent attention: queries and keys/values through low ranks (arXiv:2405.04434, section 2.1)."""

from __future__ import annotations

from forescale.graph.attention.core import QKV, CoreShape, attention_core, rotary
from forescale.graph.attention.sparse import indexer, sparse_core
from forescale.graph.modules import elementwise, gather_sequence, linear, linear_out, norm
from forescale.graph.operator import Builder
from forescale.graph.sharding import Extent
from forescale.spec.attention import LatentAttention
from forescale.spec.model import Model


def latent_attention(b: Builder, model: Model, spec: LatentAttention, *, source: str, result: str) -> None:
    """Append MLA: down-projections on the local sequence, gather of the narrow results, up over heads."""
    b.part = "attention"
    sharding, h, v = b.sharding, float(model.hidden_size), float(spec.v_head_dim)
    local = sharding.tokens("sequence") / sharding.split("heads") * float(spec.num_heads)
    query = "attention.query_heads" if spec.top_k else QKV[0]
    b.tensor(query, local * float(spec.qk_nope_head_dim + spec.qk_rope_head_dim))
    latent = _queries(b, spec, source=source, result=query, hidden=h)
    gathered = _latents(b, spec, source=source, hidden=h)
    if spec.indexer is not None:
        indexer(b, model, spec, spec.indexer, source=source, latent=latent)
    if spec.top_k:
        output = sparse_core(b, spec, query=query, gathered=gathered)
    else:
        output = _dense_core(b, spec, gathered=gathered)
    inner: Extent = ("heads", float(spec.num_heads) * v)
    name, scatter = "attention.output", "attention.scatter"
    linear_out(
        b, name, scatter, source=output, result=result, inputs=inner, width=h, bias=spec.projection_bias
    )


def _queries(b: Builder, spec: LatentAttention, *, source: str, result: str, hidden: float) -> str:
    """Append the query path: direct, or down, norm, gather, up; the last product is made again with keys and values.

    Return what an indexer reads. Megatron-LM, multi_latent_attention.py: qkv_up_proj_and_rope_apply.
    """
    tokens = b.sharding.tokens("sequence")
    outputs: Extent = ("heads", float(spec.num_heads) * (spec.qk_nope_head_dim + spec.qk_rope_head_dim))
    name, gather, inputs, latent = QKV[0], "attention.gather", _hidden(hidden), source
    if spec.q_lora_rank is not None:
        rank = float(spec.q_lora_rank)
        name, gather, inputs = "attention.query_up", "attention.gather_query", ("rank", rank)
        latent = _down(b, spec, "query", source=source, hidden=hidden, rank=rank, beside=0.0)
    with b.module("mla_up_proj"):
        gathered = gather_sequence(b, gather, source=latent, width=inputs[1], feeds=name)
        linear(
            b,
            name,
            source=gathered,
            result=result,
            rows=tokens,
            inputs=inputs,
            outputs=outputs,
            saved=latent,
        )
    return latent


def _hidden(size: float) -> Extent:
    return ("hidden", size)


def _down(
    b: Builder, spec: LatentAttention, name: str, *, source: str, hidden: float, rank: float, beside: float
) -> str:
    """Append a down-projection to `rank` + `beside` and the norm of its first part; return the normed tensor.

    The norm is one kernel's with the up-projection, and is made again with that (Megatron-LM, gpt_layer_specs.py:
    TELayerNormColumnParallelLinear), unless an indexer reads its result.
    """
    local, latent = b.sharding.tokens("residual"), f"attention.{name}_latent"
    compressed = b.tensor(f"attention.{name}_compressed", local * (rank + beside))
    linear(
        b,
        f"attention.{name}_down",
        source=source,
        result=compressed,
        rows=local,
        inputs=_hidden(hidden),
        outputs=("rank", rank + beside),
        bias=spec.projection_bias,
    )
    norm(
        b,
        f"attention.{name}_norm",
        source=compressed,
        result=latent,
        tokens=local,
        width=rank,
        kind="rms",
        module=None if spec.top_k else "mla_up_proj",
    )
    return latent


def _latents(b: Builder, spec: LatentAttention, *, source: str, hidden: float) -> str:
    """Append the narrow half of the key/value path: down, norm, gather; return the gathered latents."""
    rank, rope = float(spec.kv_lora_rank), float(spec.qk_rope_head_dim)
    latent = _down(b, spec, "kv", source=source, hidden=hidden, rank=rank, beside=rope)
    with b.module("mla_up_proj"):
        name, feeds = "attention.gather_kv_latent", "attention.kv_up"
        return gather_sequence(b, name, source=latent, width=rank + rope, feeds=feeds)


def _dense_core(b: Builder, spec: LatentAttention, *, gathered: str) -> str:
    """Append keys and values of every head, whose rotary part all share, and the core on all of them."""
    sharding, heads, tokens = b.sharding, float(spec.num_heads), b.sharding.tokens("sequence")
    qk, v = float(spec.qk_nope_head_dim + spec.qk_rope_head_dim), float(spec.v_head_dim)
    for name, width in zip(QKV[1:], (qk, v), strict=True):
        b.tensor(name, tokens / sharding.split("heads") * heads * width)
    with b.module("mla_up_proj"):
        both = heads * float(spec.qk_nope_head_dim + spec.v_head_dim)
        joint = b.tensor("attention.kv_joint", tokens / sharding.split("heads") * both)
        linear(
            b,
            "attention.kv_up",
            source=gathered,
            result=joint,
            rows=tokens,
            inputs=("rank", float(spec.kv_lora_rank)),
            outputs=("heads", both),
            saved="attention.kv_latent",
        )
        moved = b.bytes_of(joint, QKV[1], QKV[2])
        reads = (joint, "attention.kv_compressed")
        split = "attention.split_kv"
        elementwise(b, split, reads=reads, writes=QKV[1:], forward_bytes=moved, backward_bytes=moved)
        if sharding.choices.kernels.fused_rotary:  # keys were rotated where they were split from values
            rotary(b, queries=spec.qk_rope_head_dim / qk, keys=0.0)
        else:
            rotary(b)
    return attention_core(b, CoreShape(heads=heads, kv_heads=heads, qk_dim=qk, v_dim=v, causal=spec.causal))

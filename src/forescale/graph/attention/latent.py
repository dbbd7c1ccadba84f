"""Multi-head latent attention: queries and keys/values through low ranks (arXiv:2405.04434, section 2.1)."""

from __future__ import annotations

from forescale.graph.attention.core import QKV, CoreShape, attention_core
from forescale.graph.modules import (
    elementwise,
    gather_sequence,
    linear,
    norm,
    partial_result,
    scatter_sequence,
)
from forescale.graph.operator import Builder
from forescale.spec.model import LatentAttention, Model


def latent_attention(b: Builder, model: Model, spec: LatentAttention, *, source: str, result: str) -> None:
    """Append MLA: down-projections on the local sequence, gather of the narrow results, up over heads."""
    b.part = "attention"
    lay, h = b.layout, float(model.hidden_size)
    tokens, heads = lay.tokens("sequence"), float(spec.num_heads)
    qk, v = float(spec.qk_nope_head_dim + spec.qk_rope_head_dim), float(spec.v_head_dim)
    b.tensor(QKV[0], tokens / lay.split("heads") * heads * qk)
    b.tensor(QKV[1], tokens / lay.split("heads") * heads * qk)
    b.tensor(QKV[2], tokens / lay.split("heads") * heads * v)
    _queries(b, spec, source=source, hidden=h)
    _keys_and_values(b, spec, source=source, hidden=h)
    moved = 2.0 * b.bytes_of(*QKV[:2])
    with b.module("mla_up_proj"):
        elementwise(
            b,
            "attention.rotary",
            reads=QKV[:2],
            writes=QKV[:2],
            forward_bytes=moved,
            backward_bytes=moved,
        )
    output = attention_core(b, CoreShape(heads=heads, kv_heads=heads, qk_dim=qk, v_dim=v, causal=spec.causal))
    partial = partial_result(b, "attention.output", result, h)
    linear(
        b,
        "attention.output",
        source=output,
        result=partial,
        rows=tokens,
        inputs=("heads", heads * v),
        outputs=("hidden", h),
        bias=spec.projection_bias,
    )
    scatter_sequence(b, "attention.scatter", source=partial, result=result, width=h)


def _queries(b: Builder, spec: LatentAttention, *, source: str, hidden: float) -> None:
    """Append the query path: direct, or down, norm, gather, up."""
    lay = b.layout
    local, tokens = lay.tokens("residual"), lay.tokens("sequence")
    width = float(spec.num_heads) * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
    if spec.q_lora_rank is None:
        gathered = gather_sequence(b, "attention.gather", source=source, width=hidden, feeds=QKV[0])
        linear(
            b,
            QKV[0],
            source=gathered,
            result=QKV[0],
            rows=tokens,
            inputs=("hidden", hidden),
            outputs=("heads", width),
            saved=source,
        )
        return
    rank = float(spec.q_lora_rank)
    compressed, latent = b.tensor("attention.query_compressed", local * rank), "attention.query_latent"
    linear(
        b,
        "attention.query_down",
        source=source,
        result=compressed,
        rows=local,
        inputs=("hidden", hidden),
        outputs=("rank", rank),
        bias=spec.projection_bias,
    )
    norm(b, "attention.query_norm", source=compressed, result=latent, tokens=local, width=rank, kind="rms")
    with b.module("mla_up_proj"):
        up = "attention.query_up"
        gathered = gather_sequence(b, "attention.gather_query", source=latent, width=rank, feeds=up)
        linear(
            b,
            up,
            source=gathered,
            result=QKV[0],
            rows=tokens,
            inputs=("rank", rank),
            outputs=("heads", width),
            saved=latent,
        )


def _keys_and_values(b: Builder, spec: LatentAttention, *, source: str, hidden: float) -> None:
    """Append the key/value path: down, norm, gather, up; all heads share the rotary part of the key."""
    lay = b.layout
    local, tokens = lay.tokens("residual"), lay.tokens("sequence")
    rank, rope = float(spec.kv_lora_rank), float(spec.qk_rope_head_dim)
    heads, nope, v = float(spec.num_heads), float(spec.qk_nope_head_dim), float(spec.v_head_dim)
    compressed, latent = b.tensor("attention.kv_compressed", local * (rank + rope)), "attention.kv_latent"
    linear(
        b,
        "attention.kv_down",
        source=source,
        result=compressed,
        rows=local,
        inputs=("hidden", hidden),
        outputs=("rank", rank + rope),
        bias=spec.projection_bias,
    )
    norm(b, "attention.kv_norm", source=compressed, result=latent, tokens=local, width=rank, kind="rms")
    per_head = tokens / lay.split("heads") * heads
    with b.module("mla_up_proj"):
        up = "attention.kv_up"
        gathered = gather_sequence(
            b, "attention.gather_kv_latent", source=latent, width=rank + rope, feeds=up
        )
        joint = b.tensor("attention.kv_joint", per_head * (nope + v))
        linear(
            b,
            up,
            source=gathered,
            result=joint,
            rows=tokens,
            inputs=("rank", rank),
            outputs=("heads", heads * (nope + v)),
            saved=latent,
        )
        moved = b.bytes_of(joint, QKV[1], QKV[2])
        elementwise(
            b,
            "attention.split_kv",
            reads=(joint, compressed),
            writes=QKV[1:],
            forward_bytes=moved,
            backward_bytes=moved,
        )

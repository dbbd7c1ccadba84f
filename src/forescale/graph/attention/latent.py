"""Multi-head latent attention: queries and keys/values through low ranks (arXiv:2405.04434, section 2.1)."""

from __future__ import annotations

from forescale.graph.attention.core import QKV, CoreShape, attention_core, rotary
from forescale.graph.layout import Extent
from forescale.graph.modules import elementwise, gather_sequence, linear, linear_out, norm
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
    with b.module("mla_up_proj"):
        if lay.choices.kernels.fused_rotary:  # keys were rotated where they were split from values
            rotary(b, queries=spec.qk_rope_head_dim / qk, keys=0.0)
        else:
            rotary(b)
    output = attention_core(b, CoreShape(heads=heads, kv_heads=heads, qk_dim=qk, v_dim=v, causal=spec.causal))
    inner: Extent = ("heads", heads * v)
    name, scatter = "attention.output", "attention.scatter"
    linear_out(
        b, name, scatter, source=output, result=result, inputs=inner, width=h, bias=spec.projection_bias
    )


def _queries(b: Builder, spec: LatentAttention, *, source: str, hidden: float) -> None:
    """Append the query path: direct, or down, norm, gather, up; the last product is made again with keys and values.

    Megatron-LM, multi_latent_attention.py: qkv_up_proj_and_rope_apply.
    """
    tokens = b.layout.tokens("sequence")
    outputs: Extent = ("heads", float(spec.num_heads) * (spec.qk_nope_head_dim + spec.qk_rope_head_dim))
    if spec.q_lora_rank is None:
        name, inputs = QKV[0], _hidden(hidden)
        with b.module("mla_up_proj"):
            gathered = gather_sequence(b, "attention.gather", source=source, width=hidden, feeds=name)
            linear(
                b,
                name,
                source=gathered,
                result=name,
                rows=tokens,
                inputs=inputs,
                outputs=outputs,
                saved=source,
            )
        return
    rank = float(spec.q_lora_rank)
    latent = _down(b, spec, "query", source=source, hidden=hidden, rank=rank, beside=0.0)
    with b.module("mla_up_proj"):
        up = "attention.query_up"
        gathered = gather_sequence(b, "attention.gather_query", source=latent, width=rank, feeds=up)
        narrow: Extent = ("rank", rank)
        linear(
            b, up, source=gathered, result=QKV[0], rows=tokens, inputs=narrow, outputs=outputs, saved=latent
        )


def _hidden(size: float) -> Extent:
    return ("hidden", size)


def _down(
    b: Builder, spec: LatentAttention, name: str, *, source: str, hidden: float, rank: float, beside: float
) -> str:
    """Append a down-projection to `rank` + `beside` and the norm of its first part; return the normed tensor.

    The norm is one kernel's with the up-projection, and is made again with that (Megatron-LM, gpt_layer_specs.py:
    TELayerNormColumnParallelLinear).
    """
    local, latent = b.layout.tokens("residual"), f"attention.{name}_latent"
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
    norm_name = f"attention.{name}_norm"
    norm(
        b,
        norm_name,
        source=compressed,
        result=latent,
        tokens=local,
        width=rank,
        kind="rms",
        module="mla_up_proj",
    )
    return latent


def _keys_and_values(b: Builder, spec: LatentAttention, *, source: str, hidden: float) -> None:
    """Append the key/value path: down, norm, gather, up; all heads share the rotary part of the key."""
    lay = b.layout
    tokens, heads = lay.tokens("sequence"), float(spec.num_heads)
    rank, rope = float(spec.kv_lora_rank), float(spec.qk_rope_head_dim)
    both = float(spec.qk_nope_head_dim + spec.v_head_dim)
    latent = _down(b, spec, "kv", source=source, hidden=hidden, rank=rank, beside=rope)
    with b.module("mla_up_proj"):
        up, gather = "attention.kv_up", "attention.gather_kv_latent"
        gathered = gather_sequence(b, gather, source=latent, width=rank + rope, feeds=up)
        joint = b.tensor("attention.kv_joint", tokens / lay.split("heads") * heads * both)
        narrow: Extent = ("rank", rank)
        wide: Extent = ("heads", heads * both)
        linear(b, up, source=gathered, result=joint, rows=tokens, inputs=narrow, outputs=wide, saved=latent)
        moved = b.bytes_of(joint, QKV[1], QKV[2])
        reads = (joint, "attention.kv_compressed")
        split = "attention.split_kv"
        elementwise(b, split, reads=reads, writes=QKV[1:], forward_bytes=moved, backward_bytes=moved)

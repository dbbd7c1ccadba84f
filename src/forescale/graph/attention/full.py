"""Softmax attention with any number of key/value heads, windowed or not."""

from __future__ import annotations

from forescale.graph.adapters import adapters, qkv_parts
from forescale.graph.attention.core import QKV, CoreShape, attention_core, rotary
from forescale.graph.layout import Extent, head_split
from forescale.graph.modules import elementwise, gather_sequence, linear, linear_out, norm, product
from forescale.graph.operator import Builder
from forescale.numeric import Numeric
from forescale.spec.model import FullAttention, LatentAttention, Model


def full_attention(b: Builder, model: Model, spec: FullAttention, *, source: str, result: str) -> None:
    """Append normed input -> q, k, v -> core -> output projection."""
    b.part = "attention"
    lay, h, d = b.layout, float(model.hidden_size), float(spec.head_dim)
    heads = float(spec.num_heads)
    copies = lay.degrees.tp / head_split(tp=lay.degrees.tp, num_kv_heads=float(spec.num_kv_heads))
    gathered = gather_sequence(b, "attention.gather", source=source, width=h, feeds="attention.qkv")
    _projections(b, spec, hidden=h, copies=copies, gathered=gathered, source=source)
    if spec.rotary:
        rotary(b)
    if spec.sinks:
        b.parameter("attention.sinks", ("heads", heads))
    shape = CoreShape(
        heads=heads,
        kv_heads=float(spec.num_kv_heads),
        qk_dim=d,
        v_dim=d,
        causal=spec.causal,
        kv_copies=copies,
        window=float(spec.window) if spec.window else float("inf"),
    )
    output = attention_core(b, shape)
    if spec.output_gate:
        output = _gate(b, output)
    inner: Extent = ("heads", heads * d)
    name, scatter = "attention.output", "attention.scatter"
    linear_out(b, name, scatter, source=output, result=result, inputs=inner, width=h, bias=spec.output_bias)


def _projections(
    b: Builder, spec: FullAttention, *, hidden: float, copies: Numeric, gathered: str, source: str
) -> None:
    """Append the q, k and v projections as one product (Megatron-LM and TE fuse them), and their norms."""
    lay, d = b.layout, float(spec.head_dim)
    tokens, kv = lay.tokens("sequence"), spec.num_kv_heads * d
    query = spec.num_heads * d * (2.0 if spec.output_gate else 1.0)
    widths: tuple[tuple[str, Extent, Numeric], ...] = (
        ("query", ("heads", query), 1.0),
        ("key", ("kv_heads", kv), copies),
        ("value", ("kv_heads", kv), copies),
    )
    for name, extent, times in widths:
        b.parameter(f"attention.{name}.weight", ("hidden", hidden), extent, copies=times, narrow=True)
        if spec.qkv_bias:
            b.parameter(f"attention.{name}.bias", extent, copies=times)
    b.tensor(QKV[0], tokens * spec.num_heads * d / lay.split("heads"))
    b.tensor(QKV[1], tokens * kv / lay.split("kv_heads") * copies)
    b.tensor(QKV[2], tokens * kv / lay.split("kv_heads") * copies)
    normed = spec.qk_norm != "none"
    made = tuple(f"{name}.raw" if normed and name != QKV[2] else name for name in QKV)
    for name in made:
        if name not in b.tensors:
            b.tensor(name, b.tensors[name.removesuffix(".raw")].elements)
    if spec.output_gate:
        made = (*made, b.tensor("attention.gate", b.tensors[QKV[0]].elements))
    n = query / lay.split("heads") + 2.0 * kv / lay.split("kv_heads") * copies
    product(b, "attention.qkv", source=gathered, results=made, rows=tokens, k=hidden, n=n, saved=source)
    parts = qkv_parts(b, made, widths)
    inputs: Extent = ("hidden", hidden)
    adapters(b, "attention.qkv", parts, source=gathered, saved=source, rows=tokens, inputs=inputs)
    if normed:
        _query_key_norm(b, spec)


def _query_key_norm(b: Builder, spec: FullAttention) -> None:
    """Append the norms of queries and keys; they keep their inputs."""
    d = float(spec.head_dim)
    per_head = spec.qk_norm == "head"
    widths = (d, d) if per_head else (spec.num_heads * d, spec.num_kv_heads * d)
    for tensor, width in zip(QKV[:2], widths, strict=True):
        b.parameter(f"{tensor}_norm.weight", ("rank", width))
        size = b.bytes_of(tensor)
        rows = b.layout.tokens("sequence") if not per_head else b.tensors[tensor].elements / d
        statistics = b.tensor(f"{tensor}.statistics", rows, 4.0)
        raw = f"{tensor}.raw"
        elementwise(
            b,
            f"{tensor}_norm",
            reads=(raw,),
            writes=(tensor,),
            saves=(raw, statistics),
            forward_bytes=2.0 * size,
            backward_bytes=3.0 * size,
        )


def _gate(b: Builder, output: str) -> str:
    """Append the sigmoid gate of the core's output."""
    moved = 3.0 * b.bytes_of(output)
    gated = b.tensor("attention.gated", b.tensors[output].elements)
    both = ("attention.gate", output)
    elementwise(
        b,
        "attention.output_gate",
        reads=both,
        writes=(gated,),
        saves=both,
        forward_bytes=moved,
        backward_bytes=5.0 / 3.0 * moved,
    )
    return gated


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
    """Append the query path: direct, or down, norm, gather, up."""
    tokens = b.layout.tokens("sequence")
    outputs: Extent = ("heads", float(spec.num_heads) * (spec.qk_nope_head_dim + spec.qk_rope_head_dim))
    if spec.q_lora_rank is None:
        name, inputs = QKV[0], _hidden(hidden)
        gathered = gather_sequence(b, "attention.gather", source=source, width=hidden, feeds=name)
        linear(
            b, name, source=gathered, result=name, rows=tokens, inputs=inputs, outputs=outputs, saved=source
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
    """Append a down-projection to `rank` + `beside` and the norm of its first part; return the normed tensor."""
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
    norm(b, norm_name, source=compressed, result=latent, tokens=local, width=rank, kind="rms")
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

"""Softmax attention with any number of key/value heads, windowed or not."""

from __future__ import annotations

from forescale.graph.adapters import adapters, qkv_parts
from forescale.graph.attention.core import QKV, CoreShape, attention_core, rotary
from forescale.graph.modules import elementwise, gather_sequence, linear_out, product
from forescale.graph.operator import Builder
from forescale.graph.sharding import Extent, head_split
from forescale.numeric import Numeric
from forescale.spec.attention import FullAttention
from forescale.spec.model import Model


def full_attention(b: Builder, model: Model, spec: FullAttention, *, source: str, result: str) -> None:
    """Append the operators of one softmax attention layer to the block `b`, and return nothing.

    They lead from the normed input, the tensor `source` of `b`, over queries, keys, values, the core and the output
    projection to the tensor `result`. `graph.layer` calls it through `ATTENTIONS`.
    """
    b.part = "attention"
    sharding, h, d = b.sharding, float(model.hidden_size), float(spec.head_dim)
    heads = float(spec.num_heads)
    copies = sharding.degrees.tp / head_split(tp=sharding.degrees.tp, num_kv_heads=float(spec.num_kv_heads))
    gathered = gather_sequence(b, "attention.gather", source=source, width=h, feeds="attention.qkv")
    _projections(b, spec, hidden=h, copies=copies, gathered=gathered, source=source)
    if spec.rotary:
        rotary(b, stepwise=spec.scaled_rotary and not sharding.choices.kernels.scales_rotary)
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
    sharding, d = b.sharding, float(spec.head_dim)
    tokens, kv = sharding.tokens("sequence"), spec.num_kv_heads * d
    query = spec.num_heads * d * (2.0 if spec.output_gate else 1.0)
    widths: tuple[tuple[str, Extent, Numeric], ...] = (
        ("query", ("heads", query), 1.0),
        ("key", ("kv_heads", kv), copies),
        ("value", ("kv_heads", kv), copies),
    )
    for name, extent, times in widths:
        kept = int(name == "query" or not sharding.choices.kernels.joins_qkv)
        b.parameter(
            f"attention.{name}.weight", ("hidden", hidden), extent, copies=times, narrow=True, tensors=kept
        )
        if spec.qkv_bias:
            b.parameter(f"attention.{name}.bias", extent, copies=times, tensors=kept)
    b.tensor(QKV[0], tokens * spec.num_heads * d / sharding.split("heads"))
    b.tensor(QKV[1], tokens * kv / sharding.split("kv_heads") * copies)
    b.tensor(QKV[2], tokens * kv / sharding.split("kv_heads") * copies)
    normed = spec.qk_norm != "none"
    made = tuple(f"{name}.raw" if normed and name != QKV[2] else name for name in QKV)
    for name in made:
        if name not in b.tensors:
            b.tensor(name, b.tensors[name.removesuffix(".raw")].elements)
    if spec.output_gate:
        made = (*made, b.tensor("attention.gate", b.tensors[QKV[0]].elements))
    n = query / sharding.split("heads") + 2.0 * kv / sharding.split("kv_heads") * copies
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
        rows = b.sharding.tokens("sequence") if not per_head else b.tensors[tensor].elements / d
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

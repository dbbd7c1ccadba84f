"""Attention blocks: full (MHA, GQA, MQA, windowed), latent (MLA), linear. Input and output: residual layout."""

from __future__ import annotations

from forescale.formula import formula
from forescale.graph.layout import head_split
from forescale.graph.modules import GRADIENT_BYTES, elementwise, exchange, gather_sequence, linear, norm, scatter_sequence
from forescale.graph.operator import Builder
from forescale.graph.ops import AttentionCore, Collective, Gemm
from forescale.numeric import Numeric
from forescale.spec.model import FullAttention, LatentAttention, LinearAttention, Model


@formula(unit="pair", source="causal mask: query i sees keys 0..i; a window w leaves at most w of them")
def attention_pairs(*, seq_len: Numeric, window: Numeric, causal: bool) -> Numeric:
    """Query-key pairs of one head and sequence: s² unmasked; causal s(s+1)/2; windowed w·s − w(w−1)/2."""
    import numpy as np

    if not causal:
        return seq_len * np.minimum(window, seq_len)
    width = np.minimum(window, seq_len)
    return width * seq_len - width * (width - 1.0) / 2.0


def full_attention(b: Builder, model: Model, spec: FullAttention, *, source: str, result: str) -> None:
    """Append norm'ed input -> q, k, v -> core -> output projection (its input is `source`)."""
    b.part = "attention"
    lay, h, d = b.layout, float(model.hidden_size), float(spec.head_dim)
    tokens = lay.tokens("sequence")
    copies = lay.degrees.tp / head_split(tp=lay.degrees.tp, num_kv_heads=float(spec.num_kv_heads))
    query_width = spec.num_heads * d * (2.0 if spec.output_gate else 1.0)
    gather_sequence(b, "attention.gather", source=source, width=h, feeds="attention.qkv")
    query = b.tensor("attention.query", tokens * spec.num_heads * d / lay.split("heads"))
    key = b.tensor("attention.key", tokens * spec.num_kv_heads * d / lay.split("kv_heads") * copies)
    value = b.tensor("attention.value", tokens * spec.num_kv_heads * d / lay.split("kv_heads") * copies)
    kv = spec.num_kv_heads * d
    _fused_qkv(b, source=source, rows=tokens, hidden=h, query=query_width, kv=kv, copies=copies, bias=spec.qkv_bias)
    if spec.output_gate:
        b.tensor("attention.gate", tokens * spec.num_heads * d / lay.split("heads"))
    _query_key_norm(b, spec, query, key)
    if spec.rotary:
        moved = 2.0 * b.bytes_of(query, key)
        elementwise(b, "attention.rotary", reads=(query, key), writes=(query, key), forward_bytes=moved, backward_bytes=moved)
    if spec.sinks:
        b.parameter("attention.sinks", ("heads", spec.num_heads))
    window = float(spec.window) if spec.window else float("inf")
    core_output = attention_core(
        b, heads=float(spec.num_heads), kv_heads=float(spec.num_kv_heads), kv_copies=copies, qk_dim=d, v_dim=d,
        window=window, causal=spec.causal, qkv=(query, key, value),
    )
    if spec.output_gate:
        moved = 3.0 * b.bytes_of(core_output)
        gated = b.tensor("attention.gated", tokens * spec.num_heads * d / lay.split("heads"))
        elementwise(b, "attention.output_gate", reads=("attention.gate", core_output), writes=(gated,),
                    saves=("attention.gate", core_output), forward_bytes=moved, backward_bytes=5.0 / 3.0 * moved)
        core_output = gated
    linear(b, "attention.output", source=core_output, result=result, rows=tokens,
           inputs=("heads", spec.num_heads * d), outputs=("hidden", h), bias=spec.output_bias)
    scatter_sequence(b, "attention.scatter", source=result, width=h)


def _fused_qkv(
    b: Builder, *, source: str, rows: Numeric, hidden: float, query: float, kv: float, copies: Numeric, bias: bool
) -> None:
    """Append the q, k and v projections as one product (Megatron and TE fuse them)."""
    lay = b.layout
    width = query / lay.split("heads") + 2.0 * kv / lay.split("kv_heads") * copies
    dtype = lay.precision.compute
    for name, dim, size, times in (("query", "heads", query, 1.0), ("key", "kv_heads", kv, copies), ("value", "kv_heads", kv, copies)):
        b.parameter(f"attention.{name}.weight", ("hidden", hidden), (dim, size), copies=times)  # type: ignore[arg-type]
        if bias:
            b.parameter(f"attention.{name}.bias", (dim, size), copies=times)  # type: ignore[arg-type]
    accumulate = GRADIENT_BYTES[lay.precision.gradients]
    b.operator(
        "attention.qkv",
        forward=(Gemm(m=rows, n=width, k=hidden, dtype=dtype),),
        backward_input=(Gemm(m=rows, n=hidden, k=width, dtype=dtype),),
        backward_weight=(Gemm(m=width, n=hidden, k=rows, dtype=dtype, accumulate_bytes=accumulate),),
        reads=(source,),
        writes=("attention.query", "attention.key", "attention.value"),
        saves=(source,),
    )


def _query_key_norm(b: Builder, spec: FullAttention, query: str, key: str) -> None:
    """Append the norms of queries and keys; they keep their inputs, which rotary otherwise overwrites."""
    if spec.qk_norm == "none":
        return
    d = float(spec.head_dim)
    widths = (d, d) if spec.qk_norm == "head" else (spec.num_heads * d, spec.num_kv_heads * d)
    for name, tensor, width in (("query", query, widths[0]), ("key", key, widths[1])):
        b.parameter(f"attention.{name}_norm.weight", ("rank", width))
        size = b.tensors[tensor].num_bytes
        raw = b.tensor(f"{tensor}.raw", size / b.layout.element_bytes)
        elementwise(b, f"attention.{name}_norm", reads=(raw,), writes=(tensor,), saves=(raw,),
                    forward_bytes=2.0 * size, backward_bytes=3.0 * size)


def attention_core(
    b: Builder,
    *,
    heads: float,
    kv_heads: float,
    kv_copies: Numeric,
    qk_dim: float,
    v_dim: float,
    window: float,
    causal: bool,
    qkv: tuple[str, str, str],
) -> str:
    """Append scores, softmax and values with the context-parallel exchange around them; return the output's name."""
    lay = b.layout
    outer, b.modules = b.modules, (*b.modules, "core_attn")
    kind = lay.choices.cp_kind
    tokens = lay.tokens("sequence")
    output = b.tensor("attention.core_output", tokens * heads * v_dim / lay.split("heads"))
    kv_bytes = b.bytes_of(qkv[1], qkv[2]) * lay.degrees.cp
    if kind == "ulysses":
        moved = b.bytes_of(*qkv)
        exchange(b, "attention.ulysses_in", axis="cp", forward=moved, backward=moved, tensor=qkv[0])
    elif kind == "all_gather":
        b.operator(
            "attention.gather_kv",
            forward=(Collective(kind="all_gather", axis="cp", num_bytes=kv_bytes),),
            backward_input=(
                Collective(kind="all_gather", axis="cp", num_bytes=kv_bytes),
                Collective(kind="reduce_scatter", axis="cp", num_bytes=kv_bytes),
            ),
            reads=qkv[1:],
            writes=qkv[1:],
        )
    ring = (Collective(kind="all_gather", axis="cp", num_bytes=kv_bytes),) if kind == "ring" else ()
    core = _core_operators(b, heads=heads, kv_heads=kv_heads, kv_copies=kv_copies, qk_dim=qk_dim, v_dim=v_dim, window=window, causal=causal)
    saves = [*qkv, output, b.tensor("attention.softmax_statistics", tokens * heads / lay.split("heads"), 4.0)]
    if not lay.choices.flash_attention:
        pairs = tokens * lay.seq_len * heads / lay.split("heads")
        saves[-1] = b.tensor("attention.probabilities", pairs)
        saves.remove(output)
    b.operator(
        "attention.core", forward=(core[0], *ring), backward_input=(core[1], *ring, *ring), reads=qkv, writes=(output,),
        saves=tuple(saves), overlaps_itself=kind == "ring",
    )
    if kind == "ulysses":
        moved = b.bytes_of(output)
        exchange(b, "attention.ulysses_out", axis="cp", forward=moved, backward=moved, tensor=output)
    b.modules = outer
    return output


def _core_operators(
    b: Builder, *, heads: float, kv_heads: float, kv_copies: Numeric, qk_dim: float, v_dim: float, window: float, causal: bool
) -> tuple[AttentionCore, AttentionCore]:
    """Return the forward and backward core of one device: its queries against all keys its mask leaves."""
    lay = b.layout
    parts = lay.split("core_sequence")
    pairs = attention_pairs(seq_len=lay.seq_len, window=window, causal=causal) / parts
    fields = {
        "batch": lay.degrees.micro_batch_size,
        "heads": heads / lay.split("core_heads"),
        "kv_heads": kv_heads / lay.split("core_heads") * kv_copies,
        "q_len": lay.seq_len / parts,
        "kv_len": lay.seq_len,
        "pairs": pairs,
        "qk_dim": qk_dim,
        "v_dim": v_dim,
        "flash": lay.choices.flash_attention,
        "causal": causal,
    }
    return AttentionCore(**fields), AttentionCore(**fields, backward=True)  # type: ignore[arg-type]


def latent_attention(b: Builder, model: Model, spec: LatentAttention, *, source: str, result: str) -> None:
    """Append MLA: down-projections on the local sequence, gather of the narrow results, up-projections over heads."""
    b.part = "attention"
    lay, h = b.layout, float(model.hidden_size)
    local, tokens = lay.tokens("residual"), lay.tokens("sequence")
    qk, v = float(spec.qk_nope_head_dim + spec.qk_rope_head_dim), float(spec.v_head_dim)
    heads = float(spec.num_heads)
    per_head = tokens / lay.split("heads") * heads
    query = b.tensor("attention.query", per_head * qk)
    if spec.q_lora_rank is None:
        gather_sequence(b, "attention.gather", source=source, width=h, feeds="attention.query")
        linear(b, "attention.query", source=source, result=query, rows=tokens, inputs=("hidden", h), outputs=("heads", heads * qk))
    else:
        rank = float(spec.q_lora_rank)
        compressed = b.tensor("attention.query_compressed", local * rank)
        linear(b, "attention.query_down", source=source, result=compressed, rows=local, inputs=("hidden", h), outputs=("rank", rank),
               bias=spec.projection_bias)
        normed = "attention.query_latent"
        norm(b, "attention.query_norm", source=compressed, result=normed, tokens=local, width=rank, kind="rms")
        outer, b.modules = b.modules, (*b.modules, "mla_up_proj")
        gather_sequence(b, "attention.gather_query", source=normed, width=rank, feeds="attention.query_up")
        linear(b, "attention.query_up", source=normed, result=query, rows=tokens, inputs=("rank", rank), outputs=("heads", heads * qk))
        b.modules = outer
    _latent_keys(b, spec, source=source, hidden=h)
    moved = 2.0 * b.bytes_of("attention.query", "attention.key")
    outer, b.modules = b.modules, (*b.modules, "mla_up_proj")
    elementwise(b, "attention.rotary", reads=("attention.query", "attention.key"), writes=("attention.query", "attention.key"),
                forward_bytes=moved, backward_bytes=moved)
    b.modules = outer
    output = attention_core(
        b, heads=heads, kv_heads=heads, kv_copies=1.0, qk_dim=qk, v_dim=v, window=float("inf"), causal=spec.causal,
        qkv=("attention.query", "attention.key", "attention.value"),
    )
    linear(b, "attention.output", source=output, result=result, rows=tokens, inputs=("heads", heads * v), outputs=("hidden", h),
           bias=spec.projection_bias)
    scatter_sequence(b, "attention.scatter", source=result, width=h)


def _latent_keys(b: Builder, spec: LatentAttention, *, source: str, hidden: float) -> None:
    """Append the joint key/value path of MLA: down, norm, gather, up."""
    lay = b.layout
    local, tokens = lay.tokens("residual"), lay.tokens("sequence")
    rank, rope = float(spec.kv_lora_rank), float(spec.qk_rope_head_dim)
    heads, nope, v = float(spec.num_heads), float(spec.qk_nope_head_dim), float(spec.v_head_dim)
    compressed = b.tensor("attention.kv_compressed", local * (rank + rope))
    linear(b, "attention.kv_down", source=source, result=compressed, rows=local, inputs=("hidden", hidden),
           outputs=("rank", rank + rope), bias=spec.projection_bias)
    latent = "attention.kv_latent"
    norm(b, "attention.kv_norm", source=compressed, result=latent, tokens=local, width=rank, kind="rms")
    per_head = tokens / lay.split("heads") * heads
    b.tensor("attention.key", per_head * (nope + rope))
    value = b.tensor("attention.value", per_head * v)
    outer, b.modules = b.modules, (*b.modules, "mla_up_proj")
    gather_sequence(b, "attention.gather_kv_latent", source=latent, width=rank + rope, feeds="attention.kv_up")
    linear(b, "attention.kv_up", source=latent, result=value, rows=tokens, inputs=("rank", rank), outputs=("heads", heads * (nope + v)))
    b.modules = outer


def linear_attention(b: Builder, model: Model, spec: LinearAttention, *, source: str, result: str) -> None:
    """Append chunked linear attention: projections, short convolution, state passing, gated norm, output."""
    b.part = "attention"
    lay, h = b.layout, float(model.hidden_size)
    tokens = lay.tokens("sequence")
    keys = float(spec.num_key_heads * spec.key_head_dim)
    values = float(spec.num_heads * spec.value_head_dim)
    gather_sequence(b, "attention.gather", source=source, width=h, feeds="attention.value")
    widths = {"query": keys, "key": keys, "value": values}
    if spec.output_gate:
        widths["gate"] = values
    for name, width in widths.items():
        tensor = b.tensor(f"attention.{name}", tokens * width / lay.split("heads"))
        linear(b, f"attention.{name}", source=source, result=tensor, rows=tokens, inputs=("hidden", h), outputs=("heads", width))
    if spec.num_gates_per_head:
        gates = float(spec.num_heads * spec.num_gates_per_head)
        decay = b.tensor("attention.decay", tokens * gates / lay.split("heads"), 4.0)
        linear(b, "attention.decay", source=source, result=decay, rows=tokens, inputs=("hidden", h), outputs=("heads", gates))
    if spec.gate_lora_rank:
        rank = float(spec.gate_lora_rank)
        low = b.tensor("attention.decay_low", tokens * rank)
        linear(b, "attention.decay_down", source=source, result=low, rows=tokens, inputs=("hidden", h), outputs=("rank", rank))
        decay = b.tensor("attention.key_decay", tokens * keys / lay.split("heads"))
        linear(b, "attention.decay_up", source=low, result=decay, rows=tokens, inputs=("rank", rank), outputs=("heads", keys))
    if spec.num_head_parameters:
        b.parameter("attention.head_parameters", ("heads", float(spec.num_heads * spec.num_head_parameters)))
    _linear_core(b, spec, keys=keys, values=values)
    linear(b, "attention.output", source="attention.core_output", result=result, rows=tokens,
           inputs=("heads", values), outputs=("hidden", h))
    scatter_sequence(b, "attention.scatter", source=result, width=h)


def _linear_core(b: Builder, spec: LinearAttention, *, keys: float, values: float) -> None:
    """Append convolution, the chunked recurrence and the output norm."""
    lay = b.layout
    tokens = lay.tokens("sequence")
    qkv = ("attention.query", "attention.key", "attention.value")
    if spec.conv_kernel:
        b.parameter("attention.convolution", ("heads", 2.0 * keys + values), ("rank", float(spec.conv_kernel)))
        moved = 2.0 * b.bytes_of(*qkv)
        elementwise(b, "attention.convolution", reads=qkv, writes=qkv, saves=qkv, forward_bytes=moved, backward_bytes=2.0 * moved)
    outer, b.modules = b.modules, (*b.modules, "core_attn")
    heads = spec.num_heads / lay.split("heads")
    output = b.tensor("attention.core_output", tokens * values / lay.split("heads"))
    chunk = float(spec.chunk_size)
    states = b.tensor("attention.states", tokens / chunk * heads * spec.key_head_dim * spec.value_head_dim)
    dk, dv = float(spec.key_head_dim), float(spec.value_head_dim)
    scores = AttentionCore(
        batch=tokens / chunk, heads=heads, kv_heads=heads, q_len=chunk, kv_len=chunk, pairs=chunk * chunk, qk_dim=dk, v_dim=dv
    )
    state = Gemm(m=chunk, n=dv, k=dk, batch=2.0 * tokens / chunk * heads)
    saves = (*qkv, states, *(("attention.decay",) if spec.num_gates_per_head else ()))
    b.operator("attention.core", forward=(scores, state), backward_input=(scores, scores, state, state), reads=qkv, writes=(output,),
               saves=saves)
    b.modules = outer
    moved = b.bytes_of(output)
    if spec.output_norm != "none":
        b.parameter("attention.output_norm", *_output_norm_dims(spec, values))
    if spec.output_gate or spec.output_norm != "none":
        reads = (output, "attention.gate") if spec.output_gate else (output,)
        elementwise(b, "attention.gated_norm", reads=reads, writes=(output,), saves=reads, forward_bytes=3.0 * moved, backward_bytes=5.0 * moved)


def _output_norm_dims(spec: LinearAttention, values: float) -> tuple[tuple[str, float], ...]:
    if spec.output_norm == "head":
        return (("rank", float(spec.value_head_dim)),)
    return (("heads", values),)

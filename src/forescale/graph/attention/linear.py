"""Attention with a recurrent state: gated linear attention, gated delta net, lightning attention, Mamba-2."""

from __future__ import annotations

from collections.abc import Mapping

from forescale.graph.adapters import adapters, recurrent_parts
from forescale.graph.attention.core import QKV
from forescale.graph.modules import elementwise, gather_sequence, linear, linear_out, product
from forescale.graph.operator import Builder, Work
from forescale.graph.ops import AttentionCore, Elementwise, Gemm
from forescale.graph.sharding import Extent, ShardingRules
from forescale.numeric import Numeric, minimum
from forescale.spec.attention import LinearAttention
from forescale.spec.model import Model


def linear_attention(b: Builder, model: Model, spec: LinearAttention, *, source: str, result: str) -> None:
    """Append chunked linear attention: projections, short convolution, state passing, gated norm, output."""
    b.part = "attention"
    h = float(model.hidden_size)
    keys = float(spec.num_key_heads * spec.key_head_dim)
    values = float(spec.num_heads * spec.value_head_dim)
    gathered = gather_sequence(b, "attention.gather", source=source, width=h, feeds="attention.value")
    widths = {"query": keys, "key": keys, "value": values}
    if spec.output_gate:
        widths["gate"] = values
    if spec.fused_scan and spec.num_gates_per_head:
        widths["decay"] = float(spec.num_heads * spec.num_gates_per_head)
    _projections(b, spec, widths, gathered=gathered, source=source, hidden=h)
    _decay(b, spec, gathered=gathered, source=source, hidden=h, keys=keys)
    made = tuple(f"attention.{width}" for width in widths if width != "decay")
    gates = float(spec.num_heads * spec.num_gates_per_head)
    total = 2.0 * keys + values * (2.0 if spec.output_gate else 1.0) + gates
    parts = recurrent_parts(b, (*made, "attention.decay") if gates else made, ("heads", total))
    tokens = b.sharding.tokens("sequence")
    adapters(b, "attention", parts, source=gathered, saved=source, rows=tokens, inputs=("hidden", h))
    if spec.num_head_parameters:
        b.parameter("attention.head_parameters", ("heads", float(spec.num_heads * spec.num_head_parameters)))
    if spec.fused_scan:
        _batch_first(b, total=total, values=values)
    _convolution(b, spec, keys=keys, values=values)
    output = _output_norm(b, spec, _core(b, spec, values=values), values=values)
    inner: Extent = ("heads", values)
    name, scatter = "attention.output", "attention.scatter"
    linear_out(
        b,
        name,
        scatter,
        source=output,
        result=result,
        inputs=inner,
        width=h,
        adapted_as="attention.recurrent_output",
    )


def _projections(
    b: Builder,
    spec: LinearAttention,
    widths: Mapping[str, float],
    *,
    gathered: str,
    source: str,
    hidden: float,
) -> None:
    """Append the projections of the input, as one product before a fused scan (mamba_mixer.py, in_proj)."""
    inputs: Extent = ("hidden", hidden)
    if not spec.fused_scan:
        for name, width in widths.items():
            _project(b, f"attention.{name}", gathered, source, inputs=inputs, outputs=("heads", width))
        return
    rows, split = b.sharding.tokens("sequence"), b.sharding.split("heads")
    for name, width in widths.items():
        kept = int(name == "query")
        b.parameter(f"attention.{name}.weight", inputs, ("heads", width), narrow=True, tensors=kept)
        b.tensor(f"attention.{name}", rows * width / split, 4.0 if name == "decay" else None)
    made = tuple(f"attention.{name}" for name in widths)
    n = sum(widths.values()) / split
    product(b, "attention.in_proj", source=gathered, results=made, rows=rows, k=hidden, n=n, saved=source)


def _project(
    b: Builder,
    name: str,
    gathered: str,
    saved: str,
    *,
    inputs: Extent,
    outputs: Extent,
    element_bytes: float | None = None,
) -> str:
    """Append a projection on gathered tokens to a tensor of its own name."""
    tokens = b.sharding.tokens("sequence")
    result = b.tensor(name, tokens * outputs[1] / b.sharding.split(outputs[0]), element_bytes)
    linear(
        b,
        name,
        source=gathered,
        result=result,
        rows=tokens,
        inputs=inputs,
        outputs=outputs,
        saved=saved,
        adapted=False,
    )
    return result


def _decay(
    b: Builder, spec: LinearAttention, *, gathered: str, source: str, hidden: float, keys: float
) -> None:
    """Append the gates of the state: scalars per head, and one decay per key dimension through a low rank."""
    whole: Extent = ("hidden", hidden)
    if spec.num_gates_per_head and not spec.fused_scan:
        gates: Extent = ("heads", float(spec.num_heads * spec.num_gates_per_head))
        _project(b, "attention.decay", gathered, source, inputs=whole, outputs=gates, element_bytes=4.0)
    if spec.gate_lora_rank:
        rank: Extent = ("rank", float(spec.gate_lora_rank))
        low = _project(b, "attention.decay_down", gathered, source, inputs=whole, outputs=rank)
        _project(b, "attention.decay_up", low, low, inputs=rank, outputs=("heads", keys))


def _batch_first(b: Builder, *, total: float, values: float) -> None:
    """Append the copies of a scan's inputs and output where a micro-batch has several sequences.

    Its kernels take a batch of sequences, and tokens lie sequence first (Megatron-LM, mamba_mixer.py: _ssm_training).
    """
    several = minimum(b.sharding.degrees.micro_batch_size - 1.0, 1.0)
    elements = b.sharding.tokens("sequence") * (total + values) / b.sharding.split("heads")
    work = Elementwise(bytes_moved=2.0 * several * elements * b.sharding.element_bytes, kernels=2.0 * several)
    b.operator("attention.batch_first", forward=(work,), backward_input=(work,))


def _convolution(b: Builder, spec: LinearAttention, *, keys: float, values: float) -> None:
    if not spec.conv_kernel:
        return
    b.parameter("attention.convolution", ("heads", 2.0 * keys + values), ("rank", float(spec.conv_kernel)))
    if spec.conv_bias:
        b.parameter("attention.convolution.bias", ("heads", 2.0 * keys + values))
    moved = 2.0 * b.bytes_of(*QKV)
    inputs = tuple(f"{name}.mixed" for name in QKV)
    for name, mixed in zip(QKV, inputs, strict=True):
        b.tensor(mixed, b.tensors[name].elements)
    elementwise(
        b,
        "attention.convolution",
        reads=QKV,
        writes=inputs,
        saves=() if spec.fused_scan else QKV,
        forward_bytes=moved,
        backward_bytes=(REPLAYED_CONVOLUTION if spec.fused_scan else 2.0) * moved,
    )


REPLAYED_CONVOLUTION = 2.5
"""Backward over forward of a convolution that is run again in backward: 2 of 5 passes (mamba_ssm, ssd_combined.py:
MambaSplitConv1dScanCombinedFn); else input and gradient read and written."""
GATED_PASSES = (4.0, 8.0)
"""Times that values are read or written, forward and backward, where the scan gates its output and a norm follows
(mamba_ssm, ssd_combined.py and layernorm_gated.py): the gate read and the output without it written (2), the norm (2);
the norm's gradient (3), gradients of gate and output made of gate, output and gradient (5)."""
SCAN_GRADIENT_BYTES = 16.0
"""Bytes per value that the backward of Mamba-2's scan moves beside its products: results narrowed, and summed over
groups and tokens (mamba_ssm e9594ce on one H100, 8,192 tokens of 64 heads of 64, states of 128, chunks of 128: forward
0.37 ms, backward 1.30 ms, of which these kernels 0.29 ms)."""


def _chunk_products(
    sharding: ShardingRules, spec: LinearAttention, *, tokens: Numeric, heads: Numeric
) -> tuple[AttentionCore, Gemm]:
    """Return the products inside the chunks of all heads, and those with the state at their borders."""
    chunk, dk, dv = float(spec.chunk_size), float(spec.key_head_dim), float(spec.value_head_dim)
    scores = AttentionCore(
        batch=tokens / chunk,
        heads=heads,
        kv_heads=heads,
        q_len=chunk,
        kv_len=chunk,
        pairs=chunk * chunk,
        qk_dim=dk,
        v_dim=dv,
        chunked=True,
        dtype=sharding.core_type,
        kernel=spec.scan,
    )
    batch = 2.0 * tokens / chunk * heads
    return scores, Gemm(m=chunk, n=dv, k=dk, batch=batch, dtype=sharding.core_type, kernel=spec.scan)


def _core(b: Builder, spec: LinearAttention, *, values: float) -> str:
    """Append the recurrence in chunks: products inside a chunk, and with the state at its border.

    Kernels make the states of the borders again in backward (flash-linear-attention, mamba_ssm); Mamba-2's keeps
    what goes into its convolution and gate, and the recurrence's output (MambaSplitConv1dScanCombinedFn).
    """
    sharding, chunk = b.sharding, float(spec.chunk_size)
    tokens, heads = sharding.tokens("sequence"), spec.num_heads / sharding.split("heads")
    dk, dv = float(spec.key_head_dim), float(spec.value_head_dim)
    qkv = tuple(f"{name}.mixed" for name in QKV) if spec.conv_kernel else QKV
    output = b.tensor("attention.core_output", tokens * values / sharding.split("heads"))
    states = b.tensor("attention.states", tokens / chunk * heads * dk * dv)
    scores, state = _chunk_products(sharding, spec, tokens=tokens, heads=heads)
    decay = (("attention.decay",) if spec.num_gates_per_head else ()) + (
        ("attention.decay_up",) if spec.gate_lora_rank else ()
    )
    gate = ("attention.gate",) if spec.output_gate else ()
    again: Work = ()
    if spec.fused_scan:
        streamed = SCAN_GRADIENT_BYTES * tokens * values / sharding.split("heads")
        again = (state, Elementwise(bytes_moved=streamed, family="cast"))
    with b.module("core_attn"):
        b.operator(
            "attention.core",
            forward=(scores, state),
            backward_input=(scores, scores, state, state, *again),
            reads=(*qkv, *decay),
            writes=(output,),
            saves=(*QKV, *decay, *gate, output) if spec.fused_scan else (*qkv, *decay),
            temporaries=(states,),
            backward_temporaries=(states, *(qkv if spec.fused_scan else ())),
        )
    return output


def _output_norm(b: Builder, spec: LinearAttention, output: str, *, values: float) -> str:
    """Append the gated norm of the output, which keeps its input and the gate."""
    if spec.output_norm == "head":
        b.parameter("attention.output_norm", ("rank", float(spec.value_head_dim)))
    elif spec.output_norm == "hidden":
        b.parameter("attention.output_norm", ("heads", values))
    if not spec.output_gate and spec.output_norm == "none":
        return output
    moved = b.bytes_of(output)
    reads = (output, "attention.gate") if spec.output_gate else (output,)
    saves = reads
    if spec.fused_scan and spec.output_gate:
        saves = (b.tensor("attention.gated", b.tensors[output].elements),)  # the norm's own input
    normed = b.tensor("attention.normed", b.tensors[output].elements, b.sharding.linear_input_bytes)
    forward, backward = GATED_PASSES if spec.fused_scan and spec.output_gate else (3.0, 5.0)
    elementwise(
        b,
        "attention.gated_norm",
        reads=reads,
        writes=(normed,),
        saves=saves,
        forward_bytes=forward * moved,
        backward_bytes=backward * moved,
    )
    return normed

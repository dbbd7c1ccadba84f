"""Step time from what a row published: seconds, tokens/s, TFLOP/s or MFU by its own FLOP convention.

These FLOP counts invert other people's arithmetic; the projection's own counts come from its operator graph.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from forescale.evidence.tables import all_matches
from forescale.files import Row
from forescale.spec import Cluster, Model, Strategy, Workload
from forescale.spec.model import Attention, DenseFfn, Ffn, FullAttention, LatentAttention, Layer
from forescale.spec.workload import MATRIX_RATE
from forescale.units import TB

StepSource: TypeAlias = Literal["step time", "tokens/s", "TFLOP/s", "MFU", "none"]


def published_step_time(
    row: Row, model: Model, cluster: Cluster, strategy: Strategy, workload: Workload
) -> tuple[float | None, StepSource]:
    """Return the measured seconds per step and the published figure they follow from.

    The first that the row has: step time, tokens/s, TFLOP/s, MFU. A rate is turned into a time with the row's
    batch and, for FLOP rates, the FLOPs that its `tflops_convention` counts.
    """
    step, tokens = row.number("measured_step_s"), row.number("measured_tokens_per_s_per_gpu")
    if step:
        return step, "step time"
    per_device = workload.tokens_per_step / strategy.num_devices
    if tokens:
        return per_device / tokens, "tokens/s"
    convention = all_matches("conventions", row.text("tflops_convention"))
    rate, mfu = row.number("measured_tflops_per_gpu"), row.number("measured_mfu_pct")
    flops = published_flops(model, workload.seq_len, strategy, convention)
    if rate:
        return per_device * flops / (rate * TB), "TFLOP/s"
    if mfu:
        peak = convention_peak(row.text("tflops_convention"), cluster, workload)
        return (per_device * flops / (mfu / 100 * peak), "MFU") if peak else (None, "none")
    return None, "none"


def convention_peak(text: str, cluster: Cluster, workload: Workload) -> float | None:
    """Return the peak in FLOP/s that an MFU was taken of: as printed, else the device's own."""
    printed = re.search(r"denominator (\d+(?:\.\d+)?)|/ ?(\d{3,4}(?:\.\d+)?)\b", text)
    if printed:
        return float(printed[1] or printed[2]) * TB
    rate: float | None = getattr(cluster.device.matrix_flops, MATRIX_RATE[workload.precision.compute])
    return rate


def published_flops(model: Model, seq_len: int, strategy: Strategy, convention: Mapping[str, Any]) -> float:
    """Return the FLOPs of one token, forward and backward, as `convention` counts them.

    Source: Narayanan et al. 2021 (arXiv:2104.04473), section 5.1, generalised to grouped heads, gated and
    routed feed-forward and latent attention: two FLOPs per weight and token, three times for forward and
    backward, four with full recompute; attention over the whole square unless the convention halves it; and
    logits; each multi-token-prediction layer with its projection of 2h to h and its logits.
    """
    if convention.get("formula") == "parameters":
        passes = 4.0 if convention.get("recompute") else 3.0
        return passes * 2.0 * 12.0 * model.num_layers * model.hidden_size**2
    halved = convention.get("attention") == "half"
    forward = sum(layer_flops(layer, model.hidden_size, seq_len, halved=halved) for layer in model.layers)
    logits = 2.0 * model.hidden_size * model.vocab_size
    if model.num_mtp_layers:
        ahead = model.mtp_layer or model.layers[-1]
        extra = layer_flops(ahead, model.hidden_size, seq_len, halved=halved)
        forward += model.num_mtp_layers * (extra + 4.0 * model.hidden_size**2 + logits)
    passes = 4.0 if convention.get("recompute") and strategy.recompute.granularity == "full" else 3.0
    return passes * forward + 3.0 * logits


def layer_flops(layer: Layer, hidden: int, seq_len: int, *, halved: bool) -> float:
    """Return the forward FLOPs of one token in `layer`."""
    attention = (
        0.0 if layer.attention is None else _attention_flops(layer.attention, hidden, seq_len, halved=halved)
    )
    return attention + (0.0 if layer.ffn is None else _ffn_flops(layer.ffn, hidden))


def _attention_flops(attention: Attention, hidden: int, seq_len: int, *, halved: bool) -> float:
    heads = attention.num_heads
    if isinstance(attention, FullAttention):
        width = attention.head_dim
        weights = hidden * width * (2 * heads + 2 * attention.num_kv_heads)
        keys = min(seq_len, attention.window or seq_len)
        score_width = 2 * width
    elif isinstance(attention, LatentAttention):
        query = attention.qk_nope_head_dim + attention.qk_rope_head_dim
        rank, value = attention.q_lora_rank, attention.v_head_dim
        weights = heads * query * (rank or hidden) + (hidden * rank if rank else 0)
        weights += hidden * (attention.kv_lora_rank + attention.qk_rope_head_dim)
        weights += (
            attention.kv_lora_rank * heads * (attention.qk_nope_head_dim + value) + heads * value * hidden
        )
        keys, score_width = seq_len, query + value
    else:
        inner, keyed = heads * attention.value_head_dim, attention.num_key_heads * attention.key_head_dim
        weights = hidden * ((3 if attention.output_gate else 2) * inner + 2 * keyed)
        keys, score_width = attention.chunk_size, attention.key_head_dim + attention.value_head_dim
    return 2.0 * weights + 2.0 * heads * score_width * keys * (0.5 if halved else 1.0)


def _ffn_flops(ffn: Ffn, hidden: int) -> float:
    matrices = 3 if ffn.gated else 2
    if isinstance(ffn, DenseFfn):
        return 2.0 * hidden * ffn.ffn_hidden_size * matrices
    space = ffn.latent_size or hidden
    experts = 2.0 * space * ffn.top_k * ffn.ffn_hidden_size * matrices
    shared = 2.0 * hidden * ffn.shared_ffn_hidden_size * matrices
    return experts + shared + 2.0 * hidden * (ffn.num_experts + 2 * ffn.latent_size)

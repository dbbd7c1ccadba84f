"""The formulas of the Primus projection documentation, one by one.

Nothing here knows a model's layers: `components` applies these to them, `preset` adds up. Parameters are
elements, activations bytes of one micro-batch in bf16.
"""

from __future__ import annotations

from forescale.formula import formula
from forescale.numeric import Numeric

DOCUMENT = "Primus projection documentation"
_PARAMETERS = f"{DOCUMENT}, Per-Component Parameter Formulas"
_ACTIVATIONS = f"{DOCUMENT}, Per-Component Activation Formulas"
_PIPELINE = f"{DOCUMENT}, Pipeline Schedule Memory Scaling"
BF16 = 2.0


@formula(unit="1", source=f"{_PARAMETERS}: Embedding, Output Layer")
def primus_vocabulary_parameters(*, vocab_size: Numeric, hidden_size: Numeric) -> Numeric:
    """V·H, V padded."""
    return vocab_size * hidden_size


@formula(unit="1", source=f"{_PARAMETERS}: LayerNorm")
def primus_norm_parameters(*, hidden_size: Numeric) -> Numeric:
    """2·H: gamma and beta, also of models whose norm has no beta."""
    return 2.0 * hidden_size


@formula(unit="1", source=f"{_PARAMETERS}: Attention (standard)")
def primus_attention_parameters(
    *, hidden_size: Numeric, num_heads: Numeric, num_kv_heads: Numeric, head_dim: Numeric
) -> Numeric:
    """2·H²·(1 + G/A)·P with P = head_dim·A / H."""
    ratio = head_dim * num_heads / hidden_size
    return 2.0 * hidden_size * hidden_size * (1.0 + num_kv_heads / num_heads) * ratio


@formula(unit="1", source=f"{_PARAMETERS}: Attention (MLA), terms as in its source")
def primus_latent_attention_parameters(
    *,
    hidden_size: Numeric,
    num_heads: Numeric,
    q_lora_rank: Numeric,
    kv_lora_rank: Numeric,
    nope: Numeric,
    rope: Numeric,
    v_head_dim: Numeric,
) -> Numeric:
    """Query + key/value + position + output; queries direct where q_lora_rank is 0."""
    query_width = num_heads * (nope + rope)
    query = q_lora_rank * (hidden_size + query_width + 1.0) if q_lora_rank > 0 else hidden_size * query_width
    key_value = kv_lora_rank * (hidden_size + num_heads * (nope + v_head_dim) + 1.0)
    return query + key_value + hidden_size * rope + num_heads * v_head_dim * hidden_size


@formula(unit="1", source=f"{_PARAMETERS}: Dense MLP, MoE MLP")
def primus_mlp_parameters(
    *, num_projections: Numeric, hidden_size: Numeric, ffn_hidden_size: Numeric, copies: Numeric
) -> Numeric:
    """copies·n_proj·H·FFN: 3 matrices with SwiGLU, 2 without; NE / EP copies of an expert."""
    return copies * num_projections * hidden_size * ffn_hidden_size


@formula(unit="1", source=f"{_PARAMETERS}: Router")
def primus_router_parameters(*, hidden_size: Numeric, num_experts: Numeric) -> Numeric:
    """H·NE."""
    return hidden_size * num_experts


@formula(unit="1", source=f"{DOCUMENT}, Base Tensor (sbh)")
def primus_tokens(*, micro_batch_size: Numeric, seq_len: Numeric, tp: Numeric, cp: Numeric) -> Numeric:
    """MBS·S / TP / CP."""
    return micro_batch_size * seq_len / tp / cp


@formula(unit="byte", source=f"{_ACTIVATIONS}: LayerNorm, Residual Add, Router; Base Tensor (sbh)")
def primus_hidden_state(*, tokens: Numeric, hidden_size: Numeric) -> Numeric:
    """Tokens·H·2: sbh."""
    return tokens * hidden_size * BF16


@formula(unit="byte", source=f"{_ACTIVATIONS}: Attention (standard, Flash Attention)")
def primus_attention_activation(
    *, tokens: Numeric, query: Numeric, key: Numeric, value: Numeric, output: Numeric, softmax: Numeric
) -> Numeric:
    """tokens·(Q + K + V + output + softmax)·2, the statistics of flash attention as wide as Q."""
    return tokens * (query + key + value + output + softmax) * BF16


@formula(unit="byte", source=f"{_ACTIVATIONS}: Dense MLP (SwiGLU), MoE MLP")
def primus_mlp_activation(
    *,
    tokens: Numeric,
    choices: Numeric,
    output_copies: Numeric,
    num_projections: Numeric,
    ffn_hidden_size: Numeric,
    hidden_size: Numeric,
) -> Numeric:
    """tokens·(choices·n_proj·FFN + copies·H)·2: what the projections make, and the result.

    The documentation keeps one result per chosen expert; the source of 2026-08 one, as they are summed.
    """
    return tokens * (choices * num_projections * ffn_hidden_size + output_copies * hidden_size) * BF16


@formula(unit="byte", source="AMD-AGI/Primus @fd1eeabb (2026-08-22), memory of the loss without fusion")
def primus_loss_activation(*, tokens: Numeric, vocab_size: Numeric) -> Numeric:
    """tokens·V/TP·4: a softmax in fp32, nothing where cross-entropy is fused (tokens already over TP)."""
    return tokens * vocab_size * 4.0


@formula(unit="1", source=f"{_PIPELINE}: VPP Overhead")
def primus_interleaving_penalty(*, pp: Numeric, vpp: Numeric) -> Numeric:
    """1 + (PP − 1) / (PP·VPP)."""
    return 1.0 + (pp - 1.0) / (pp * vpp)


@formula(unit="1", source=f"{_PIPELINE}: Gradient Accumulation Saving")
def primus_accumulation_saving(*, accumulation: Numeric, pp: Numeric) -> Numeric:
    """1 where GA ≥ PP, else GA / PP."""
    return min(accumulation / pp, 1.0)


@formula(unit="byte", source=f"{_PIPELINE}: Final Activation Memory Formula")
def primus_total_activation(*, base: Numeric, pp: Numeric, penalty: Numeric, saving: Numeric) -> Numeric:
    """Base·PP·penalty·saving: as many micro-batches in flight on every rank as on the first."""
    return base * pp * penalty * saving


@formula(unit="1", source=f"{DOCUMENT}, Param + Optimizer Memory: DP calculation")
def primus_data_parallel(*, num_devices: Numeric, ep: Numeric, pp: Numeric) -> Numeric:
    """World / (EP·PP): TP and CP ranks are counted as replicas."""
    return num_devices / (ep * pp)


@formula(unit="byte", source=f"{DOCUMENT}, Param + Optimizer Memory")
def primus_state_bytes(*, parameters: Numeric, element_bytes: Numeric, shards: Numeric) -> Numeric:
    """Parameters·bytes / shards: 2 of weights and 2 of gradients unsharded; 10 of Adam, 6 of Muon, over DP."""
    return parameters * element_bytes / shards

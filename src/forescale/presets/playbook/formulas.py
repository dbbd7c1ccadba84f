"""Memory formulas of the Ultra-Scale Playbook: parameters, states, ZeRO, activations."""

from __future__ import annotations

from forescale.formula import formula
from forescale.numeric import Numeric

PLAYBOOK = "Ultra-Scale Playbook (Hugging Face, 2025)"
_STATES = f"{PLAYBOOK}, Weights/grads/optimizer states memory"
_ZERO = f"{PLAYBOOK}, ZeRO, Memory usage revisited"


@formula(unit="1", source=f"{_STATES}: parameters of a transformer")
def playbook_parameters(*, hidden_size: Numeric, vocab_size: Numeric, num_layers: Numeric) -> Numeric:
    """h·v + L·(12h² + 13h) + 2h: tied embeddings, no positions, two matrices of 4h, all heads keyed."""
    layer = 12.0 * hidden_size * hidden_size + 13.0 * hidden_size
    return hidden_size * vocab_size + num_layers * layer + 2.0 * hidden_size


@formula(unit="byte", source=f"{_STATES}: m_params, m_grad, m_params_fp32, m_opt")
def playbook_state_bytes(*, parameters: Numeric, bytes_per_parameter: Numeric) -> Numeric:
    """N·bytes: 16 in fp32, or in bf16 with an fp32 copy of the weights; 20 with fp32 gradients beside."""
    return parameters * bytes_per_parameter


@formula(unit="byte", source=f"{_ZERO}: 2Ψ + 2Ψ + kΨ/N, 2Ψ + (2 + k)Ψ/N, (2 + 2 + k)Ψ/N")
def playbook_zero_bytes(*, parameters: Numeric, whole: Numeric, sharded: Numeric, shards: Numeric) -> Numeric:
    """Ψ·(whole + sharded / N): bytes per parameter that a stage keeps whole, and those that it shards."""
    return parameters * (whole + sharded / shards)


@formula(unit="byte", source=f"{PLAYBOOK}, Activations memory: m_act")
def playbook_activation_bytes(
    *,
    num_layers: Numeric,
    seq_len: Numeric,
    batch: Numeric,
    hidden_size: Numeric,
    num_heads: Numeric,
    scores: Numeric,
) -> Numeric:
    """L·seq·bs·h·(34 + 5·n_heads·seq/h); `scores` is 0 with selective recompute or flash attention."""
    attention = 5.0 * num_heads * seq_len / hidden_size
    return num_layers * seq_len * batch * hidden_size * (34.0 + scores * attention)

"""Architectures that mix softmax attention with attention that has a recurrent state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from forescale.errors import wrong_type
from forescale.frameworks.huggingface.decoders import experts, qwen_ffn
from forescale.frameworks.huggingface.keys import (
    HEADS,
    LINEAR,
    Keys,
    choose,
    decoder,
    dense_ffn,
    full_attention,
    named,
    num_layers,
)
from forescale.spec.attention import Attention, LinearAttention
from forescale.spec.model import Layer, Model, MoeFfn
from forescale.units import counted

PARTS: Mapping[str, str] = {
    "M": "linear_attention",
    "mamba": "linear_attention",
    "*": "full_attention",
    "attention": "full_attention",
    "-": "mlp",
    "E": "moe",
}
"""Nemotron-H's letters and older names for its kinds of layers."""


def qwen3_next(keys: Keys) -> Model:
    """Qwen3-Next, Qwen3.5-MoE: three gated delta nets to one gated softmax attention, a shared expert."""
    ffn = qwen_ffn(keys, shared=True)
    return decoder(
        keys, _gated_delta_stack(keys), ffn, tied=False, num_mtp_layers=keys.count("mtp_num_hidden_layers")
    )


def qwen3_5(keys: Keys) -> Model:
    """Qwen3.5 dense: the attention of Qwen3-Next with a dense feed-forward."""
    attention = _gated_delta_stack(keys)
    mtp = keys.count("mtp_num_hidden_layers")
    return decoder(keys, attention, dense_ffn(keys), tied=False, num_mtp_layers=mtp)


def _gated_delta_stack(keys: Keys) -> tuple[Attention, ...]:
    full = full_attention(
        keys, head_dim=256, qk_norm="head", output_gate=keys.flag("attn_output_gate", default=True)
    )
    delta = LinearAttention(
        num_heads=keys.size("linear_num_value_heads"),
        num_key_heads=keys.size("linear_num_key_heads"),
        key_head_dim=keys.size("linear_key_head_dim"),
        value_head_dim=keys.size("linear_value_head_dim"),
        conv_kernel=keys.size("linear_conv_kernel_dim", default=4),
        num_gates_per_head=2,
        num_head_parameters=2,
    )
    every = keys.size("full_attention_interval", default=4)
    return choose(
        keys, lambda kind: delta if kind in LINEAR else full, lambda i: delta if (i + 1) % every else full
    )


def minimax(keys: Keys) -> Model:
    """MiniMax-Text-01 and M1: lightning and softmax attention; `intermediate_size` is that of an expert."""
    full = full_attention(keys)
    lightning = LinearAttention(
        num_heads=keys.size(*HEADS),
        num_key_heads=keys.size(*HEADS),
        key_head_dim=full.head_dim,
        value_head_dim=full.head_dim,
        num_gates_per_head=0,
        output_norm="hidden",
        chunk_size=keys.size("block_size", default=256),
    )
    layers = num_layers(keys)
    listed = keys.items("attn_type_list", layers) or [(i + 1) % 2 for i in range(layers)]
    attention: tuple[Attention, ...] = choose(
        keys, lambda kind: lightning if kind in LINEAR else full, lambda i: full if listed[i] else lightning
    )
    shared = keys.count("shared_intermediate_size")
    moe = experts(keys, "intermediate_size", shared_ffn_hidden_size=shared)
    return decoder(keys, attention, moe, tied=False)


def nemotron_h(keys: Keys) -> Model:
    """Nemotron-H and Nemotron 3: each layer is one part, Mamba-2, attention, dense or routed.

    Mamba-2 is a gated linear attention: B and C are keys and queries of `n_groups` heads, x the values,
    dt the decay; A, D and the bias of dt are one number per head.
    """
    kinds = _one_part_layers(keys)
    full = full_attention(keys, head_dim=keys.optional_size("attention_head_dim"), rotary=False)
    mixers = {
        "full_attention": full,
        "linear_attention": _mamba2(keys) if "linear_attention" in kinds else None,
    }
    mlps = {
        "mlp": dense_ffn(keys, gated=False, bias=keys.flag("mlp_bias", default=False))
        if "mlp" in kinds
        else None,
        "moe": _nemotron_experts(keys) if "moe" in kinds else None,
    }
    ahead = _one_layer_ahead(keys)
    return decoder(
        keys,
        [mixers.get(kind) for kind in kinds],
        [mlps.get(kind) for kind in kinds],
        tied=False,
        num_norms=1,
        num_mtp_layers=keys.count("num_nextn_predict_layers"),
        mtp_layer=Layer(attention=mixers[ahead[0]], ffn=mlps[ahead[1]]) if ahead else None,
    )


def _one_part_layers(keys: Keys) -> Sequence[str]:
    """Return the kind of each layer, from `layers_block_type` or the letters of `hybrid_override_pattern`."""
    listed = keys.items("layers_block_type") or str(keys.get("hybrid_override_pattern") or "")
    kinds = [PARTS.get(kind, kind) for kind in listed]
    if len(kinds) != num_layers(keys) or not set(kinds) <= set(PARTS.values()):
        allowed = f"the name of each of the {counted(num_layers(keys), 'layer')} by one of M, *, - and E"
        keys.refuse(wrong_type("'hybrid_override_pattern'", listed, allowed))
    return kinds


def _one_layer_ahead(keys: Keys) -> Sequence[str]:
    """Return the two parts of a layer that predicts further, named as those of the decoder are; none if it has none."""
    name = "mtp_layers_block_type"
    listed = keys.items(name)
    if listed is None:
        name, listed = "mtp_hybrid_override_pattern", str(keys.get("mtp_hybrid_override_pattern") or "")
    ahead = [PARTS.get(kind, kind) for kind in listed]
    if ahead and (
        len(ahead) != 2
        or ahead[0] not in ("full_attention", "linear_attention")
        or ahead[1] not in ("mlp", "moe")
    ):
        keys.refuse(wrong_type(f"{name!r}", listed, 'of M or *, then of - or E, such as "*E"'))
    return ahead


def _mamba2(keys: Keys) -> LinearAttention:
    return LinearAttention(
        num_heads=keys.size("mamba_num_heads"),
        num_key_heads=keys.size("n_groups"),
        key_head_dim=keys.size("ssm_state_size"),
        value_head_dim=keys.size("mamba_head_dim"),
        conv_kernel=keys.size("conv_kernel", default=4),
        conv_bias=keys.flag("use_conv_bias", default=True),
        num_head_parameters=3,
        fused_scan=True,
        output_norm="hidden",
        chunk_size=keys.size("chunk_size", default=128),
    )


def _nemotron_experts(keys: Keys) -> MoeFfn:
    shared = keys.count("n_shared_experts") * keys.count("moe_shared_expert_intermediate_size")
    latent = keys.count("moe_latent_size")
    return experts(keys, gated=False, shared_ffn_hidden_size=shared, score_bias=True, latent_size=latent)


HYBRID: Mapping[str, Callable[[Keys], Model]] = named(
    {
        minimax: "minimax minimax_m1 minimax_text_01",
        nemotron_h: "nemotron_h",
        qwen3_next: "qwen3_5_moe_text qwen3_next",
        qwen3_5: "qwen3_5_text",
    }
)

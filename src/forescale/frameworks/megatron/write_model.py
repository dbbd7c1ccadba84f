"""A model as Megatron's settings: what `model.py` reads, the other way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

from forescale.frameworks.megatron.model import EXPANSION
from forescale.spec.model import (
    DenseFfn,
    FullAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Model,
    MoeFfn,
)

Settings: TypeAlias = dict[str, Any]
"""Values by Megatron's own keys."""
T = TypeVar("T")


def model_settings(model: Model, *, seq_len: int) -> Settings:
    """Return the settings that describe a model; of parts that differ from layer to layer the commonest counts."""
    hybrid = hybrid_pattern(model)
    return {
        "num_layers": None if hybrid else model.num_layers,
        "hybrid_layer_pattern": hybrid,
        "hidden_size": model.hidden_size,
        **_ffn(model),
        **_attention(model),
        **(_mamba(model) if hybrid else _linear(model)),
        "vocab_size": model.vocab_size,
        "make_vocab_size_divisible_by": model.vocab_multiple,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "normalization": "RMSNorm" if model.norm == "rms" else "LayerNorm",
        "position_embedding_type": _positions(model),
        "max_position_embeddings": model.learned_positions or max(seq_len, model.max_seq_len),
        "mtp_num_layers": None if hybrid else model.num_mtp_layers or None,
    }


def commonest(parts: Sequence[T]) -> T | None:
    """Return what most of the parts are; None of none."""
    return Counter(parts).most_common(1)[0][0] if parts else None


def pattern(flags: Sequence[int]) -> str:
    """Return a list of 0 and 1 as Megatron takes it: [0]*3+[1]*58."""
    return "+".join(f"[{flag}]*{len(list(run))}" for flag, run in groupby(flags))


def of_kind(model: Model, part: str, kind: type[T]) -> list[T]:
    """Return the attention or feed-forward parts of one kind, layer by layer."""
    parts = [getattr(layer, part) for layer in model.layers]
    return [each for each in parts if isinstance(each, kind)]


def _ffn(model: Model) -> Settings:
    dense = commonest(of_kind(model, "ffn", DenseFfn))
    moe = commonest(of_kind(model, "ffn", MoeFfn))
    either = dense or moe
    if either is None:
        return {}
    settings: Settings = {
        "ffn_hidden_size": either.ffn_hidden_size,
        "swiglu": either.gated,
        "add_bias_linear": either.bias,
    }
    return settings | ({} if moe is None else _experts(model, moe))


def _experts(model: Model, moe: MoeFfn) -> Settings:
    routed = [int(isinstance(layer.ffn, MoeFfn)) for layer in model.layers]
    return {
        "num_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_latent_size": moe.latent_size or None,
        "moe_shared_expert_intermediate_size": moe.shared_ffn_hidden_size or None,
        "moe_shared_expert_gate": moe.shared_gate,
        "moe_router_score_function": "sigmoid" if moe.score_bias else None,
        "moe_router_enable_expert_bias": moe.score_bias,
        "moe_router_num_groups": moe.num_groups or None,
        "moe_router_group_topk": moe.top_groups or None,
        "moe_layer_freq": None if all(routed) or hybrid_pattern(model) else pattern(routed),
    }


def _attention(model: Model) -> Settings:
    latent = commonest(of_kind(model, "attention", LatentAttention))
    if latent is not None:
        return {
            "num_attention_heads": latent.num_heads,
            "multi_latent_attention": True,
            "q_lora_rank": latent.q_lora_rank,
            "kv_lora_rank": latent.kv_lora_rank,
            "qk_head_dim": latent.qk_nope_head_dim,
            "qk_pos_emb_head_dim": latent.qk_rope_head_dim,
            "v_head_dim": latent.v_head_dim,
            "qk_layernorm": True,
        }
    full = commonest(of_kind(model, "attention", FullAttention))
    if full is None:
        return {"num_attention_heads": 1, "kv_channels": model.hidden_size}
    grouped = full.num_kv_heads != full.num_heads
    biased = _ffn(model).get("add_bias_linear", False)
    return {
        "num_attention_heads": full.num_heads,
        "group_query_attention": grouped,
        "num_query_groups": full.num_kv_heads if grouped else None,
        "kv_channels": full.head_dim,
        "add_qkv_bias": full.qkv_bias and not biased,
        "qk_layernorm": full.qk_norm == "head",
        "softmax_type": "learnable" if full.sinks else None,
        "attention_output_gate": full.output_gate,
        **_window(model),
    }


def _window(model: Model) -> Settings:
    """Return the sliding window and which layers have it."""
    layers = of_kind(model, "attention", FullAttention)
    windows = [each.window for each in layers if each.window is not None]
    if not windows or len(layers) < model.num_layers:
        return {}
    slides = [int(each.window is not None) for each in layers]
    return {
        "window_size": f"{(commonest(windows) or 1) - 1},0",
        "window_attn_skip_freq": None if all(slides) else pattern(slides),
    }


def _linear(model: Model) -> Settings:
    """Return the linear attention (gated delta net) and which layers have it."""
    linear = commonest(of_kind(model, "attention", LinearAttention))
    if linear is None:
        return {}
    flags = [int(isinstance(layer.attention, LinearAttention)) for layer in model.layers]
    return {
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": pattern(flags),
        "linear_num_value_heads": linear.num_heads,
        "linear_num_key_heads": linear.num_key_heads,
        "linear_key_head_dim": linear.key_head_dim,
        "linear_value_head_dim": linear.value_head_dim,
        "linear_conv_kernel_dim": linear.conv_kernel,
    }


def hybrid_pattern(model: Model) -> str | None:
    """Return the letters of a model whose layers are one part each (M * - E); None of other models.

    Those of layers that predict further tokens, which may be two parts, stand behind them.
    """
    letters = [_letter(layer) for layer in model.layers]
    if not all(letters):
        return None
    ahead = model.mtp_layer or model.layers[-1]
    parts = ((ahead.attention, None), (None, ahead.ffn))
    halves = [_letter(Layer(attention=mixer, ffn=mlp, num_norms=1)) or "" for mixer, mlp in parts]
    return "".join(map(str, letters)) + f"/{''.join(halves)}" * model.num_mtp_layers


def _letter(layer: Layer) -> str | None:
    if layer.num_norms != 1 or (layer.attention is None) == (layer.ffn is None):
        return None
    match layer.attention or layer.ffn:
        case LinearAttention():
            return "M"
        case FullAttention():
            return "*"
        case DenseFfn():
            return "-"
        case MoeFfn():
            return "E"
        case _:
            return None


def _mamba(model: Model) -> Settings:
    mamba = commonest(of_kind(model, "attention", LinearAttention))
    if mamba is None:
        return {}
    derived = mamba.num_heads * mamba.value_head_dim == EXPANSION * model.hidden_size
    return {
        "mamba_num_heads": None if derived else mamba.num_heads,
        "mamba_head_dim": mamba.value_head_dim,
        "mamba_num_groups": mamba.num_key_heads,
        "mamba_state_dim": mamba.key_head_dim,
    }


def _positions(model: Model) -> str:
    if model.learned_positions:
        return "learned_absolute"
    full = of_kind(model, "attention", FullAttention)
    latent = of_kind(model, "attention", LatentAttention)
    return "rope" if latent or any(each.rotary for each in full) else "none"

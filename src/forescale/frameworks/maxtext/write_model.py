"""A model in MaxText's keys: by name where MaxText has it, else by a style of decoder block and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from forescale.errors import SpecError
from forescale.frameworks.maxtext.keys import base_values, presets
from forescale.frameworks.maxtext.model import read_model, same
from forescale.frameworks.settings import Settings
from forescale.spec.model import DenseFfn, FullAttention, LatentAttention, LinearAttention, Model, MoeFfn
from forescale.spec.workload import Trainable

EXTRAS = ("mtp_num_layers", "n_routing_groups", "topk_routing_group")
"""Keys that no model of MaxText's sets, and that may go over any."""


PRE_NORMS = 2
"""Norms of a layer that has none behind its parts."""


def model_keys(model: Model) -> dict[str, Any]:
    """Return the keys that describe a model.

    Raises
    ------
    SpecError
        If MaxText has no style of block for its attention.
    """
    sizes = _sizes(model)
    extras = {key: sizes[key] for key in EXTRAS if key in sizes}
    for name, entry in sorted(
        presets().items(), key=lambda item: (item[1].get("catalogue") != model.name, len(item[0]))
    ):
        values = {**base_values(), **entry["keys"], **extras}
        alike = values["base_emb_dim"] == model.hidden_size and values["vocab_size"] == model.vocab_size
        if alike and same(_built(name, tuple(extras.items())), model):
            return {"model_name": name, **extras}
    return {key: value for key, value in sizes.items() if value != base_values().get(key) or key in _NAMED}


def tower_keys(model: Model, trainable: Trainable) -> dict[str, Any]:
    """Return the keys that train a model with its vision tower, which MaxText builds of models that it names.

    Raises
    ------
    SpecError
        If it has no tower of this model.
    """
    names = {entry.get("catalogue"): name for name, entry in presets().items() if name.startswith(TOWERS)}
    if model.name not in names:
        msg = f"MaxText has no tower of {model.name}; it has those of {', '.join(filter(None, names))}"
        raise SpecError(msg)
    frozen = "vision" in trainable.frozen
    return {"model_name": names[model.name], "use_multimodal": True, "freeze_vision_encoder_params": frozen}


TOWERS = ("gemma3-", "llama4-")
"""How the names of MaxText's models begin whose towers are in the catalogue (layers/encoders.py)."""
_NAMED = ("decoder_block", "base_emb_dim", "base_num_query_heads", "base_num_kv_heads", "head_dim", "base_mlp_dim",
          "base_num_decoder_layers", "vocab_size")  # fmt: skip
"""Keys that are written even where base.yml says the same."""


@cache
def _built(name: str, extras: tuple[tuple[str, Any], ...]) -> Model:
    return read_model(Settings({**base_values(), **presets()[name]["keys"], **dict(extras)}, name), name)


def _sizes(model: Model) -> dict[str, Any]:
    moe = model.moe
    dense = [layer.ffn for layer in model.layers if isinstance(layer.ffn, DenseFfn)]
    gated = moe.gated if moe is not None else all(ffn.gated for ffn in dense)
    widest = (
        dense[0].ffn_hidden_size if dense else moe.ffn_hidden_size if moe is not None else model.hidden_size
    )
    values: dict[str, Any] = {
        "decoder_block": _block(model),
        "base_emb_dim": model.hidden_size,
        **_attention(model),
        "base_mlp_dim": widest,
        "base_num_decoder_layers": model.num_layers,
        "mlp_activations": ["silu", "linear"] if gated else ["gelu"],
        "vocab_size": model.vocab_size,
        "logits_via_embedding": model.tied_embeddings,
        **(_experts(model, moe) if moe is not None else {}),
    }
    optional = {
        "mtp_num_layers": model.num_mtp_layers,
        "trainable_position_size": model.learned_positions,
        "mlp_bias": any(layer.ffn.bias for layer in model.layers if layer.ffn is not None),
        "use_post_attn_norm": model.layers[0].num_norms > PRE_NORMS,
        "use_post_ffw_norm": model.layers[0].num_norms > PRE_NORMS,
    }
    return values | {key: value for key, value in optional.items() if value}


def _block(model: Model) -> str:
    """Return the style of decoder block that has most of a model's features."""
    first = model.layers[-1].attention
    if any(layer.attention is None or layer.ffn is None or layer.parallel for layer in model.layers):
        msg = f"MaxText has no style of block for {model.name}, whose layers are of one part or of two side by side"
        raise SpecError(msg)
    if isinstance(first, LatentAttention):
        return "deepseek"
    if any(isinstance(layer.attention, LinearAttention) for layer in model.layers):
        return "qwen3_next"
    assert isinstance(first, FullAttention)
    if first.sinks:
        return "gpt_oss"
    if model.norm == "layer" or model.learned_positions:
        return "gpt3"
    if model.moe is not None:
        return (
            "qwen3_moe"
            if first.qk_norm == "head"
            else "deepseek"
            if model.moe.shared_ffn_hidden_size
            else "mixtral"
        )
    return _dense_block(first)


def _dense_block(attention: FullAttention) -> str:
    if attention.qk_norm == "head":
        return "qwen3"
    if attention.qk_norm == "hidden":
        return "olmo3"
    return "qwen2" if attention.qkv_bias else "llama2"


def _attention(model: Model) -> dict[str, Any]:
    latent = next(
        (layer.attention for layer in model.layers if isinstance(layer.attention, LatentAttention)), None
    )
    if latent is not None:
        return {
            "attention_type": "mla",
            "base_num_query_heads": latent.num_heads,
            "base_num_kv_heads": latent.num_heads,
            "q_lora_rank": latent.q_lora_rank or 0,
            "kv_lora_rank": latent.kv_lora_rank,
            "qk_nope_head_dim": latent.qk_nope_head_dim,
            "qk_rope_head_dim": latent.qk_rope_head_dim,
            "v_head_dim": latent.v_head_dim,
        }
    full = [layer.attention for layer in model.layers if isinstance(layer.attention, FullAttention)]
    delta = next(
        (layer.attention for layer in model.layers if isinstance(layer.attention, LinearAttention)), None
    )
    if not full:
        msg = f"MaxText has no style of block for {model.name}, which has no softmax attention"
        raise SpecError(msg)
    one = full[-1]
    window = next((each.window for each in full if each.window is not None), None)
    return {
        "base_num_query_heads": one.num_heads,
        "base_num_kv_heads": one.num_kv_heads,
        "head_dim": one.head_dim,
        "use_qk_norm": one.qk_norm != "none",
        "attention_bias": one.qkv_bias,
        "attention_sink": one.sinks,
        "sliding_window_size": window or 0,
        **({"attention_type": "local_sliding"} if all(each.window is not None for each in full) else {}),
        **({} if delta is None else _delta(model, delta)),
    }


def _delta(model: Model, delta: LinearAttention) -> dict[str, Any]:
    softmax = [
        index + 1 for index, layer in enumerate(model.layers) if isinstance(layer.attention, FullAttention)
    ]
    return {
        "inhomogeneous_layer_cycle_interval": softmax[0],
        "gdn_num_value_heads": delta.num_heads,
        "gdn_num_key_heads": delta.num_key_heads,
        "gdn_key_head_dim": delta.key_head_dim,
        "gdn_value_head_dim": delta.value_head_dim,
        "gdn_conv_kernel_dim": delta.conv_kernel,
        "gdn_chunk_size": delta.chunk_size,
    }


def _experts(model: Model, moe: MoeFfn) -> Mapping[str, Any]:
    first = next(index for index, layer in enumerate(model.layers) if isinstance(layer.ffn, MoeFfn))
    shared, rest = divmod(moe.shared_ffn_hidden_size, moe.ffn_hidden_size)
    values = {
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "base_moe_mlp_dim": moe.ffn_hidden_size,
        "shared_experts": shared + (rest > 0),
        "first_num_dense_layers": first,
        "routed_bias": moe.score_bias or moe.router_bias,
    }
    groups = (
        {"n_routing_groups": moe.num_groups, "topk_routing_group": moe.top_groups} if moe.num_groups else {}
    )
    return values | groups

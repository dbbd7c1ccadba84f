"""Dimensions, flags and kinds of layers that a configuration of transformers describes.

`scripts/eager_types.py` uses these functions to record a type, and `recorded` to find the recording of a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Config: TypeAlias = Mapping[str, Any]
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "h": ("hidden_size", "n_embd", "d_model"),
    "f": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "a": ("num_attention_heads", "n_head", "n_heads"),
    "k": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "d": ("head_dim", "head_size", "attention_head_dim"),
    "v": ("vocab_size",),
    "p": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "w": ("sliding_window",),
    "e": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "t": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
    "m": ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size"),
    "n": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "y": ("shared_expert_intermediate_size", "shared_intermediate_size", "intermediate_size_mlp"),
    "q": ("q_lora_rank",),
    "c": ("kv_lora_rank",),
    "o": ("qk_nope_head_dim",),
    "r": ("qk_rope_head_dim",),
    "u": ("v_head_dim",),
    "g": ("n_group",),
    "l": ("topk_group",),
    "x": ("word_embed_proj_dim",),
    "z": ("rotary_dim",),
}
"""Symbols of dimensions, and the keys that give them."""
ROTARY: Final = "z"
"""Symbol of the dimensions of a head that are rotated, where that is a part of them."""
SCALARS: Final = (bool, int, float, str, type(None))
FLAGS: Final = (
    "tie_word_embeddings", "attention_bias", "attention_out_bias", "qkv_bias", "use_qkv_bias",
    "add_qkv_bias", "mlp_bias", "use_bias", "bias", "enable_bias", "use_qk_norm", "qk_layernorm",
    "norm_topk_prob", "use_parallel_residual", "parallel_attn", "do_layer_norm_before", "alibi",
)  # fmt: skip
"""Keys that switch operators on and off."""
MAYBE: Final = ("q_lora_rank", "final_logit_softcapping", "attn_logit_softcapping", "n_shared_experts")
"""Keys whose null switches operators off."""
DROPOUTS: Final = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "hidden_dropout", "attention_dropout",
                   "residual_dropout")  # fmt: skip
SLIDING: Final = "sliding_attention"


OTHERS: Final = (
    "model_type", "num_hidden_layers", "n_layer", "n_layers", "num_layers", "rope_parameters",
    "partial_rotary_factor", "rotary_pct", "layer_types", "no_rope_layers", "mlp_layer_types", "moe_layers",
    "first_k_dense_replace", "mlp_only_layers", "decoder_sparse_step", "moe_layer_start_index",
    "moe_layer_end_index", "moe_layer_interval", "use_sliding_window", "max_window_layers",
    "sliding_window_pattern", "_sliding_window_pattern", "hidden_act", "hidden_activation",
    "activation_function",
)  # fmt: skip
"""Further keys that say which operators run."""
RELEVANT: Final = frozenset(
    [*OTHERS, *FLAGS, *MAYBE, *DROPOUTS, *(key for keys in KEYS.values() for key in keys)]
)


def essential(config: Config) -> dict[str, Any]:
    """Return the keys of a configuration that say which operators run, sorted."""
    return {key: config[key] for key in sorted(RELEVANT & set(config))}


def key_of(symbol: str, config: Config) -> str | None:
    """Return the key of a configuration that gives a dimension."""
    return next((key for key in KEYS[symbol] if key in config), None)


def dimensions_of(config: Config, symbols: Mapping[str, str]) -> dict[str, int]:
    """Return the dimensions that a complete configuration has; `symbols` are the keys that give them."""
    values = {symbol: config.get(key) for symbol, key in symbols.items()}
    heads, width = values.get("a"), values.get("h")
    if "k" in symbols and values["k"] is None:
        values["k"] = heads
    if "f" in symbols and values["f"] is None and width:
        values["f"] = 4 * width
    if "x" in symbols and not values["x"]:
        values["x"] = width
    if not values.get("d") and heads and width:
        values["d"] = width // heads
    share = rotary_share(config)
    if share != 1.0 and values.get("d"):
        values[ROTARY] = int((values["d"] or 0) * share)
    return {symbol: int(value) for symbol, value in values.items() if value}


def rotary_share(config: Config) -> float:
    """Return the fraction of a head's dimensions that rotary embeddings rotate (0 to 1)."""
    rope = config.get("rope_parameters")
    value = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    if value is None:
        value = config.get("partial_rotary_factor", config.get("rotary_pct"))
    return 1.0 if value is None else float(value)


def flags_of(config: Config, dimensions: Mapping[str, int], seq_len: int) -> dict[str, Any]:
    """Return what switches operators of a complete configuration on and off."""
    flags: dict[str, Any] = {key: bool(config[key]) for key in FLAGS if key in config}
    flags |= {key: config[key] is not None for key in MAYBE if key in config}
    dropouts = [config[key] for key in DROPOUTS if key in config]
    if dropouts:
        flags["dropout"] = any(dropouts)
    if "k" in dimensions:
        one = dimensions["k"] == 1 < dimensions["a"]
        flags["grouped_heads"] = "one" if one else dimensions["k"] != dimensions["a"]
    if "x" in dimensions:
        flags["projected"] = dimensions["x"] != dimensions["h"]
    flags["window"] = bool(config.get("sliding_window")) and seq_len > config["sliding_window"]
    return flags


def layer_labels(config: Config, count: int) -> tuple[str, ...]:
    """Return the kind of each layer: its attention, whether it rotates, and whether it has experts."""
    types, no_rope = config.get("layer_types"), config.get("no_rope_layers")
    experts = _experts(config, count)
    return tuple(
        " ".join(
            part
            for part in (
                str(types[index]) if isinstance(types, Sequence) and len(types) > index else "full_attention",
                "rope" if not isinstance(no_rope, Sequence) or not no_rope or no_rope[index] else "no_rope",
                "experts" if experts[index] else "dense",
            )
        )
        for index in range(count)
    )


def _experts(config: Config, count: int) -> list[bool]:
    """Return which layers have experts."""
    key = key_of("e", config)
    if key is None or not config[key]:
        return [False] * count
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, Sequence) and len(kinds) >= count:
        return [kind != "dense" for kind in kinds[:count]]
    if isinstance(routed := config.get("moe_layers"), Sequence):
        return [index in routed for index in range(count)]
    start = config.get("first_k_dense_replace", config.get("moe_layer_start_index")) or 0
    step = config.get("decoder_sparse_step") or config.get("moe_layer_interval") or 1
    dense = config.get("mlp_only_layers") or ()
    return [index >= start and (index + 1) % step == 0 and index not in dense for index in range(count)]

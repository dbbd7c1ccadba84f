"""The model that MaxText's keys describe, by its style of decoder block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from forescale.errors import nearest, unknown_name, wrong_type
from forescale.frameworks.maxtext.rope import read_rope
from forescale.frameworks.settings import Settings
from forescale.spec.attention import Attention, FullAttention, LatentAttention, LinearAttention
from forescale.spec.model import USUAL_EPS, DenseFfn, Ffn, Layer, Model, MoeFfn
from forescale.spec.rope import PLAIN_ROPE

GATED = 2
"""Activations of a feed-forward whose product is its gate."""
LOCAL_LAYERS: Mapping[str, int] = {"gemma2": 2, "gpt_oss": 2, "olmo3": 4, "gemma3": 6, "gemma4": 6}
"""Of so many layers all but the last see a window (models/gemma2.py and others)."""
BLOCKS = (
    "default", "llama2", "mistral", "mixtral", "deepseek", "deepseek4", "gemma", "gemma2", "gemma3", "gemma4",
    "gemma4_small", "qwen2", "qwen3", "qwen3_moe", "qwen3_custom_moe", "qwen3_next", "qwen3_5", "gpt3", "gpt_oss",
    "simple", "simple_mlp", "llama4", "olmo3", "envy",
)  # fmt: skip
"""Styles of decoder block (common/common_types.py, DecoderBlockType)."""
HYBRID = ("qwen3_next", "qwen3_5")
"""Blocks that mix gated delta nets with gated softmax attention."""
PARTS: Mapping[str, str] = {
    "use_indexer": "the indexer of sparse attention",
    "engram_layers": "tables of n-grams (engram)",
    "hidden_size_per_layer_input": "an embedding for each layer",
    "num_kv_shared_layers": "keys and values that layers share",
    "share_kv_projections": "one projection for keys and values",
    "moe_expert_input_dim": "experts of another width than the residual",
    "first_num_hash_layers": "layers that route by a hash",
}
"""What has no place in our description of a model, by the key that turns it on."""


def read_model(settings: Settings, name: str) -> Model:
    """Return the model; sizes are multiplied as `global_parameter_scale` says."""
    block = str(settings.get("decoder_block"))
    if block not in BLOCKS:
        close = nearest(block, BLOCKS)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        settings.refuse_key(unknown_name, "decoder_block", block, (), hint.removeprefix("; "))
    _, _, _, layer_scale = _scales(settings)
    gemma2 = LOCAL_LAYERS["gemma2"] if block == "gemma2" else 1  # its layers are counted in pairs
    depth = gemma2 * layer_scale * settings.size("base_num_decoder_layers")
    hidden = _scales(settings)[0] * settings.size("base_emb_dim")
    layers = [_layer(settings, block, index) for index in range(depth)]
    kinds = {layer: layer for layer in layers}
    gpt = block == "gpt3"
    return Model(
        name=name,
        hidden_size=hidden,
        layers=tuple(kinds[layer] for layer in layers),
        vocab_size=settings.size("vocab_size"),
        tied_embeddings=settings.flag("logits_via_embedding"),
        norm="layer" if gpt else "rms",
        norm_eps=settings.number("normalization_layer_epsilon") or USUAL_EPS,
        learned_positions=max(0, int(_number(settings, "trainable_position_size"))),
        num_mtp_layers=settings.count("mtp_num_layers", 0),
        source=settings.where,
        left_out=", ".join(_left_out(settings, block)),
    )


def same(one: Model, other: Model) -> bool:
    """Whether two language models are the same but for their name, source and what is known of their use."""
    alike = {
        "name": "",
        "source": "",
        "max_seq_len": 0,
        "vocab_multiple": 1,
        "left_out": "",
        "vision": None,
        "config": "",
    }
    return replace(one, **alike) == replace(other, **alike)


def _left_out(settings: Settings, block: str) -> list[str]:
    result = [what for key, what in PARTS.items() if _number(settings, key) > 0]
    if _number(settings, "mhc_expansion_rate") > 1:
        result.append("several streams of the residual (hyper-connections)")
    if block == "deepseek4":
        result.append("compressed attention, taken as a window")
    return result


def _number(settings: Settings, key: str) -> float:
    """Return a key whose -1, 0, false or empty list stands for nothing."""
    value = settings.get(key)
    if isinstance(value, list | tuple):
        return float(len(value))
    return float(value) if isinstance(value, int | float) else 0.0


def _scales(settings: Settings) -> tuple[int, int, int, int]:
    """Return what multiplies the hidden size, heads, feed-forward and layers (types.py, get_individual_scales)."""
    scale = settings.size("global_parameter_scale")
    power = round(math.log2(scale))
    if 2**power != scale:
        settings.refuse_key(wrong_type, "global_parameter_scale", scale, "a power of two")
    whole, rest = divmod(power, 3)
    heads = 2 ** (whole + (rest > 0))
    return 2 ** (whole + (rest > 1)), heads, heads, 2**whole


def _layer(settings: Settings, block: str, index: int) -> Layer:
    posts = block.startswith(("gemma", "envy"))
    norms = sum(posts and settings.flag(key) for key in ("use_post_attn_norm", "use_post_ffw_norm"))
    return Layer(
        attention=_attention(settings, block, index),
        ffn=_ffn(settings, block, index),
        num_norms=2 + norms,
    )


def _attention(settings: Settings, block: str, index: int) -> Attention:
    kind = settings.get("attention_type")
    if kind == "mla":
        return _latent(settings, block)
    if block in HYBRID and (index + 1) % settings.size("inhomogeneous_layer_cycle_interval"):
        return _delta(settings)
    heads, head_dim = _heads(settings, "base_num_query_heads"), settings.size("head_dim")
    cycle = LOCAL_LAYERS.get(block)
    local = cycle is not None and (index + 1) % cycle != 0
    kv_heads = _heads(settings, "base_num_kv_heads")
    if block == "gemma4" and not local:
        head_dim = settings.count("global_head_dim", 0) or head_dim
        kv_heads = settings.count("global_num_kv_heads", 0) or kv_heads
    window = (
        settings.count("sliding_window_size", 0)
        if local or block == "deepseek4" or kind == "local_sliding"
        else 0
    )
    every = _number(settings, "nope_layer_interval")
    rotary = block != "gpt3" and not (every > 0 and (index + 1) % int(every) == 0)
    if block == "llama4" and rotary:
        window = settings.count("chunk_attn_window_size", 0)
    biased = settings.flag("attention_bias") or block == "gpt3"
    return FullAttention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        window=window or None,
        qkv_bias=biased,
        output_bias=biased and block in ("gpt3", "gpt_oss"),
        qk_norm=_qk_norm(settings, block),
        sinks=settings.flag("attention_sink"),
        output_gate=block in HYBRID,
        rotary=rotary,
        rope=read_rope(settings, block, local=window > 0) if rotary else PLAIN_ROPE,
    )


def _qk_norm(settings: Settings, block: str) -> Any:  # noqa: ANN401 (one of three words)
    """Return the norm of queries and keys; Llama 4's has no weights."""
    if block == "llama4":
        settings.get("use_qk_norm")
        return "none"
    always = block in ("gemma3", "gemma4", "gemma4_small", *HYBRID)
    if not settings.flag("use_qk_norm") and not always:
        return "none"
    return "hidden" if block == "olmo3" else "head"


def _heads(settings: Settings, key: str) -> int:
    return _scales(settings)[1] * settings.size(key)


def _latent(settings: Settings, block: str) -> LatentAttention:
    return LatentAttention(
        num_heads=_heads(settings, "base_num_query_heads"),
        q_lora_rank=settings.count("q_lora_rank", 0) or None,
        kv_lora_rank=settings.size("kv_lora_rank"),
        qk_nope_head_dim=settings.size("qk_nope_head_dim"),
        qk_rope_head_dim=settings.count("qk_rope_head_dim", 0),
        v_head_dim=settings.size("v_head_dim"),
        rope=read_rope(settings, block),
    )


def _delta(settings: Settings) -> LinearAttention:
    return LinearAttention(
        num_heads=settings.size("gdn_num_value_heads"),
        num_key_heads=settings.size("gdn_num_key_heads"),
        key_head_dim=settings.size("gdn_key_head_dim"),
        value_head_dim=settings.size("gdn_value_head_dim"),
        conv_kernel=settings.count("gdn_conv_kernel_dim", 0),
        num_gates_per_head=2,
        num_head_parameters=2,
        chunk_size=settings.size("gdn_chunk_size"),
    )


def _ffn(settings: Settings, block: str, index: int) -> Ffn:
    experts = settings.count("num_experts", 1)
    step = settings.size("interleave_moe_layer_step")
    dense = index < settings.count("first_num_dense_layers", 0) or (
        block in ("llama4", "envy") and (index + 1) % step != 0
    )
    if experts <= 1 or dense:
        return DenseFfn(
            ffn_hidden_size=_widths(settings, "base_mlp_dim"),
            gated=_gated(settings),
            bias=settings.flag("mlp_bias") or block == "gpt3",
        )
    width = _widths(
        settings, "base_moe_mlp_dim" if _number(settings, "base_moe_mlp_dim") > 0 else "base_mlp_dim"
    )
    groups, taken = (int(_number(settings, key)) for key in ("n_routing_groups", "topk_routing_group"))
    limited: dict[str, Any] = {"num_groups": groups, "top_groups": taken} if 0 < taken < groups else {}
    shared = settings.count("shared_experts", 0)
    routed_bias = settings.flag("routed_bias")
    return MoeFfn(
        num_experts=experts,
        top_k=settings.size("num_experts_per_tok"),
        ffn_hidden_size=width,
        gated=_gated(settings),
        bias=settings.flag("mlp_bias"),
        limited=block == "gpt_oss",
        shared_ffn_hidden_size=shared * (_widths(settings, "base_mlp_dim") if block == "gemma4" else width),
        shared_gate=block in HYBRID,
        router_bias=routed_bias and block == "gpt_oss",
        score_bias=routed_bias and block != "gpt_oss",
        **_weights(settings, block),
        **limited,
    )


def _weights(settings: Settings, block: str) -> dict[str, Any]:
    """Return how a token's experts are weighed: most styles take the softmax of them alone (layers/moe.py)."""
    score = "sigmoid" if settings.get("routed_score_func") == "sigmoid" else "softmax"
    if block == "deepseek":
        scale = settings.number("routed_scaling_factor") or 1.0
        return {"score": score, "normalised": score == "sigmoid", "weight_scale": scale}
    return {"score": "sigmoid", "normalised": False} if block == "llama4" else {}


def _widths(settings: Settings, key: str) -> int:
    return _scales(settings)[2] * settings.size(key)


def _gated(settings: Settings) -> bool:
    named = settings.get("mlp_activations")
    if not isinstance(named, list | tuple) or not 1 <= len(named) <= GATED:
        settings.refuse_key(wrong_type, "mlp_activations", named, "a list of one or two activations")
    return len(named) == GATED

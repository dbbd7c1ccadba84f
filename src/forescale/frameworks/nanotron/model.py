"""The model of a nanotron configuration: Llama, Qwen2, Starcoder2, and LlaMoE and Mamba of its examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from forescale.errors import not_divisible, wrong_type
from forescale.frameworks.settings import Settings
from forescale.spec.attention import FullAttention, LinearAttention
from forescale.spec.model import USUAL_EPS, DenseFfn, Ffn, Layer, Model, MoeFfn
from forescale.spec.rope import PLAIN_ROPE, Rope

CONFIG = "model.model_config."
RMS_EPS = 1e-6
"""What RMS norms add to the variance where nothing is said (config/models_config.py)."""


def read_model(settings: Settings, family: str, name: str) -> Model:
    """Return the model that `model_config` describes as the class that sets `family` (`is_llama_config`) has it."""
    return replace(
        FAMILIES[family](settings),
        name=name,
        vocab_size=settings.size(f"{CONFIG}vocab_size", 32_000),
        vocab_multiple=settings.size("model.make_vocab_size_divisible_by", 1),
        source=settings.where,
    )


def _llama(settings: Settings) -> Model:
    """LlamaConfig: its classes have no biases, whatever `attention_bias` says (models/llama.py)."""
    return _decoder(settings, [_layer(settings, _attention(settings), _dense(settings))])


def _qwen(settings: Settings) -> Model:
    """Qwen2Config: biases on queries, keys and values; layers without rotary positions see all (models/qwen.py)."""
    window = settings.count(f"{CONFIG}sliding_window_size")
    biased = settings.flag(f"{CONFIG}attention_bias")
    near = replace(_attention(settings), qkv_bias=biased, window=window or None)
    every = settings.count(f"{CONFIG}no_rope_layer")
    dense, sparse = _dense(settings), _experts(settings)
    depth = settings.size(f"{CONFIG}num_hidden_layers", 32)
    routes = _routing_layers(settings, depth)
    layers = []
    for index in range(depth):
        plain = bool(every) and (index + 1) % int(every or 1) == 0
        attention = replace(near.without_positions(), window=None) if plain else near
        layers.append(_layer(settings, attention, sparse if sparse and index in routes else dense))
    return _decoder(settings, layers)


def _routing_layers(settings: Settings, depth: int) -> frozenset[int]:
    listed = settings.get(f"{CONFIG}moe_config.layers")
    if listed is None or listed == [-1]:
        return frozenset(range(depth))
    wrong = [index for index in (listed if isinstance(listed, list) else [listed]) if type(index) is not int]
    if not isinstance(listed, list) or wrong:
        settings.refuse_key(wrong_type, f"{CONFIG}moe_config.layers", listed, "a list of layers by number")
    return frozenset(listed)


def _experts(settings: Settings) -> MoeFfn | None:
    """Return the routed part; its sizes where they are not given are those of MoEConfig (nn/moe.py: softmax of all)."""
    table = f"{CONFIG}moe_config."
    if f"{CONFIG}moe_config" not in settings:
        return None
    shared = settings.flag(f"{table}enable_shared_expert")
    return MoeFfn(
        num_experts=settings.size(f"{table}num_experts", 8),
        top_k=settings.size(f"{table}top_k", 2),
        ffn_hidden_size=settings.size(f"{table}moe_intermediate_size", 1408),
        shared_ffn_hidden_size=settings.size(f"{table}shared_expert_intermediate_size", 5632)
        if shared
        else 0,
        shared_gate=shared,
        normalised=False,
    )


def _starcoder(settings: Settings) -> Model:
    """Starcoder2Config: layer norms, biases, an activation without a gate, one key/value head unless told."""
    heads = settings.size(f"{CONFIG}num_attention_heads", 16)
    grouped = settings.flag(f"{CONFIG}grouped_query")
    rotary = settings.flag(f"{CONFIG}use_rotary_embeddings", default=True)
    attention = FullAttention(
        num_heads=heads,
        num_kv_heads=settings.size(f"{CONFIG}num_kv_heads") if grouped else 1,
        head_dim=_head_dim(settings, heads, 2048),
        window=settings.count(f"{CONFIG}sliding_window_size") or None,
        qkv_bias=True,
        output_bias=True,
        rotary=rotary,
        rope=_rope(settings) if rotary else PLAIN_ROPE,
    )
    whole = settings.words(f"{CONFIG}global_attn_layers")
    hidden = settings.size(f"{CONFIG}hidden_size", 2048)
    ffn = DenseFfn(
        ffn_hidden_size=settings.size(f"{CONFIG}intermediate_size", 4 * hidden), gated=False, bias=True
    )
    depth = settings.size(f"{CONFIG}num_hidden_layers", 24)
    layers = [
        Layer(attention=replace(attention, window=None) if str(index) in whole else attention, ffn=ffn)
        for index in range(depth)
    ]
    model = _decoder(settings, layers, hidden=2048)
    eps = settings.number(f"{CONFIG}layer_norm_epsilon") or USUAL_EPS
    return replace(model, norm="layer", norm_eps=eps, tied_embeddings=True)


def _llamoe(settings: Settings) -> Model:
    """LlaMoEConfig of examples/moe: every layer routes, and `intermediate_size` is that of an expert."""
    moe = MoeFfn(
        num_experts=settings.size(f"{CONFIG}moe_num_experts", 1),
        top_k=settings.size(f"{CONFIG}num_experts_per_tok", 1),
        ffn_hidden_size=settings.size(f"{CONFIG}intermediate_size", 11_008),
        normalised=False,
    )
    return _decoder(settings, [_layer(settings, _attention(settings), moe)])


STATE, CONVOLUTION, EXPANSION = 16, 4, 2
"""Defaults of Mamba's `ssm_cfg`."""


def _mamba(settings: Settings) -> Model:
    """MambaModelConfig of examples/mamba: each channel is a head of one value.

    Time steps come from the layer's input in our description and from its convolution in Mamba's: `dt_rank` more rows
    of the input for fewer columns.
    """
    table = f"{CONFIG}ssm_cfg."
    hidden = settings.size(f"{CONFIG}d_model", 2560)
    inner = settings.size(f"{table}expand", EXPANSION) * hidden
    rank = settings.get(f"{table}dt_rank")
    attention = LinearAttention(
        num_heads=inner,
        num_key_heads=1,
        key_head_dim=settings.size(f"{table}d_state", STATE),
        value_head_dim=1,
        conv_kernel=settings.size(f"{table}d_conv", CONVOLUTION),
        conv_bias=settings.flag(f"{table}conv_bias", default=True),
        num_gates_per_head=0,
        gate_lora_rank=-(-hidden // 16) if rank in (None, "auto") else settings.size(f"{table}dt_rank"),
        num_head_parameters=settings.size(f"{table}d_state", STATE) + 2,
        output_norm="none",
        fused_scan=True,
    )
    settings.note(
        "Mamba's selective scan is described as Mamba-2's, with one value a head: times are estimates"
    )
    settings.get(f"{CONFIG}num_hidden_layers")
    return _decoder(settings, [Layer(attention=attention, ffn=None, num_norms=1)], hidden=hidden)


def _attention(settings: Settings) -> FullAttention:
    heads = settings.size(f"{CONFIG}num_attention_heads", 32)
    return FullAttention(
        num_heads=heads,
        num_kv_heads=settings.size(f"{CONFIG}num_key_value_heads", heads),
        head_dim=_head_dim(settings, heads, 4096),
        rope=_rope(settings),
    )


def _rope(settings: Settings) -> Rope:
    """Return the rotary positions; `rope_scaling` is read by none of nanotron's classes."""
    rope = Rope(base=settings.number(f"{CONFIG}rope_theta") or PLAIN_ROPE.base)
    slowed = settings.number(f"{CONFIG}rope_seq_len_interpolation_factor")
    return replace(rope, scaling="linear", factor=slowed) if slowed else rope


def _head_dim(settings: Settings, heads: int, usual: int) -> int:
    """Return the hidden size divided over the heads: nanotron has no head_dim."""
    hidden = settings.size(f"{CONFIG}hidden_size", usual)
    if hidden % heads:
        key = f"{CONFIG}hidden_size"
        settings.refuse_key(not_divisible, key, hidden, heads, settings.spell(f"{CONFIG}num_attention_heads"))
    return hidden // heads


def _dense(settings: Settings) -> DenseFfn:
    return DenseFfn(ffn_hidden_size=settings.size(f"{CONFIG}intermediate_size", 11_008))


def _layer(settings: Settings, attention: FullAttention, ffn: Ffn) -> Layer:
    settings.get(f"{CONFIG}hidden_act")
    return Layer(attention=attention, ffn=ffn)


def _decoder(settings: Settings, layers: list[Layer], hidden: int = 4096) -> Model:
    """Return the model of these layers; a single one stands for all."""
    depth = settings.size(f"{CONFIG}num_hidden_layers", 32) if len(layers) == 1 else len(layers)
    kinds = {layer: layer for layer in layers}
    return Model(
        name="",
        hidden_size=settings.size(f"{CONFIG}hidden_size", hidden),
        layers=tuple(kinds[layer] for layer in (layers * depth if len(layers) == 1 else layers)),
        tied_embeddings=settings.flag(f"{CONFIG}tie_word_embeddings"),
        norm_eps=settings.number(f"{CONFIG}rms_norm_eps") or RMS_EPS,
        max_seq_len=settings.count(f"{CONFIG}max_position_embeddings", 0),
    )


FAMILIES: Mapping[str, Callable[[Settings], Model]] = {
    "is_llama_config": _llama,
    "is_qwen2_config": _qwen,
    "is_starcoder2_config": _starcoder,
    "is_llamoe_config": _llamoe,
    "is_mamba_config": _mamba,
}
"""What reads `model_config`, by the key that tells its class."""


def family_of(config: Mapping[str, Any]) -> str:
    """Return the key that tells the class of `config`; without one nanotron takes Qwen2's (config.py, ModelArgs)."""
    return next((key for key in FAMILIES if config.get(key)), "is_qwen2_config")

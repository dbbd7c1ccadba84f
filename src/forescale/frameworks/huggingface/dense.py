"""Architectures with dense feed-forward parts: one function each, with the defaults of its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from forescale.frameworks.huggingface.keys import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    POSITIONS,
    Keys,
    decoder,
    dense_ffn,
    even_head_dim,
    four_times,
    full_attention,
    num_layers,
    windowed,
)
from forescale.spec.model import DenseFfn, FullAttention, Model


def llama(keys: Keys) -> Model:
    """Llama 1-3, Granite: gated, RMS norms, optional biases."""
    return decoder(
        keys, full_attention(keys), dense_ffn(keys, bias=keys.flag("mlp_bias", default=False)), tied=False
    )


def internlm(keys: Keys) -> Model:
    """InternLM 1 and 2: Llama with biases on the four attention projections under the key `bias`."""
    return decoder(
        keys, full_attention(keys, bias=keys.flag("bias", default=True)), dense_ffn(keys), tied=False
    )


def mistral(keys: Keys) -> Model:
    """Mistral, Ministral, Phi-3/4: Llama with an optional sliding window on every layer."""
    window = keys.optional_size("sliding_window")
    attention = windowed(keys, full_attention(keys), slides=lambda _: True, window=window)
    return decoder(keys, attention, dense_ffn(keys), tied=False)


def qwen2(keys: Keys) -> Model:
    """Qwen2, Qwen2.5 and MiMo: biases on queries, keys and values."""
    attention = qwen_windows(keys, full_attention(keys, qkv_bias=True, output_bias=False))
    return decoder(
        keys, attention, dense_ffn(keys), tied=False, num_mtp_layers=keys.count("num_nextn_predict_layers")
    )


def qwen3(keys: Keys) -> Model:
    """Qwen3 dense: norms of queries and keys per head; head_dim is 128 whatever the hidden size."""
    attention = qwen_windows(keys, full_attention(keys, head_dim=128, qk_norm="head"))
    return decoder(keys, attention, dense_ffn(keys), tied=False)


def qwen_windows(keys: Keys, full: FullAttention) -> tuple[FullAttention, ...]:
    """Return attention that slides from layer `max_window_layers` on, if `use_sliding_window` is set."""
    window = keys.optional_size("sliding_window") if keys.flag("use_sliding_window", default=False) else None
    first = keys.count("max_window_layers")
    return windowed(keys, full, slides=lambda i: i >= first, window=window)


def gemma(keys: Keys) -> Model:
    """Gemma 1: wide heads, tied embeddings."""
    return decoder(keys, full_attention(keys, head_dim=256), dense_ffn(keys), tied=True)


def gemma2(keys: Keys) -> Model:
    """Gemma 2: norms before and after each part, every other layer slides."""
    full = full_attention(keys, head_dim=256)
    attention = windowed(
        keys, full, slides=lambda i: i % 2 == 0, window=keys.size("sliding_window", default=4096)
    )
    return decoder(keys, attention, dense_ffn(keys), tied=True, num_norms=4)


def gemma3(keys: Keys) -> Model:
    """Gemma 3: as Gemma 2 with norms of queries and keys; one layer in six sees all."""
    full = full_attention(keys, head_dim=256, qk_norm="head")
    every = keys.size("sliding_window_pattern", default=6)
    window = keys.size("sliding_window", default=4096)
    attention = windowed(keys, full, slides=lambda i: (i + 1) % every != 0, window=window)
    return decoder(keys, attention, dense_ffn(keys), tied=True, num_norms=4)


def nemotron(keys: Keys) -> Model:
    """Nemotron 3 and 4: layer norms with bias, squared ReLU without a gate."""
    ffn = dense_ffn(keys, gated=False, bias=keys.flag("mlp_bias", default=False))
    return decoder(keys, full_attention(keys), ffn, tied=False, norm="layer")


def falcon(keys: Keys) -> Model:
    """Falcon: parallel parts; one key/value head, or groups and two norms in the newer form."""
    newer = keys.flag("new_decoder_architecture", default=False)
    parallel = newer or keys.flag("parallel_attn", default=True)
    heads = keys.size(*HEADS)
    single = keys.flag("multi_query", default=True)
    kv_heads = keys.size(*KV_HEADS, default=heads) if newer else (1 if single else heads)
    bias = keys.flag("bias", default=False)
    attention = FullAttention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=even_head_dim(keys),
        qkv_bias=bias,
        output_bias=bias,
        rotary=not keys.flag("alibi", default=False),
    )
    ffn = DenseFfn(ffn_hidden_size=four_times(keys, "ffn_hidden_size"), gated=False, bias=bias)
    norms = keys.size("num_ln_in_parallel_attn", default=2 if newer else 1) if parallel else 2
    return decoder(keys, attention, ffn, tied=True, num_norms=norms, parallel=parallel, norm="layer")


def opt(keys: Keys) -> Model:
    """OPT: learned positions with two extra rows; the 350M embeds more narrowly and ends without a norm."""
    bias = keys.flag("enable_bias", default=True)
    width = keys.size("word_embed_proj_dim", default=keys.size(*HIDDEN))
    final = keys.flag("do_layer_norm_before", default=True) and not keys.get("_remove_final_layer_norm")
    return decoder(
        keys,
        full_attention(keys, bias=bias, rotary=False),
        dense_ffn(keys, "ffn_dim", gated=False, bias=bias),
        tied=True,
        norm="layer",
        final_norm=final,
        learned_positions=keys.size(*POSITIONS) + 2,
        embedding_size=0 if width == keys.size(*HIDDEN) else width,
    )


def bloom(keys: Keys) -> Model:
    """BLOOM: ALiBi, biases everywhere, a norm on the embeddings."""
    ffn = DenseFfn(ffn_hidden_size=four_times(keys, "n_inner"), gated=False, bias=True)
    attention = full_attention(keys, bias=True, rotary=False)
    return decoder(keys, attention, ffn, tied=True, norm="layer", embedding_norm=True)


def gpt2(keys: Keys) -> Model:
    """GPT-2: learned positions, biases everywhere."""
    return decoder(
        keys,
        full_attention(keys, bias=True, rotary=False),
        DenseFfn(ffn_hidden_size=four_times(keys, "n_inner"), gated=False, bias=True),
        tied=True,
        norm="layer",
        learned_positions=keys.size(*POSITIONS),
    )


def gpt_neox(keys: Keys) -> Model:
    """GPT-NeoX and Pythia: parallel parts that keep a norm each."""
    parallel = keys.flag("use_parallel_residual", default=True)
    ffn = dense_ffn(keys, gated=False, bias=True)
    return decoder(keys, full_attention(keys, bias=True), ffn, tied=False, norm="layer", parallel=parallel)


def mpt(keys: Keys) -> Model:
    """MPT: weight-only layer norms, no biases; learned positions unless ALiBi replaces them."""
    attention_keys = keys.child("attn_config") or Keys({}, keys.where)
    attention_keys.refuse("qk_ln", "a layer norm with bias over queries and keys")
    heads, hidden = keys.size(*HEADS), keys.size(*HIDDEN)
    kv_heads = attention_keys.size("kv_n_heads", default=heads)
    alibi = attention_keys.flag("alibi", default=True)
    learned = keys.flag("learned_pos_emb", default=True) and not alibi
    bias = not keys.flag("no_bias", default=True)
    expansion = keys.size("expansion_ratio", default=4)
    return decoder(
        keys,
        FullAttention(
            num_heads=heads,
            num_kv_heads=1 if attention_keys.get("attn_type") == "multiquery_attention" else kv_heads,
            head_dim=even_head_dim(keys),
            qkv_bias=bias,
            output_bias=bias,
            rotary=False,
        ),
        DenseFfn(ffn_hidden_size=expansion * hidden, gated=False, bias=bias),
        tied=True,
        norm="layer" if bias else "layer_no_bias",
        learned_positions=keys.size(*POSITIONS) if learned else 0,
    )


def phi(keys: Keys) -> Model:
    """Phi-1, 1.5 and 2: parallel parts behind one norm, biases everywhere, also on the head."""
    keys.refuse("qk_layernorm", "a layer norm with bias over queries and keys")
    ffn = DenseFfn(ffn_hidden_size=four_times(keys, "intermediate_size"), gated=False, bias=True)
    attention = full_attention(keys, bias=True)
    return decoder(keys, attention, ffn, tied=False, num_norms=1, parallel=True, norm="layer", head_bias=True)


def glm(keys: Keys, num_norms: int = 2) -> Model:
    """GLM-4: biases on queries, keys and values; heads are 128 wide."""
    bias = keys.flag("attention_bias", default=True)
    attention = full_attention(keys, head_dim=128, qkv_bias=bias, output_bias=False)
    return decoder(keys, attention, dense_ffn(keys), tied=False, num_norms=num_norms)


def glm4(keys: Keys) -> Model:
    """GLM-4-0414: GLM-4 with norms before and after each part."""
    return glm(keys, num_norms=4)


def glm4v(keys: Keys) -> Model:
    """GLM-4.1V: GLM-4-0414 with heads as wide as divides the hidden size, and no key for its biases."""
    attention = full_attention(keys, qkv_bias=True, output_bias=False)
    return decoder(keys, attention, dense_ffn(keys), tied=False, num_norms=4)


def olmo2(keys: Keys) -> Model:
    """OLMo 2 and 3: norms after each part and over all heads of queries and keys; OLMo 3 slides on 3 of 4."""
    full = full_attention(keys, qk_norm="hidden")
    slides = keys.get("model_type") == "olmo3"
    window = keys.size("sliding_window", default=4096) if slides else None
    attention = windowed(keys, full, slides=lambda i: (i + 1) % 4 != 0, window=window)
    return decoder(keys, attention, dense_ffn(keys), tied=False)


def starcoder2(keys: Keys) -> Model:
    """StarCoder 2: layer norms and biases, one window on all layers."""
    bias = keys.flag("use_bias", default=True)
    full = full_attention(keys, bias=bias)
    attention = windowed(keys, full, slides=lambda _: True, window=keys.optional_size("sliding_window"))
    return decoder(keys, attention, dense_ffn(keys, gated=False, bias=bias), tied=True, norm="layer")


def cohere(keys: Keys) -> Model:
    """Command R: parallel parts behind one weight-only layer norm; the R7B slides, with rotary there only."""
    norm: Literal["none", "hidden"] = "hidden" if keys.flag("use_qk_norm", default=False) else "none"
    full = full_attention(keys, qk_norm=norm)
    window = keys.optional_size("sliding_window")
    if keys.get("model_type") == "cohere2":
        every = keys.size("sliding_window_pattern", default=4)
        seen_by_all = replace(full, rotary=False)
        attention = windowed(
            keys, seen_by_all, slides=lambda i: (i + 1) % every != 0, window=window, local=full
        )
    else:
        attention = (full,) * num_layers(keys)
    return decoder(
        keys, attention, dense_ffn(keys), tied=True, num_norms=1, parallel=True, norm="layer_no_bias"
    )


DENSE: Mapping[str, Callable[[Keys], Model]] = MappingProxyType(
    {
        "bloom": bloom,
        "cohere": cohere,
        "cohere2": cohere,
        "falcon": falcon,
        "gemma": gemma,
        "gemma2": gemma2,
        "gemma3": gemma3,
        "gemma3_text": gemma3,
        "glm": glm,
        "glm4": glm4,
        "glm4v_text": glm4v,
        "gpt2": gpt2,
        "gpt_neox": gpt_neox,
        "granite": llama,
        "internlm": internlm,
        "internlm2": internlm,
        "llama": llama,
        "mimo": qwen2,
        "ministral3": mistral,
        "mistral": mistral,
        "mpt": mpt,
        "nemotron": nemotron,
        "olmo2": olmo2,
        "olmo3": olmo2,
        "opt": opt,
        "phi": phi,
        "phi3": mistral,
        "qwen2": qwen2,
        "qwen2_5_omni_text": qwen2,
        "qwen2_5_vl": qwen2,
        "qwen2_5_vl_text": qwen2,
        "qwen2_vl": qwen2,
        "qwen2_vl_text": qwen2,
        "qwen3": qwen3,
        "qwen3_vl_text": qwen3,
        "starcoder2": starcoder2,
    }
)

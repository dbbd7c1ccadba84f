"""Architectures with dense feed-forward parts or routed experts: one function each, with the defaults of its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec.structs import replace

from forescale.errors import ReaderError, shown
from forescale.frameworks.huggingface.keys import (
    CLASSES,
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
    named,
    near_rope_of,
    num_layers,
    rope_of,
    routed,
    windowed,
)
from forescale.spec.model import (
    Attention,
    DenseFfn,
    Ffn,
    FullAttention,
    LatentAttention,
    Layer,
    Model,
    MoeFfn,
)


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
    """Gemma 3: as Gemma 2 with norms of queries and keys; one layer in six sees all, with a base of its own."""
    full = full_attention(keys, head_dim=256, qk_norm="head")
    every = keys.size("sliding_window_pattern", default=6)
    window = keys.size("sliding_window", default=4096)
    local = replace(full, rope=near_rope_of(keys, "rope_local_base_freq"))
    attention = windowed(keys, full, slides=lambda i: (i + 1) % every != 0, window=window, local=local)
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
        **({"rotary": False} if keys.flag("alibi", default=False) else {"rope": rope_of(keys)}),
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
    local = replace(full, rope=near_rope_of(keys))
    attention = windowed(keys, full, slides=lambda i: (i + 1) % 4 != 0, window=window, local=local)
    return decoder(keys, attention, dense_ffn(keys), tied=False)


def exaone4(keys: Keys) -> Model:
    """EXAONE 4: norms after each part and of queries and keys per head; three layers of four may slide."""
    attention, mtp = exaone_attention(keys), keys.count("num_nextn_predict_layers")
    return decoder(keys, attention, dense_ffn(keys), tied=False, num_mtp_layers=mtp)


def exaone_attention(keys: Keys) -> tuple[FullAttention, ...]:
    """Return attention of EXAONE 4: where some layers slide, those that see all have no rotary positions."""
    local = full_attention(keys, qk_norm="head")
    window, pattern = keys.optional_size("sliding_window"), keys.get("sliding_window_pattern")
    if window is None:
        return windowed(keys, local, slides=lambda _: False, window=None)
    letters = pattern if isinstance(pattern, str) and pattern else ""
    every = 4 if letters else keys.size("sliding_window_pattern", default=4)
    last = num_layers(keys) - 1

    def slides(layer: int) -> bool:
        return letters[layer % len(letters)] == "L" and layer < last if letters else (layer + 1) % every != 0

    seen_by_all = local.without_positions()
    return windowed(keys, seen_by_all, slides=slides, window=window, local=local)


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
        seen_by_all = full.without_positions()
        attention = windowed(
            keys, seen_by_all, slides=lambda i: (i + 1) % every != 0, window=window, local=full
        )
    else:
        attention = (full,) * num_layers(keys)
    return decoder(
        keys, attention, dense_ffn(keys), tied=True, num_norms=1, parallel=True, norm="layer_no_bias"
    )


DENSE: Mapping[str, Callable[[Keys], Model]] = named(
    {
        bloom: "bloom",
        cohere: "cohere cohere2",
        exaone4: "exaone4 exaone4_5_text",
        falcon: "falcon",
        gemma: "gemma",
        gemma2: "gemma2",
        gemma3: "gemma3 gemma3_text",
        glm: "glm",
        glm4: "glm4",
        glm4v: "glm4v_text",
        gpt2: "gpt2",
        gpt_neox: "gpt_neox",
        llama: "granite llama",
        internlm: "internlm internlm2",
        qwen2: "mimo qwen2 qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text qwen2_vl qwen2_vl_text",
        mistral: "ministral3 mistral phi3",
        mpt: "mpt",
        nemotron: "nemotron",
        olmo2: "olmo2 olmo3",
        opt: "opt",
        phi: "phi",
        qwen3: "qwen3 qwen3_vl_text",
        starcoder2: "starcoder2",
    }
)


EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
SCORES = ("softmax", "sigmoid")
TOP_K = ("num_experts_per_tok", "experts_per_token", "num_selected_experts")


def experts(keys: Keys, *size: str, **fields: Any) -> MoeFfn:  # noqa: ANN401
    """Return the routed part; `size` are the names of one expert's intermediate size."""
    width = keys.size(*(size or ("moe_intermediate_size",)))
    sizes: dict[str, Any] = {
        "num_experts": keys.size(*EXPERTS),
        "top_k": keys.size(*TOP_K),
        "ffn_hidden_size": width,
    }
    return MoeFfn(**sizes, **router(keys), **fields)


def router(keys: Keys) -> dict[str, Any]:
    """Return how an architecture weighs a token's experts."""
    usual: Mapping[str, Any] = CLASSES["router"].get(keys.get("model_type"), {})
    score = (keys.word("scoring_func") if "scoring_func" in usual else "") or usual.get(
        "scoring_func", "softmax"
    )
    if score not in SCORES:
        raise ReaderError(
            keys.where, f"the key 'scoring_func' takes {' or '.join(SCORES)}; got {shown(score)}"
        )
    sums = usual.get("norm_topk_prob", True)
    scale = keys.number("routed_scaling_factor") if "routed_scaling_factor" in usual else None
    return {
        "score": score,
        "normalised": keys.flag("norm_topk_prob", default=sums) if "norm_topk_prob" in usual else sums,
        "weight_scale": scale or usual.get("routed_scaling_factor", 1.0),
    }


def mixtral(keys: Keys) -> Model:
    """Mixtral: `intermediate_size` is that of an expert."""
    window = keys.optional_size("sliding_window")
    attention = windowed(keys, full_attention(keys), slides=lambda _: True, window=window)
    return decoder(keys, attention, experts(keys, "intermediate_size"), tied=False)


def granitemoe(keys: Keys) -> Model:
    """Granite 3 MoE: `intermediate_size` is that of an expert."""
    return decoder(keys, full_attention(keys), experts(keys, "intermediate_size"), tied=False)


def olmoe(keys: Keys) -> Model:
    """OLMoE: `intermediate_size` is that of an expert; norms over all heads of queries and keys."""
    attention = full_attention(keys, qk_norm="hidden")
    return decoder(keys, attention, experts(keys, "intermediate_size"), tied=False)


def phimoe(keys: Keys) -> Model:
    """Phi-3.5-MoE: layer norms with bias, biases on attention and head."""
    window = keys.optional_size("sliding_window")
    attention = windowed(keys, full_attention(keys), slides=lambda _: True, window=window)
    head_bias = keys.flag("lm_head_bias", default=False)
    return decoder(
        keys, attention, experts(keys, "intermediate_size"), tied=False, norm="layer", head_bias=head_bias
    )


def qwen2_moe(keys: Keys) -> Model:
    """Qwen1.5-MoE and Qwen2-MoE: biases on queries, keys and values, a gated shared expert."""
    bias = keys.flag("qkv_bias", default=True)
    attention = qwen_windows(keys, full_attention(keys, qkv_bias=bias, output_bias=False))
    return decoder(keys, attention, qwen_ffn(keys, shared=True), tied=False)


def qwen3_moe(keys: Keys) -> Model:
    """Qwen3-MoE: norms of queries and keys per head, no shared expert."""
    attention = qwen_windows(keys, full_attention(keys, qk_norm="head"))
    return decoder(keys, attention, qwen_ffn(keys, shared=False), tied=False)


def qwen_ffn(keys: Keys, *, shared: bool) -> tuple[Ffn, ...]:
    """Return Qwen's pattern: i routes if (i + 1) % decoder_sparse_step == 0, but not mlp_only_layers."""
    width = keys.count("shared_expert_intermediate_size") if shared else 0
    step = keys.size("decoder_sparse_step", default=1)
    only_dense = frozenset(keys.items("mlp_only_layers") or ())
    moe = experts(keys, shared_ffn_hidden_size=width, shared_gate=width > 0)
    return routed(keys, optional_dense(keys), moe, lambda i: (i + 1) % step == 0 and i not in only_dense)


def optional_dense(keys: Keys) -> DenseFfn | None:
    """Return the dense feed-forward of the layers that do not route, if the file gives one."""
    width = keys.optional_size("intermediate_size")
    return DenseFfn(ffn_hidden_size=width) if width else None


def deepseek(keys: Keys) -> Model:
    """DeepSeek-V2, V3, R1, Kimi K2, Moonlight: latent attention, leading dense layers, shared experts."""
    return decoder(
        keys,
        latent_attention(keys),
        deepseek_ffn(keys, score_bias=keys.get("model_type") != "deepseek_v2"),
        tied=False,
        num_mtp_layers=keys.count("num_nextn_predict_layers"),
    )


def latent_attention(keys: Keys) -> LatentAttention:
    """Return multi-head latent attention."""
    return LatentAttention(
        num_heads=keys.size(*HEADS),
        q_lora_rank=keys.optional_size("q_lora_rank"),
        kv_lora_rank=keys.size("kv_lora_rank"),
        qk_nope_head_dim=keys.size("qk_nope_head_dim"),
        qk_rope_head_dim=keys.count("qk_rope_head_dim"),
        v_head_dim=keys.size("v_head_dim"),
        rope=rope_of(keys),
        projection_bias=keys.flag("attention_bias", default=False),
    )


def deepseek_ffn(keys: Keys, *, score_bias: bool) -> tuple[Ffn, ...]:
    """Return DeepSeek's pattern: `first_k_dense_replace` dense layers, then every `moe_layer_freq` routes."""
    first, every = keys.count("first_k_dense_replace"), keys.size("moe_layer_freq", default=1)
    shared = keys.count("n_shared_experts") * keys.size("moe_intermediate_size")
    moe = experts(keys, shared_ffn_hidden_size=shared, score_bias=score_bias, **limited_groups(keys))
    return routed(keys, optional_dense(keys), moe, lambda i: i >= first and i % every == 0)


def limited_groups(keys: Keys) -> dict[str, int]:
    """Return the groups of experts of a layer whose tokens may not use all of them."""
    groups, taken = keys.count("n_group"), keys.count("topk_group")
    return {"num_groups": groups, "top_groups": taken} if 0 < taken < groups else {}


def glm4_moe(keys: Keys) -> Model:
    """GLM-4.5 and 4.6, and 4.5V: DeepSeek's experts with grouped-query attention."""
    norm: Literal["none", "head"] = "head" if keys.flag("use_qk_norm", default=False) else "none"
    bias = keys.flag("attention_bias", default=keys.get("model_type") == "glm4v_moe_text")
    return decoder(
        keys,
        full_attention(keys, qkv_bias=bias, output_bias=False, qk_norm=norm),
        deepseek_ffn(keys, score_bias=True),
        tied=False,
        num_mtp_layers=keys.count("num_nextn_predict_layers"),
    )


def exaone_moe(keys: Keys) -> Model:
    """K-EXAONE: DeepSeek's experts with the attention of EXAONE 4.

    What predicts further is a dense layer that sees all (Megatron-Bridge, models/exaone/exaone_moe).
    """
    for name in ("sliding_windows", "swiglu_limits", "mtp_layer_types"):
        keys.refuse(name, "what differs so from layer to layer")
    listed = keys.items("is_moe_layer", num_layers(keys))
    first = keys.count("first_k_dense_replace") if keys.get("first_k_dense_replace") is not None else 1
    shared = keys.count("num_shared_experts") * keys.size("moe_intermediate_size")
    moe = experts(keys, shared_ffn_hidden_size=shared, score_bias=True, **limited_groups(keys))
    dense, attention = optional_dense(keys), exaone_attention(keys)
    depth = keys.count("num_nextn_predict_layers")
    seen_by_all = next((item for item in attention if item.window is None), attention[-1])
    return decoder(
        keys,
        attention,
        routed(keys, dense, moe, lambda i: bool(listed[i]) if listed else i >= first),
        tied=False,
        num_mtp_layers=depth,
        mtp_layer=Layer(attention=seen_by_all, ffn=dense) if depth else None,
    )


def gpt_oss(keys: Keys) -> Model:
    """GPT-OSS: sinks, biases, every other layer slides; `intermediate_size` is that of an expert."""
    full = full_attention(keys, head_dim=64, bias=True, sinks=True)
    window = keys.size("sliding_window", default=128)
    attention = windowed(keys, full, slides=lambda i: i % 2 == 0, window=window)
    moe = experts(keys, "intermediate_size", bias=True, limited=True, router_bias=True)
    return decoder(keys, attention, moe, tied=False)


def grok1(keys: Keys) -> Model:
    """Grok-1: norms before and after each part, eight wide gated experts, tied embeddings."""
    moe = experts(keys, "moe_intermediate_size", "intermediate_size")
    return decoder(keys, full_attention(keys), moe, tied=True, num_norms=4)


def dbrx(keys: Keys) -> Model:
    """DBRX: weight-only layer norms; attention and expert sizes stand in nested objects."""
    attention_keys = keys.child("attn_config") or Keys({}, keys.where)
    ffn_keys = keys.child("ffn_config") or Keys({}, keys.where)
    heads = keys.size(*HEADS)
    attention = FullAttention(
        num_heads=heads,
        num_kv_heads=attention_keys.size("kv_n_heads", default=1),
        head_dim=even_head_dim(keys),
        rope=rope_of(attention_keys),
    )
    moe = MoeFfn(
        num_experts=ffn_keys.size("moe_num_experts"),
        top_k=ffn_keys.size("moe_top_k"),
        ffn_hidden_size=ffn_keys.size("ffn_hidden_size"),
    )
    return decoder(keys, attention, moe, tied=False, norm="layer_no_bias")


def minimax_m2(keys: Keys) -> Model:
    """MiniMax-M2: norms over all heads of queries and keys, sigmoid routing with a selection bias."""
    norm: Literal["none", "hidden"] = "hidden" if keys.flag("use_qk_norm", default=True) else "none"
    predicts = keys.flag("use_mtp", default=False)
    depth = keys.count("num_mtp_modules") * keys.size("mtp_transformer_layers", default=1)
    return decoder(
        keys,
        full_attention(keys, head_dim=128, qk_norm=norm),
        experts(keys, "intermediate_size", score_bias=keys.flag("use_routing_bias", default=True)),
        tied=False,
        num_mtp_layers=depth if predicts else 0,
    )


def llama4(keys: Keys) -> Model:
    """Llama 4: `intermediate_size` is that of an expert, `intermediate_size_mlp` that of a dense layer.

    Layers with rotary positions see one chunk of `attention_chunk_size`, the others see all.
    """
    expert = keys.size("intermediate_size")
    moe = experts(keys, "intermediate_size", shared_ffn_hidden_size=expert)
    step = keys.size("interleave_moe_layer_step", default=1)
    listed = keys.items("moe_layers")
    sparse = frozenset(range(step - 1, num_layers(keys), step) if listed is None else listed)
    ffn = routed(keys, dense_ffn(keys, "intermediate_size_mlp"), moe, lambda i: i in sparse)
    return decoder(keys, _llama4_attention(keys), ffn, tied=False)


def _llama4_attention(keys: Keys) -> tuple[Attention, ...]:
    keys.get("use_qk_norm")  # a norm without weights
    every = keys.size("no_rope_layer_interval", default=4)
    layers = num_layers(keys)
    rotary = keys.items("no_rope_layers", layers) or [(i + 1) % every != 0 for i in range(layers)]
    full = full_attention(keys, rotary=False)
    local = full_attention(keys)
    chunk = keys.optional_size("attention_chunk_size")
    return windowed(keys, full, slides=lambda i: bool(rotary[i]), window=chunk, local=local)


MOE: Mapping[str, Callable[[Keys], Model]] = named(
    {
        dbrx: "dbrx",
        deepseek: "deepseek_v2 deepseek_v3 kimi_k2",
        exaone_moe: "exaone_moe",
        glm4_moe: "glm4_moe glm4v_moe_text",
        gpt_oss: "gpt_oss",
        granitemoe: "granitemoe",
        grok1: "grok-1 grok1",
        llama4: "llama4 llama4_text",
        minimax_m2: "minimax_m2",
        mixtral: "mixtral",
        olmoe: "olmoe",
        phimoe: "phimoe",
        qwen2_moe: "qwen2_moe",
        qwen3_moe: "qwen3_moe qwen3_omni_moe_text qwen3_vl_moe_text",
    }
)

"""Architectures with dense feed-forward parts or routed experts: rows of architectures.json, and a few functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from forescale.errors import not_one_of
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
from forescale.frameworks.reading import packaged
from forescale.spec.attention import Attention, FullAttention, LatentAttention
from forescale.spec.model import DenseFfn, Ffn, Layer, Model, MoeFfn
from forescale.struct import Struct


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


def qwen(keys: Keys) -> Model:
    """Qwen 1: biases of queries, keys and values; intermediate_size counts gate and up together."""
    bias = not keys.flag("no_bias", default=True)
    attention = full_attention(keys, qkv_bias=True, output_bias=bias)
    size = keys.size("intermediate_size") // 2
    return decoder(keys, attention, DenseFfn(ffn_hidden_size=size, bias=bias), tied=False)


def baichuan(keys: Keys) -> Model:
    """Baichuan 1 and 2: the 13B, whose model_max_length is the only length, has ALiBi."""
    alone = keys.get("model_max_length") is not None and keys.get("max_position_embeddings") is None
    return decoder(keys, full_attention(keys, rotary=not alone), dense_ffn(keys), tied=False)


def mpt(keys: Keys) -> Model:
    """MPT: weight-only layer norms, no biases; learned positions unless ALiBi replaces them."""
    attention_keys = keys.child("attn_config") or Keys({}, keys.where)
    attention_keys.refuse_set("qk_ln", "a layer norm with bias over queries and keys")
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
        keys.refuse(not_one_of("scoring_func", score, SCORES))
    sums = usual.get("norm_topk_prob", True)
    scale = keys.number("routed_scaling_factor") if "routed_scaling_factor" in usual else None
    return {
        "score": score,
        "normalised": keys.flag("norm_topk_prob", default=sums) if "norm_topk_prob" in usual else sums,
        "weight_scale": scale or usual.get("routed_scaling_factor", 1.0),
    }


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


def exaone_moe(keys: Keys) -> Model:
    """K-EXAONE: DeepSeek's experts with the attention of EXAONE 4.

    What predicts further is a dense layer that sees all (Megatron-Bridge, models/exaone/exaone_moe).
    """
    for name in ("sliding_windows", "swiglu_limits", "mtp_layer_types"):
        keys.refuse_set(name, "what differs so from layer to layer")
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


class Row(Struct, frozen=True, kw_only=True, eq=False):
    """One architecture whose parts are those of others: its defaults, and the keys that change them.

    A value `[key, default]` is the flag `key` of the file; `[key, default, kind]` is `kind` where that flag is set, and
    "none" where it is not.
    """

    names: str
    """Values of `model_type`."""
    title: str
    """Models of this architecture."""
    attention: str | Mapping[str, Any] = MappingProxyType({})
    """Fields of full attention, or another kind: latent, exaone."""
    windows: Mapping[str, Any] | None = None
    """Layers that slide (all, even, late, or all but every n-th), the window, and how their positions differ."""
    ffn: Mapping[str, Any] = MappingProxyType({})
    """Fields of the dense feed-forward; the key `four_times` of its size has four times the hidden size as default."""
    experts: Mapping[str, Any] | None = None
    """Fields of the experts of every layer, and the keys of the size of one."""
    routed: Mapping[str, Any] | None = None
    """Rule for the layers with experts: qwen or deepseek."""
    tied: bool = False
    num_norms: int = 2
    parallel: Any = False
    norm: str = "rms"
    embedding_norm: bool = False
    head_bias: Any = False
    positions: bool = False
    """Whether positions are learned."""
    mtp: bool | str = False
    """Whether layers predict further tokens, or the flag that switches them on."""
    refuse: Mapping[str, str] = MappingProxyType({})
    """Keys that describe what a model cannot express."""

    def model(self, keys: Keys) -> Model:
        """Return the model of a file of this architecture."""
        for key, reason in self.refuse.items():
            keys.refuse_set(key, reason)
        return decoder(
            keys,
            self._attention(keys),
            self._ffn(keys),
            tied=self.tied,
            num_norms=self.num_norms,
            parallel=_value(keys, self.parallel),
            norm=self.norm,
            embedding_norm=self.embedding_norm,
            head_bias=_value(keys, self.head_bias),
            learned_positions=keys.size(*POSITIONS) if self.positions else 0,
            num_mtp_layers=self._depth(keys),
        )

    def _attention(self, keys: Keys) -> Attention | Sequence[Attention]:
        if isinstance(self.attention, str):
            return ATTENTION[self.attention](keys)
        full = full_attention(keys, **{name: _value(keys, value) for name, value in self.attention.items()})
        if (windows := self.windows) is None:
            return full
        if "base" in windows:
            return _windows(keys, full, windows, replace(full, rope=near_rope_of(keys, *windows["base"])))
        return _windows(keys, full.without_positions() if windows.get("rotary") else full, windows, full)

    def _ffn(self, keys: Keys) -> Ffn | Sequence[Ffn]:
        if self.experts is not None:
            fields = {name: _value(keys, value) for name, value in self.experts.items() if name != "size"}
            return experts(keys, *self.experts["size"], **fields)
        if self.routed is not None:
            fields = dict(self.routed)
            return ROUTED[fields.pop("by")](keys, **fields)
        fields = {name: _value(keys, value) for name, value in self.ffn.items() if name != "four_times"}
        if (key := self.ffn.get("four_times")) is not None:
            return DenseFfn(ffn_hidden_size=four_times(keys, key), **fields)
        return dense_ffn(keys, **fields)

    def _depth(self, keys: Keys) -> int:
        if not isinstance(self.mtp, str):
            return keys.count("num_nextn_predict_layers") if self.mtp else 0
        depth = keys.count("num_mtp_modules") * keys.size("mtp_transformer_layers", default=1)
        return depth if keys.flag(self.mtp, default=False) else 0


def _value(keys: Keys, value: Any) -> Any:  # noqa: ANN401 (JSON)
    """Return a value of a row, or what the flag of the file that it names makes of it."""
    if not isinstance(value, list):
        return value
    name, default, *kind = value
    on = keys.flag(name, default=default)
    return (kind[0] if on else "none") if kind else on


def _windows(
    keys: Keys, full: FullAttention, windows: Mapping[str, Any], local: FullAttention
) -> tuple[FullAttention, ...]:
    """Return the attention of each layer; `local` is that of layers that slide."""
    rule, usual = windows["slides"], windows.get("size")
    late = rule == "late"
    slides = not late or keys.flag("use_sliding_window", default=False)
    window = None
    if usual != 0 and slides:
        window = keys.size("sliding_window", default=usual) if usual else keys.optional_size("sliding_window")
    first = keys.count("max_window_layers") if late else 0
    every = keys.size(rule[0], default=rule[1]) if isinstance(rule, list) else rule
    rules: Mapping[str, Callable[[int], bool]] = {
        "all": lambda _: True,
        "even": lambda layer: layer % 2 == 0,
        "late": lambda layer: layer >= first,
    }
    return windowed(
        keys, full, slides=rules.get(str(rule), lambda i: (i + 1) % every != 0), window=window, local=local
    )


ATTENTION: Final[Mapping[str, Callable[[Keys], Attention | Sequence[Attention]]]] = {
    "latent": latent_attention,
    "exaone": exaone_attention,
}
ROUTED: Final[Mapping[str, Callable[..., Sequence[Ffn]]]] = {"qwen": qwen_ffn, "deepseek": deepseek_ffn}
ROWS: Final = tuple(Row(**row) for row in packaged("huggingface", "architectures")["rows"])
DECODERS: Mapping[str, Callable[[Keys], Model]] = named(
    {
        **{row.model: row.names for row in ROWS},
        baichuan: "baichuan",
        dbrx: "dbrx",
        exaone_moe: "exaone_moe",
        falcon: "falcon",
        llama4: "llama4 llama4_text",
        mpt: "mpt",
        opt: "opt",
        qwen: "qwen",
    }
)
"""What reads each `model_type`: a row of architectures.json, or a function where it has parts that no other has."""

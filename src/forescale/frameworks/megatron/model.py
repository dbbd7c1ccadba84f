"""Megatron's settings as a model.

Defaults and rules are those of Megatron-LM's `arguments.py`, `transformer_config.py` and
`gpt_layer_specs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import MissingError, MissingFact
from forescale.frameworks.megatron.rope import read_rope
from forescale.frameworks.megatron.run import read_tower
from forescale.frameworks.reading import Options, packaged
from forescale.frameworks.settings import MISSING, Settings
from forescale.frameworks.shell import is_unset
from forescale.limits import whole_of
from forescale.spec.attention import (
    Attention,
    FullAttention,
    Indexer,
    LatentAttention,
    LinearAttention,
    picking_layers,
)
from forescale.spec.model import USUAL_EPS, DenseFfn, Ffn, Layer, Model, MoeFfn, predicting_layer
from forescale.spec.rope import PLAIN_ROPE

PROVIDERS = (None, "gpt", "mamba", "hybrid")
"""Values of --model-provider whose model is what the flags say."""
LINEAR_VARIANTS = frozenset({"gated_delta_net", "gdn"})
SPARSE_VARIANT = "dsa"


def read_model(settings: Settings, *, name: str, options: Options | None = None) -> Model:
    """Return the model; `options` know the vocabulary where the settings name a tokenizer only."""
    _refuse_unsupported(settings)
    hidden = settings.size("hidden_size")
    layers = _layers(settings, hidden, hybrid_segments(settings))
    ahead = hybrid_ahead(settings)
    padded = settings.count("padded_vocab_size")
    exact = padded or _patched_vocabulary(settings)
    depth = len(ahead) or settings.count("mtp_num_layers", 0)
    predicting = joined(_layers(settings, hidden, ahead[:1])) if ahead else predicting_layer(layers)
    text = Model(
        name=name,
        hidden_size=hidden,
        layers=layers,
        vocab_size=padded or _vocabulary(settings, options or Options()),
        vocab_multiple=(1 if exact else settings.size("make_vocab_size_divisible_by", 128)),
        tied_embeddings=not settings.flag("untie_embeddings_and_output_weights"),
        norm="rms" if settings.choice("normalization", "LayerNorm", NORMS) == "rms" else "layer",
        norm_eps=_epsilon(settings),
        embedding_norm=settings.flag("embed_layernorm"),
        learned_positions=_learned_positions(settings),
        num_mtp_layers=depth,
        mtp_layer=predicting if depth else None,
        max_seq_len=settings.count("max_position_embeddings", 0),
        source=settings.where,
    )
    return replace(text, vision=read_tower(settings, text))


def _layers(settings: Settings, hidden: int, segments: tuple[str, ...]) -> tuple[Layer, ...]:
    if segments:
        return hybrid_layers(
            settings,
            segments,
            hidden=hidden,
            attention=lambda: _softmax_attention(settings, hidden),
            dense=lambda: _dense_ffn(settings, hidden),
            routed=lambda: _routed_ffn(settings, _dense_ffn(settings, hidden)),
        )
    num_layers = settings.size("num_layers")
    attention = _attention_layers(settings, num_layers, hidden)
    ffn = _ffn_layers(settings, num_layers, hidden)
    kinds: dict[Layer, Layer] = {}
    return tuple(
        kinds.setdefault(layer, layer)
        for layer in (Layer(attention=a, ffn=f) for a, f in zip(attention, ffn, strict=True))
    )


MODEL: Final = MissingFact(
    "the model", "--model NAME|config.json", "--model llama-3.1-8b", "model", "it describes none"
)


def describes_model(settings: Settings) -> bool:
    """Whether settings have a size of a model."""
    return any(key in settings for key in ("num_layers", "hidden_size", "num_attention_heads", *KEYS))


NORMS = {"LayerNorm": "layer", "RMSNorm": "rms"}


def refuse_inexpressible(settings: Settings) -> None:
    """Refuse what makes an architecture that a `Model` cannot say."""
    for key, what in packaged("megatron", "words")["unsupported"].items():
        value = settings.get(key)
        if value not in (None, False, "false", 0, "0", [], ""):
            settings.refuse_key(wording.not_expressed, key, f"({what})")


def _refuse_unsupported(settings: Settings) -> None:
    refuse_inexpressible(settings)
    if (provider := settings.get("model_provider")) not in PROVIDERS:
        value = f"{provider}, which takes its model from Python next to the script,"
        settings.refuse_key(wording.not_expressed, "model_provider", value)
    if not describes_model(settings):
        raise MissingError.of(settings.where, [MODEL])
    encoder, decoder = settings.count("encoder_num_layers"), settings.count("decoder_num_layers")
    if (encoder and decoder) or ("decoder_seq_length" in settings and "seq_length" not in settings):
        settings.refuse(wording.not_expressed("a model with an encoder and a decoder", ""))


def _attention_layers(settings: Settings, num_layers: int, hidden: int) -> Sequence[Attention]:
    full = _softmax_attention(settings, hidden)
    variant = settings.get("experimental_attention_variant")
    if variant is None:
        return _turned(settings, _windowed(settings, full, num_layers))
    if variant == SPARSE_VARIANT:
        return _sparse(settings, full, num_layers)
    if variant not in LINEAR_VARIANTS:
        settings.refuse(wording.not_expressed("the attention variant", repr(variant)))
    linear = _gated_delta(settings)
    pattern = settings.pattern("linear_attention_freq", num_layers)
    if pattern is None:
        settings.refuse_key(wording.required_with, "linear_attention_freq", "a linear attention")
    if isinstance(pattern, int):
        pattern = tuple(int((at + 1) % pattern != 0) for at in range(num_layers))
    return _turned(settings, [linear if is_linear else full for is_linear in pattern])


def _gated_delta(settings: Settings) -> LinearAttention:
    return LinearAttention(
        num_heads=settings.count("linear_num_value_heads", 32),
        num_key_heads=settings.count("linear_num_key_heads", 16),
        key_head_dim=settings.count("linear_key_head_dim", 128),
        value_head_dim=settings.count("linear_value_head_dim", 128),
        conv_kernel=settings.count("linear_conv_kernel_dim", 4),
        num_gates_per_head=2,
        num_head_parameters=2,
    )


def _turned(settings: Settings, attention: Sequence[Attention]) -> Sequence[Attention]:
    """Take rotary positions from layers that are to have none; "every N" counts from the N-th."""
    skipped = settings.pattern("no_rope_freq", len(attention))
    if skipped is None:
        return attention
    if isinstance(skipped, int):
        skipped = tuple(int((at + 1) % skipped == 0) for at in range(len(attention)))
    return [
        item.without_positions() if skips and isinstance(item, FullAttention) else item
        for item, skips in zip(attention, skipped, strict=True)
    ]


def _sparse(settings: Settings, latent: Attention, num_layers: int) -> Sequence[Attention]:
    """Return latent attention to picked keys, and the indexer in the layers that pick (core/transformer: dsa.py)."""
    if not isinstance(latent, LatentAttention):
        name = settings.spell("multi_latent_attention")
        settings.refuse(wording.required_with(name, f"the attention variant {SPARSE_VARIANT}"))
    trained = bool(settings.number("dsa_indexer_loss_coeff"))
    if trained and not settings.flag("dsa_indexer_use_sparse_loss"):
        key = settings.spell("dsa_indexer_use_sparse_loss")
        settings.note(f"{key} is not given: the indexer's loss is projected on the keys picked, not on all")
    if settings.text("dsa_kernel_backend", "none") == "none":
        key = settings.spell("dsa_kernel_backend")
        settings.note(
            f"{key} is none: scores of all keys are not kept in the projection, as fused kernels do not"
        )
    indexer = Indexer(
        num_heads=settings.size("dsa_indexer_n_heads"),
        head_dim=settings.size("dsa_indexer_head_dim"),
        trained=trained,
        interleaved_rotary=settings.flag("dsa_indexer_rope_interleaved"),
    )
    shared = replace(latent, top_k=settings.size("dsa_indexer_topk"))
    every = settings.size("dsa_indexer_topk_freq", 1)
    first = settings.count("dsa_indexer_skip_topk_offset", 0)
    picking = replace(shared, indexer=indexer)
    return [picking if picks else shared for picks in picking_layers(num_layers, every=every, first=first)]


def _softmax_attention(settings: Settings, hidden: int) -> Attention:
    heads = settings.size("num_attention_heads")
    if settings.flag("multi_latent_attention"):
        return LatentAttention(
            num_heads=heads,
            q_lora_rank=settings.count("q_lora_rank"),
            kv_lora_rank=settings.count("kv_lora_rank", 32),
            qk_nope_head_dim=settings.count("qk_head_dim", 128),
            qk_rope_head_dim=settings.count("qk_pos_emb_head_dim", 64),
            v_head_dim=settings.count("v_head_dim", 128),
            rope=read_rope(settings),
            projection_bias=settings.flag("add_bias_linear", default=True),
        )
    head_dim = settings.count("kv_channels")
    if head_dim is None:
        if hidden % heads:
            name, terms, fix = map(settings.spell, ("hidden_size", "num_attention_heads", "kv_channels"))
            settings.refuse(wording.not_divisible(name, hidden, heads, terms, f"give {fix}"))
        head_dim = hidden // heads
    groups = settings.count("num_query_groups")
    grouped = settings.flag("group_query_attention")
    if grouped and groups is None:
        settings.refuse_key(wording.required_with, "num_query_groups", "grouped query attention")
    bias = settings.flag("add_bias_linear", default=True)
    rotary = _position(settings) == "rotary"
    return FullAttention(
        num_heads=heads,
        num_kv_heads=groups if grouped and groups else heads,
        head_dim=head_dim,
        qkv_bias=bias or settings.flag("add_qkv_bias"),
        output_bias=bias,
        qk_norm="head" if settings.flag("qk_layernorm") else "none",
        sinks=settings.choice("softmax_type", "vanilla", SOFTMAX) == "learnable",
        output_gate=settings.flag("attention_output_gate"),
        rotary=rotary,
        rope=read_rope(settings) if rotary else PLAIN_ROPE,
    )


SOFTMAX = {"vanilla": "vanilla", "off-by-one": "vanilla", "learnable": "learnable"}


def _windowed(settings: Settings, full: Attention, num_layers: int) -> Sequence[Attention]:
    """Give the sliding window to the layers that have one."""
    sides = settings.words("window_size")
    if not sides or not isinstance(full, FullAttention):
        return [full] * num_layers
    if whole_of(sides[0].removeprefix("-")) is None:
        settings.refuse_key(wording.wrong_type, "window_size", " ".join(sides), "like 127,0")
    left = int(sides[0])
    if left < 0:
        return [full] * num_layers
    shape = {name: getattr(full, name) for name in FullAttention.__dataclass_fields__}
    windowed = FullAttention(**{**shape, "window": left + 1})
    skip = settings.pattern("window_attn_skip_freq", num_layers)
    if skip is None:
        return [windowed] * num_layers
    if isinstance(skip, int):
        return [windowed if (at + 1) % skip else full for at in range(num_layers)]
    return [windowed if slides else full for slides in skip]


def _dense_ffn(settings: Settings, hidden: int) -> DenseFfn:
    kinds = [key for key in ("swiglu", "quick_geglu", "squared_relu") if settings.flag(key)]
    if len(kinds) > 1:
        settings.refuse(wording.conflicts(list(map(settings.spell, kinds))))
    gated = bool(kinds) and kinds != ["squared_relu"]
    width = settings.count("ffn_hidden_size")
    if not width:
        width = _gated_width(settings, hidden) if gated else 4 * hidden
        settings.note(f"ffn_hidden_size is not given; Megatron-LM takes {width}")
    bias = settings.flag("add_bias_linear", default=True)
    return DenseFfn(ffn_hidden_size=width, gated=gated, bias=bias)


def _gated_width(settings: Settings, hidden: int) -> int:
    """Return the width of a gated feed-forward that is not given; FlagScale rounds it up to a multiple of its own."""
    if not (multiple := settings.count("multiple_of")):
        return int(4 * hidden * 2 / 3 / 64) * 64
    width = int(int(4 * hidden * 2 / 3) * (settings.number("hidden_dim_multiplier") or 1))
    return -(-width // multiple) * multiple


def _routed_ffn(settings: Settings, dense: DenseFfn) -> MoeFfn:
    """Return the experts, which are like `dense` where the settings do not say otherwise."""
    key, num_experts = "moe_router_topk", settings.size("num_experts")
    top_k = settings.count(key, 2)
    if not 1 <= top_k <= num_experts:
        settings.refuse_key(wording.out_of_range, key, top_k, f"1 to {num_experts}, the experts there are")
    return MoeFfn(
        num_experts=num_experts,
        top_k=top_k,
        ffn_hidden_size=settings.count("moe_ffn_hidden_size", least=1) or dense.ffn_hidden_size,
        gated=dense.gated,
        bias=dense.bias,
        limited=settings.number("activation_func_clamp_value") is not None,
        latent_size=settings.count("moe_latent_size", 0),
        shared_ffn_hidden_size=settings.count("moe_shared_expert_intermediate_size", 0),
        shared_gate=settings.flag("moe_shared_expert_gate"),
        router_bias=dense.bias,  # Megatron-Core: transformer/moe/router.py, where linears have biases
        score_bias=settings.flag("moe_router_enable_expert_bias"),
        **_weights(settings, top_k),
        num_groups=settings.count("moe_router_num_groups", 0),
        top_groups=settings.count("moe_router_group_topk", 0),
    )


def _weights(settings: Settings, top_k: int) -> dict[str, Any]:
    """Return how a token's experts are weighed: softmax is of them alone unless it is told to come before the choice.

    Sigmoids are divided by their sum where there are several (moe_utils.py, topk_routing_with_score_function).
    """
    sigmoid = settings.text("moe_router_score_function") == "sigmoid"
    return {
        "score": "sigmoid" if sigmoid else "softmax",
        "normalised": top_k > 1 if sigmoid else not settings.flag("moe_router_pre_softmax"),
        "weight_scale": settings.number("moe_router_topk_scaling_factor") or 1.0,
    }


def _ffn_layers(settings: Settings, num_layers: int, hidden: int) -> Sequence[Ffn]:
    dense = _dense_ffn(settings, hidden)
    if not settings.count("num_experts"):
        return [dense] * num_layers
    moe = _routed_ffn(settings, dense)
    pattern = settings.pattern("moe_layer_freq", num_layers)
    if pattern is None or isinstance(pattern, int):
        every = pattern or 1
        pattern = tuple(int(at % every == 0) for at in range(num_layers))
    counts = settings.get("layer_experts")
    numbers = iter(counts if isinstance(counts, list) else [moe.num_experts] * num_layers)
    experts = (replace(moe, num_experts=count) if count > 1 else dense for count in numbers)
    return [next(experts) if routed else dense for routed in pattern]


POSITIONS = {
    "learned_absolute": "learned",
    "rope": "rotary",
    "yarn": "rotary",
    "mrope": "rotary",
    "relative": "none",
    "none": "none",
}


def _position(settings: Settings) -> str:
    if settings.flag("use_rotary_position_embeddings"):
        return "rotary"
    return settings.choice("position_embedding_type", "learned_absolute", POSITIONS)


def _learned_positions(settings: Settings) -> int:
    learned = _position(settings) == "learned" and settings.flag("add_position_embedding", default=True)
    rows = settings.count("max_position_embeddings", 0)
    return rows if learned else 0


@cache
def _tokenizers() -> dict[str, int]:
    sizes = packaged("megatron", "tokenizers")["vocab_size"]
    return {name.lower(): size for name, size in sizes.items()}


VISION: Final = "the vision encoder is left out: the program has its sizes, not the flags"


def _patched_vocabulary(settings: Settings) -> int | None:
    """Return the vocabulary of Pai-Megatron-Patch's tokenizers; None where none is named."""
    table, kind = packaged("megatron", "forks"), settings.text("patch_tokenizer_type")
    extra = settings.count("extra_vocab_size", 0)
    size = table["fixed_tokenizers"].get(kind) or (table["tokenizers"].get(kind, 0) + extra)
    if kind not in {*table["fixed_tokenizers"], *table["tokenizers"]}:
        return None
    settings.note(f"the vocabulary of {size} entries is that of {kind}, {extra} added ones included")
    if "VL" in kind and VISION not in settings.warnings:
        settings.warnings.append(VISION)
    return int(size)


def _size_of_tokenizer(name: str) -> int | None:
    """Return the vocabulary of a tokenizer by its name, or by a name in its path."""
    if size := _tokenizers().get(name.rpartition("/")[2].lower()):
        return size
    rows: Mapping[str, int] = packaged("megatron", "tokenizers")["paths"]
    return next((size for pattern, size in rows.items() if re.search(pattern, name.lower())), None)


LENGTH: Final = MissingFact("the sequence length", "--seq-len N", "--seq-len 2048", "workload.seq_len")


def open_sizes(settings: Settings, options: Options) -> list[MissingFact]:
    """Return the length, and the model or its vocabulary, where settings lack them."""
    facts = [] if "seq_length" in settings else [LENGTH]
    if not describes_model(settings):
        return [*facts, MODEL] if options.model is None else facts
    if lacking := lacking_sizes(settings):
        reason = f"it gives no {wording.listed(lacking, 'and')}"
        return [*facts, MODEL._replace(reason=reason)] if options.model is None else facts
    return facts if stated_vocabulary(settings, options) is not None else [*facts, _open_vocabulary(settings)]


def lacking_sizes(settings: Settings) -> list[str]:
    """Return the flags of sizes that settings lack which describe a model."""
    hybrid = any(key in settings for key in (*KEYS, "encoder_num_layers"))
    keys = (*(() if hybrid else ("num_layers",)), "hidden_size", "num_attention_heads")
    return [settings.spell(key) for key in keys if key not in settings]


def _open_vocabulary(settings: Settings) -> MissingFact:
    named = next(filter(None, _tokenizer(settings)), "")
    return VOCABULARY._replace(reason=f"the tokenizer {named} is not known" if named else "")


def stated_vocabulary(settings: Settings, options: Options) -> int | None:
    """Return the vocabulary: stated, told by the caller, or that of the tokenizer; None if it is not known."""
    stated, padded = settings.raw("vocab_size"), settings.raw("padded_vocab_size")
    extra = settings.count("vocab_extra_ids", 0)
    if stated or padded:
        return settings.size("vocab_size" if stated else "padded_vocab_size") + (extra if stated else 0)
    if patched := _patched_vocabulary(settings):
        return patched
    if options.vocab_size:
        return options.vocab_size
    model, kind = _tokenizer(settings)
    for name in (model, kind, Path(settings.where).stem):
        if size := options.vocabulary_of(name) or _size_of_tokenizer(name):
            said = f"the vocabulary of {size} entries is that of {name}"
            is_of_file = not model or name == model or (name == kind and kind not in OF_A_FILE)
            if is_of_file:
                settings.note(said)
            elif (
                open_ := f"{said}; that of {model} is not known (--set model.vocab_size=N)"
            ) not in settings.warnings:
                settings.warnings.append(open_)
            return size + extra
    return None


def _tokenizer(settings: Settings) -> tuple[str, str]:
    """Return the model and the kind of the tokenizer that the settings name."""
    files = ("tokenizer_model", "tokenizer_name_or_path", "vocab_file")
    named = [settings.raw(key) for key in files if settings.raw(key) not in (None, MISSING)]
    kind = settings.text("tokenizer_type")
    if not kind and settings.written("vocab_file"):
        kind = "GPT2BPETokenizer" if settings.written("merge_file") else "BertWordPieceLowerCase"
    first = named[0] if named else ""
    return " ".join(map(str, first)) if isinstance(first, list) else str(first), kind


MICRO_BATCH: Final = MissingFact(
    "the micro-batch size", "--micro-batch-size N", "--micro-batch-size 1", "strategy.micro_batch_size"
)
OF_A_FILE: Final = ("Llama2Tokenizer",)
"""Tokenizers whose vocabulary is that of the file that they are given."""
VOCABULARY: Final = MissingFact(
    "the size of the vocabulary",
    "--set model.vocab_size=N",
    "--set model.vocab_size=32000",
    "model.vocab_size",
)


def _vocabulary(settings: Settings, options: Options) -> int:
    """Return the vocabulary, which must be known."""
    size = stated_vocabulary(settings, options)
    if size is None:
        raise MissingError.of(settings.where, [_open_vocabulary(settings)])
    return size


def _epsilon(settings: Settings) -> float:
    """Return the constant of the norms, which changes no figure: the usual one if a script leaves it open."""
    is_open = is_unset(str(settings.raw("layernorm_epsilon")))
    return USUAL_EPS if is_open else settings.number("layernorm_epsilon") or USUAL_EPS


KEYS = ("hybrid_layer_pattern", "hybrid_override_pattern")
EXPANSION = 2
"""Inner width of Mamba-2 over the hidden size, where its heads are not counted."""


def hybrid_segments(settings: Settings) -> tuple[str, ...]:
    """Return the letters of each pipeline segment; empty if the model is no hybrid."""
    key = next((key for key in KEYS if settings.get(key)), None)
    if key is None:
        return ()
    segments = tuple(str(settings.get(key)).strip().partition("/")[0].split("|"))
    unknown = sorted({letter for segment in segments for letter in segment} - set("M*-E"))
    if unknown or not all(segments):
        what = f"the letter {unknown[0]!r}" if unknown else "an empty stage"
        settings.refuse_key(wording.not_expressed, key, f"({what})", "M, *, - and E, cut by |, are")
    if settings.count("num_experts", 0) > 1 and "E" not in str(settings.get(key)):
        other = settings.spell("num_experts")
        settings.refuse(wording.required_with(f"a layer E in {settings.spell(key)}", other))
    stated = settings.count("num_layers")
    result = sum(map(len, segments))
    if stated not in (None, result):
        settings.refuse_key(wording.differs, "num_layers", stated, "the length of the pattern", result)
    return segments


def hybrid_ahead(settings: Settings) -> tuple[str, ...]:
    """Return the letters of each multi-token-prediction layer of a hybrid, which stand behind its own layers."""
    key = next((key for key in KEYS if settings.get(key)), "")
    _, *ahead = settings.text(key).strip().split("/")
    if ahead and (len(set(ahead)) > 1 or not re.fullmatch(r"[M*]?[-E]?", ahead[0])):
        settings.refuse(
            wording.not_expressed(
                f"{settings.spell(key)}: prediction of further tokens with",
                " and ".join(dict.fromkeys(ahead)),
                "equal ones of M or *, then - or E, are",
            )
        )
    return tuple(ahead)


def joined(parts: tuple[Layer, ...]) -> Layer:
    """Return one layer of one-part layers: a mixer, then a feed-forward."""
    mixers, mlps = (
        [part for layer in parts if (part := getattr(layer, half))] for half in ("attention", "ffn")
    )
    return Layer(attention=next(iter(mixers), None), ffn=next(iter(mlps), None), num_norms=len(parts))


def hybrid_layers(
    settings: Settings,
    segments: tuple[str, ...],
    *,
    hidden: int,
    attention: Callable[[], Attention],
    dense: Callable[[], Ffn],
    routed: Callable[[], Ffn],
) -> tuple[Layer, ...]:
    """Return the layers of a pattern; each part is made only if the pattern has it."""
    makers: Mapping[str, Callable[[], Layer]] = {
        "M": lambda: Layer(attention=_mixer(settings, hidden), ffn=None, num_norms=1),
        "*": lambda: Layer(attention=attention(), ffn=None, num_norms=1),
        "-": lambda: Layer(attention=None, ffn=dense(), num_norms=1),
        "E": lambda: Layer(attention=None, ffn=routed(), num_norms=1),
    }
    letters = "".join(segments)
    kinds = {letter: makers[letter]() for letter in dict.fromkeys(letters)}
    return tuple(kinds[letter] for letter in letters)


def _mixer(settings: Settings, hidden: int) -> LinearAttention:
    """Return what a hybrid mixes tokens with: Mamba-2, or a gated delta net in its place (Primus)."""
    is_delta = settings.get("experimental_attention_variant") in LINEAR_VARIANTS
    return _gated_delta(settings) if is_delta else mamba(settings, hidden)


def mamba(settings: Settings, hidden: int) -> LinearAttention:
    """Return Mamba-2 as a linear attention: B and C are keys and queries, x the values, dt the decay."""
    head_dim = settings.count("mamba_head_dim", 64)
    heads = settings.count("mamba_num_heads") or EXPANSION * hidden // head_dim
    return LinearAttention(
        num_heads=heads,
        num_key_heads=settings.count("mamba_num_groups", 8),
        key_head_dim=settings.count("mamba_state_dim", 128),
        value_head_dim=head_dim,
        conv_kernel=4,
        conv_bias=True,
        num_head_parameters=3,
        fused_scan=True,
        output_norm="hidden",
        chunk_size=128,
    )

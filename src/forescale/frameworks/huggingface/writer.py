"""A model as the keys of a Hugging Face `config.json`, found by reading candidates back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from forescale.errors import ForescaleError, unsupported_by
from forescale.frameworks.huggingface.keys import CLASSES, ROPE_TYPES
from forescale.frameworks.huggingface.reader import FAMILIES, read_huggingface
from forescale.frameworks.reading import packaged
from forescale.frameworks.writing import first_attention
from forescale.graph.counts import count_parameters
from forescale.spec.attention import FullAttention, LatentAttention, LinearAttention
from forescale.spec.model import DenseFfn, Model, MoeFfn
from forescale.spec.rope import Rope

FARTHEST: Final = 0.01
"""Share of the parameters that the nearest architecture may have more or less."""
NAMES: Final = packaged("huggingface", "names")
FIRST: Final[list[str]] = NAMES["first"]
"""Architectures that are tried first, so that a plain model gets the plainest name."""
NULLS: Final = ("q_lora_rank", "sliding_window")
"""Keys that classes of transformers have a value for unless null is said."""
COUNTS: Final[Mapping[str, str]] = NAMES["counts"]
"""What an architecture calls its number of experts, where that is not num_experts."""
EXPERT_SIZED: Final[list[str]] = NAMES["expert_sized"]
"""Architectures whose intermediate_size is that of an expert."""
SPELLINGS: Final[Mapping[str, Mapping[str, str]]] = NAMES["spellings"]
"""Keys that an architecture spells in its own way."""


def config_of(model: Model, types: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the configuration that is read back as `model`, or as what costs the same, or nearest by its parameters.

    Parameters
    ----------
    model
        A language model.
    types
        Architectures (`model_type`) that may describe it; all that can be read if None.

    Raises
    ------
    SpecError
        If none has the same kinds of layers in the same order, or one parameter in a hundred is more or less.
    """
    every = (*FIRST, *(name for name in FAMILIES if name not in FIRST))
    return deepcopy(_described(model, every if types is None else tuple(types)))


@lru_cache(maxsize=64)
def _described(model: Model, types: tuple[str, ...]) -> dict[str, Any]:
    """Return what `config_of` does; a search or an export asks of one model again and again."""
    total = count_parameters(model).total
    alike: dict[str, Any] | None = None
    nearest: tuple[float, dict[str, Any]] | None = None
    for kind in types:
        tried = _tried(model, kind)
        if tried is None:
            continue
        config, read = tried
        if same_model(read, model):
            return config
        if alike is None and same_model(read.shape, model.shape):
            alike = config
        off = abs(count_parameters(read).total - total) / total
        if _parts(read) != _parts(model):
            continue
        if nearest is None or off < nearest[0]:
            nearest = (off, config)
    if alike is not None:
        return alike
    if nearest is None or nearest[0] > FARTHEST:
        raise unsupported_by("Hugging Face", f"{model.name} by any architecture")
    return nearest[1]


def same_model(one: Model, other: Model) -> bool:
    """Return whether two models are alike but for their names and what no figure follows from."""
    plain = (
        replace(item, name="", source="", left_out="", max_seq_len=0, config="") for item in (one, other)
    )
    return len(set(plain)) == 1


def _tried(model: Model, kind: str) -> tuple[dict[str, Any], Model] | None:
    """Return the keys of one architecture, and the model that they are read as; None where it takes others."""
    spelled = SPELLINGS.get(kind, {})
    config = {spelled.get(key, key): value for key, value in _keys(model, kind)}
    config = {
        "model_type": kind,
        **{key: value for key, value in config.items() if value is not None or key in NULLS},
    }
    try:
        read = read_huggingface(config, name=model.name, where="a configuration")
    except ForescaleError:
        return None
    return {key: value for key, value in config.items() if key not in read.ignored}, read.model


def _keys(model: Model, kind: str) -> Iterator[tuple[str, Any]]:
    yield "hidden_size", model.hidden_size
    yield "num_hidden_layers", model.num_layers
    yield "vocab_size", model.vocab_size
    yield "tie_word_embeddings", model.tied_embeddings
    yield "max_position_embeddings", model.learned_positions or model.max_seq_len or None
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        yield name, model.num_mtp_layers or None
    if model.embedding_size:
        yield "word_embed_proj_dim", model.embedding_size
    yield from _attention(model)
    yield from _positions(model, kind)
    yield from _linear(model)
    yield from _feed_forward(model, kind)


def _parts(model: Model) -> list[tuple[type, type]]:
    """Return the kinds of attention and feed-forward, layer by layer."""
    return [(type(layer.attention), type(layer.ffn)) for layer in model.layers]


def _attention(model: Model) -> Iterator[tuple[str, Any]]:
    full, latent = first_attention(model, FullAttention), first_attention(model, LatentAttention)
    if full is not None:
        yield "num_attention_heads", full.num_heads
        yield "num_key_value_heads", full.num_kv_heads
        yield "head_dim", full.head_dim
        yield "attention_bias", full.output_bias
        yield "use_qk_norm", full.qk_norm != "none" or None
        yield "attn_output_gate", full.output_gate or None
        attention = [layer.attention for layer in model.layers]
        windows = [item.window for item in attention if isinstance(item, FullAttention)]
        yield "sliding_window", max(window or 0 for window in windows) or None
        if any(windows):
            kinds = ("sliding_attention" if window else "full_attention" for window in windows)
            yield "layer_types", list(kinds)
    if latent is not None:
        yield "num_attention_heads", latent.num_heads
        yield "attention_bias", latent.projection_bias
        for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            yield name, getattr(latent, name)
        yield from _sparse(model)


def _sparse(model: Model) -> Iterator[tuple[str, Any]]:
    layers = [
        attention
        for attention in (layer.attention for layer in model.layers)
        if isinstance(attention, LatentAttention)
    ]
    indexers = [layer.indexer for layer in layers]
    indexer = next((indexer for indexer in indexers if indexer is not None), None)
    if indexer is not None:
        yield "index_topk", layers[0].top_k
        yield "index_n_heads", indexer.num_heads
        yield "index_head_dim", indexer.head_dim
        yield "indexer_rope_interleave", indexer.interleaved_rotary or None
        if not all(indexers):
            yield "indexer_types", ["full" if indexer else "shared" for indexer in indexers]


def _positions(model: Model, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys of an architecture that say a model's rotary positions and norms."""
    yield "rms_norm_eps", model.norm_eps
    rope, near = model.ropes
    if rope is None:
        return
    yield "rope_theta", rope.base
    if rope.share != CLASSES["share"].get(kind, 1.0):
        yield "partial_rotary_factor", rope.share
    if rope.scaling != "none" or kind in CLASSES["scaling"]:
        yield "rope_scaling", _scaling(rope)
    if near is not None and near.base != rope.base:
        yield "rope_local_base_freq", near.base


def _scaling(rope: Rope) -> dict[str, Any]:
    """Return `rope_scaling`."""
    if rope.scaling == "none":
        return {"rope_type": "default"}
    result = {theirs: getattr(rope, ours) for theirs, ours in ROPE_TYPES[rope.scaling].items()}
    if rope.scaling == "yarn":
        weighed = {"mscale": rope.mscale, "mscale_all_dim": rope.mscale_all_dim}
        result |= {} if rope.mscale_all_dim == 0 else weighed
        result |= {} if rope.rounded else {"truncate": False}
    return {"rope_type": rope.scaling, **result}


def _linear(model: Model) -> Iterator[tuple[str, Any]]:
    if (linear := first_attention(model, LinearAttention)) is None:
        return
    kinds = [isinstance(layer.attention, LinearAttention) for layer in model.layers]
    yield "layer_types", ["linear_attention" if kind else "full_attention" for kind in kinds]
    yield "linear_num_value_heads", linear.num_heads
    yield "linear_num_key_heads", linear.num_key_heads
    yield "linear_key_head_dim", linear.key_head_dim
    yield "linear_value_head_dim", linear.value_head_dim
    yield "linear_conv_kernel_dim", linear.conv_kernel


def _feed_forward(model: Model, kind: str) -> Iterator[tuple[str, Any]]:
    ffns = [layer.ffn for layer in model.layers]
    dense, moe = next((ffn for ffn in ffns if isinstance(ffn, DenseFfn)), None), model.moe
    if dense is not None:
        yield "intermediate_size", dense.ffn_hidden_size
        yield "mlp_bias", dense.bias or None
    if moe is None:
        if dense is not None and model.has_latent:
            # Its architectures have experts, from some layer on: here from beyond the last.
            yield "first_k_dense_replace", model.num_layers
            yield COUNTS.get(kind, "num_experts"), 1
            yield "num_experts_per_tok", 1
            yield "moe_intermediate_size", dense.ffn_hidden_size
        return
    if kind in EXPERT_SIZED:
        yield "intermediate_size", moe.ffn_hidden_size
        yield "intermediate_size_mlp", dense and dense.ffn_hidden_size
    routed = [isinstance(layer.ffn, MoeFfn) for layer in model.layers]
    yield COUNTS.get(kind, "num_experts"), moe.num_experts
    yield "num_experts_per_tok", moe.top_k
    yield "moe_intermediate_size", moe.ffn_hidden_size
    yield "n_shared_experts", moe.shared_ffn_hidden_size // moe.ffn_hidden_size
    yield "shared_expert_intermediate_size", moe.shared_ffn_hidden_size
    yield "first_k_dense_replace", routed.index(True)
    if not all(routed):
        yield "mlp_only_layers", [number for number, routes in enumerate(routed) if not routes]
        yield "moe_layers", [number for number, routes in enumerate(routed) if routes]
    message = {
        "scoring_func": moe.score,
        "norm_topk_prob": moe.normalised,
        "routed_scaling_factor": moe.weight_scale,
    }
    yield from ((key, value) for key, value in message.items() if key in CLASSES["router"].get(kind, {}))
    if moe.num_groups:
        yield "n_group", moe.num_groups
        yield "topk_group", moe.top_groups

"""Architectures whose attention reads the keys that an indexer picks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from forescale.errors import wrong_type
from forescale.frameworks.huggingface.decoders import deepseek_ffn, latent_attention
from forescale.frameworks.huggingface.keys import Keys, decoder, named, num_layers
from forescale.spec.attention import Indexer, LatentAttention, picking_layers
from forescale.spec.model import Model, predicting_layer

LETTERS: Final[Mapping[str, str]] = {"F": "full", "S": "shared"}
"""What `index_topk_pattern` says of each layer."""


def deepseek_v32(keys: Keys) -> Model:
    """DeepSeek-V3.2: DeepSeek-V3 with an indexer in every layer."""
    return _sparse(keys, [True] * num_layers(keys))


def glm_moe_dsa(keys: Keys) -> Model:
    """GLM-5: layers of DeepSeek-V3.2, some of which read the keys that one before them picked (GLM-5.2)."""
    return _sparse(keys, _picks(keys))


def _sparse(keys: Keys, picks: Sequence[bool]) -> Model:
    """Return latent attention with an indexer in the layers that pick; what predicts further picks for itself."""
    shared = sparse(keys)
    glm = keys.get("model_type") == "glm_moe_dsa"
    indexer = Indexer(
        num_heads=keys.size("index_n_heads"),
        head_dim=keys.size("index_head_dim"),
        interleaved_rotary=glm and keys.flag("indexer_rope_interleave", default=True),
    )
    attention = tuple(replace(shared, indexer=indexer) if pick else shared for pick in picks)
    depth = keys.count("num_nextn_predict_layers")
    model = decoder(keys, attention, deepseek_ffn(keys, score_bias=True), tied=False, num_mtp_layers=depth)
    return replace(model, mtp_layer=predicting_layer(model.layers) if depth else None)


def sparse(keys: Keys) -> LatentAttention:
    """Return latent attention to the keys picked, without what picks them."""
    return replace(latent_attention(keys), top_k=keys.size("index_topk"))


def _picks(keys: Keys) -> list[bool]:
    """Return which layers pick: as `indexer_types` or `index_topk_pattern` lists them, or every so many."""
    layers, key = num_layers(keys), "indexer_types"
    listed, pattern = keys.words(key, layers, tuple(LETTERS.values())), _pattern(keys, layers)
    every, first = keys.size("index_topk_freq", default=1), keys.count("index_skip_topk_offset")
    if listed is None:
        key, listed = "index_topk_pattern", pattern
    if listed is None:
        return list(picking_layers(layers, every=every, first=first))
    if listed[0] != "full":
        allowed = "full, as no layer before it picks keys"
        keys.refuse(wrong_type(f"the first entry of {key}", listed[0], allowed))
    return [kind == "full" for kind in listed]


def _pattern(keys: Keys, layers: int) -> Sequence[str] | None:
    """Return what `index_topk_pattern` says of each layer, in letters or words; None where it is absent."""
    pattern = keys.get("index_topk_pattern")
    if pattern is None or not isinstance(pattern, str):
        return keys.words("index_topk_pattern", layers, tuple(LETTERS.values()))
    if len(pattern) != layers or set(pattern) - set(LETTERS):
        allowed = f"one of {', '.join(LETTERS)} for each of {layers} layers"
        keys.refuse(wrong_type("index_topk_pattern", pattern, allowed))
    return [LETTERS[letter] for letter in pattern]


SPARSE: Mapping[str, Callable[[Keys], Model]] = named(
    {deepseek_v32: "deepseek_v32", glm_moe_dsa: "glm_moe_dsa"}
)

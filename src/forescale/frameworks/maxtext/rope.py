"""Rotary positions in MaxText's words, read and written (layers/attentions.py, init_rotary_embedding)."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from forescale.frameworks.settings import Settings
from forescale.spec.model import Model
from forescale.spec.rope import PLAIN_ROPE, Rope

LLAMA3: Final = Rope(base=PLAIN_ROPE.base, scaling="llama3", factor=8.0, original_seq_len=8192)
"""Scaling of Llama 3.1, of which nothing can be said (layers/embeddings.py, LLaMARotaryEmbedding)."""
PARTIAL: Final = ("qwen3_next", "qwen3_5")
"""Blocks that turn a share of the head's dimensions."""


def read_rope(settings: Settings, block: str, *, local: bool = False) -> Rope:
    """Return how positions turn queries and keys of layers of a style, that see all or are `local`."""
    rope = Rope(base=settings.number("rope_max_timescale") or PLAIN_ROPE.base)
    kind = settings.text("rope_type", "default").lower()
    if kind.startswith("llama3.1"):
        return replace(LLAMA3, base=rope.base) if settings.flag("rope_use_scale", default=True) else rope
    if kind.startswith("yarn"):
        return _yarn(settings, rope)
    if block in PARTIAL:
        return replace(rope, share=settings.number("partial_rotary_factor") or 1.0)
    near, slowed = settings.number("local_rope_max_timescale"), settings.number("rope_linear_scaling_factor")
    if local and near is not None and near > 0:
        rope = replace(rope, base=near)
    if slowed in (None, 1.0) or (local and block == "gemma3"):
        return rope
    return replace(rope, scaling="linear", factor=slowed)


def _yarn(settings: Settings, rope: Rope) -> Rope:
    """Return YaRN's scaling: sines and cosines have a factor if they are told to, else queries times keys have one."""
    factor = settings.number("rope_factor") or 1.0
    if factor == 1:
        return rope
    scaled, weight = settings.flag("rope_attention_scaling"), settings.number("mscale") or 0.0
    return replace(
        rope,
        scaling="yarn",
        factor=factor,
        original_seq_len=settings.size("original_max_position_embeddings", 4096),
        beta_fast=settings.number("beta_fast") or rope.beta_fast,
        beta_slow=settings.number("beta_slow") or rope.beta_slow,
        mscale=1.0 if scaled else weight,
        mscale_all_dim=0.0 if scaled else weight,
        rounded=settings.flag("rope_truncate", default=True),
    )


def rope_keys(model: Model, block: str) -> dict[str, Any]:
    """Return the keys of a model's rotary positions; what MaxText cannot say is as base.yml has it."""
    rope, near = model.ropes
    if rope is None:
        return {}
    keys: dict[str, Any] = {"rope_max_timescale": round(rope.base)}
    if block in PARTIAL:
        keys["partial_rotary_factor"] = rope.share
    if near is not None and near.base != rope.base:
        keys["local_rope_max_timescale"] = round(near.base)
    match rope.scaling:
        case "llama3":
            return keys | {"rope_type": "llama3.1"}
        case "yarn":
            return keys | _yarn_keys(rope)
        case "linear":
            return keys | {"rope_linear_scaling_factor": rope.factor}
        case _:
            return keys


def _yarn_keys(rope: Rope) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_factor": round(rope.factor),
        "original_max_position_embeddings": rope.original_seq_len,
        "beta_fast": round(rope.beta_fast),
        "beta_slow": round(rope.beta_slow),
        "mscale": rope.mscale,
        "rope_truncate": rope.rounded,
        "rope_attention_scaling": rope.mscale_all_dim == 0,
    }

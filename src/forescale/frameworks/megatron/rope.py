"""Rotary positions in Megatron's words, read and written.

Latent attention turns by YaRN whatever is said (`rope_type`), which a factor of 1 leaves plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from forescale.errors import out_of_range
from forescale.frameworks.settings import Settings
from forescale.spec.attention import FullAttention, LatentAttention
from forescale.spec.rope import PLAIN_ROPE, Rope

LLAMA3: Final = Rope(base=PLAIN_ROPE.base, scaling="llama3", factor=8.0, original_seq_len=8192)
"""Scaling of Llama 3.1, of which the factor alone can be said (core, rotary_pos_embedding.py, apply_scaling)."""
YARN: Final = Rope(base=PLAIN_ROPE.base, scaling="yarn", original_seq_len=4096)
"""What YaRN goes by where nothing is said (training/argument_utils.py, transformer_config.py)."""
NUMBERS: Final[Mapping[str, str]] = {
    "factor": "rotary_scaling_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
}
"""Keys of YaRN by fields of `Rope`, of any attention."""
OF_LATENT: Final[Mapping[str, str]] = {
    "original_seq_len": "original_max_position_embeddings",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}
"""The others of latent attention, for which Megatron-LM has fields and no flags."""
OF_OTHERS: Final[Mapping[str, str]] = {name: f"yarn_{key}" for name, key in OF_LATENT.items()}
ROUNDED: Final = "yarn_correction_range_round_to_int"
INTERPOLATION: Final = "rotary_seq_len_interpolation_factor"
ROPE_KEYS: Final = (
    *("rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor", INTERPOLATION, ROUNDED),
    *NUMBERS.values(),
    *OF_LATENT.values(),
    *OF_OTHERS.values(),
)


def read_rope(settings: Settings) -> Rope:
    """Return how positions turn queries and keys."""
    base = _positive(settings, "rotary_base", PLAIN_ROPE.base)
    if settings.flag("multi_latent_attention"):
        plain = settings.one_of("rope_type", "yarn", ("rope", "yarn")) == "rope"
        return Rope(base=base) if plain else _yarn(settings, base, {**NUMBERS, **OF_LATENT})
    share = _positive(settings, "rotary_percent", 1.0)
    if settings.text("position_embedding_type") == "yarn":
        yarn = _yarn(settings, base, {**NUMBERS, **OF_OTHERS})
        return replace(yarn, share=share)
    if settings.flag("use_rope_scaling"):
        factor = _positive(settings, "rope_scaling_factor", LLAMA3.factor)
        return replace(LLAMA3, base=base, share=share, factor=factor)
    if INTERPOLATION in settings:
        factor = _positive(settings, INTERPOLATION, 1.0)
        return Rope(base=base, share=share, scaling="linear", factor=factor)
    return Rope(base=base, share=share)


def _yarn(settings: Settings, base: float, keys: Mapping[str, str]) -> Rope:
    values: dict[str, Any] = {name: settings.number(key) for name, key in keys.items()}
    values["original_seq_len"] = settings.count(keys["original_seq_len"], least=1)
    result = {name: value for name, value in values.items() if value is not None}
    if (result.get("factor") or 1.0) == 1:
        return Rope(base=base)
    rounded = settings.flag(ROUNDED, default=True)
    return replace(YARN, base=base, rounded=rounded, **result)


def _positive(settings: Settings, key: str, usual: float) -> float:
    value = settings.number(key)
    if value is not None and value <= 0:
        settings.refuse_key(out_of_range, key, value, "more than 0")
    return usual if value is None else value


def rope_settings(attention: FullAttention | LatentAttention) -> dict[str, Any]:
    """Return the settings of an attention's rotary positions; what Megatron-LM cannot say is as it has it."""
    rope = attention.rope
    base = {"position_embedding_type": "rope", "rotary_base": round(rope.base)}
    if isinstance(attention, LatentAttention):
        return base | _yarn_settings(rope, {**NUMBERS, **OF_LATENT})
    base |= {} if rope.share == 1 else {"rotary_percent": rope.share}
    match rope.scaling:
        case "yarn":
            yarn = _yarn_settings(rope, {**NUMBERS, **OF_OTHERS})
            return base | {"position_embedding_type": "yarn"} | yarn | {ROUNDED: rope.rounded}
        case "llama3":
            return base | {"use_rope_scaling": True, "rope_scaling_factor": rope.factor}
        case "linear":
            return base | {INTERPOLATION: round(rope.factor)}
        case _:
            return base


def _yarn_settings(rope: Rope, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of YaRN; a factor of 1 says that there is none."""
    if rope.scaling != "yarn":
        return {"rotary_scaling_factor": 1.0}
    return {key: getattr(rope, name) for name, key in keys.items()}

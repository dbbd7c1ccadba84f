"""Rotary positions, norms and weights of experts in torchtitan's words, read and written.

Its positions turn and nothing else: of YaRN's factors the models with latent attention have that of queries times keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forescale.frameworks.python.values import Call
from forescale.spec.model import USUAL_EPS, Model
from forescale.spec.rope import Rope

KINDS: Final[Mapping[str, str]] = {
    "llama3": "ComplexRoPE",
    "qwen3": "CosSinRoPE",
    "deepseek_v3": "ComplexRoPE",
}
"""The class of each module's positions (0.3); those by cosines and sines take no scaling of Llama 3.1."""
EPS: Final[Mapping[str, float]] = {"qwen3": 1e-6}
"""What norms of a module add to the variance, where that is not PyTorch's."""
LLAMA: Final[Mapping[str, str]] = {
    "scaling_factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}
"""Words of Llama 3.1's scaling by Hugging Face's."""
YARN: Final[Mapping[str, str]] = {
    "rope_factor": "factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "original_seq_len": "original_max_position_embeddings",
    "truncate": "truncate",
}
OURS: Final[Mapping[str, str]] = {
    "original_max_position_embeddings": "original_seq_len",
    "truncate": "rounded",
}
"""What our fields are called, where that is not Hugging Face's word."""
USUAL: Final[Mapping[str, Any]] = {
    "scaling_factor": 8.0,
    "original_max_position_embeddings": 8192,
    "rope_factor": 40.0,
    "original_seq_len": 4096,
}
"""Defaults of RoPE.Config (0.3)."""


def rope_text(module: str, rope: Rope, *, width: int, longest: int) -> str:
    """Return the call that makes a model's positions (0.3)."""
    values: dict[str, Any] = {"dim": width, "max_seq_len": longest, "theta": rope.base}
    if rope.scaling == "llama3" and KINDS[module] == "ComplexRoPE":
        values |= {"scaling": "llama", **_named(rope, LLAMA)}
    if rope.scaling == "yarn":
        values |= {"scaling": "yarn", **_named(rope, YARN)}
    return f"{KINDS[module]}.Config({', '.join(f'{word}={value!r}' for word, value in values.items())})"


def weight_words(model: Model) -> dict[str, Any]:
    """Return the words of the weights of a token's experts."""
    moe = model.moe
    return {} if moe is None else {"route_norm": moe.normalised, "route_scale": moe.weight_scale}


def weight_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return Hugging Face's keys of these weights; builders without such words divide by the sum."""
    names = {word: fields.get(word, fields.get(f"router_{word}")) for word in ("route_norm", "route_scale")}
    known = "score_func" in fields or "router_score_func" in fields
    return {
        "norm_topk_prob": not known if names["route_norm"] is None else names["route_norm"],
        "routed_scaling_factor": names["route_scale"] or 1.0,
    }


def product_scale(rope: Rope) -> float:
    """Return the weight of the factor of queries times keys, which counts beside YaRN only."""
    return rope.mscale_all_dim if rope.scaling == "yarn" else 1.0


def _named(rope: Rope, texts: Mapping[str, str]) -> dict[str, Any]:
    return {word: getattr(rope, OURS.get(theirs, theirs)) for word, theirs in texts.items()}


def rope_config(module: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return Hugging Face's keys of positions and norms, from the arguments of a builder."""
    call = fields.get("rope")
    eps = {"rms_norm_eps": fields.get("norm_eps", EPS.get(module, USUAL_EPS))}
    value = {**USUAL, **(call.fields if isinstance(call, Call) else {})}
    scaling, theta = str(value.get("scaling", "none")), value.get("theta", 10_000.0)
    parts = {"llama": LLAMA, "yarn": YARN}.get(scaling, {})
    table = {theirs: value[word] for word, theirs in parts.items() if word in value}
    result = {"rope_theta": theta, **eps}
    if not table or table["factor"] == 1:
        return result
    weight = fields.get("mscale", 1.0)
    kind = {"rope_type": "yarn", "mscale": weight, "mscale_all_dim": weight}
    return result | {"rope_scaling": table | ({"rope_type": "llama3"} if scaling == "llama" else kind)}

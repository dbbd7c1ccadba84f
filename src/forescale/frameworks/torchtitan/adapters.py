"""torchtitan's LoRAConverter: adapters of low rank, as words of a plan and written (0.3, components/lora.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forescale.frameworks.adapters import lora_words, targets_of
from forescale.frameworks.settings import Settings
from forescale.spec.model import LatentAttention, Model
from forescale.spec.workload import ALL_LINEAR, LoraTarget, Trainable

CONVERTER: Final = "LoRAConverter"
RANK: Final = 8
_ENDS: Final[Mapping[str, tuple[LoraTarget, ...]]] = {
    "wo": ("o_proj",),
    "w1": ("gate_proj",),
    "w3": ("up_proj",),
    "w2": ("down_proj",),
}
PLACES: Final[Mapping[str, tuple[LoraTarget, ...]]] = {
    "wq": ("q_proj",),
    "wkv": ("k_proj", "v_proj"),
    **_ENDS,
}
LATENT: Final[Mapping[str, tuple[LoraTarget, ...]]] = {
    "wq_a": ("q_proj",),
    "wq_b": ("q_proj",),
    "wkv_a": ("k_proj", "v_proj"),
    "wkv_b": ("k_proj", "v_proj"),
    **PLACES,
}
"""Our targets by torchtitan's modules, and by those of latent attention."""
FUSED: Final[Mapping[str, tuple[LoraTarget, ...]]] = {"wqkv": ("qkv_proj",)}
"""Of models that are built with fuse_qkv, as no flavor is."""
BESIDE: Final = frozenset(("lm_head", "gate"))
"""Linear layers whose adapters are not counted: the head, and the router of experts."""


def read_adapters(settings: Settings, model: Model) -> dict[str, Any]:
    """Return the adapters that the converter adds, in the words of a plan; experts in one tensor have none."""
    if "lora.rank" not in settings:
        return {}
    named = settings.words("lora.target_modules")
    every = settings.get("lora.target_modules") is None
    beside = BESIDE if model.is_moe else BESIDE - {"gate"}
    for name in sorted(beside if every else beside & set(named)):
        settings.note(f"not expressed: adapters at {name}")
    targets = targets_of([name for name in named if name not in BESIDE], settings.refuse, {**LATENT, **FUSED})
    return lora_words(
        settings.size("lora.rank"),
        ALL_LINEAR if every else targets,
        experts="none" if model.is_moe else "own",
    )


def converter(trainable: Trainable, model: Model) -> list[str]:
    """Return the converter that adds adapters where torchtitan has the places; none where nothing has low rank."""
    if not trainable.lora_rank:
        return []
    latent = any(isinstance(layer.attention, LatentAttention) for layer in model.layers)
    wanted, places = set(trainable.unfused), LATENT if latent else PLACES
    named = [name for name, ours in places.items() if wanted & set(ours) and not (latent and name == "wkv")]
    return [f"{CONVERTER}.Config(rank={trainable.lora_rank}, target_modules={named!r})"]

"""Adapters of low rank as frameworks say them: names of products, and what is read of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from forescale.errors import shown
from forescale.spec.workload import ALL_LINEAR, LoraTarget

PLACES: Mapping[str, tuple[LoraTarget, ...]] = {
    **{name: (name,) for name in (*ALL_LINEAR, "qkv_proj", "gate_up_proj")},
    "all-linear": ALL_LINEAR,
    "q_a_proj": ("q_proj",),
    "q_b_proj": ("q_proj",),
    "kv_a_proj_with_mqa": ("k_proj",),
    "kv_b_proj": ("k_proj",),
    "query_key_value": ("qkv_proj",),
    "c_attn": ("qkv_proj",),
    "w1": ("gate_proj",),
    "w2": ("down_proj",),
    "w3": ("up_proj",),
    "linear_qkv": ("qkv_proj",),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_up_proj",),
    "linear_fc2": ("down_proj",),
    "linear_q": ("q_proj",),
    "linear_k": ("k_proj",),
    "linear_v": ("v_proj",),
    "linear_fc1_gate": ("gate_proj",),
    "linear_fc1_up": ("up_proj",),
    "linear_q_down_proj": ("q_proj",),
    "linear_q_up_proj": ("q_proj",),
    "linear_kv_down_proj": ("k_proj",),
    "linear_kv_up_proj": ("k_proj",),
    "query": ("q_proj",),
    "key": ("k_proj",),
    "value": ("v_proj",),
    "out": ("o_proj",),
    "wi_0": ("gate_proj",),
    "wi_1": ("up_proj",),
    "wo": ("down_proj",),
}
"""Our targets by what Hugging Face, Megatron-Bridge and MaxText call them."""
WHOLE: Mapping[str, str] = {"embed_tokens": "embedding", "lm_head": "head", "wte": "embedding"}
"""Parts by the modules that PEFT trains whole."""


def targets_of(
    names: Iterable[object],
    refuse: Callable[[str], NoReturn],
    places: Mapping[str, tuple[LoraTarget, ...]] = PLACES,
) -> tuple[LoraTarget, ...]:
    """Return the products that are meant; `refuse` is told of a name that is none."""
    found: dict[LoraTarget, None] = {}
    for name in names:
        last = str(name).rpartition(".")[2]
        if last not in places:
            refuse(f"adapters at {shown(name)} are not counted; known places are {', '.join(places)}")
        found.update(dict.fromkeys(places[last]))
    return tuple(found)


def parts_of(names: Iterable[object], refuse: Callable[[str], NoReturn]) -> tuple[str, ...]:
    """Return the parts of a model that PEFT trains whole."""
    for name in names:
        if name not in WHOLE:
            refuse(f"{shown(name)} trained whole is not counted; {', '.join(WHOLE)} are")
    return tuple(WHOLE[str(name)] for name in names)


def lora_words(
    rank: int,
    targets: tuple[LoraTarget, ...],
    *,
    dropout: float = 0.0,
    experts: str = "own",
    whole: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return adapters in the words of a plan, beside parts that are trained whole."""
    return {
        "lora_rank": rank,
        "lora_targets": targets,
        "lora_dropout": dropout > 0.0,
        "lora_experts": experts,
        "whole": whole,
    }

"""Plans that torchtitan can run: as everywhere, with the dense layers of a model of experts first, as its builders have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.plans import EXPERTS, LATENT, dense_first, plans

from forescale.question import Question

DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "llama-2-7b")
"""Models whose parts torchtitan has: no windows, gates everywhere, root-mean-square norms."""


def titan_plans(to: str, count: int, *, seed: int = 1, **choices: Sequence[Any]) -> list[Question]:
    """Return `count` plans for one release of torchtitan."""
    own = {"sp": (True,)} if "0.2" in to else {"cp_kind": ("all_gather",)}
    found = plans(to, 2 * count, seed=seed, kinds=(DENSE, EXPERTS, LATENT), **{**own, **choices})
    built = [each for each in found if each.model.is_moe or each.model.name in DENSE]
    return [dense_first(question) for question in built[:count]]

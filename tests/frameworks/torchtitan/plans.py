"""Plans that torchtitan can run: as everywhere, with the dense layers of a model of experts first, as its builders have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.plans import LATENT, dense_first, plans

from forescale.question import Question
from forescale.spec import Layout

DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "llama-2-7b")
"""Models whose parts torchtitan has: no windows, gates everywhere, root-mean-square norms."""


ROUTED = ("qwen3-30b-a3b", "qwen3-235b-a22b")
"""torchtitan 0.3 builds experts with norms of queries and keys only."""


def titan_plans(to: str, count: int, *, seed: int = 1, **choices: Sequence[Any]) -> list[Question]:
    """Return `count` plans for torchtitan 0.3."""
    local = {"cp_kind": ("all_gather",), **choices}
    result = plans(to, count, seed=seed, kinds=(DENSE, ROUTED, LATENT), where=_built, **local)
    return [dense_first(question) for question in result]


def _built(layout: Layout) -> bool:
    return layout.ep == 1 or layout.etp == 1

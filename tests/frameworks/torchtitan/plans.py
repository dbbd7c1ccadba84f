"""Plans that torchtitan can run: as everywhere, with the dense layers of a model of experts first, as its builders have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.plans import EXPERTS, LATENT, dense_first, plans

from forescale.question import Question
from forescale.spec import Layout

DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "llama-2-7b")
"""Models whose parts torchtitan has: no windows, gates everywhere, root-mean-square norms."""


ROUTED = {"0.2": EXPERTS, "0.3": ("qwen3-30b-a3b", "qwen3-235b-a22b")}
"""0.3 builds experts with norms of queries and keys only."""


def titan_plans(to: str, count: int, *, seed: int = 1, **choices: Sequence[Any]) -> list[Question]:
    """Return `count` plans for one release of torchtitan."""
    release = to.partition("@")[2]
    local = {"sp": (True,)} if release == "0.2" else {"cp_kind": ("all_gather",)}
    kinds = (DENSE, ROUTED[release], LATENT)
    result = plans(
        to,
        count,
        seed=seed,
        kinds=kinds,
        where=lambda layout: _built(layout, release),
        **{**local, **choices},
    )
    return [dense_first(question) for question in result]


def _built(layout: Layout, release: str) -> bool:
    return release == "0.2" or layout.ep == 1 or layout.etp == 1

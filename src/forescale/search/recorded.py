"""Questions of layouts whose operators were recorded."""

from __future__ import annotations

from forescale.inputs import recorded_blocks
from forescale.question import Question


def partly_recomputed(question: Question) -> bool:
    """Return whether a search leaves out policies that replay a part of a block, which recordings do not have."""
    policies = question.space.whole(question.model).recompute or ()
    return any(item.granularity not in ("none", "full") for item in policies) and (
        by_recording(question).model is not question.model
    )


def by_recording(question: Question) -> Question:
    """Return the question of layouts that recordings describe, or the same one where there are none."""
    space = question.space
    policies = tuple(
        item for item in space.whole(question.model).recompute or () if item.granularity in ("none", "full")
    )
    if not policies or space.base.offload.activations:
        return question
    recorded = recorded_blocks(question, space.base)
    return question if recorded.model is question.model else recorded.with_space(recompute=policies)

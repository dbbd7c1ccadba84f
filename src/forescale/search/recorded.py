"""Questions of layouts that leave blocks whole, whose operators were recorded, and of layouts that split them."""

from __future__ import annotations

from forescale.inputs import recorded_blocks
from forescale.question import Question
from forescale.spec.proposal import Constraint

SPLIT_BLOCKS = Constraint(
    name="blocks that are split",
    holds=lambda q: q.degrees.tp * q.degrees.cp * q.degrees.ep > 1,
    message=lambda _: "tp × cp × ep must be at least 2: the operators of whole blocks were recorded",
)


def partly_recomputed(question: Question) -> bool:
    """Return whether a search leaves out policies that replay a part of a block, which recordings do not have."""
    policies = question.space.whole(question.model).recompute or ()
    return any(item.granularity not in ("none", "full") for item in policies) and (
        by_recording(question)[0].model is not question.model
    )


def by_recording(question: Question) -> tuple[Question, ...]:
    """Return a question of layouts whose blocks are whole, if their operators were recorded, and one of the others."""
    space = question.space
    policies = tuple(
        item for item in space.whole(question.model).recompute or () if item.granularity in ("none", "full")
    )
    degrees = {name: getattr(space, name) or (1,) for name in ("tp", "cp", "ep", "etp")}
    if not policies or not all(1 in values for values in degrees.values()) or space.base.offload.activations:
        return (question,)
    whole = recorded_blocks(question, space.base)
    if whole.model is question.model:
        return (question,)
    whole = whole.with_space(**dict.fromkeys(degrees, (1,)), recompute=policies)
    splits = question.cluster.num_devices > 1 and not question.model.traces
    if not splits or all(getattr(space, name) == (1,) for name in ("tp", "cp", "ep")):
        return (whole,)
    return (whole, question.with_space(rules=(*space.rules, SPLIT_BLOCKS)))

"""What makes a layout legal for a model whose operators were recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forescale.spec.proposal import Constraint, Proposal
from forescale.spec.workload import Trainable


def has_plain_adapters(trainable: Trainable) -> bool:
    """Return whether adapters are all that is trained, without dropout of their own."""
    plain = Trainable(lora_rank=trainable.lora_rank, lora_targets=trainable.lora_targets)
    return bool(trainable.lora_rank) and trainable == plain


AXES = ("tp", "cp", "ep", "etp")
"""Degrees that split a block: a trace has each block whole."""


def _rule(
    name: str, holds: Callable[[Proposal], Any], message: str, *, choices: tuple[str, ...] = ()
) -> Constraint:
    return Constraint(
        name=f"traced model: {name}",
        choices=choices,
        holds=holds,
        message=lambda q: f"{q.model.name} was traced: {message}",
        applies=lambda q: bool(q.model.traces),
    )


def _whole_blocks(axis: str) -> Constraint:
    return Constraint(
        name=f"traced model: {axis}",
        holds=lambda q: getattr(q.degrees, axis) == 1,
        message=lambda q: (
            f"{axis} {getattr(q.degrees, axis)} splits the blocks of {q.model.name}, which were traced whole; allowed "
            f"is {axis} 1 (data parallel, ZeRO and pipeline need no split of a block)"
        ),
        applies=lambda q: bool(q.model.traces),
    )


TRACED_CONSTRAINTS: tuple[Constraint, ...] = (
    *map(_whole_blocks, AXES),
    _rule(
        "recompute",
        lambda q: q.degrees.recompute.granularity in ("none", "full"),
        "recompute is none or full, which replays whole blocks; selective recompute names modules that it has not",
        choices=("recompute",),
    ),
    _rule(
        "offload",
        lambda q: not q.degrees.offload.activations,
        "activations of its modules cannot be offloaded; leave offload.activations out",
    ),
    _rule(
        "all weights",
        lambda q: (
            q.workload.trainable.is_all or (bool(q.model.config) and has_plain_adapters(q.workload.trainable))
        ),
        "it trains what the module trains; leave lora_rank and frozen parts out, and wrap the module before tracing it",
    ),
    _rule(
        "documents",
        lambda q: q.workload.document_len is None,
        "it attends to whole sequences; leave document_len out",
    ),
)
"""Conditions on layouts of traced models."""

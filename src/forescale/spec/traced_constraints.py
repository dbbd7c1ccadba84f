"""What makes a layout legal for a model whose operators were recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any

from forescale.errors import not_a_factor
from forescale.numeric import divisors
from forescale.spec.context import CONTEXT_KINDS
from forescale.spec.model import Model
from forescale.spec.proposal import Constraint, Proposal
from forescale.spec.trace import Trace
from forescale.spec.workload import Trainable


def has_only_adapters(trainable: Trainable) -> bool:
    """Return whether adapters of linear layers are all that is trained."""
    plain = Trainable(
        lora_rank=trainable.lora_rank,
        lora_targets=trainable.lora_targets,
        lora_dropout=trainable.lora_dropout,
    )
    return bool(trainable.lora_rank) and trainable == plain


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


SPLITS: Mapping[str, Callable[[Trace], int]] = {
    "tp": lambda trace: trace.tp,
    "cp": lambda trace: 0 if trace.shared_heads else 1,
    "ep": lambda trace: trace.ep,
    "etp": lambda _: 1,
}
"""By degree, the number that it divides; 0 is divided by all."""


def splits_blocks(model: Model, degrees: Any, axis: str) -> Any:  # noqa: ANN401  (of one layout or of many)
    """Return whether the recorded blocks of a model can be split by the degree of an axis."""
    most = gcd(*map(SPLITS[axis], model.traces))
    return most % getattr(degrees, axis) == 0


def _splits(axis: str) -> Constraint:
    return Constraint(
        name=f"traced model: {axis}",
        key=axis,
        holds=lambda q: splits_blocks(q.model, q.degrees, axis),
        message=lambda q: (
            f"{axis} {getattr(q.degrees, axis)} splits the blocks of {q.model.name}, whose trace has "
            f"{_allowed(q.model, axis)} (data parallel, ZeRO and pipeline need no split of a block)"
        ),
        applies=lambda q: bool(q.model.traces),
    )


def _allowed(model: Model, axis: str) -> str:
    most = gcd(*map(SPLITS[axis], model.traces))
    return f"{axis} {' or '.join(map(str, divisors(most)))}"


def _shared_heads(model: Model) -> int:
    return gcd(*(trace.shared_heads for trace in model.traces))


TRACED_CONSTRAINTS: tuple[Constraint, ...] = (
    *map(_splits, SPLITS),
    _rule(
        "tp and ep",
        lambda q: (q.degrees.tp == 1) | (q.degrees.ep == 1),
        "experts are split by tp or dealt by ep; one of them must be 1",
    ),
    Constraint(
        name="traced model: heads over tp × cp",
        choices=("cp_kind",),
        holds=lambda q: _shared_heads(q.model) % (q.degrees.tp * q.degrees.cp) == 0,
        message=lambda q: not_a_factor(
            "tp × cp", q.degrees.tp * q.degrees.cp, _shared_heads(q.model), f"the heads of {q.model.name}"
        ),
        applies=lambda q: bool(q.model.traces) and CONTEXT_KINDS[q.degrees.cp_kind].exchanges is not None,
    ),
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
            q.workload.trainable.is_all or (bool(q.model.config) and has_only_adapters(q.workload.trainable))
        ),
        "it trains all weights, or, if its configuration is known, adapters of linear layers; leave frozen and whole "
        "parts and shared adapters of experts out, and give a module of your own its adapters before tracing it",
    ),
    _rule(
        "documents",
        lambda q: q.workload.document_len is None,
        "it attends to whole sequences; leave document_len out",
    ),
)
"""Conditions on layouts of traced models."""

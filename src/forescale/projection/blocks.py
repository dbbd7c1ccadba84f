"""Price one block: seconds of forward and backward per micro-batch and device, by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from forescale.cost.model import ComputeModel
from forescale.cost.placement import Group
from forescale.formula import formula
from forescale.graph.operator import Block, Operator
from forescale.graph.ops import Collective, CollectiveKind, MeshAxis, Primitive
from forescale.graph.recompute import Kept
from forescale.numeric import Numeric

COMMUNICATION_PART = {"tp": "tensor_comm", "cp": "context_comm", "ep": "expert_comm", "etp": "expert_comm"}
Seconds = dict[str, Numeric]
"""Seconds by part."""


class CollectiveModel(Protocol):
    """Prices a message among the ranks of a group."""

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the duration [s]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """The cost models and communicators that turn operators into seconds."""

    compute: ComputeModel
    collectives: CollectiveModel
    groups: Mapping[MeshAxis, Group]

    def seconds(self, op: Primitive) -> Numeric:
        """Return the duration of one primitive [s]."""
        if isinstance(op, Collective):
            return self.collectives.seconds(kind=op.kind, num_bytes=op.num_bytes, group=self.groups[op.axis])
        return self.compute.seconds(op)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """One block on one device for one micro-batch."""

    forward: Seconds
    backward: Seconds
    """Replayed operators under "recompute" and their communication parts."""
    flops: Numeric
    """Executed FLOP, forward and backward, replay included."""
    kept_bytes: Numeric
    working_bytes: Numeric


@formula(unit="s", source="two queues, one for compute and one for communication: what does not fit behind shows")
def exposed_time(*, communication: Numeric, cover: Numeric) -> Numeric:
    """max(0, communication − cover)."""
    return np.maximum(communication - cover, 0.0)


@dataclass(slots=True)
class _Priced:
    """Seconds of one operator's three passes, compute and communication apart."""

    forward: tuple[Numeric, Seconds]
    backward_input: tuple[Numeric, Seconds]
    backward_weight: tuple[Numeric, Seconds]


def price_block(block: Block, kept: Kept, pricing: Pricing, *, asynchronous_tensor: bool = False) -> BlockCost:
    """Return what a block costs: every operator priced, its communication exposed as far as nothing hides it."""
    priced = {operator.name: _price(operator, pricing) for operator in block.operators}
    forward: Seconds = {}
    backward: Seconds = {}
    flops: Numeric = 0.0
    for operator in block.operators:
        own = priced[operator.name]
        _add_pass(forward, operator, own.forward, own.forward[0], asynchronous_tensor)
        cover_input = cover_weight = 0.0
        if operator.hidden_behind is not None and operator.hidden_behind in priced:
            feeds = priced[operator.hidden_behind]
            cover_input, cover_weight = feeds.backward_weight[0], feeds.backward_input[0]
        _add_pass(backward, operator, own.backward_input, own.backward_input[0] + cover_input, asynchronous_tensor)
        _add_pass(backward, operator, own.backward_weight, own.backward_weight[0] + cover_weight, asynchronous_tensor)
        for primitives in (operator.forward, operator.backward_input, operator.backward_weight):
            flops = flops + _flops(primitives)
    for operator in kept.replayed:
        own = priced[operator.name]
        _add_pass(backward, operator, own.forward, own.forward[0], asynchronous_tensor, part="recompute")
        flops = flops + _flops(operator.forward)
    return BlockCost(
        forward=forward, backward=backward, flops=flops, kept_bytes=kept.num_bytes, working_bytes=kept.working_bytes
    )


def _price(operator: Operator, pricing: Pricing) -> _Priced:
    return _Priced(
        forward=_split(operator.forward, pricing),
        backward_input=_split(operator.backward_input, pricing),
        backward_weight=_split(operator.backward_weight, pricing),
    )


def _split(primitives: tuple[Primitive, ...], pricing: Pricing) -> tuple[Numeric, Seconds]:
    compute: Numeric = 0.0
    communication: Seconds = {}
    for primitive in primitives:
        seconds = pricing.seconds(primitive)
        if isinstance(primitive, Collective):
            part = COMMUNICATION_PART[primitive.axis]
            communication[part] = communication.get(part, 0.0) + seconds
        else:
            compute = compute + seconds
    return compute, communication


def _add_pass(
    into: Seconds, operator: Operator, seconds: tuple[Numeric, Seconds], cover: Numeric, asynchronous: bool, part: str | None = None
) -> None:
    """Add one pass of one operator; `cover` is the compute its communication may hide behind."""
    compute, communication = seconds
    if not isinstance(compute, float) or compute:
        name = part or operator.part
        into[name] = into.get(name, 0.0) + compute
    hides = operator.overlaps_itself or operator.hidden_behind is not None
    for name, duration in communication.items():
        shown = exposed_time(communication=duration, cover=cover) if hides or asynchronous else duration
        into[name] = into.get(name, 0.0) + shown


def _flops(primitives: tuple[Primitive, ...]) -> Numeric:
    result: Numeric = 0.0
    for primitive in primitives:
        result = result + getattr(primitive, "flops", 0.0)
    return result

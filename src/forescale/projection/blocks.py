"""Price one block: seconds of forward and backward per micro-batch and device, by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from forescale.cost.calibration import RunFactors
from forescale.cost.collectives import CollectiveModel
from forescale.cost.model import ComputeModel
from forescale.cost.placement import Group
from forescale.formula import Term, formula, named, total
from forescale.graph.operator import Block, Operator
from forescale.graph.ops import Collective, MeshAxis, Primitive
from forescale.graph.recompute import Kept
from forescale.memory.liveness import block_moments
from forescale.numeric import Numeric

COMMUNICATION_PART = {"tp": "tensor_comm", "cp": "context_comm", "ep": "expert_comm", "etp": "expert_comm"}
NEUTRAL = RunFactors()
Seconds: TypeAlias = dict[str, Numeric]
"""Seconds by part."""
PASSES = ("forward", "backward_input", "backward_weight")
Select: TypeAlias = Callable[[Numeric], Numeric]
"""Takes some candidates' numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """The cost models and communicators that turn operators into seconds."""

    compute: ComputeModel
    collectives: CollectiveModel
    groups: Mapping[MeshAxis, Group]
    run: RunFactors = NEUTRAL
    """What a run loses against kernels alone; the compute model knows its own share of it."""

    def seconds(self, op: Primitive) -> Numeric:
        """Return the duration of one primitive [s]."""
        if isinstance(op, Collective):
            alone = self.collectives.seconds(kind=op.kind, num_bytes=op.num_bytes, group=self.groups[op.axis])
            key = "dispatch" if op.axis == "ep" else "network"
            return alone if key not in self.run.sustained else alone / self.run.rate(key)
        return self.compute.seconds(op)

    def titled(self, op: Primitive, title: str) -> Numeric:
        """Return the duration [s]; recorded, it has a title and says where its parameters come from."""
        seconds: Any = self.seconds(op)
        if not isinstance(seconds, Term):
            return cast("Numeric", seconds)
        if isinstance(op, Collective):
            origin = self.collectives.provenance(kind=op.kind)
        else:
            origin = self.compute.provenance(op)
        source = "; ".join(filter(None, (seconds.source, f"{origin.kind}: {origin.source}")))
        return cast("Numeric", seconds.renamed(title, unit="s", source=source))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """One block on one device for one micro-batch."""

    forward: Seconds
    backward: Seconds
    """Replayed operators under "recompute" and their communication parts."""
    forward_seconds: Numeric
    backward_seconds: Numeric
    weight_seconds: Numeric
    """Part of the backward that makes weight gradients."""
    flops: Numeric
    """Executed FLOP, forward and backward, replay included."""
    kept_bytes: Numeric
    """Bytes that one micro-batch keeps from forward to backward."""
    forward_bytes: Numeric
    """Most bytes of the block that exist during its forward."""
    backward_bytes: Numeric
    """Most bytes of the block that exist during its backward: kept tensors, replay, gradients."""

    def take(self, select: Select) -> BlockCost:
        """Return the cost with every number passed through `select`."""
        return BlockCost(
            forward={part: select(value) for part, value in self.forward.items()},
            backward={part: select(value) for part, value in self.backward.items()},
            forward_seconds=select(self.forward_seconds),
            backward_seconds=select(self.backward_seconds),
            weight_seconds=select(self.weight_seconds),
            flops=select(self.flops),
            kept_bytes=select(self.kept_bytes),
            forward_bytes=select(self.forward_bytes),
            backward_bytes=select(self.backward_bytes),
        )


@formula(
    unit="s", source="two queues, one for compute and one for communication: what does not fit behind shows"
)
def exposed_time(*, communication: Numeric, cover: Numeric, contention: Numeric = 0.0) -> Numeric:
    """max(0, communication − cover) + contention · min(communication, cover)."""
    return np.maximum(communication - cover, 0.0) + contention * np.minimum(communication, cover)


@formula(
    unit="s",
    source="kernels start in order: the device waits for the host where launches take longer than kernels",
)
def launch_gap(*, kernels: float, interval: Numeric, busy: Numeric) -> Numeric:
    """max(0, kernels · interval − busy)."""
    return np.maximum(kernels * interval - busy, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOperator:
    """Seconds of one operator's three passes, compute and communication apart; and its FLOP."""

    operator: Operator
    forward: tuple[Numeric, Seconds]
    backward_input: tuple[Numeric, Seconds]
    backward_weight: tuple[Numeric, Seconds]
    forward_flops: Numeric
    flops: Numeric
    forward_kernels: float = 0.0
    backward_kernels: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedBlock:
    """A block and the price of each of its operators, by name."""

    block: Block
    operators: dict[str, PricedOperator]
    run: RunFactors = NEUTRAL


def price_operators(block: Block, pricing: Pricing) -> PricedBlock:
    """Price every operator of a block."""
    return PricedBlock(
        block=block,
        operators={operator.name: _price(operator, pricing) for operator in block.operators},
        run=pricing.run,
    )


def block_cost(priced: PricedBlock, kept: Kept, *, asynchronous_tensor: bool = False) -> BlockCost:
    """Return what a block costs under a recompute policy, its communication exposed as far as nothing hides it."""
    forward: Seconds = {}
    backward: Seconds = {}
    weight: Seconds = {}
    flops: Numeric = 0.0
    forward_kernels, backward_kernels, slow = 0.0, 0.0, priced.run.contention
    for own in priced.operators.values():
        operator = own.operator
        forward_kernels += own.forward_kernels
        backward_kernels += own.backward_kernels
        _add_pass(forward, operator, own.forward, own.forward[0], slow, asynchronous_tensor)
        cover_input: Numeric = 0.0
        cover_weight: Numeric = 0.0
        if operator.hidden_behind is not None and operator.hidden_behind in priced.operators:
            feeds = priced.operators[operator.hidden_behind]
            cover_input, cover_weight = feeds.backward_weight[0], feeds.backward_input[0]
        _add_pass(
            backward,
            operator,
            own.backward_input,
            own.backward_input[0] + cover_input,
            slow,
            asynchronous_tensor,
        )
        cover = own.backward_weight[0] + cover_weight
        for into in (backward, weight):
            _add_pass(into, operator, own.backward_weight, cover, slow, asynchronous_tensor)
        flops = flops + own.flops
    for operator in kept.replayed:
        own = priced.operators[operator.name]
        _add_pass(
            backward, operator, own.forward, own.forward[0], slow, asynchronous_tensor, part="recompute"
        )
        flops = flops + own.forward_flops
        backward_kernels += own.forward_kernels
    _add_gap(forward, forward_kernels, priced.run.kernel_interval_s)
    _add_gap(backward, backward_kernels, priced.run.kernel_interval_s)
    moments, name = block_moments(priced.block, kept), priced.block.name
    forward, backward = _titled(forward, f"{name} forward"), _titled(backward, f"{name} backward")
    return BlockCost(
        forward=forward,
        backward=backward,
        forward_seconds=total(forward, name="block_time", unit="s"),
        backward_seconds=total(backward, name="block_time", unit="s"),
        weight_seconds=total(weight, name=f"{name} weight gradients", unit="s"),
        flops=flops,
        kept_bytes=kept.num_bytes,
        forward_bytes=moments.forward_bytes,
        backward_bytes=moments.backward_bytes,
    )


def _add_gap(into: Seconds, kernels: float, interval: Numeric) -> None:
    """Add the time that the device waits for the host."""
    if isinstance(interval, float) and interval == 0.0:
        return
    busy: Numeric = 0.0
    for seconds in into.values():
        busy = busy + seconds
    into["overhead"] = launch_gap(kernels=kernels, interval=interval, busy=busy)


def _titled(seconds: Seconds, title: str) -> Seconds:
    return {part: named(value, f"{title} {part}", unit="s") for part, value in seconds.items()}


def _price(operator: Operator, pricing: Pricing) -> PricedOperator:
    forward, backward_input, backward_weight = (
        _split(getattr(operator, name), pricing, f"{operator.name} {name}") for name in PASSES
    )
    forward_flops = _flops(operator.forward)
    return PricedOperator(
        operator=operator,
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        forward_flops=forward_flops,
        flops=forward_flops + _flops(operator.backward_input) + _flops(operator.backward_weight),
        forward_kernels=_kernels(operator.forward),
        backward_kernels=_kernels(operator.backward_input) + _kernels(operator.backward_weight),
    )


def _split(primitives: tuple[Primitive, ...], pricing: Pricing, title: str) -> tuple[Numeric, Seconds]:
    compute: Numeric = 0.0
    communication: Seconds = {}
    for primitive in primitives:
        kind = primitive.kind if isinstance(primitive, Collective) else type(primitive).__name__
        seconds = pricing.titled(primitive, f"{title} {kind}")
        if isinstance(primitive, Collective):
            part = COMMUNICATION_PART[primitive.axis]
            communication[part] = communication.get(part, 0.0) + seconds
        else:
            compute = compute + seconds
    return compute, communication


def _add_pass(
    into: Seconds,
    operator: Operator,
    seconds: tuple[Numeric, Seconds],
    cover: Numeric,
    contention: Numeric,
    asynchronous: bool,
    part: str | None = None,
) -> None:
    """Add one pass of one operator; `cover` is the compute its communication may hide behind."""
    compute, communication = seconds
    if not isinstance(compute, float) or compute:
        name = part or operator.part
        into[name] = into.get(name, 0.0) + compute
    hides = operator.overlaps_itself or operator.hidden_behind is not None
    for name, duration in communication.items():
        shown = duration
        if hides or asynchronous:
            shown = exposed_time(communication=duration, cover=cover, contention=contention)
        into[name] = into.get(name, 0.0) + shown


def _kernels(primitives: tuple[Primitive, ...]) -> float:
    return sum((getattr(primitive, "kernels", 1.0) for primitive in primitives), 0.0)


def _flops(primitives: tuple[Primitive, ...]) -> Numeric:
    result: Numeric = 0.0
    for primitive in primitives:
        result = result + getattr(primitive, "flops", 0.0)
    return result

"""Price one block: seconds of forward and backward per micro-batch and device, by part."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from forescale.cost.model import ProvenanceKind
from forescale.formula import named, total
from forescale.graph.offloads import offloaded_bytes
from forescale.graph.operator import Block, Operator
from forescale.graph.ops import AttentionCore, Collective, Primitive
from forescale.graph.recompute import Kept
from forescale.memory.liveness import BlockMoments, block_moments
from forescale.memory.moments import peak_bytes
from forescale.numeric import Numeric
from forescale.spec.strategy import OffloadName, Overlap
from forescale.time.launches import calls_of_steps, launch_gap
from forescale.time.overlap import Covers, Seconds, hide_experts
from forescale.time.price import Pricing

COMMUNICATION_PART = {
    "tp": "tensor_comm",
    "cp": "context_comm",
    "cp_inner": "context_comm",
    "cp_outer": "context_comm",
    "tp_cp": "expert_comm",
    "ep": "expert_comm",
    "etp": "expert_comm",
}
NO_OVERLAP = Overlap(tensor=False, expert=False)
PASSES = ("forward", "backward_input", "backward_weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """One block on one device for one micro-batch."""

    forward: Seconds = field(default_factory=dict)
    backward: Seconds = field(default_factory=dict)
    """Replayed operators under "recompute" and their communication parts."""
    forward_seconds: Numeric = 0.0
    backward_seconds: Numeric = 0.0
    weight_seconds: Numeric = 0.0
    """Part of the backward that makes weight gradients."""
    causal_forward: Numeric = 0.0
    """Part of the forward whose work at a token grows with its place; 0 where it was not asked for."""
    causal_backward: Numeric = 0.0
    """The same part of the backward."""
    launches_seconds: Numeric = 0.0
    """What the host needs to launch forward and backward."""
    flops: Numeric = 0.0
    """Executed FLOP, forward and backward, replay included."""
    kept_bytes: Numeric
    """Bytes that one micro-batch keeps from forward to backward."""
    offloaded_bytes: Numeric = 0.0
    """Of these, what modules that are offloaded saved."""
    captured_bytes: tuple[Numeric, Numeric] | None = None
    """Working sets beyond what is kept, of launches in graphs and of others, where graphs capture some."""
    forward_bytes: Numeric
    """Most bytes of the block that exist during its forward."""
    backward_bytes: Numeric
    """Most bytes of the block that exist during its backward: kept tensors, replay, gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOperator:
    """Seconds of one operator's three passes, compute and communication apart; and its FLOP."""

    operator: Operator
    forward: tuple[Numeric, Seconds]
    backward_input: tuple[Numeric, Seconds]
    backward_weight: tuple[Numeric, Seconds]
    forward_flops: Numeric
    flops: Numeric
    forward_kernels: Numeric = 0.0
    backward_kernels: Numeric = 0.0
    weight_kernels: Numeric = 0.0
    """Of `backward_kernels`, those of weight gradients."""
    primitives: tuple[tuple[Primitive, Numeric], ...] = ()
    """Every kernel and message of the three passes, with its seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the seconds of one kernel or message come from."""

    operator: str
    message: bool
    seconds: Numeric
    kind: ProvenanceKind


@dataclass(frozen=True, kw_only=True)
class PricedBlock:
    """A block and the price of each of its operators, by name."""

    block: Block
    operators: dict[str, PricedOperator]
    pricing: Pricing

    @cached_property
    def origins(self) -> tuple[Origin, ...]:
        """Where the seconds of all kernels and messages come from, in the order of the operators."""
        return tuple(
            Origin(
                operator=own.operator.name,
                message=isinstance(primitive, Collective),
                seconds=seconds,
                kind=self.pricing.provenance(primitive).kind,
            )
            for own in self.operators.values()
            for primitive, seconds in own.primitives
        )


def price_operators(
    block: Block, pricing: Pricing, known: dict[int, PricedOperator] | None = None
) -> PricedBlock:
    """Price every operator of a block that is not among the `known`, by identity; they are added to those."""
    found = {} if known is None else known
    for operator in block.operators:
        if id(operator) not in found:
            found[id(operator)] = _price(operator, pricing)
    return PricedBlock(
        block=block,
        operators={operator.name: found[id(operator)] for operator in block.operators},
        pricing=pricing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """The seconds and FLOP of one block, as in `BlockCost`."""

    forward: Seconds
    backward: Seconds
    weight: Seconds
    flops: Numeric
    launches: Numeric


def block_seconds(
    priced: PricedBlock, replayed: tuple[Operator, ...], *, overlap: Overlap, split: bool = False
) -> BlockSeconds:
    """Return the seconds of a block that replays some operators, of communication what nothing hides.

    `split` is of schedules that run weight gradients apart, which then hide nothing of the input's gradient.
    """
    forward: Seconds = {}
    backward: Seconds = {}
    weight: Seconds = {}
    flops: Numeric = 0.0
    forward_kernels: Numeric = 0.0
    backward_kernels: Numeric = 0.0
    weight_kernels: Numeric = 0.0
    covers = Covers(priced, asynchronous=overlap.tensor, split=split)
    for own in priced.operators.values():
        forward_kernels = forward_kernels + own.forward_kernels
        backward_kernels = backward_kernels + own.backward_kernels
        weight_kernels = weight_kernels + own.weight_kernels
        covers.add(forward, own, own.forward, covers.of_forward(own))
        covers.add(backward, own, own.backward_input, covers.of_backward_input(own))
        cover = covers.of_backward_weight(own)
        for into in (backward, weight):
            covers.add(into, own, own.backward_weight, cover)
        flops = flops + own.flops
    for operator in replayed:
        own = priced.operators[operator.name]
        covers.add(backward, own, own.forward, covers.of_forward(own), part="recompute")
        flops = flops + own.forward_flops
        backward_kernels = backward_kernels + own.forward_kernels
    for seconds, kernels in ((forward, forward_kernels), (backward, backward_kernels)):
        hide_experts(seconds, priced, overlap, backward=seconds is backward)
        apart = (weight, weight_kernels) if split and seconds is backward else None
        _add_gaps(seconds, kernels, priced, apart)
    name = priced.block.name
    forward, backward = _titled(forward, f"{name} forward"), _titled(backward, f"{name} backward")
    launches = (forward_kernels + backward_kernels) * priced.pricing.run.kernel_interval_s
    return BlockSeconds(forward=forward, backward=backward, weight=weight, flops=flops, launches=launches)


def block_cost(
    priced: PricedBlock,
    kept: Kept,
    *,
    overlap: Overlap = NO_OVERLAP,
    by_place: bool = False,
    split: bool = False,
    offloaded: tuple[OffloadName, ...] = (),
    captured: bool = False,
) -> BlockCost:
    """Return what a block costs under a recompute policy, with some modules `offloaded`.

    `split` is as in `block_seconds`. `by_place` asks for the part that grows with a token's place in its sequence,
    `captured` for the working sets of what graphs capture and of experts apart.
    """
    seconds, name = block_seconds(priced, kept.replayed, overlap=overlap, split=split), priced.block.name
    held = block_bytes(priced.block, kept, offloaded=offloaded, captured=captured)
    causal = _causal(priced, kept) if by_place else (0.0, 0.0)
    return replace(
        held,
        forward=seconds.forward,
        backward=seconds.backward,
        forward_seconds=total(seconds.forward, name="block_time", unit="s"),
        backward_seconds=total(seconds.backward, name="block_time", unit="s"),
        weight_seconds=total(seconds.weight, name=f"{name} weight gradients", unit="s"),
        causal_forward=causal[0],
        causal_backward=causal[1],
        launches_seconds=seconds.launches,
        flops=seconds.flops,
    )


def block_bytes(
    block: Block, kept: Kept, *, offloaded: tuple[OffloadName, ...] = (), captured: bool = False
) -> BlockCost:
    """Return the bytes of a block under a recompute policy, as of work that takes no time."""
    moments = block_moments(block, kept)
    return BlockCost(
        kept_bytes=kept.num_bytes,
        offloaded_bytes=offloaded_bytes(block, kept, offloaded),
        captured_bytes=_pools(block, kept, moments) if captured else None,
        forward_bytes=moments.forward_bytes,
        backward_bytes=moments.backward_bytes,
    )


def _pools(block: Block, kept: Kept, moments: BlockMoments) -> tuple[Numeric, Numeric]:
    """Return the working sets, beyond what is kept, of all operators but experts', and of experts'."""
    experts = {operator.name for operator in block.operators if operator.part == "moe"}
    inside, outside = (
        peak_bytes([each for each in moments.backward if (each.name in experts) is among])
        for among in (False, True)
    )
    none = kept.num_bytes * 0.0
    return inside - kept.num_bytes, (outside - kept.num_bytes) if experts else none


def _causal(priced: PricedBlock, kept: Kept) -> tuple[Numeric, Numeric]:
    """Return the seconds of causal attention in forward and backward; where a window bounds it, it does not grow."""
    forward: Numeric = 0.0
    backward: Numeric = 0.0
    replayed = {operator.name for operator in kept.replayed}
    for own in priced.operators.values():
        if not any(isinstance(each, AttentionCore) and each.grows for each in own.operator.forward):
            continue
        forward = forward + own.forward[0]
        backward = backward + own.backward_input[0]
        if own.operator.name in replayed:
            backward = backward + own.forward[0]
    return forward, backward


def _add_gaps(
    into: Seconds, kernels: Numeric, priced: PricedBlock, apart: tuple[Seconds, Numeric] | None
) -> None:
    """Add the time that the device waits for the host, of weight gradients that run `apart` by themselves."""
    interval = priced.pricing.run.kernel_interval_s
    if isinstance(interval, float) and interval == 0.0:
        return
    busy, gap = _sum(into), functools.partial(launch_gap, interval=interval, blocking=priced.pricing.blocking)
    if apart is None:
        into["overhead"] = gap(kernels=kernels, busy=busy)
        return
    weight, few = apart
    spent = _sum(weight)
    weight["overhead"] = gap(kernels=few, busy=spent)
    into["overhead"] = gap(kernels=kernels - few, busy=busy - spent) + weight["overhead"]


def _sum(seconds: Seconds) -> Numeric:
    busy: Numeric = 0.0
    for each in seconds.values():
        busy = busy + each
    return busy


def _titled(seconds: Seconds, title: str) -> Seconds:
    return {part: named(value, f"{title} {part}", unit="s") for part, value in seconds.items()}


def _price(operator: Operator, pricing: Pricing) -> PricedOperator:
    passes = [
        [(each, pricing.titled(each, operator.name, name)) for each in getattr(operator, name)]
        for name in PASSES
    ]
    times = operator.panels
    if times is not None:
        passes = [[(each, times * seconds) for each, seconds in done] for done in passes]
    forward, backward_input, backward_weight = map(_split, passes)
    forward_flops = _often(_flops(operator.forward), times)
    backward = (*operator.backward_input, *operator.backward_weight)
    return PricedOperator(
        operator=operator,
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        forward_flops=forward_flops,
        flops=forward_flops
        + _often(_flops(operator.backward_input), times)
        + _often(_flops(operator.backward_weight), times),
        forward_kernels=calls_of_steps(pricing.kernels(operator, operator.forward), times),
        backward_kernels=calls_of_steps(pricing.kernels(operator, backward), times),
        weight_kernels=calls_of_steps(pricing.kernels(operator, operator.backward_weight), times),
        primitives=tuple(chain.from_iterable(passes)),
    )


def _often(amount: Numeric, times: Numeric | None) -> Numeric:
    return amount if times is None else times * amount


def _split(priced: Sequence[tuple[Primitive, Numeric]]) -> tuple[Numeric, Seconds]:
    """Return the seconds of kernels, and of messages by part."""
    compute: Numeric = 0.0
    communication: Seconds = {}
    for primitive, seconds in priced:
        if isinstance(primitive, Collective):
            part = COMMUNICATION_PART[primitive.axis]
            communication[part] = communication.get(part, 0.0) + seconds
        else:
            compute = compute + seconds
    return compute, communication


def _flops(primitives: tuple[Primitive, ...]) -> Numeric:
    result: Numeric = 0.0
    for primitive in primitives:
        result = result + getattr(primitive, "flops", 0.0)
    return result

"""Seconds of the blocks of a model: forward and backward per micro-batch and device, by part.

They depend only on the degrees that change a block (tp, cp, ep, etp, micro-batch, the groups' places), so a search
prices each distinct combination once and gathers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from forescale.cost.mesh import Group
from forescale.cost.select import CostModels
from forescale.files import packaged
from forescale.formula import formula, named, total
from forescale.graph.operator import Block, Operator
from forescale.graph.ops import AttentionCore, MeshAxis
from forescale.graph.per_block import PerBlock, RecomputeSplit, build_blocks
from forescale.graph.recompute import NO_RECOMPUTE, Kept, keep
from forescale.graph.sharding import ShardingRules, StructuralOptions
from forescale.memory.liveness import BlockBytes, block_bytes
from forescale.memory.parameters import BlockParameters, holdings
from forescale.numeric import Numeric, maximum, minimum, summed
from forescale.schedule import cuts_sequences, splits_backward
from forescale.spec.layout import LaunchGraphs, OffloadName, Overlap, Recompute
from forescale.spec.model import Model
from forescale.struct import Struct
from forescale.time.crossing import EXCHANGES, crosses, crossing_of, halves_of, passes_of
from forescale.time.overlap import Covers
from forescale.time.price import (
    COMMUNICATION_PART,
    PricedBlock,
    Pricing,
    Seconds,
    launch_gap,
    price_blocks,
)

T = TypeVar("T")
C = TypeVar("C")
NO_OVERLAP = Overlap(tensor=False, expert=False)
CHECKPOINT: float = packaged("calibrations/time/overlap")["checkpoint"]
"""Time of the host for one checkpoint beside what it launches, over a call."""


class BlockSeconds(Struct, frozen=True, kw_only=True):
    """One block on one device for one micro-batch."""

    forward_parts: Seconds
    backward_parts: Seconds
    """Replayed operators under "recompute" and their communication parts."""
    forward: Numeric
    backward: Numeric
    weight: Numeric
    """Part of the backward that makes weight gradients."""
    causal: tuple[Numeric, Numeric] = (0.0, 0.0)
    """Parts of forward and backward whose work at a token grows with its place; 0 where they were not asked for."""
    launches: Numeric
    """What the host needs to launch forward and backward."""
    hidden: tuple[Numeric, Numeric] = (0.0, 0.0)
    """What forward and backward show more of exchanges of experts where each runs alone."""
    deferred: tuple[Numeric, Numeric] = (0.0, 0.0)
    """Of the head, what a backward without its weight gradients saves, and what these then take by themselves."""
    flops: Numeric
    """Executed FLOP, forward and backward, replay included."""
    forward_flops: Numeric = 0.0

    @property
    def input_gradient(self) -> Numeric:
        """Return the seconds of the backward pass without weight gradients."""
        return self.backward - self.weight


def block_seconds(
    priced: PricedBlock,
    replays: tuple[tuple[Operator, ...], ...],
    *,
    overlap: Overlap = NO_OVERLAP,
    by_place: bool = False,
    split: bool = False,
    halves: bool = False,
) -> BlockSeconds:
    """Return the seconds of a block that replays groups of operators, of communication what nothing hides.

    `split` is of schedules that run weight gradients apart, which then hide nothing of the input's gradient.
    `by_place` asks for the part that grows with a token's place in its sequence. With `halves` exchanges of experts
    hide behind the other half of their pass, else, where they do, behind a pass in the other direction.
    """
    forward: Seconds = {}
    backward: Seconds = {}
    weight: Seconds = {}
    flops: Numeric = 0.0
    forward_kernels: Numeric = 0.0
    backward_kernels: Numeric = 0.0
    weight_kernels: Numeric = 0.0
    covers = _covers(priced, overlap, split=split)
    for operator in priced.operators.values():
        forward_kernels = forward_kernels + operator.forward_kernels
        backward_kernels = backward_kernels + operator.backward_kernels
        weight_kernels = weight_kernels + operator.weight_kernels
        covers.add(forward, operator, operator.forward, covers.of_forward)
        covers.add(backward, operator, operator.backward_input, covers.of_backward_input)
        for into in (backward, weight):
            covers.add(into, operator, operator.backward_weight, covers.of_backward_weight)
        flops = flops + operator.flops
    for local in (priced.operators[item.name] for item in chain.from_iterable(replays)):
        covers.add(backward, local, local.forward, covers.of_forward, part="recompute")
        flops = flops + local.forward_flops
        backward_kernels = backward_kernels + local.forward_kernels
    backward_kernels = backward_kernels + _checkpoints(priced, replays)
    hidden = _cross(forward, backward, priced, replays, halves=halves) if overlap.expert else (0.0, 0.0)
    passes = (forward, forward_kernels), (backward, backward_kernels)
    apart = (weight, weight_kernels) if split else None
    _add_gaps(*passes, apart, priced, overlap, crossed=overlap.expert and not halves)
    name = priced.block.name
    forward, backward = _titled(forward, f"{name} forward"), _titled(backward, f"{name} backward")
    return BlockSeconds(
        forward_parts=forward,
        backward_parts=backward,
        forward=total(forward, name="block_time", unit="s"),
        backward=total(backward, name="block_time", unit="s"),
        weight=total(weight, name=f"{name} weight gradients", unit="s"),
        causal=_causal(priced, replays) if by_place else (0.0, 0.0),
        launches=(forward_kernels + backward_kernels) * launch_interval(priced, overlap),
        hidden=hidden,
        flops=flops,
        forward_flops=sum(operator.forward_flops for operator in priced.operators.values()),
    )


def _covers(priced: PricedBlock, overlap: Overlap, *, split: bool) -> Covers:
    """Return what hides communication of a block within its own passes."""
    shared = overlap.shared_experts and not overlap.expert
    elsewhere = EXCHANGES if overlap.expert else ()
    return Covers(
        priced,
        asynchronous=overlap.tensor,
        split=split,
        shared=shared,
        elsewhere=elsewhere,
        rings=overlap.context,
    )


def launch_interval(priced: PricedBlock, overlap: Overlap) -> Numeric:
    """Return the seconds from one launch to the next."""
    run = priced.pricing.models.run
    return run.kernel_interval_s * run.interleaving if overlap.expert else run.kernel_interval_s


def _cross(
    forward: Seconds,
    backward: Seconds,
    priced: PricedBlock,
    replays: tuple[tuple[Operator, ...], ...],
    *,
    halves: bool,
) -> tuple[Numeric, Numeric]:
    """Add what shows of exchanges of experts where passes, or their halves, cross, and return what passes hide."""
    if not crosses(priced):
        return 0.0, 0.0
    passes = passes_of(priced, chain.from_iterable(replays))
    crossing = (halves_of if halves else crossing_of)(*passes, priced.pricing.models.run.contention)
    for into, shown in ((forward, crossing.forward), (backward, crossing.backward)):
        into["expert_comm"] = into.get("expert_comm", 0.0) + shown
    return crossing.hidden


def _checkpoints(priced: PricedBlock, replays: tuple[tuple[Operator, ...], ...]) -> Numeric:
    """Return what the host pays for each group that is replayed, in calls; nothing where no launch of it is a call."""
    launched = (
        summed(priced.operators[operator.name].forward_kernels for operator in group) for group in replays
    )
    return CHECKPOINT * summed(minimum(calls, 1.0) for calls in launched)


def _causal(priced: PricedBlock, replays: tuple[tuple[Operator, ...], ...]) -> tuple[Numeric, Numeric]:
    """Return the seconds of causal attention in forward and backward; where a window bounds it, it does not grow."""
    forward: Numeric = 0.0
    backward: Numeric = 0.0
    again = {operator.name for operator in chain.from_iterable(replays)}
    for local in priced.operators.values():
        if not any(isinstance(item, AttentionCore) and item.grows for item in local.operator.forward):
            continue
        forward = forward + local.forward[0]
        backward = backward + local.backward_input[0]
        if local.operator.name in again:
            backward = backward + local.forward[0]
    return forward, backward


Launched: TypeAlias = tuple[Seconds, Numeric]
"""A pass, and what its launches cost the host, in calls."""


@formula(
    unit="s",
    source="the host is not ahead of the device once it read a result: kernels before it hide no launch behind it",
)
def later_launch_gap(*, whole: Numeric, after: Numeric) -> Numeric:
    """max(gap of all kernels, gap of those that are launched after the read)."""
    return maximum(whole, after)


def _add_gaps(
    forward: Launched,
    backward: Launched,
    apart: Launched | None,
    priced: PricedBlock,
    overlap: Overlap,
    *,
    crossed: bool,
) -> None:
    """Add the time that the device waits for the host, of weight gradients that run `apart` by themselves.

    Of passes that cross the host launches one while the device is at the other.
    """
    interval, later = launch_interval(priced, overlap), _after_read(priced)
    if isinstance(interval, float) and interval == 0.0:
        return
    gap = functools.partial(launch_gap, interval=interval, blocking=priced.pricing.blocking)
    (first, few), (second, more) = forward, backward
    busy, rest = summed(first.values()), summed(second.values())
    if apart is not None:
        weight, subset = apart
        spent = summed(weight.values())
        weight["overhead"] = gap(kernels=subset, busy=spent)
        more, rest = more - subset, rest - spent
    first["overhead"] = gap(kernels=few, busy=busy)
    if later is not None and not overlap.expert:
        after = gap(kernels=later[1], busy=minimum(later[0], busy))
        first["overhead"] = later_launch_gap(whole=first["overhead"], after=after)
    if crossed:
        both = gap(kernels=few + more, busy=busy + rest)
        first["overhead"] = minimum(first["overhead"], both)
        second["overhead"] = both - first["overhead"]
    else:
        second["overhead"] = gap(kernels=more, busy=rest)
    if apart is not None:
        second["overhead"] = second["overhead"] + apart[0]["overhead"]


def _after_read(priced: PricedBlock) -> tuple[Numeric, Numeric] | None:
    """Return seconds and calls of forward from where the host reads counts on; None where it reads none.

    The shared experts of a layer come before its routed ones.
    """
    operators = list(priced.operators.values())
    start = next((at for at, item in enumerate(operators) if item.operator.reads_counts), None)
    if start is None:
        return None
    later = [item for item in operators[start:] if "shared_experts" not in item.operator.modules]
    busy = summed(item.forward[0] + summed(item.forward[1].values()) for item in later)
    return busy, summed(item.forward_kernels for item in later)


def _titled(seconds: Seconds, title: str) -> Seconds:
    return {part: named(value, f"{title} {part}", unit="s") for part, value in seconds.items()}


class BlockCosts(Struct, frozen=True, kw_only=True):
    """Seconds and bytes of every block under one recompute policy."""

    seconds: PerBlock[RecomputeSplit[BlockSeconds]]
    bytes: PerBlock[RecomputeSplit[BlockBytes]]


class KeptBytes:
    """What blocks keep under recompute policies, and their bytes, each worked out once."""

    def __init__(self) -> None:
        """Know none."""
        self._kept: dict[tuple[int, Recompute], tuple[Block, Kept]] = {}
        self._bytes: dict[tuple[object, ...], BlockBytes] = {}

    def keep(self, block: Block, policy: Recompute) -> Kept:
        """Return what a block keeps under a policy."""
        key = id(block), policy
        if key not in self._kept:
            self._kept[key] = block, keep(block, policy)  # with the block, so that its id stays its own
        return self._kept[key][1]

    def bytes(
        self,
        block: Block,
        policy: Recompute,
        *,
        offloaded: tuple[OffloadName, ...] = (),
        captured: bool = False,
        split: bool = False,
    ) -> BlockBytes:
        """Return the bytes of a block under a policy, as `block_bytes` does."""
        kept, key = self.keep(block, policy), (id(block), policy, offloaded, captured, split)
        if key not in self._bytes:
            self._bytes[key] = block_bytes(block, kept, offloaded=offloaded, captured=captured, split=split)
        return self._bytes[key]

    def under(
        self, blocks: PerBlock[Block], recompute: Recompute, choices: StructuralOptions
    ) -> PerBlock[RecomputeSplit[BlockBytes]]:
        """Return the bytes of every block of a model under a recompute policy, whatever it takes in time."""
        split, defers = splits_backward(choices.schedule), choices.deferred_head_gradients > 0

        def bytes_of(block: Block, policy: Recompute, end: bool) -> BlockBytes:
            return self.bytes(
                block,
                policy,
                offloaded=() if end else choices.offload.modules,
                captured=choices.graphs == "partial" and not end,
                split=split or (end and defers),
            )

        return under_policy(blocks, recompute, bytes_of)


def under_policy(
    blocks: PerBlock[T], recompute: Recompute, cost: Callable[[T, Recompute, bool], C]
) -> PerBlock[RecomputeSplit[C]]:
    """Return what `cost` says of every block, a policy and whether the block is an end, which nothing recomputes.

    A vision tower is recomputed where all decoder layers are, and counts as an end.
    """

    def split(block: T, policy: Recompute, end: bool = False) -> RecomputeSplit[C]:
        taken = cost(block, policy, end)
        return RecomputeSplit(
            replayed=taken, kept=taken if policy.takes_all else cost(block, NO_RECOMPUTE, end)
        )

    return PerBlock(
        layers=tuple(split(block, recompute) for block in blocks.layers),
        embedding=split(blocks.embedding, NO_RECOMPUTE, True),
        head=split(blocks.head, NO_RECOMPUTE, True),
        mtp=None if blocks.mtp is None else split(blocks.mtp, recompute),
        vision=blocks.map_vision(
            lambda block: split(block, recompute.of_towers, True),
            lambda block: split(block, NO_RECOMPUTE, True),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedModel:
    """A model's blocks under one layout: their parameters, their operators' prices, their costs."""

    block_parameters: PerBlock[BlockParameters]
    priced: PerBlock[PricedBlock]
    choices: StructuralOptions
    kept_bytes: KeptBytes = field(default_factory=KeptBytes)
    _known: dict[tuple[int, Recompute], BlockSeconds] = field(default_factory=dict, init=False, repr=False)
    """What several policies share."""
    _costs: dict[Recompute, BlockCosts] = field(default_factory=dict, init=False, repr=False)

    def under(self, recompute: Recompute) -> BlockCosts:
        """Apply a recompute policy to priced blocks; the ends are never recomputed, and nothing of them offloaded."""
        if recompute not in self._costs:
            built = self.priced.map(lambda item: item.block)
            self._costs[recompute] = BlockCosts(
                seconds=under_policy(self.priced, recompute, self._seconds),
                bytes=self.kept_bytes.under(built, recompute, self.choices),
            )
        return self._costs[recompute]

    def _seconds(self, block: PricedBlock, policy: Recompute, end: bool) -> BlockSeconds:
        """Return what a block takes under a policy.

        Of schedules that cut sequences, attention that grows with a token's place is told apart; of those that split
        backward, weight gradients are passes of their own.
        """
        key, choices = (id(block), policy), self.choices
        if key not in self._known:
            seconds = block_seconds(
                block,
                self.kept_bytes.keep(block.block, policy).replays,
                overlap=choices.overlapped,
                by_place=cuts_sequences(choices.schedule),
                split=splits_backward(choices.schedule),
                halves=choices.kernels.halves_cross,
            )
            if end and choices.deferred_head_gradients > 0:
                seconds = replace(seconds, deferred=deferred_seconds(block, seconds, choices))
            self._known[key] = seconds
        return self._known[key]


def deferred_seconds(
    block: PricedBlock, whole: BlockSeconds, choices: StructuralOptions
) -> tuple[Numeric, Numeric]:
    """Return what the backward of an end saves without its weight gradients, and what they take by themselves.

    A pass that waits for launches saves those of the weight gradients, not their seconds; and sums of the input's
    gradient no longer hide behind them.
    """
    apart = block_seconds(block, (), overlap=choices.overlapped, split=True)
    return whole.backward - apart.input_gradient, apart.weight


def price_model(model: Model, sharding: ShardingRules, pricing: Pricing) -> PricedModel:
    """Build and price the blocks of a model.

    Of a single layout they are kept: other pipelines, data-parallel degrees and batches are made of the same ones.
    """
    shape = sharding.of_blocks
    if shape is None or pricing.anywhere:
        return price_built(build_blocks(model, sharding), sharding.choices, pricing)
    groups = tuple((axis, group) for axis, group in pricing.groups.items() if axis in COMMUNICATION_PART)
    return _price_known(model, shape, pricing.models, groups, pricing.graphs, pricing.blocking)


@lru_cache(maxsize=128)
def _price_known(
    model: Model,
    sharding: ShardingRules,
    models: CostModels,
    groups: tuple[tuple[MeshAxis, Group], ...],
    graphs: LaunchGraphs,
    blocking: bool,
) -> PricedModel:
    pricing = Pricing(
        models=models,
        groups=dict(groups),
        graphs=graphs,
        blocking=blocking,
        deterministic=sharding.choices.kernels.deterministic,
    )
    return price_built(_blocks_known(model, sharding), sharding.choices, pricing)


@lru_cache(maxsize=64)
def _blocks_known(model: Model, sharding: ShardingRules) -> PerBlock[Block]:
    return build_blocks(model, sharding)


def price_built(blocks: PerBlock[Block], choices: StructuralOptions, pricing: Pricing) -> PricedModel:
    """Price blocks that are built."""
    return PricedModel(
        block_parameters=holdings(blocks), priced=price_blocks(blocks, pricing), choices=choices
    )

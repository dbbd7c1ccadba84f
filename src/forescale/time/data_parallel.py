"""Data-parallel traffic: gradients reduced, parameters gathered, at every ZeRO stage."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeAlias

from forescale.arrays import np
from forescale.cost.mesh import innermost, ranks_per_node
from forescale.formula import formula, value_of
from forescale.graph.ops import Collective, CollectiveKind, MeshAxis
from forescale.graph.per_block import PerBlock
from forescale.graph.stages import over_stages
from forescale.memory.inputs import EvalContext
from forescale.memory.parameters import BlockParameters, Elements, Sharded, gathered_bytes
from forescale.memory.states import at_stage_3
from forescale.numeric import Numeric, any_true, maximum, minimum, summed, where
from forescale.spec.layout import state_shards
from forescale.spec.model import Model
from forescale.spec.workload import STORAGE_BYTES, Precision
from forescale.struct import Struct
from forescale.time.overlap import (
    beyond_wait,
    covering_backward,
    exposed_gather,
    exposed_reduction,
    gradient_buckets,
)
from forescale.time.price import Pricing


class ShardTraffic(Struct, frozen=True, kw_only=True):
    """Seconds for one block at stage 3."""

    gather: Numeric
    """Before forward, from all shards."""
    regather: Numeric
    """Before backward, from the ranks that the parameters were sharded over again."""
    reduce: Numeric


NO_TRAFFIC = ShardTraffic(gather=0.0, regather=0.0, reduce=0.0)


class DataTraffic(Struct, frozen=True, kw_only=True):
    """Seconds of data-parallel collectives; depends on the layout of parameters only, not on micro-batches.

    Whole-stage figures have shape (stages, candidates), block figures (candidates,).
    """

    reduce_scatter: Numeric
    all_reduce: Numeric
    replicas: Numeric
    """All-reduce of the reduced shards among replicas; of biases and norms under SUMMA, those along cp too."""
    all_gather: Numeric
    ties: Numeric
    """All-reduce of the gradient that embedding and head share, between the stages that hold a copy each."""
    statistics: Numeric
    """All-reduce of the tokens of each expert, by which selection biases are updated."""
    blocks: PerBlock[ShardTraffic]
    tensors: Numeric
    """Tensors of a stage, those of experts apart, that one rank's share of the flat gradients reaches into."""
    buckets: Numeric | None = None
    """Messages in which gradients are reduced; None prices one, whose last layer hides behind nothing."""


Passes: TypeAlias = tuple[Numeric, Numeric, Numeric]
"""Seconds of forward, of backward, and of weight gradients where a schedule runs them apart."""


Exchange: TypeAlias = Callable[[CollectiveKind, Numeric, Numeric], Numeric]
"""Seconds of a collective over so many bytes of what all replicas hold, and of experts."""


@formula(unit="s", source="definition")
def from_stage_1(*, zero: Numeric, sharded: Numeric, otherwise: Numeric) -> Numeric:
    """With ZeRO 1 to 3, the input sharded (reduce-scatter, all-gather); with ZeRO 0, otherwise (all-reduce)."""
    return where(zero >= 1, sharded, otherwise)


@formula(
    unit="s",
    source="DeepSpeed, runtime/bf16_optimizer.py: gradients are all-reduced, and only states sharded",
)
def from_stage_2(*, zero: Numeric, sharded: Numeric, otherwise: Numeric) -> Numeric:
    """With ZeRO 2 and 3, the input sharded (reduce-scatter); with ZeRO 0 and 1, otherwise (all-reduce)."""
    return where(zero >= 2, sharded, otherwise)


def data_traffic(setting: EvalContext, sharded: Sharded, pricing: Pricing) -> DataTraffic:
    """Price the data-parallel collectives of every stage and block."""
    choices, kept = setting.choices, sharded.block_parameters
    dense, expert = sharded.trained.dense, sharded.trained.expert
    gradient = STORAGE_BYTES[setting.workload.precision.gradients]
    both = functools.partial(_both_groups, pricing)
    in_groups, sums = _in_groups(setting, sharded, pricing), (dense * gradient, expert * gradient)
    buckets = buckets_of(setting, sharded.trained)
    reduced = in_groups if buckets is None else _in_parts(in_groups, buckets)
    scattered, whole = (reduced(kind, *sums) for kind in ("reduce_scatter", "all_reduce"))
    if choices.kernels.keeps_product_gradients:
        scattered = from_stage_2(zero=sharded.degrees.zero, sharded=scattered, otherwise=whole)
    shard = sums[0] / state_shards(sharded.degrees, choices.tp_kind)
    parts: Numeric = 1.0 if buckets is None else buckets
    message = Collective(kind="all_reduce", axis="dp_replicate", num_bytes=shard / parts)
    replicas = parts * pricing.seconds(message)
    if choices.kernels.broadcasts_updates:  # once over all ranks, however few of them share the states
        scattered, replicas = both("all_reduce", *sums, axis="data"), 0.0 * replicas
    if choices.tp_kind == "summa":
        copied = _summed(setting, sharded, lambda block: block.vectors)
        size = copied * gradient / sharded.degrees.dp_shard
        replicas = replicas + pricing.seconds(Collective(kind="all_reduce", axis="cp", num_bytes=size))
    return DataTraffic(
        reduce_scatter=scattered,
        all_reduce=whole,
        replicas=replicas,
        all_gather=_updated(setting, sharded, pricing, in_groups),
        ties=_ties(setting.model, kept, pricing, gradient),
        statistics=_statistics(setting, sharded, pricing),
        blocks=_block_traffic(setting, sharded, pricing),
        tensors=_shared_tensors(setting, sharded),
        buckets=buckets,
    )


def _block_traffic(setting: EvalContext, sharded: Sharded, pricing: Pricing) -> PerBlock[ShardTraffic]:
    """Price what stage 3 sends of every block; one stream adds up gradients that come (Megatron-LM's FSDP)."""
    kept = sharded.block_parameters
    if sharded.degrees.keeps_parameters:
        return kept.map(lambda _: NO_TRAFFIC)
    gathers, again = _gathers(setting, pricing)
    sizes = {id(block): stage_3_bytes(block, setting.workload.precision) for block in kept.all()}
    groups: dict[object, list[int]] = {}
    for block, pairs in sizes.items():
        of_experts = tuple(any_true(value_of(experts)) for _, experts in pairs)
        groups.setdefault(of_experts if _is_stacked(pairs) else block, []).append(block)
    priced: dict[int, ShardTraffic] = {}
    for blocks in groups.values():
        weights, gradients = _stacked([sizes[block] for block in blocks])
        gather = gathers("all_gather", *weights)
        regather = gather if again is gathers else again("all_gather", *weights)
        reduced = _both_groups(pricing, "reduce_scatter", *gradients)
        for nth, block in enumerate(blocks):
            take: Callable[[Any], Any] = _whole if len(blocks) == 1 else itemgetter(nth)
            priced[block] = ShardTraffic(gather=take(gather), regather=take(regather), reduce=take(reduced))
    return kept.map(lambda block: priced[id(block)])


_Sizes: TypeAlias = tuple[tuple[Numeric, Numeric], tuple[Numeric, Numeric]]
"""Bytes that all replicas hold, and of experts: of weights and of gradients."""


def _is_stacked(sizes: _Sizes) -> bool:
    """Return whether messages of several blocks are priced as one: those of many candidates."""
    every = [size for pair in sizes for size in pair if not isinstance(size, float)]
    return bool(every) and all(type(size) is np.ndarray and size.ndim == 1 for size in every)


def _stacked(sizes: Sequence[_Sizes]) -> _Sizes:
    """Return the sizes of blocks as (blocks, candidates), or of one block as they are."""
    if len(sizes) == 1:
        return sizes[0]
    size = max(np.size(number) for pairs in sizes for pair in pairs for number in pair)

    def rows(pair: int, which: int) -> Numeric:
        return np.stack([np.broadcast_to(pairs[pair][which], size) for pairs in sizes])

    return (rows(0, 0), rows(0, 1)), (rows(1, 0), rows(1, 1))


def _whole(seconds: Any) -> Any:  # noqa: ANN401  (seconds of one block)
    return seconds


def stage_3_bytes(
    block: BlockParameters, precision: Precision
) -> tuple[tuple[Numeric, Numeric], tuple[Numeric, Numeric]]:
    """Return the bytes of the weights that stage 3 gathers for a block, and of the gradients that it scatters.

    Each of what all replicas hold, and of experts.
    """
    sent, trained = block.sent(precision), block.trained
    weight, gradient = gathered_bytes(precision), STORAGE_BYTES[precision.gradients]
    weights = ((sent.dense + sent.vocabulary) * weight, sent.expert * weight)
    return weights, ((trained.dense + trained.vocabulary) * gradient, trained.expert * gradient)


def _summed(setting: EvalContext, sharded: Sharded, of: Callable[[BlockParameters], Numeric]) -> Numeric:
    """Sum a quantity of blocks over what stands on each stage."""
    return over_stages(sharded.stages, sharded.block_parameters, of, num_mtp=setting.model.num_mtp_layers)


def _shared_tensors(setting: EvalContext, sharded: Sharded) -> Numeric:
    """Return the tensors in a rank's share of the gradients, each expert's apart unless one kernel takes them."""
    together, degrees = setting.choices.kernels.expert_kernels == "one", sharded.degrees
    dense = _summed(setting, sharded, lambda block: block.tensors - block.expert_tensors)
    expert = _summed(
        setting, sharded, lambda block: block.expert_tensors * (1.0 if together else block.num_experts)
    )
    local = expert if together else expert / degrees.ep
    return dense / state_shards(degrees, setting.choices.tp_kind) + local / degrees.expert_shards


@formula(
    unit="1",
    source="InternEvo, solver/optimizer/hybrid_zero_optim.py: whole tensors are dealt to ranks",
)
def update_owners(*, ranks: Numeric, tensors: Numeric) -> Numeric:
    """min(ranks, tensors)."""
    return minimum(ranks, tensors)


@formula(
    unit="s",
    source="NCCL 2.14, src/graph/search.cc (ncclTopoSearchNextGpuSort): a ring goes through a node from the last rank "
    "to the first, so it reaches the next rank last, which broadcasts only then; ranks of the next node have begun",
)
def in_turn(*, owners: Numeric, one: Numeric, transfer: Numeric, sharing: Numeric) -> Numeric:
    """owners·transfer + owners·(1 - 1/sharing)·(one - transfer) of broadcasts whose root is one rank after another."""
    return owners * transfer + owners * (1.0 - 1.0 / sharing) * maximum(one - transfer, 0.0)


def _updated(setting: EvalContext, sharded: Sharded, pricing: Pricing, exchange: Exchange) -> Numeric:
    """Return the seconds in which all ranks get the updated parameters: shares gathered, or one broadcast an owner."""
    updates = sharded.updates(setting.workload.precision)
    weight = gathered_bytes(setting.workload.precision)
    weights = (updates.dense * weight, updates.expert * weight)
    if not setting.choices.kernels.broadcasts_updates:
        return exchange("all_gather", *weights)
    matrices = _summed(setting, sharded, lambda block: block.tensors - block.vector_tensors)
    count = _summed(setting, sharded, lambda block: block.vector_tensors)
    short = _summed(setting, sharded, lambda block: block.vectors) * weight / maximum(count, 1.0)
    seconds: Numeric = 0.0
    axes: tuple[MeshAxis, ...] = ("dp_cp", "expert_dp")
    for axis, size in zip(axes, weights, strict=True):
        ranks = pricing.groups[axis].num_ranks
        owners = update_owners(ranks=ranks, tensors=matrices)
        message = Collective(kind="broadcast", axis=axis, num_bytes=size / maximum(owners, 1.0))
        seconds = seconds + in_turn(
            owners=owners,
            one=pricing.seconds(message),
            transfer=_transfer(pricing, message),
            sharing=ranks_per_node(pricing.groups[axis], setting.cluster),
        )
        if axis == "dp_cp":  # the largest go first, so vectors lie alone only where ranks are left
            alone = update_owners(ranks=ranks - owners, tensors=count)
            seconds = seconds + alone * pricing.seconds(replace(message, num_bytes=short))
    return seconds


def _ties(
    model: Model, per_block: PerBlock[BlockParameters], pricing: Pricing, element_bytes: float
) -> Numeric:
    """Return the seconds in which two copies of the vocabulary matrix add up their gradients (Megatron-LM)."""
    if not (model.tied_embeddings or model.num_mtp_layers):
        return 0.0
    size = per_block.head.trained.vocabulary * element_bytes
    return pricing.seconds(Collective(kind="all_reduce", axis="ends", num_bytes=size))


def _statistics(setting: EvalContext, sharded: Sharded, pricing: Pricing) -> Numeric:
    """Return the seconds in which all ranks of a stage sum the tokens that each of its experts got in the step.

    Megatron-LM, distributed/finalize_model_grads.py: the biases of all layers together, where there are any.
    """
    if not any(block.score_biases for block in sharded.block_parameters.all()):
        return 0.0
    size = _summed(setting, sharded, lambda block: block.score_biases) * STORAGE_BYTES["fp32"]
    return pricing.seconds(Collective(kind="all_reduce", axis="stage", num_bytes=size))


def _in_groups(setting: EvalContext, sharded: Sharded, pricing: Pricing) -> Exchange:
    """Return what prices collectives of a whole stage: one message, or one for each layer (FSDP)."""
    if not setting.choices.kernels.flat_parameters:
        return _exchange(setting, pricing)
    return _in_parts(functools.partial(_both_groups, pricing), maximum(sharded.stages.num_layers, 1.0))


def _in_parts(exchange: Exchange, parts: Numeric) -> Exchange:
    """Return what prices a collective in so many equal messages."""

    def of_parts(kind: CollectiveKind, dense_bytes: Numeric, expert_bytes: Numeric) -> Numeric:
        return parts * exchange(kind, dense_bytes / parts, expert_bytes / parts)

    return of_parts


def buckets_of(setting: EvalContext, trained: Elements) -> Numeric | None:
    """Return the number of gradient buckets on every stage; None where no bucket size is given."""
    size = setting.choices.kernels.bucket_elements
    return gradient_buckets(elements=trained.dense + trained.expert, bucket_elements=size) if size else None


def _gathers(setting: EvalContext, pricing: Pricing) -> tuple[Exchange, Exchange]:
    """Return what prices gathers of sharded weights before forward, and before backward."""
    first, reshard = _exchange(setting, pricing), setting.choices.reshard
    return first, first if isinstance(reshard, str) else _exchange(setting, _within(pricing, reshard))


def _exchange(setting: EvalContext, pricing: Pricing) -> Exchange:
    """Return what prices messages of both groups: side by side where nothing waits for either, else in turn."""
    overlap, in_turn = setting.choices.overlap, setting.choices.kernels.messages_in_turn

    def of_groups(kind: CollectiveKind, dense_bytes: Numeric, expert_bytes: Numeric) -> Numeric:
        ahead = overlap.param_gather if kind == "all_gather" else overlap.grad_reduce
        price = _side_by_side if ahead and not in_turn else _both_groups
        return price(pricing, kind, dense_bytes, expert_bytes)

    return of_groups


def _transfer(pricing: Pricing, message: Collective) -> Numeric:
    """Return the seconds of a message without latency: its share of one so long that latency does not count."""
    long = replace(message, num_bytes=2.0**44)
    return pricing.seconds(long) * (message.num_bytes / long.num_bytes)


@formula(
    unit="s",
    source="NCCL: a communicator has a stream of its own; while the hops of one keep it waiting the links are free for "
    "another (Megatron-LM, distributed/param_and_grad_buffer.py: each group's messages are asynchronous)",
)
def side_by_side(*, first: Numeric, second: Numeric, transfers: Numeric) -> Numeric:
    """max(first, second, transfers of both): they share the links, not their hops."""
    return maximum(maximum(first, second), transfers)


def _side_by_side(
    pricing: Pricing, kind: CollectiveKind, dense_bytes: Numeric, expert_bytes: Numeric
) -> Numeric:
    """Return the seconds of a collective over non-expert parameters beside that over experts."""
    if not any_true(value_of(expert_bytes)):
        return _both_groups(pricing, kind, dense_bytes, expert_bytes)
    axes: tuple[MeshAxis, ...] = ("dp_cp", "expert_dp")
    alone, transfers = [], []
    for axis, size in zip(axes, (dense_bytes, expert_bytes), strict=True):
        message = Collective(kind=kind, axis=axis, num_bytes=size)
        alone.append(pricing.seconds(message))
        transfers.append(_transfer(pricing, message))
    return side_by_side(first=alone[0], second=alone[1], transfers=summed(transfers))


def _both_groups(
    pricing: Pricing,
    kind: CollectiveKind,
    dense_bytes: Numeric,
    expert_bytes: Numeric,
    axis: MeshAxis = "dp_cp",
) -> Numeric:
    """Return the seconds of a collective over non-expert parameters, then over experts."""
    seconds = pricing.seconds(Collective(kind=kind, axis=axis, num_bytes=dense_bytes))
    if not any_true(value_of(expert_bytes)):
        return seconds
    return seconds + pricing.seconds(Collective(kind=kind, axis="expert_dp", num_bytes=expert_bytes))


def _within(pricing: Pricing, size: int) -> Pricing:
    """Return the pricing of collectives among `size` neighbours of each group that shards parameters."""
    groups = dict(pricing.groups)
    groups["dp_cp"], groups["expert_dp"] = (
        innermost(pricing.groups["dp_cp"], float(size)),
        innermost(pricing.groups["expert_dp"], float(size)),
    )
    return replace(pricing, groups=groups)


def free_traffic(per_block: PerBlock[BlockParameters]) -> DataTraffic:
    """Return the traffic of a network that takes no time: a bound of every way to shard."""
    whole = dict.fromkeys(
        ("reduce_scatter", "all_reduce", "replicas", "all_gather", "ties", "statistics", "tensors"), 0.0
    )
    return DataTraffic(**whole, blocks=per_block.map(lambda _: NO_TRAFFIC))


def exposed_once(
    traffic: DataTraffic,
    *,
    zero: Numeric,
    forward: Numeric,
    backward: Numeric,
    layers: Numeric,
    grad_reduce: bool,
    param_gather: bool,
    reductions: Numeric = 1.0,
    contention: Numeric = 0.0,
    whole: Numeric = 0.0,
    waits: tuple[Numeric, Numeric] = (0.0, 0.0),
) -> Numeric:
    """Return what each stage shows of its once-per-step traffic behind one micro-batch's passes.

    `waits` are the seconds that a stage waits before its first forward and after its last backward. The last of the
    `reductions` of a step ends in that wait, the others do not.

    At stage 3 this is the exchange among replicas, and all of it where parameters stay `whole` through the step.
    """
    reduction = from_stage_1(zero=zero, sharded=traffic.reduce_scatter, otherwise=traffic.all_reduce)
    gather = from_stage_1(zero=zero, sharded=traffic.all_gather, otherwise=0.0 * traffic.all_gather)
    shown = functools.partial(exposed_reduction, buckets=layers, contention=contention)
    gathered = shown(reduction=gather, cover=forward, overlapped=param_gather)
    cover = backward
    if traffic.buckets is not None:
        cover = covering_backward(backward=backward, buckets=traffic.buckets)
        shown = functools.partial(exposed_reduction, buckets=traffic.buckets, contention=contention)
    reduced = shown(reduction=reduction + traffic.replicas, cover=cover, overlapped=grad_reduce)
    below = beyond_wait(exposed=gathered, wait=waits[0]) + beyond_wait(exposed=reduced, wait=waits[1])
    if not isinstance(reductions, float) or reductions > 1.0:
        below = below + (reductions - 1.0) * reduced
    replicas = beyond_wait(
        exposed=shown(reduction=traffic.replicas, cover=cover, overlapped=grad_reduce), wait=waits[1]
    )
    return at_stage_3(zero=zero * (1.0 - whole), sharded=replicas, otherwise=below)


def exposed_block(
    traffic: ShardTraffic,
    *,
    forward: Numeric,
    backward: Numeric,
    weight: Numeric | None,
    grad_reduce: bool,
    param_gather: bool,
    contention: Numeric = 0.0,
) -> Passes:
    """Return what one block at stage 3 shows of its two gathers and its reduction.

    They share the backward, unless of its seconds those of weight gradients run apart: then weights are gathered
    behind the rest of it, and gradients reduced behind `weight`.
    """
    shown = functools.partial(exposed_gather, contention=contention)
    gathered = shown(gather=traffic.gather, cover=forward, overlapped=param_gather)
    if weight is None and grad_reduce == param_gather:
        both = traffic.regather + traffic.reduce
        return gathered, shown(gather=both, cover=backward, overlapped=grad_reduce), 0.0
    before, after = (backward, backward) if weight is None else (backward - weight, weight)
    again = shown(gather=traffic.regather, cover=before, overlapped=param_gather)
    reduced = shown(gather=traffic.reduce, cover=after, overlapped=grad_reduce)
    return (gathered, again + reduced, 0.0) if weight is None else (gathered, again, reduced)

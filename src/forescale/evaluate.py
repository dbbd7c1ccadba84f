"""Evaluate layouts: step time and memory of one candidate or of an array of them, by one definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter

from forescale.cost.calibration import RunFactors
from forescale.formula import named, total
from forescale.graph.layout import Choices, Degrees, state_shards
from forescale.graph.ops import Collective
from forescale.graph.parts import Parts
from forescale.graph.stage import replayed_mtp
from forescale.graph.stages import Picker, Stages, over_stages, sum_over_stages
from forescale.memory.outside import Outside, outside_bytes
from forescale.memory.overhead import Overhead
from forescale.memory.parameters import Holding
from forescale.memory.peak import MemoryParts, StateBytes, memory_parts, message_bytes, state_bytes
from forescale.numeric import Array, Numeric
from forescale.schedule import splits_backward
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.workload import STORAGE_BYTES, Workload, num_microbatches
from forescale.time.blocks import BlockCost, PricedBlock
from forescale.time.data_parallel import (
    DataTraffic,
    Exposed,
    Passes,
    ShardTraffic,
    at_stage_3,
    exposed_block,
    exposed_once,
    kept_whole,
)
from forescale.time.host import device_update, host_update, host_waits, update_gap
from forescale.time.launches import engine_seconds, updated_tensors
from forescale.time.overlap import Seconds
from forescale.time.pieces import Piece
from forescale.time.pipeline import Pipeline
from forescale.time.pipeline_floor import PipelineFloor
from forescale.time.price import NEUTRAL, Pricing
from forescale.time.step import (
    bubble_time,
    exposed_ends,
    exposed_pipeline_time,
    largest_share,
    stage_waits,
)
from forescale.time.waiting import Sums, least_waiting, seconds_of, simulated_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all candidates of one evaluation share."""

    model: Model
    workload: Workload
    choices: Choices
    overhead: Overhead
    """What the device holds beyond what is allocated."""
    run: RunFactors = NEUTRAL
    """What a run loses against kernels alone."""
    straggler_share: Numeric = 0.0
    """By how much of a step the slowest device is expected to lie behind the mean."""
    workspace_bytes: float = 0.0
    """Scratch memory of the device's libraries."""
    overlap_workspace_bytes: float = 0.0
    """More of it where tensor-parallel collectives are pipelined with their products."""
    narrow_weight_bytes: float = 0.0
    """What products in 8 or 4 bits add to each element of their weights."""
    host_bandwidth: float = float("inf")
    """byte/s between a device and its host."""
    cluster: Cluster | None = None
    """Whose network communicators span; without one they take no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Priced numbers of every candidate: (candidates,) except stages and whole-stage traffic."""

    degrees: Degrees
    stages: Stages
    pieces: Parts[Piece]
    held: Parts[Holding]
    traffic: DataTraffic
    pricing: Pricing
    priced: Parts[PricedBlock] | None = None
    """The operators behind the pieces, of one layout."""
    pipeline: Pipeline | PipelineFloor | None = None
    """The simulated schedule of all candidates, or bounds of it; None is (interleaved) 1F1B in closed form."""
    floor: Numeric | None = None
    """(stages, candidates) bytes that stand for states and standing buffers: a bound instead of a layout's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What one evaluation says of every candidate."""

    step_time: Numeric
    time_parts: Seconds
    """Seconds by part; they sum to the step time."""
    num_microbatches: Numeric
    stage_forward: Numeric
    """(stages, candidates) seconds of one micro-batch."""
    stage_backward: Numeric
    memory: MemoryParts
    stage_peak: Numeric
    peak: Numeric
    outside: Outside
    """Of the overhead, what lies outside the allocator."""
    flops: Numeric
    """Executed FLOP per step, all devices of one pipeline's stages averaged, on one device."""
    parameters: Numeric
    """(stages, candidates) elements held by one device, before sharding over data parallel ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The memory of every candidate, as in `Evaluation`."""

    memory: MemoryParts
    stage_peak: Numeric
    peak: Numeric
    outside: Outside


def evaluate(setting: Setting, inputs: Inputs) -> Evaluation:
    """Compose priced pieces into steps."""
    degrees, stages, count = inputs.degrees, inputs.stages, _count(setting, inputs)
    copies = 1 if inputs.pipeline is None else inputs.pipeline.copies
    sums = _StageSums(setting, inputs, stages, copies)
    forward = sums.total(lambda cost: cost.forward_seconds)
    backward = sums.total(lambda cost: cost.backward_seconds)
    states = _state_bytes(setting, inputs)
    data = _exposed(setting, inputs, sums, states, (forward, backward, 0.0))
    backward = backward + data.engine
    stage_time = forward + backward + data.waiting
    at = Picker.slowest(stage_time, stages)
    parts = {name: count * value for name, value in sums.on(stages.picked(at), copies=copies).parts().items()}
    parts.update(_pipeline(setting, inputs, sums, data, stage_time, count))
    _add_once(parts, setting, inputs, data, states, at, count)
    held = _footprint(setting, inputs, states, sums, count)
    flops = sum_over_stages(values=sums.total(lambda cost: cost.flops), multiplicity=stages.multiplicity)
    return Evaluation(
        step_time=total(parts, name="step_time_s", unit="s"),
        time_parts=parts,
        num_microbatches=count,
        stage_forward=forward,
        stage_backward=backward,
        memory=held.memory,
        stage_peak=held.stage_peak,
        peak=held.peak,
        outside=held.outside,
        flops=count * named(flops, "flops over stages", unit="FLOP") / degrees.pp,
        parameters=inputs.traffic.dense + inputs.traffic.expert,
    )


def footprint(setting: Setting, inputs: Inputs) -> Footprint:
    """Return the memory alone: what pieces take in time is not looked at."""
    copies = 1 if inputs.pipeline is None else inputs.pipeline.copies
    sums = _StageSums(setting, inputs, inputs.stages, copies)
    return _footprint(setting, inputs, _state_bytes(setting, inputs), sums, _count(setting, inputs))


def _footprint(setting: Setting, inputs: Inputs, states: StateBytes, sums: Sums, count: Numeric) -> Footprint:
    outside = outside_bytes(setting, inputs)
    memory = memory_parts(setting, inputs, states, sums, count, outside)
    peaks, stages = memory.total(), inputs.stages
    fullest = Picker.slowest(peaks, stages)(peaks)
    return Footprint(memory=memory, stage_peak=peaks, peak=fullest, outside=outside)


def _count(setting: Setting, inputs: Inputs) -> Numeric:
    return num_microbatches(
        global_batch_size=float(setting.workload.global_batch_size),
        dp=inputs.degrees.dp,
        micro_batch_size=inputs.degrees.micro_batch_size,
    )


def _engine(setting: Setting, inputs: Inputs, sums: _StageSums, busy: Numeric) -> Numeric:
    """Return what the pipeline engine adds to a micro-batch's passes on every stage.

    It runs ahead in its own 1F1B; under a named schedule it waits for each pass.
    """
    kernels = setting.choices.kernels
    if isinstance(inputs.pipeline, Pipeline):
        kernels = replace(kernels, runs_ahead=False)
    launches = sums.total(lambda cost: cost.launches_seconds) if kernels.runs_ahead else 0.0
    return engine_seconds(
        kernels,
        overhead=setting.run.microbatch_overhead_s,
        vpp=inputs.degrees.vpp,
        busy=busy,
        launches=launches,
    )


def _state_bytes(setting: Setting, inputs: Inputs) -> StateBytes:
    if inputs.floor is not None:
        return StateBytes(weights=inputs.floor, gradients=0.0, optimizer=0.0, update=0.0)
    traffic, choices = inputs.traffic, setting.choices
    return state_bytes(
        setting.model, traffic.dense, traffic.expert, inputs.degrees, setting.workload, choices
    )


def _add_once(
    parts: Seconds,
    setting: Setting,
    inputs: Inputs,
    data: Exposed,
    states: StateBytes,
    at: Picker,
    count: Numeric,
) -> None:
    """Add what is not a stage's own work: data-parallel traffic, the update, the host, the slowest device."""
    stages, run = inputs.stages, setting.run
    parts["data_comm"] = count * at(data.per_microbatch) + at.maximum(data.once, stages)
    parts["data_comm"] = parts["data_comm"] + at.maximum(inputs.traffic.statistics, stages)
    if inputs.pipeline is not None and inputs.pipeline.copies > 1:
        parts["data_comm"] = parts["data_comm"] + at.maximum(_between_copies(setting, inputs), stages)
    if inputs.pipeline is None or inputs.pipeline.ends_apart:
        parts["data_comm"] = parts["data_comm"] + inputs.traffic.ties
    host = count * at(data.engine) + run.step_overhead_s
    parts["overhead"] = parts.get("overhead", 0.0) + host
    parts["optimizer"] = device_update(
        setting.model, at.maximum(states.optimizer, stages), setting.workload, inputs.pricing
    )
    tensors = updated_tensors(zero=inputs.degrees.zero, sharded=inputs.traffic.tensors)
    gap = update_gap(setting, at.maximum(tensors, stages), parts["optimizer"])
    parts["overhead"] = parts["overhead"] + gap
    if setting.choices.offload.updates:
        updates, copies = host_update(setting, states)
        parts["optimizer"] = parts["optimizer"] + at.maximum(updates, stages)
        parts["host_comm"] = at.maximum(copies, stages)
    if data.host is not None:
        parts["host_comm"] = parts.get("host_comm", 0.0) + count * at(data.host)
    if not isinstance(setting.straggler_share, float) or setting.straggler_share:
        mean = total(parts, name="step of the mean device", unit="s")
        parts["overhead"] = parts["overhead"] + setting.straggler_share * mean


class _StageSums:
    """Sums block costs over the layers and ends that stand on each stage."""

    def __init__(self, setting: Setting, inputs: Inputs, stages: Stages, copies: int) -> None:
        self._setting, self._inputs, self._copies = setting, inputs, copies
        self.stages, self.pieces, self.num_mtp = stages, inputs.pieces, setting.model.num_mtp_layers
        self._replayed_mtp = replayed_mtp(setting.model, setting.choices.recompute)
        self.recompute = setting.choices.recompute

    def on(self, stages: Stages, *, copies: int) -> _StageSums:
        """Return the same sums over other stages."""
        return _StageSums(self._setting, self._inputs, stages, copies)

    def total(self, of: Callable[[BlockCost], Numeric]) -> Numeric:
        """Return Σ layers × quantity of a layer's cost, ends included: what one micro-batch meets.

        Of several copies of the parameters on a rank a micro-batch meets one, on average.
        """
        result = self._sum(of, self.stages.replayed)
        return result if self._copies == 1 else result / float(self._copies)

    def kept(self) -> Numeric:
        """Return the bytes that one micro-batch keeps: of a unit that is replayed together, one layer's input."""
        result = self._sum(_kept_bytes, self.stages.heads)
        return result if self._copies == 1 else result / float(self._copies)

    def _sum(self, of: Callable[[BlockCost], Numeric], taken: tuple[Array, ...]) -> Numeric:
        return self.over(self.pieces.map(lambda piece: (of(piece.cost), of(piece.plain))), taken)

    def over(self, parts: Parts[tuple[Numeric, Numeric]], taken: tuple[Array, ...]) -> Numeric:
        """Sum a quantity over layers under the policy, which counts as often as `taken` says, and the others.

        Of each block it is given as under the policy and as without.
        """
        if self.recompute.takes_all:
            return over_stages(self.stages, parts, itemgetter(0), num_mtp=self.num_mtp)
        ends = replace(self.stages, counts=tuple(0.0 * count for count in self.stages.counts))
        result = over_stages(ends, parts, itemgetter(0), num_mtp=self._replayed_mtp)
        if parts.mtp is not None:
            left = float(self.num_mtp - self._replayed_mtp)
            result = result + self.stages.last * left * parts.mtp[1]
        for kind, (under, plain) in enumerate(parts.layers):
            result = result + taken[kind] * under
            left_out = self.stages.counts[kind] - self.stages.replayed[kind]
            result = result + left_out * plain
        return result

    def parts(self) -> Seconds:
        """Return seconds per micro-batch by part, (stages, candidates)."""
        costs = [cost for piece in self.pieces.all() for cost in (piece.cost, piece.plain)]
        names = dict.fromkeys(part for cost in costs for part in (*cost.forward, *cost.backward))
        return {name: self.total(_of_part(name)) for name in names}


def _kept_bytes(cost: BlockCost) -> Numeric:
    return cost.kept_bytes


def _of_part(name: str) -> Callable[[BlockCost], Numeric]:
    return lambda cost: cost.forward.get(name, 0.0) + cost.backward.get(name, 0.0)


def _exposed(
    setting: Setting, inputs: Inputs, sums: _StageSums, states: StateBytes, passes: Passes
) -> Exposed:
    """Return what shows of data-parallel traffic, of the pipeline engine, and of copies to and from the host.

    The engine runs ahead, and copies run, also while a pass waits for parameters; a step's own traffic while it
    waits for any. Under a simulated schedule each virtual stage hides by its own passes.
    """
    pipeline, split, vpp, stages, own = inputs.pipeline, False, 1.0, inputs.stages, passes
    if isinstance(pipeline, Pipeline):
        split, stages = splits_backward(setting.choices.schedule), pipeline.stages
        vpp = pipeline.compiled.schedule.placement.vpp
        forward, backward, weight = seconds_of(sums.on(stages, copies=1))
        own = (forward, backward, weight) if split else (forward, backward + weight, 0.0)
    on_ranks = pipeline.per_rank if isinstance(pipeline, Pipeline) else _same
    sharded = _sharded(setting, inputs, sums.on(stages, copies=1), split=split, vpp=vpp)
    waits = on_ranks(sum(sharded))
    engine = _engine(setting, inputs, sums, sum(passes) + waits)
    beside = (
        0.0,
        pipeline.per_stage(engine + 0.0 * waits) if isinstance(pipeline, Pipeline) else engine,
        0.0,
    )
    host = host_waits(setting, inputs, states, _longer(_longer(own, beside), sharded), split=split)
    shown = _longer(beside, sharded if host is None else _longer(sharded, host))
    whole = (on_ranks(shown[0]), on_ranks(shown[1] + shown[2]), 0.0)
    return Exposed(
        per_microbatch=waits,
        once=_exposed_once(setting, inputs, _longer(passes, whole)),
        host=None if host is None else on_ranks(sum(host)),
        engine=engine,
        passes=shown if isinstance(pipeline, Pipeline) else None,
    )


def _same(values: Numeric) -> Numeric:
    return values


def _longer(passes: Passes, waits: Passes) -> Passes:
    return passes[0] + waits[0], passes[1] + waits[1], passes[2] + waits[2]


def _sharded(setting: Setting, inputs: Inputs, sums: _StageSums, *, split: bool, vpp: float) -> Passes:
    """Return what a micro-batch's passes show of gathers and reductions at stage 3, on every stage of `sums`."""
    overlap, pieces, blocks = setting.choices.overlap, inputs.pieces, inputs.traffic.blocks
    whole = kept_whole(pp=inputs.degrees.pp, reshard=setting.choices.reshard)
    sharded = at_stage_3(zero=inputs.degrees.zero * (1.0 - whole), sharded=1.0, otherwise=0.0)

    def exposed(cost: BlockCost, traffic: ShardTraffic) -> Passes:
        return exposed_block(
            traffic,
            forward=cost.forward_seconds,
            backward=cost.backward_seconds,
            weight=cost.weight_seconds if split else None,
            grad_reduce=overlap.grad_reduce,
            param_gather=overlap.param_gather,
            contention=setting.run.contention,
        )

    def both(piece: Piece, traffic: ShardTraffic) -> tuple[Passes, Passes]:
        under = exposed(piece.cost, traffic)
        return under, under if piece.plain is piece.cost else exposed(piece.plain, traffic)

    shown = pieces.zipped(blocks, both)
    forward, backward, weight = (
        sums.over(shown.map(lambda pair, index=index: (pair[0][index], pair[1][index])), sums.stages.replayed)  # type: ignore[misc]
        for index in range(3)
    )
    backward = backward + _exposed_ends(setting, inputs) / vpp
    return sharded * forward, sharded * backward, sharded * weight


def _exposed_once(setting: Setting, inputs: Inputs, passes: Passes) -> Numeric:
    """Return what shows of the traffic of a whole step on every stage."""
    overlap, (forward, backward, _) = setting.choices.overlap, passes
    return exposed_once(
        inputs.traffic,
        zero=inputs.degrees.zero,
        forward=forward,
        backward=backward,
        buckets=inputs.stages.num_layers,
        grad_reduce=overlap.grad_reduce,
        param_gather=overlap.param_gather,
        contention=setting.run.contention,
        whole=kept_whole(pp=inputs.degrees.pp, reshard=setting.choices.reshard),
        waits=stage_waits(inputs.stages.index, inputs.degrees.vpp, forward, backward)
        if overlap.bubbles and inputs.pipeline is None
        else (0.0, 0.0),
    )


def _exposed_ends(setting: Setting, inputs: Inputs) -> Numeric:
    """Return what the first layer shows at both ends of a micro-batch: of a layer, or of its largest weight."""
    first, held = inputs.traffic.blocks.layers[0], inputs.held.layers[0]
    each = setting.choices.kernels.gathers_each_weight
    share = largest_share(largest=held.dense_weight, parameters=held.dense) if each else 1.0
    overlap = setting.choices.overlap
    return exposed_ends(
        gather=first.gather if overlap.param_gather else 0.0,
        reduction=first.reduce if overlap.grad_reduce else 0.0,
        share=share,
        overlapped=overlap.param_gather or overlap.grad_reduce,
    )


def _between_copies(setting: Setting, inputs: Inputs) -> Numeric:
    """Return the seconds to exchange reduced gradients with the rank that holds the same stages once more."""
    traffic, degrees = inputs.traffic, inputs.degrees
    element = STORAGE_BYTES[setting.workload.precision.gradients]
    dense = traffic.dense / state_shards(degrees, setting.choices.tp_kind)
    expert = traffic.expert / degrees.expert_shards
    return inputs.pricing.seconds(Collective(kind="p2p", axis="pp", num_bytes=(dense + expert) * element))


def _pipeline(
    setting: Setting, inputs: Inputs, sums: _StageSums, data: Exposed, stage_time: Numeric, count: Numeric
) -> Seconds:
    """Return what the pipeline adds to the slowest stage's own time: waiting, and messages."""
    degrees, stages = inputs.degrees, inputs.stages
    slowest = Picker.slowest(stage_time, stages)(stage_time)
    hop = _hop(setting, inputs)
    if isinstance(inputs.pipeline, PipelineFloor):
        return least_waiting(inputs.pipeline, sums, stage_time, count, count * slowest)
    if inputs.pipeline is not None:
        return simulated_waiting(
            inputs.pipeline, sums, data, hop, count * slowest, host_bandwidth=setting.host_bandwidth
        )
    bubble = bubble_time(
        total_stage_time=sum_over_stages(values=stage_time, multiplicity=stages.multiplicity),
        slowest_stage_time=slowest,
        pp=degrees.pp,
        vpp=degrees.vpp,
    )
    messages = exposed_pipeline_time(
        hop=hop,
        slowest_stage_time=slowest,
        microbatches=count,
        pp=degrees.pp,
        vpp=degrees.vpp,
        overlapped=setting.choices.overlap.pipeline,
    )
    return {"bubble": bubble, "pipeline_comm": messages}


def _hop(setting: Setting, inputs: Inputs) -> Numeric:
    """Return the seconds of one micro-batch's message between stages."""
    size = message_bytes(setting, inputs)
    if setting.choices.sp or not setting.choices.kernels.shares_messages:
        return inputs.pricing.seconds(Collective(kind="p2p", axis="pp", num_bytes=size))
    share = Collective(kind="p2p", axis="pp", num_bytes=size / inputs.degrees.tp)
    gather = Collective(kind="all_gather", axis="tp", num_bytes=size)
    return inputs.pricing.seconds(share) + inputs.pricing.seconds(gather)

"""Seconds of one optimizer step: a micro-batch on every stage, the pipeline around it, and what comes once a step."""

from __future__ import annotations

from operator import attrgetter, itemgetter

from msgspec.structs import replace

from forescale.arrays import np
from forescale.formula import total
from forescale.graph.ops import Collective
from forescale.graph.per_block import PerBlock, RecomputeSplit, message_bytes
from forescale.graph.sharding import Degrees
from forescale.graph.stages import Picker, Stages, StageSums, over_stages, sum_over_stages
from forescale.memory.buffers import kept_whole
from forescale.memory.deferred import deferred_of_step
from forescale.memory.inputs import EvalContext, MemoryInputs
from forescale.memory.states import at_stage_3
from forescale.numeric import Numeric, minimum
from forescale.spec.layout import state_shards
from forescale.spec.workload import STORAGE_BYTES
from forescale.struct import Struct
from forescale.time.blocks import BlockSeconds
from forescale.time.crossing import uncrossed_in_groups, uncrossed_time
from forescale.time.data_parallel import DataTraffic, Passes, ShardTraffic, exposed_block, exposed_once
from forescale.time.overlap import exposed_ends, largest_share, stage_waits
from forescale.time.pipeline import (
    Pipeline,
    PipelineFloor,
    Simulated,
    beyond,
    bubble_time,
    crossing_time,
    engine_seconds,
    exposed_flush,
    exposed_pipeline_time,
    least_makespan,
)
from forescale.time.price import Pricing, Seconds
from forescale.time.straggler import straggler_share
from forescale.time.update import (
    accumulation,
    device_traffic,
    device_update,
    flat_from,
    host_update,
    host_waits,
    link_bandwidth,
    recorded_update,
    update_gap,
    updated_tensors,
)

FORWARD, BACKWARD, WEIGHT = attrgetter("forward"), attrgetter("backward"), attrgetter("weight")
INPUT_GRADIENT = attrgetter("input_gradient")


class Inputs(MemoryInputs, frozen=True, kw_only=True):
    """Priced numbers of every candidate: (candidates,) except stages and whole-stage traffic."""

    seconds: PerBlock[RecomputeSplit[BlockSeconds]]
    traffic: DataTraffic
    pricing: Pricing
    pipeline: Pipeline


class StepSeconds(Struct, frozen=True, kw_only=True):
    """What one step takes of every candidate."""

    parts: Seconds
    """Seconds by part; they sum to the step time."""
    forward: Numeric
    """(stages, candidates) seconds of one micro-batch."""
    backward: Numeric
    flops: Numeric
    """Executed FLOP of one micro-batch, all stages together."""

    def total(self) -> Numeric:
        """Return the step time in seconds."""
        return total(self.parts, name="step_time_s", unit="s")


class Exposed(Struct, frozen=True, kw_only=True):
    """What data-parallel traffic, the engine and the host add to a stage."""

    per_microbatch: Numeric
    """At stage 3."""
    once: Numeric
    """Once per step."""
    host: Numeric | None
    """Copies to and from the host that compute does not hide, per micro-batch; None where nothing is offloaded."""
    passes: Passes
    """What a micro-batch waits for in each pass, the engine included, on the stages whose passes are told apart."""
    engine: Numeric
    """What the pipeline engine itself adds to a micro-batch; part of the backward that it was asked for."""

    @property
    def waiting(self) -> Numeric:
        """What a micro-batch waits for."""
        return self.per_microbatch if self.host is None else self.per_microbatch + self.host


class Microbatch(Struct, frozen=True, kw_only=True):
    """What one micro-batch takes, and what comes once a step: of most layouts the same for any number of them."""

    sums: StageSums
    slowest: StageSums
    """Sums over the stage that sets the pace."""
    bubble: Numeric
    """Of (interleaved) 1F1B."""
    at: Picker
    """Takes the numbers of this stage."""
    forward: Numeric
    backward: Numeric
    saved: Numeric
    flush: Numeric
    """What deferred weight gradients of the head save, and take in the flush."""
    exposed: Exposed
    referred: Numeric
    stage_time: Numeric
    parts: Seconds
    """Of the slowest stage."""
    once: Once
    flops: Numeric


class Once(Struct, frozen=True, kw_only=True):
    """What comes once a step and is no stage's own work."""

    data: tuple[Numeric, ...]
    """Seconds of data-parallel traffic, by summand."""
    optimizer: Numeric
    gap: Numeric
    """What the host adds to the update."""
    host: tuple[Numeric, Numeric] | None
    """Update and copies of what is offloaded."""
    behind: Numeric
    """Fraction of a step by which the slowest device lies behind the mean."""


def depends_on_count(setting: EvalContext) -> bool:
    """Return whether `Microbatch` depends on the number of micro-batches."""
    choices = setting.choices
    return bool(
        choices.deferred_head_gradients or choices.kernels.reduces_every_microbatch or setting.model.traces
    )


def microbatch_seconds(setting: EvalContext, inputs: Inputs) -> Microbatch:
    """Compose priced blocks into the passes of a micro-batch, and what comes once a step."""
    stages, count = inputs.stages, setting.num_microbatches(inputs.degrees)
    sums = StageSums(
        model=setting.model,
        recompute=setting.choices.recompute,
        stages=stages,
        copies=inputs.in_flight.copies,
    )
    forward = sums.total(inputs.seconds, FORWARD)
    backward = sums.total(inputs.seconds, BACKWARD)
    saved, flush = _deferred(setting, inputs, count)
    backward = backward - stages.last * saved / count
    exposed = _exposed(setting, inputs, sums, (forward, backward, 0.0))
    backward = backward + exposed.engine
    referred = _reference(setting, inputs, forward, exposed)
    stage_time = forward + backward + exposed.waiting + referred
    at = Picker.slowest(stage_time, stages)
    slowest = sums.on(stages.picked(at), copies=sums.copies)
    flops = sums.total(inputs.seconds, attrgetter("flops"))
    if setting.workload.reference != "none":
        passes = float(setting.workload.reference_passes)
        flops = flops + passes * sums.total(inputs.seconds, attrgetter("forward_flops"))
    return Microbatch(
        sums=sums,
        slowest=slowest,
        bubble=_bubble(inputs, stage_time, at(stage_time)) if inputs.pipeline.in_closed_form else 0.0,
        at=at,
        forward=forward,
        backward=backward,
        saved=saved,
        flush=flush,
        exposed=exposed,
        referred=referred,
        stage_time=stage_time,
        parts=_parts(inputs, slowest),
        once=_once(setting, inputs, exposed, at, count),
        flops=sum_over_stages(values=flops, multiplicity=stages.multiplicity),
    )


def step_seconds(setting: EvalContext, inputs: Inputs, one: Microbatch | None = None) -> StepSeconds:
    """Compose priced blocks into a step, from what `one` micro-batch takes where that is known."""
    stages, count = inputs.stages, setting.num_microbatches(inputs.degrees)
    one = one or microbatch_seconds(setting, inputs)
    parts = {name: count * value for name, value in one.parts.items()}
    if setting.workload.reference != "none":
        parts["reference"] = count * one.at(one.referred)
    parts.update(_pipeline(setting, inputs, one, count))
    if setting.choices.crosses and inputs.pipeline.in_closed_form:
        alone = _uncrossed(inputs, sum(_pair(inputs, one.slowest, "hidden")), count)
        parts["expert_comm"] = parts.get("expert_comm", 0.0) + alone
    if setting.choices.deferred_head_gradients:
        _defer(parts, one.at(stages.last) * one.saved, _exposed_flush(inputs, one.flush, one.backward))
    _add_once(parts, setting, one, count)
    if (anchor := inputs.pricing.models.anchor) is not None:
        parts = {name: anchor.of_step(seconds) for name, seconds in parts.items()}
    return StepSeconds(parts=parts, forward=one.forward, backward=one.backward, flops=one.flops)


def _reference(setting: EvalContext, inputs: Inputs, forward: Numeric, exposed: Exposed) -> Numeric:
    """Return the passes of the reference model on one micro-batch, with what they wait for gathered weights."""
    if setting.workload.reference == "none":
        return 0.0
    passes = float(setting.workload.reference_passes)
    return passes * (forward + inputs.pipeline.per_rank(exposed.passes[0]))


def _deferred(setting: EvalContext, inputs: Inputs, count: Numeric) -> tuple[Numeric, Numeric]:
    """Return what deferred weight gradients of the head save in the last stage's passes and take in the flush."""
    if not setting.choices.deferred_head_gradients:
        return 0.0, 0.0
    products, (saved, alone) = deferred_of_step(setting, count), inputs.seconds.head.replayed.deferred
    return products * saved, products * alone


def _defer(parts: Seconds, saved: Numeric, shown: Numeric) -> None:
    """Take what the slowest stage saves from its head, or from waiting for launches, and add what the flush shows."""
    head, overhead = parts.get("head", 0.0), parts.get("overhead", 0.0)
    busy = minimum(saved, head)
    parts["head"], parts["overhead"] = head - busy + shown, overhead - (saved - busy)


def _exposed_flush(inputs: Inputs, deferred: Numeric, backward: Numeric) -> Numeric:
    """Return what shows of deferred weight gradients; the flush of several chunks is a chunk's backward per stage."""
    stages = inputs.stages
    drain = sum_over_stages(values=backward * (1.0 - stages.last), multiplicity=stages.multiplicity)
    return exposed_flush(deferred=deferred, drain=drain / inputs.degrees.vpp)


def _parts(inputs: Inputs, sums: StageSums) -> Seconds:
    """Return seconds per micro-batch by part."""
    costs = [cost for block in inputs.seconds.all() for cost in (block.replayed, block.kept)]
    names = dict.fromkeys(part for cost in costs for part in (*cost.forward_parts, *cost.backward_parts))

    def part(name: str) -> Numeric:
        return sums.total(
            inputs.seconds,
            lambda cost: cost.forward_parts.get(name, 0.0) + cost.backward_parts.get(name, 0.0),
        )

    return {name: part(name) for name in names}


def _exposed(setting: EvalContext, inputs: Inputs, sums: StageSums, passes: Passes) -> Exposed:
    """Return what shows of data-parallel traffic, of the pipeline engine, and of copies to and from the host.

    The engine runs ahead, and copies run, also while a pass waits for parameters; a step's own traffic while it
    waits for any. Under a simulated schedule each virtual stage hides by its own passes.
    """
    pipeline, local = inputs.pipeline, passes
    apart = sums.on(pipeline.passes(inputs.stages))
    if isinstance(pipeline, Simulated):
        forward, backward, weight = _seconds_of(inputs, apart)
        local = (forward, backward, weight) if pipeline.split else (forward, backward + weight, 0.0)
    sharded = _sharded(setting, inputs, apart)
    waits = pipeline.per_rank(sum(sharded))
    engine = _engine(setting, inputs, sums, sum(passes) + waits)
    beside = (0.0, pipeline.per_stage(engine), 0.0)
    host = host_waits(setting, inputs, pipeline, _longer(_longer(local, beside), sharded))
    shown = _longer(beside, sharded if host is None else _longer(sharded, host))
    whole = (pipeline.per_rank(shown[0]), pipeline.per_rank(shown[1] + shown[2]), 0.0)
    return Exposed(
        per_microbatch=waits,
        once=_exposed_once(setting, inputs, _longer(passes, whole)),
        host=None if host is None else pipeline.per_rank(sum(host)),
        engine=engine,
        passes=shown,
    )


def _longer(passes: Passes, waits: Passes) -> Passes:
    return passes[0] + waits[0], passes[1] + waits[1], passes[2] + waits[2]


def _seconds_of(inputs: Inputs, sums: StageSums) -> Passes:
    """Return the seconds of forward, of the input's gradient, and of weight gradients, on every stage."""
    weight = sums.total(inputs.seconds, WEIGHT)
    backward = sums.total(inputs.seconds, BACKWARD)
    return sums.total(inputs.seconds, FORWARD), backward - weight, weight


def _uncrossed(inputs: Inputs, hidden: Numeric, count: Numeric) -> Numeric:
    """Return what passes that no other crosses show of the `hidden` exchanges of a micro-batch."""
    degrees, group = inputs.degrees, inputs.in_flight.group
    if group is None:
        return uncrossed_time(hidden=hidden, pp=degrees.pp, microbatches=count)
    return uncrossed_in_groups(hidden=hidden, pp=degrees.pp, microbatches=count, vpp=degrees.vpp, group=group)


def _pair(inputs: Inputs, sums: StageSums, name: str) -> tuple[Numeric, Numeric]:
    """Return what blocks have of their forward and of their backward, such as `hidden`, over a micro-batch."""

    def total_of(at: int) -> Numeric:
        return sums.total(inputs.seconds, lambda cost: getattr(cost, name)[at])

    return total_of(0), total_of(1)


def _engine(setting: EvalContext, inputs: Inputs, sums: StageSums, busy: Numeric) -> Numeric:
    """Return what the pipeline engine adds to a micro-batch's passes on every stage.

    It runs ahead in its own 1F1B, else waits for each pass. A graph of the whole step leaves it nothing to do.
    """
    if setting.choices.graphs == "full":
        return 0.0
    kernels, run, crossed = setting.choices.kernels, setting.run, setting.choices.crosses
    if isinstance(inputs.pipeline, Simulated):
        kernels = replace(kernels, runs_ahead=False)
    return engine_seconds(
        kernels,
        overhead=run.microbatch_overhead_s,
        crossing=crossing_time(calls=run.crossing, interval=run.kernel_interval_s) if crossed else None,
        vpp=inputs.degrees.vpp,
        busy=busy,
        launches=sums.total(inputs.seconds, attrgetter("launches")) if kernels.runs_ahead or crossed else 0.0,
    )


def _sharded(setting: EvalContext, inputs: Inputs, sums: StageSums) -> Passes:
    """Return what a micro-batch's passes show of gathers and reductions at stage 3, on every stage of `sums`."""
    overlap, split = setting.choices.overlap, inputs.pipeline.split
    if inputs.degrees.keeps_parameters:
        nothing = 0.0 * sums.stages.first
        return nothing, nothing, nothing
    whole = kept_whole(pp=inputs.degrees.pp, reshard=setting.choices.reshard)
    sharded = at_stage_3(zero=inputs.degrees.zero * (1.0 - whole), sharded=1.0, otherwise=0.0)

    def exposed(cost: BlockSeconds, traffic: ShardTraffic) -> Passes:
        return exposed_block(
            traffic,
            forward=cost.forward,
            backward=cost.backward,
            weight=cost.weight if split else None,
            grad_reduce=overlap.grad_reduce,
            param_gather=overlap.param_gather,
            contention=setting.run.data_contention,
        )

    def both(block: RecomputeSplit[BlockSeconds], traffic: ShardTraffic) -> RecomputeSplit[Passes]:
        return block.map(lambda cost: exposed(cost, traffic))

    shown = inputs.seconds.zipped(inputs.traffic.blocks, both)

    def summed(index: int) -> Numeric:
        return sums.sum_over(shown, itemgetter(index), sums.stages.replayed)

    forward, backward, weight = map(summed, range(3))
    backward = backward + _exposed_ends(setting, inputs) / inputs.pipeline.vpp
    return sharded * forward, sharded * backward, sharded * weight


def _exposed_once(setting: EvalContext, inputs: Inputs, passes: Passes) -> Numeric:
    """Return what shows of the traffic of a whole step on every stage."""
    stages, degrees, (forward, backward, _) = inputs.stages, inputs.degrees, passes
    waits: tuple[Numeric, Numeric] = (0.0, 0.0)
    if setting.choices.overlap.bubbles and inputs.pipeline.in_closed_form:
        waits = stage_waits(stages.index, degrees.vpp, forward, backward)
    return _shown_once(setting, inputs.traffic, degrees, stages, (forward, backward), waits)


def _shown_once(
    setting: EvalContext,
    traffic: DataTraffic,
    degrees: Degrees,
    stages: Stages,
    cover: tuple[Numeric, Numeric],
    waits: tuple[Numeric, Numeric],
) -> Numeric:
    """Return what shows of the traffic of a whole step behind a forward and a backward, and beyond waits."""
    overlap, kernels = setting.choices.overlap, setting.choices.kernels
    return exposed_once(
        traffic,
        zero=degrees.zero,
        forward=cover[0],
        backward=cover[1],
        layers=stages.num_layers,
        reductions=setting.num_microbatches(degrees) if kernels.reduces_every_microbatch else 1.0,
        grad_reduce=overlap.grad_reduce,
        param_gather=overlap.param_gather and not kernels.gathers_after_update,
        contention=setting.run.data_contention,
        whole=kept_whole(pp=degrees.pp, reshard=setting.choices.reshard),
        waits=waits,
    )


ENDLESS = 1e30
"""Seconds of passes behind which all hides that can."""


def least_exposed(setting: EvalContext, traffic: DataTraffic, degrees: Degrees, stages: Stages) -> Numeric:
    """Return the seconds of a step's data-parallel traffic that passes of any length leave exposed, (candidates,).

    A bound for closed-form schedules: where waits hide traffic, of what shows once the first stage's alone, which never
    waits.
    """
    shown = _shown_once(setting, traffic, degrees, stages, (ENDLESS, ENDLESS), (0.0, 0.0))
    present = stages.multiplicity > 0
    counts = present & (stages.index == 0) if setting.choices.overlap.bubbles else present
    once: Numeric = np.max(np.where(counts, shown, 0.0), axis=0)
    if degrees.keeps_parameters:
        return once
    waits = _least_waits(setting, traffic, degrees, stages)
    waiting: Numeric = np.min(np.where(present, waits, np.inf), axis=0)
    return once + setting.num_microbatches(degrees) * waiting


def _least_waits(setting: EvalContext, traffic: DataTraffic, degrees: Degrees, stages: Stages) -> Numeric:
    """Return what a micro-batch waits at least for gathers and reductions at stage 3, on every stage."""
    overlap = setting.choices.overlap

    def shown(block: ShardTraffic) -> Numeric:
        gathered, reduced, _ = exposed_block(
            block,
            forward=ENDLESS,
            backward=ENDLESS,
            weight=None,
            grad_reduce=overlap.grad_reduce,
            param_gather=overlap.param_gather,
            contention=setting.run.data_contention,
        )
        return gathered + reduced

    whole = kept_whole(pp=degrees.pp, reshard=setting.choices.reshard)
    total = over_stages(
        stages, traffic.blocks.map(shown), lambda item: item, num_mtp=setting.model.num_mtp_layers
    )
    return at_stage_3(zero=degrees.zero * (1.0 - whole), sharded=total, otherwise=0.0 * total)


def _exposed_ends(setting: EvalContext, inputs: Inputs) -> Numeric:
    """Return what the first layer shows at both ends of a micro-batch: of a layer, or of its largest weight."""
    first, layer = inputs.traffic.blocks.layers[0], inputs.block_parameters.layers[0]
    gathers_each_weight = setting.choices.kernels.gathers_each_weight
    share = largest_share(largest=layer.largest.dense, parameters=layer.dense) if gathers_each_weight else 1.0
    overlap = setting.choices.overlap
    return exposed_ends(
        gather=first.gather if overlap.param_gather else 0.0,
        reduction=first.reduce if overlap.grad_reduce else 0.0,
        share=share,
        overlapped=overlap.param_gather or overlap.grad_reduce,
    )


def _pipeline(setting: EvalContext, inputs: Inputs, one: Microbatch, count: Numeric) -> Seconds:
    """Return what the pipeline adds to the slowest stage's own time: waiting, and messages."""
    degrees, pipeline, sums, slowest = inputs.degrees, inputs.pipeline, one.sums, one.at(one.stage_time)
    if isinstance(pipeline, PipelineFloor):
        return _least_waiting(inputs, pipeline, sums, one.stage_time, count, count * slowest)
    hop = _hop(setting, inputs)
    if isinstance(pipeline, Simulated):
        return _simulated_waiting(setting, inputs, pipeline, sums, one.exposed, hop, count * slowest)
    messages = exposed_pipeline_time(
        hop=hop,
        slowest_stage_time=slowest,
        microbatches=count,
        pp=degrees.pp,
        vpp=degrees.vpp,
        overlapped=setting.choices.overlap.pipeline,
        crossed=setting.choices.crosses,
    )
    return {"bubble": one.bubble, "pipeline_comm": messages}


def _bubble(inputs: Inputs, stage_time: Numeric, slowest: Numeric) -> Numeric:
    """Return the seconds in which the slowest stage waits under (interleaved) 1F1B."""
    return bubble_time(
        total_stage_time=sum_over_stages(values=stage_time, multiplicity=inputs.stages.multiplicity),
        slowest_stage_time=slowest,
        pp=inputs.degrees.pp,
        vpp=inputs.degrees.vpp,
    )


def _simulated_waiting(
    setting: EvalContext,
    inputs: Inputs,
    pipeline: Simulated,
    sums: StageSums,
    exposed: Exposed,
    hop: Numeric,
    work: Numeric,
) -> Seconds:
    """Return bubble and messages of a simulated schedule, its backward split as the operators are.

    `hop` is of a micro-batch's message between stages, `work` of all micro-batches on the slowest rank.
    """
    chunks = sums.on(pipeline.passes(inputs.stages))
    forward, backward, weight = _seconds_of(inputs, chunks)
    before, behind, beside = exposed.passes
    kept = chunks.kept(inputs.blocks, attrgetter("kept"))
    growing = _pair(inputs, chunks, "causal") if pipeline.in_flight.num_splits > 1 else (0.0, 0.0)
    with_messages, alone = pipeline.seconds(
        forward=forward + before,
        input_grad=backward + behind,
        weight_grad=weight + beside,
        copied=kept / link_bandwidth(setting),
        hop=hop,
        causal=growing,
        hidden=_pair(inputs, chunks, "hidden") if setting.choices.crosses else (0.0, 0.0),
    )
    return {
        "bubble": beyond(makespan=alone, work=work),
        "pipeline_comm": beyond(makespan=with_messages, work=alone),
    }


def _least_waiting(
    inputs: Inputs,
    pipeline: PipelineFloor,
    sums: StageSums,
    stage_time: Numeric,
    count: Numeric,
    work: Numeric,
) -> Seconds:
    """Return the least waiting of any schedule of a family; messages may all be hidden."""
    before, local = sums.on(pipeline.before), count * stage_time
    drain, urgent = before.total(inputs.seconds, BACKWARD), local
    if pipeline.splits_backward:
        drain = before.total(inputs.seconds, INPUT_GRADIENT)
        urgent = count * (sums.total(inputs.seconds, FORWARD) + sums.total(inputs.seconds, INPUT_GRADIENT))
    least = least_makespan(fill=before.total(inputs.seconds, FORWARD), drain=drain, work=local, urgent=urgent)
    return {"bubble": beyond(makespan=least, work=work)}


def _hop(setting: EvalContext, inputs: Inputs) -> Numeric:
    """Return the seconds of one micro-batch's message between stages."""
    size = message_bytes(setting.model, setting.sharding(inputs.degrees))
    if setting.choices.sp or not setting.choices.kernels.shares_messages:
        return inputs.pricing.seconds(Collective(kind="p2p", axis="pp", num_bytes=size))
    share = Collective(kind="p2p", axis="pp", num_bytes=size / inputs.degrees.tp)
    gather = Collective(kind="all_gather", axis="tp", num_bytes=size)
    return inputs.pricing.seconds(share) + inputs.pricing.seconds(gather)


def _between_copies(setting: EvalContext, inputs: Inputs) -> Numeric:
    """Return the seconds to exchange reduced gradients with the rank that holds the same stages once more."""
    degrees = inputs.degrees
    element = STORAGE_BYTES[setting.workload.precision.gradients]
    dense = inputs.trained.dense / state_shards(degrees, setting.choices.tp_kind)
    expert = inputs.trained.expert / degrees.expert_shards
    return inputs.pricing.seconds(Collective(kind="p2p", axis="pp", num_bytes=(dense + expert) * element))


def _once(setting: EvalContext, inputs: Inputs, exposed: Exposed, at: Picker, count: Numeric) -> Once:
    """Return what is not a stage's own work: data-parallel traffic, the update, the slowest device."""
    stages, states, traffic = inputs.stages, inputs.states, inputs.traffic
    data = [at.maximum(exposed.once, stages), at.maximum(traffic.statistics, stages)]
    if inputs.in_flight.copies > 1:
        data.append(at.maximum(_between_copies(setting, inputs), stages))
    if inputs.pipeline.ends_apart:
        data.append(traffic.ties)
    changed = recorded_update(setting, at.maximum(states.updated, stages))
    moved = at.maximum(device_traffic(setting, states), stages)
    optimizer = device_update(moved, inputs.pricing, changed)
    if setting.model.traces:
        trained = at.maximum(inputs.trained.dense + inputs.trained.expert, stages)
        optimizer = optimizer + (count - 1.0) * accumulation(setting, trained, inputs.pricing)
    host, whole = None, flat_from(setting.choices.kernels)
    tensors = updated_tensors(zero=inputs.degrees.zero, sharded=traffic.tensors, flat_from=whole)
    if setting.choices.offload.updates:
        updates, copies = host_update(setting, states)
        host = at.maximum(updates, stages), at.maximum(copies, stages)
    return Once(
        data=tuple(data),
        optimizer=optimizer,
        gap=update_gap(setting, at.maximum(tensors, stages), optimizer, inputs.pricing),
        host=host,
        behind=straggler_share(setting.run, setting.cluster),
    )


def _add_once(parts: Seconds, setting: EvalContext, one: Microbatch, count: Numeric) -> None:
    """Add what is not a stage's own work, and the host."""
    at, exposed, once = one.at, one.exposed, one.once
    parts["data_comm"] = count * at(exposed.per_microbatch)
    for seconds in once.data:
        parts["data_comm"] = parts["data_comm"] + seconds
    host = count * at(exposed.engine) + setting.run.step_overhead_s
    parts["overhead"] = parts.get("overhead", 0.0) + host
    parts["optimizer"] = once.optimizer
    parts["overhead"] = parts["overhead"] + once.gap
    if once.host is not None:
        parts["optimizer"] = parts["optimizer"] + once.host[0]
        parts["host_comm"] = once.host[1]
    if exposed.host is not None:
        parts["host_comm"] = parts.get("host_comm", 0.0) + count * at(exposed.host)
    behind = once.behind
    if not isinstance(behind, float) or behind:
        parts["overhead"] = parts["overhead"] + behind * total(
            parts, name="step of the mean device", unit="s"
        )

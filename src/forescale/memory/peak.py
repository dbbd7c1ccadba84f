"""Memory of every stage: its parts, its peak, and what a projection says of them: interval, verdict."""

from __future__ import annotations

from functools import partial
from typing import Literal

from msgspec.structs import replace

from forescale.cost.anchor import Residual
from forescale.formula import formula, number_of, total, value_of
from forescale.graph.per_block import kept_message_bytes, message_bytes
from forescale.graph.sharding import several
from forescale.graph.stages import Picker, StagePlan, Stages, StageSums
from forescale.memory.deferred import deferred_bytes
from forescale.memory.in_flight import InFlightBytes
from forescale.memory.inputs import EvalContext, MemoryInputs
from forescale.memory.liveness import BlockBytes, any_of, largest
from forescale.memory.offload import in_transit, offloaded_bytes, resident_bytes
from forescale.memory.overhead import (
    Bounds,
    Outside,
    Overhead,
    away,
    fragmentation_bytes,
    load_residual,
    room_bytes,
)
from forescale.memory.stash import stash_room
from forescale.memory.states import frees_gradients, optimizer_element_bytes
from forescale.numeric import Numeric, any_true, maximum, minimum, numbers, summed, where
from forescale.projection.result import MemorySummary, StageMemory, Verdict
from forescale.spec.workload import STORAGE_BYTES, moment_bytes
from forescale.struct import Struct


class Working(Struct, frozen=True, kw_only=True):
    """What the fullest moment of forward and backward takes beside what stands throughout [byte]."""

    activations: Numeric
    """At work and in flight."""
    gathered: Numeric = 0.0
    """Beyond the least that is gathered at any moment."""
    stranded: Numeric = 0.0
    """Room of freed tensors in which nothing fits that comes after them."""
    host: Numeric = 0.0
    """In the host's memory instead."""


def working_bytes(setting: EvalContext, inputs: MemoryInputs) -> Working:
    """Return what activations take on the device, at work and in flight, what goes with it, and what the host holds."""
    sums = StageSums(model=setting.model, recompute=setting.choices.recompute, stages=inputs.stages)
    count = setting.num_microbatches(inputs.degrees)
    degrees, stages, in_flight = inputs.degrees, inputs.stages, inputs.in_flight
    head, offloads = inputs.blocks.head.replayed, setting.choices.offload.activations

    def kept(on: Stages) -> Numeric:
        """Return what one micro-batch keeps on layers less what the head does, which lives for a moment only."""
        here = sums.on(on, copies=in_flight.copies).kept(inputs.blocks, lambda block: block.kept)
        return here - on.last * head.kept / float(in_flight.copies)

    def awaited(on: Stages) -> Numeric:
        """Return what one micro-batch keeps for weight gradients."""
        return sums.on(on, copies=in_flight.copies).total(inputs.blocks, lambda block: block.awaited)

    moved = partial(offloaded_bytes, setting, inputs)
    most = (lambda on: kept(on) - moved(on)) if offloads else kept
    part = 1.0 / in_flight.num_splits
    forward, backward = (part * working_set for working_set in _working_sets(setting, inputs))
    in_flight_bytes = InFlightBytes(whole=most, pending_weight_gradients=awaited, work=(forward, backward))
    saved, beside_loss = in_flight.most(degrees, stages, count, in_flight_bytes)
    late = deferred_bytes(setting, inputs, count)
    loss = part * (stages.last * _loss_bytes(setting, head))
    work = largest(first=forward, second=backward)
    if setting.choices.kernels.logged_losses:
        work = work + stages.last * head.held
    at_layers, beside_loss = _with_losses(saved, inputs) + work + late[0], beside_loss + late[1]
    at_loss = beside_loss + loss + stages.last * in_flight.other_losses * head.kept
    activations: Numeric = largest(first=at_layers, second=at_loss)
    if setting.choices.kernels.logged_losses:  # the micro-batch is gone but for what metrics take
        local = most(stages) / degrees.vpp - head.held - head.afterwards
        activations = largest(first=activations, second=beside_loss - stages.last * local)
    least = _at_end(setting, inputs, at_layers, most(stages)) if frees_gradients(setting) else activations
    memory_events = (activations, least), (at_layers, at_loss, beside_loss)
    beyond, stranded = _beyond(setting, inputs, *memory_events, loss)
    host: Numeric = 0.0
    if offloads:
        host, _ = in_flight.most(degrees, stages, count, InFlightBytes(whole=moved))
        activations = resident_bytes(kept=activations, in_transit=in_transit(setting, inputs, moved(stages)))
    activations = activations + _stage_outputs(setting, inputs, count) + stash_room(setting, inputs)
    return Working(activations=activations, gathered=beyond, stranded=stranded, host=host)


def _loss_bytes(setting: EvalContext, head: BlockBytes) -> Numeric:
    """Return what the loss needs; the logits of a reference model are made next to those that wait for backward."""
    most: Numeric = largest(first=head.forward, second=head.backward)
    if setting.workload.reference == "none":
        return most
    return largest(first=most, second=head.kept + head.forward)


def _at_end(setting: EvalContext, inputs: MemoryInputs, at_layers: Numeric, kept: Numeric) -> Numeric:
    """Return what the first layer's backward needs, when all gradients exist and other layers keep nothing."""
    layers = setting.model.num_layers / inputs.degrees.pp
    return first_layer_bytes(at_layers=at_layers, kept=kept, layers=layers)


@formula(unit="byte", source="PyTorch: backward frees what a layer saved")
def first_layer_bytes(*, at_layers: Numeric, kept: Numeric, layers: Numeric) -> Numeric:
    """All that layers need − kept × (1 − 1 / layers): the others have freed what they saved."""
    return at_layers - kept * (1.0 - 1.0 / maximum(layers, 1.0))


def _beyond(
    setting: EvalContext,
    inputs: MemoryInputs,
    at_peak: tuple[Numeric, Numeric],
    memory_events: tuple[Numeric, Numeric, Numeric],
    of_loss: Numeric,
) -> tuple[Numeric, Numeric]:
    """Return what is gathered beyond the least at the fullest moment, and what the loss leaves that nothing takes."""
    states, (layers, loss, head), (most, least) = inputs.states, memory_events, at_peak
    ratio, freed = float(setting.overhead.fragmentation.expected), inputs.blocks.head.replayed.stranded
    lost = inputs.stages.last * stranded_bytes(freed=freed, loss=of_loss, ratio=ratio)
    beyond: Numeric = 0.0
    if any(any_true(value_of(item)) for item in (states.at_layers, states.at_loss, states.at_head)):
        together = largest(first=layers + states.at_layers, second=loss + states.at_loss)
        beyond = largest(first=least, second=largest(first=together, second=head + states.at_head)) - most
    if not any_true(value_of(lost)):
        return beyond, 0.0
    return beyond, largest(first=loss + states.at_loss + lost - most - beyond, second=0.0 * lost)


@formula(
    unit="byte",
    source="PyTorch, c10/cuda/CUDACachingAllocator.cpp: a tensor of GiB has a segment of its own and comes back whole; "
    "measured ratios are of runs whose losses are fused",
)
def stranded_bytes(*, freed: Numeric, loss: Numeric, ratio: float) -> Numeric:
    """max(freed − (ratio − 1) × loss, 0): room of freed logits beyond pieces that `ratio` counts of the loss."""
    return maximum(freed - (ratio - 1.0) * loss, 0.0)


def _stage_outputs(setting: EvalContext, inputs: MemoryInputs, count: Numeric) -> Numeric:
    """Return the outputs of passes in flight, of all chunks but the last of the model, where stages keep them."""
    if not setting.choices.kernels.keeps_stage_outputs:
        return 0.0
    degrees, stages, in_flight = inputs.degrees, inputs.stages, inputs.in_flight
    outputs = stage_output_bytes(
        message_bytes=kept_message_bytes(setting.model, setting.sharding(degrees)),
        microbatches=in_flight.shares(degrees, stages, count),
        pp=degrees.pp,
    )
    return (degrees.vpp - stages.last / float(in_flight.copies)) * outputs


def _with_losses(saved: Numeric, inputs: MemoryInputs) -> Numeric:
    """Return the most that passes in flight hold with what the head keeps of losses that wait beside them."""
    (_, usual), *others = inputs.in_flight.losses_beside
    kept = inputs.stages.last * inputs.blocks.head.replayed.kept
    most: Numeric = saved + usual * kept
    for share, losses in others:
        most = largest(first=most, second=share * saved + losses * kept)
    return most


@formula(
    unit="byte",
    source="Megatron-LM, models/common/model_chunk_schedule_plan.py: the first layer's forward runs while the last "
    "one's backward has freed nothing",
)
def crossing_bytes(*, backward: Numeric, forward: Numeric, microbatches: Numeric) -> Numeric:
    """Backward + forward: a block's whole forward of the next micro-batch stands beside a backward, if there is one."""
    return backward + forward * several(degree=microbatches)


def _working_sets(setting: EvalContext, inputs: MemoryInputs) -> tuple[Numeric, Numeric]:
    """Return what the fullest block of each stage needs in its forward and its backward beyond what it keeps.

    Where a forward crosses a backward, its own stands beside: in 1F1B; other schedules hold all of it before.
    """
    stages, policy = inputs.stages, setting.choices.recompute
    present: list[tuple[Numeric, BlockBytes, Numeric]] = []
    for kind, block in enumerate(inputs.blocks.layers):
        unit = float(policy.unit - 1) * block.kept.kept  # a unit's other layers, replayed with it
        present.append((any_of(count=stages.replayed[kind]), block.replayed, unit))
        if not policy.takes_all:
            others = any_of(count=stages.counts[kind] - stages.replayed[kind])
            present.append((others, block.kept, 0.0))
    present += [(stages.first, tower.replayed, 0.0) for _, tower in inputs.blocks.vision]
    forward: Numeric = 0.0 * stages.first
    backward = whole = forward
    for here, local, beside in present:
        forward = largest(first=forward, second=here * (local.forward - local.kept))
        backward = largest(first=backward, second=here * (local.backward - local.kept + beside))
        whole = largest(first=whole, second=here * local.forward)
    if setting.choices.kernels.keeps_layer_inputs and not setting.workload.trainable.is_all:
        inputs_kept = summed(
            count * block.kept.kept for count, block in zip(stages.counts, inputs.blocks.layers, strict=True)
        )
        backward = backward + input_gradient_bytes(kept=inputs_kept, zero=inputs.degrees.zero)
    if setting.choices.crosses and setting.choices.schedule is None:
        count = setting.num_microbatches(inputs.degrees)
        backward = crossing_bytes(backward=backward, forward=whole, microbatches=count)
    return forward, backward


@formula(
    unit="byte",
    source="PyTorch, distributed/fsdp/_runtime_utils.py: _register_post_backward_reshard_only_hook registers a hook of "
    "several gradients, which holds AccumulateGrad of the inputs; they are leaves under reentrant checkpoints",
)
def input_gradient_bytes(*, kept: Numeric, zero: Numeric) -> Numeric:
    """Bytes of layer inputs from stage 2 on: as backward ends all of them exist, and so do their gradients."""
    return where(zero >= 2, kept, 0.0 * kept)


@formula(
    unit="byte",
    source="DeepSpeed, runtime/pipe/engine.py, _exec_forward_pass: pipe_buffers['outputs'] live until the stage's "
    "backward; where outputs are partitioned, of each rank its part",
)
def stage_output_bytes(*, message_bytes: Numeric, microbatches: Numeric, pp: Numeric) -> Numeric:
    """Message × micro-batches in flight, of one chunk, where there are several stages."""
    return message_bytes * microbatches * minimum(pp - 1.0, 1.0)


def message_buffers(setting: EvalContext, inputs: MemoryInputs) -> Numeric:
    """Return the bytes of messages between pipeline stages that a rank holds throughout forward and backward."""
    degrees, stages, group = inputs.degrees, inputs.stages, inputs.in_flight.group
    received: Numeric = 1.0
    if setting.choices.kernels.receives_ahead:
        received = setting.num_microbatches(degrees) * degrees.vpp
    message = message_bytes(setting.model, setting.sharding(degrees))
    ends = {"first": stages.first, "last": stages.last, "pp": degrees.pp, "vpp": degrees.vpp}
    kept = gradient_message_bytes(message_bytes=message, received=received, **ends)
    return kept if group is None else kept + waiting_message_bytes(message_bytes=message, group=group, **ends)


@formula(
    unit="byte",
    source="Megatron-LM core/pipeline_parallel/schedules.py: input_tensor_grad and output_tensor_grad live until the "
    "next backward assigns them; PyTorch distributed/pipelining/stage.py: grad_recv_info has a buffer per micro-batch",
)
def gradient_message_bytes(
    *, message_bytes: Numeric, received: Numeric, first: Numeric, last: Numeric, pp: Numeric, vpp: Numeric
) -> Numeric:
    """Message × (`received` + 1 sent) of several stages; of one chunk a rank the last receives, the first sends none.

    What is received forward is the input that the first layer keeps.
    """
    looped = vpp > 1
    kept = received * where(looped, 1.0, 1.0 - last) + where(looped, 1.0, 1.0 - first)
    return message_bytes * kept * minimum(pp - 1.0, 1.0)


@formula(
    unit="byte",
    source="Megatron-LM core/pipeline_parallel/schedules.py: fwd_recv_buffer_size of the first rank, "
    "bwd_recv_buffer_size of the last",
)
def waiting_message_bytes(
    *, message_bytes: Numeric, group: Numeric, first: Numeric, last: Numeric, pp: Numeric, vpp: Numeric
) -> Numeric:
    """Message × (N − p): outputs of the last rank that the first has before it goes on to their chunk, in groups of N.

    Of gradients the last rank has as many of the first one's.
    """
    return where((vpp > 1) & (pp > 1), message_bytes * (group - pp) * (first + last), 0.0)


def pool_bytes(setting: EvalContext, inputs: MemoryInputs) -> Numeric:
    """Return the extra bytes of working sets where CUDA graphs capture all but the experts; 0 elsewhere."""
    stages, head = inputs.stages, inputs.blocks.head.replayed
    if setting.choices.graphs != "partial":
        return 0.0
    captured: Numeric = 0.0 * stages.first
    others: Numeric = stages.last * largest(first=head.forward, second=head.backward)
    for kind, block in enumerate(inputs.blocks.layers):
        here: Numeric = any_of(count=stages.counts[kind])
        for item in (block.replayed, block.kept):
            inside, outside = item.captured or (0.0, 0.0)
            captured = largest(first=captured, second=here * inside)
            others = largest(first=others, second=here * outside)
    return second_pool_bytes(captured=captured, others=others)


@formula(
    unit="byte",
    source="PyTorch CUDA graphs: tensors of a captured region keep their addresses, in a memory pool of their own",
)
def second_pool_bytes(*, captured: Numeric, others: Numeric) -> Numeric:
    """Smaller of two working sets: in two pools they take their sum, in one the larger of them."""
    return minimum(captured, others)


PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
"""Parts of a device's peak."""


class MemoryParts(Struct, frozen=True, kw_only=True):
    """Bytes per stage and candidate, (stages, candidates)."""

    weights: Numeric
    gradients: Numeric
    optimizer: Numeric
    activations: Numeric
    buffers: Numeric
    overhead: Numeric
    frozen: Numeric = 0.0
    """Of the weights, those that are not trained."""
    host: Numeric = 0.0
    """In the host's memory instead: no part of the peak."""

    def total(self) -> Numeric:
        """Return the peak memory of each stage in bytes."""
        parts = {f"{name}_bytes": getattr(self, name) for name in PARTS}
        return total(parts, name="peak_bytes", unit="byte")

    @property
    def allocated(self) -> Numeric:
        """Return the bytes of tensors at each stage's peak."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


class Footprint(Struct, frozen=True, kw_only=True):
    """The memory of every candidate."""

    memory: MemoryParts
    stage_peak: Numeric
    """(stages, candidates) bytes."""
    peak: Numeric
    """(candidates,) bytes of the fullest device."""
    outside: Outside
    """Of the overhead, what lies outside the allocator."""


def footprint(setting: EvalContext, inputs: MemoryInputs) -> Footprint:
    """Return the memory of every candidate; what anything takes in time is not looked at."""
    memory = _memory_parts(setting, inputs)
    if setting.choices.offload.paged:
        memory = _paged(setting, inputs.outside, memory)
    peaks = memory.total()
    fullest = Picker.slowest(peaks, inputs.stages)(peaks)
    return Footprint(memory=memory, stage_peak=peaks, peak=fullest, outside=inputs.outside)


def _paged(setting: EvalContext, outside: Outside, memory: MemoryParts) -> MemoryParts:
    """Return the parts after moments that the device may have no room for moved to the host."""
    precision = setting.workload.precision
    moments = moment_bytes(precision, 2.0) / optimizer_element_bytes(precision)
    reserved = memory.allocated + memory.overhead - outside.expected
    above = _away(outside, setting.overhead, "high", allocated=memory.allocated, reserved=reserved)
    moved = paged_bytes(
        peak=memory.total() + above,
        capacity=setting.cluster.device.hbm_bytes,
        states=moments * memory.optimizer,
    )
    return replace(memory, optimizer=memory.optimizer - moved, host=memory.host + moved)


@formula(
    unit="byte", source="bitsandbytes, functional.py get_paged: states are allocated by cudaMallocManaged"
)
def paged_bytes(*, peak: Numeric, capacity: float, states: Numeric) -> Numeric:
    """min(max(peak − capacity, 0), states)."""
    return minimum(maximum(peak - capacity, 0.0), states)


def _memory_parts(setting: EvalContext, inputs: MemoryInputs) -> MemoryParts:
    states, kernels = inputs.states, setting.choices.kernels
    work = working_bytes(setting, inputs)
    activations = work.activations
    freed = 0.0 if setting.choices.graphs == "full" else activations  # a graph's memory is not the update's
    standing = states.buffers + message_buffers(setting, inputs) + work.gathered
    updating = states.lasting + (states.update - freed)
    buffers = largest(first=standing, second=updating) + pool_bytes(setting, inputs)
    gradients, buffers = _at_peak(setting, states.gradients, buffers, work.gathered)
    kept = setting.overhead
    flat = flat_gradient_bytes(update=states.update, activations=activations, zero=inputs.degrees.zero)
    lost = largest(first=flat, second=states.received) if kernels.flat_update else states.received
    weights = states.weights + states.narrow
    allocated = weights + gradients + states.optimizer + activations + buffers
    overhead = {
        "outside the allocator": inputs.outside.expected,
        "fragmentation": _fragmentation(setting, inputs, allocated),
        "flat tensors of the update that find no room": lost,
        "memory of the gathering stream": states.aside,
        "freed logits in whose room nothing fits": work.stranded,
        "freed tensors that messages still read": _queued(setting, inputs),
    }
    if (measured := kept.measured) is not None:
        overhead = {
            "outside the allocator": inputs.outside.expected,
            "reserved beyond allocated, measured": _measured_gap(measured, allocated),
            "allocated beyond formulas, measured": measured.live_tensor_excess_bytes,
        }
    elif kept.residual is not None:
        overhead["allocated beyond formulas, tracked"] = kept.residual.live_tensor_excess_bytes
    return MemoryParts(
        weights=weights,
        gradients=gradients,
        optimizer=states.optimizer,
        activations=activations,
        buffers=buffers,
        overhead=total(overhead, name="overhead", unit="byte"),
        frozen=states.frozen,
        host=states.host + work.host,
    )


def _at_peak(
    setting: EvalContext, gradients: Numeric, buffers: Numeric, gathered: Numeric
) -> tuple[Numeric, Numeric]:
    """Return the gradients that exist at the fullest moment, and the buffers, which count those that do not as less."""
    if not frees_gradients(setting):
        return gradients, buffers
    absent = missing_bytes(gathered=gathered)
    return gradients + absent, buffers - absent


@formula(unit="byte", source="difference")
def missing_bytes(*, gathered: Numeric) -> Numeric:
    """min(gathered, 0): gradients that do not exist yet make what is gathered negative."""
    return minimum(gathered, 0.0)


def _fragmentation(setting: EvalContext, inputs: MemoryInputs, allocated: Numeric) -> Numeric:
    """Return what the allocator holds beyond what it hands out."""
    overhead = setting.overhead
    if overhead.largest_tensor is None:
        ratio = float(overhead.fragmentation.expected)
        return fragmentation_bytes(allocated=allocated, ratio=ratio)
    return room_bytes(largest=_largest_tensor(setting, inputs), ratio=overhead.largest_tensor)


def _largest_tensor(setting: EvalContext, inputs: MemoryInputs) -> Numeric:
    """Return the bytes of the logits in the type of activations, or of the largest gradient of a parameter."""
    precision, model = setting.workload.precision, setting.model
    tokens = inputs.degrees.micro_batch_size * setting.workload.seq_len
    logits = inputs.stages.last * tokens * float(model.vocab_size) * STORAGE_BYTES[precision.activations]
    gradient: Numeric = 0.0
    for block in inputs.block_parameters.layers:
        gradient = largest(first=gradient, second=block.largest_trained.dense)
    return largest(first=logits, second=gradient * STORAGE_BYTES[precision.gradients])


def _queued(setting: EvalContext, inputs: MemoryInputs) -> Numeric:
    """Return what sums over tp read and the allocator does not have again, of the layers that the host is ahead."""
    degrees, stages, kernels = inputs.degrees, inputs.stages, setting.choices.kernels
    if not kernels.queued_layers or kernels.blocking_launches:
        return 0.0
    blocks = zip(stages.counts, inputs.blocks.layers, strict=True)
    return several(degree=degrees.tp) * queued_bytes(
        freed=summed(count * block.replayed.summed for count, block in blocks),
        layers=summed(stages.counts),
        queued=float(kernels.queued_layers),
        vpp=degrees.vpp,
    )


@formula(
    unit="byte",
    source="PyTorch before 2.8 (pull request 150398), ProcessGroupNCCL.cpp: what a collective uses is recorded on its "
    "stream; CUDACachingAllocator.cpp, insert_events: freed, they are had again once that stream is through",
)
def queued_bytes(*, freed: Numeric, layers: Numeric, queued: float, vpp: Numeric) -> Numeric:
    """Bytes of all layers × min(layers of a pass, queued) / layers: the fullest moment is a forward's end."""
    return freed * minimum(layers / vpp, queued) / maximum(layers, 1.0)


def _measured_gap(measured: Residual, allocated: Numeric) -> Numeric:
    """Return what the allocator reserves beyond what it hands out, as it did where that was measured."""
    if measured.reserved_ratio is None:
        return measured.framework_overhead_bytes
    handed = allocated + measured.live_tensor_excess_bytes
    return fragmentation_bytes(allocated=handed, ratio=measured.reserved_ratio)


@formula(unit="byte", source="DeepSpeed, runtime/zero/stage_1_and_2.py: one flat copy of the gradients")
def flat_gradient_bytes(*, update: Numeric, activations: Numeric, zero: Numeric) -> Numeric:
    """min(update, activations) below stage 3: what of a flat copy finds no room among freed activations."""
    return where(zero < 3, minimum(update, activations), 0.0)


def memory_summary(setting: EvalContext, plan: StagePlan, footprint: Footprint) -> MemorySummary:
    """Return the fullest device against its capacity, and every stage."""
    parts = {
        f"{name}_bytes": _of_stages(getattr(footprint.memory, name), len(plan.index))
        for name in MemoryParts.__dataclass_fields__
    }
    outside = footprint.outside
    beside, others = number_of(outside.expected), number_of(outside.communicators.expected)
    stages = tuple(
        StageMemory(
            stage=stage,
            num_layers=int(plan.num_layers[stage]),
            peak_bytes=peak,
            fragmentation_bytes=parts["overhead_bytes"][stage] - beside,
            communicators_bytes=others,
            **{name: values[stage] for name, values in parts.items()},
        )
        for stage, peak in enumerate(_of_stages(footprint.stage_peak, len(plan.index)))
    )
    worst = max(stages, key=lambda stage: stage.peak_bytes)
    overhead = setting.overhead
    allocated, reserved = worst.allocated_bytes, worst.reserved_bytes
    off = partial(_away, outside, overhead, allocated=allocated, reserved=reserved)
    low = number_of(off("low")) + _returned(worst, overhead)
    high = number_of(off("high"))
    capacity, cluster = setting.cluster.device.hbm_bytes, setting.cluster
    of_host = max(stage.host_bytes for stage in stages) * min(cluster.devices_per_node, cluster.num_devices)
    return MemorySummary(
        peak_bytes=worst.peak_bytes,
        peak_low_bytes=worst.peak_bytes - low,
        peak_high_bytes=worst.peak_bytes + high,
        capacity_bytes=capacity,
        verdict=fit(
            point_bytes=worst.peak_bytes - low,
            upper_bytes=worst.peak_bytes + high,
            capacity_bytes=capacity,
            over_host=0.0 < cluster.host_memory_bytes < of_host,
        ),
        stages=stages,
        host_bytes=of_host,
        host_capacity_bytes=cluster.host_memory_bytes,
    )


def _returned(stage: StageMemory, overhead: Overhead) -> float:
    """Return what the allocator returns of what it holds before it gives up."""
    if overhead.anchor is not None and overhead.measured is not None:
        return 0.0
    ratio = number_of(overhead.fragmentation.expected)
    if overhead.largest_tensor is not None:
        ratio += overhead.kept
    usual = fragmentation_bytes(allocated=stage.allocated_bytes, ratio=ratio)
    return max(0.0, stage.fragmentation_bytes - number_of(usual))


def _away(
    outside: Outside,
    overhead: Overhead,
    end: Literal["low", "high"],
    *,
    allocated: Numeric,
    reserved: Numeric,
) -> Numeric:
    """Return by how much a peak may be lower, or higher, than expected.

    Where the residual was measured, only its margin is open.
    """
    if overhead.anchor is not None and overhead.measured is not None:
        margin, carried = overhead.anchor.safety_margin, overhead.measured.framework_overhead_bytes
        grown = margin * (_measured_gap(overhead.measured, allocated) - carried)
        return overhead.measured.above(margin) + grown if end == "high" else 0.0

    def off(bounds: Bounds) -> Numeric:
        return getattr(bounds, end) - bounds.expected  # type: ignore[no-any-return]

    return away(
        context=off(outside.context),
        communicators=off(outside.communicators),
        fragmentation=allocated * off(overhead.fragmentation),
        formulas=reserved * off(overhead.formulas or load_residual()),
    )


def highest_peak(footprint: Footprint, overhead: Overhead, stages: Stages) -> Numeric:
    """Return the bytes of the fullest device of every candidate at the upper end of its 80 % interval."""
    memory, outside = footprint.memory, footprint.outside
    allocated = memory.allocated
    reserved = allocated + memory.overhead - outside.expected
    peaks = footprint.stage_peak + _away(outside, overhead, "high", allocated=allocated, reserved=reserved)
    return Picker.slowest(peaks, stages)(peaks)


def _of_stages(values: object, count: int) -> list[float]:
    """Return a quantity of one layout on each stage."""
    result = numbers(value_of(values))
    return result if len(result) == count else result * count


def fit(*, point_bytes: float, upper_bytes: float, capacity_bytes: float, over_host: bool = False) -> Verdict:
    """Return OOM if the point estimate or the host is too large, AT RISK if only the upper bound is, else FITS."""
    if point_bytes > capacity_bytes or over_host:
        return "OOM"
    return "AT RISK" if upper_bytes > capacity_bytes else "FITS"

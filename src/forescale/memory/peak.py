"""Memory of every stage: states, activations in flight, buffers, overhead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from forescale.formula import total
from forescale.graph.layout import Choices, Degrees, Layout, several, state_shards
from forescale.graph.operator import NARROWEST_GRADIENT_BYTES
from forescale.graph.stages import over_stages
from forescale.memory.activations import any_of, largest, smallest, stage_output_bytes
from forescale.memory.buffers import (
    dummy_gradient_bytes,
    gather_stream_bytes,
    gathered_parameter_bytes,
    resharded_bytes,
    resharded_copy_bytes,
    whole_parameter_bytes,
)
from forescale.memory.graphs import pool_bytes
from forescale.memory.in_flight import most_held, shares_in_flight
from forescale.memory.narrow import added_weight_bytes, wide_weight_bytes
from forescale.memory.offload import resident_bytes
from forescale.memory.optimizers import moments_per_parameter
from forescale.memory.outside import Outside
from forescale.memory.overhead import fragmentation_bytes
from forescale.memory.states import (
    gradient_bytes,
    optimizer_bytes,
    optimizer_element_bytes,
    update_bytes,
    update_element_bytes,
    weight_bytes,
)
from forescale.numeric import Numeric
from forescale.spec.model import Model
from forescale.spec.strategy import Offload
from forescale.spec.workload import STORAGE_BYTES, Workload
from forescale.time.data_parallel import GATHERED_BYTES, at_stage_3, kept_whole
from forescale.time.host import in_transit, layers_kept, offloaded_bytes

if TYPE_CHECKING:
    from forescale.evaluate import Inputs, Setting
    from forescale.graph.parts import Parts
    from forescale.graph.stages import Stages
    from forescale.memory.parameters import Holding
    from forescale.time.blocks import BlockCost
    from forescale.time.data_parallel import DataTraffic
    from forescale.time.waiting import Sums


class Held(Protocol):
    """What standing buffers depend on: parameters, and how they are sharded."""

    @property
    def degrees(self) -> Degrees:
        """The degrees of every candidate."""
        ...

    @property
    def stages(self) -> Stages:
        """What stands on each stage."""
        ...

    @property
    def held(self) -> Parts[Holding]:
        """Parameters of every block."""
        ...

    @property
    def traffic(self) -> DataTraffic:
        """Parameters of every stage."""
        ...


PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
"""Parts of a device's peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes per stage and candidate, (stages, candidates)."""

    weights: Numeric
    gradients: Numeric
    optimizer: Numeric
    activations: Numeric
    buffers: Numeric
    overhead: Numeric
    host: Numeric = 0.0
    """In the host's memory instead: no part of the peak."""

    def total(self) -> Numeric:
        """Return the peak of each stage."""
        parts = {f"{name}_bytes": getattr(self, name) for name in PARTS}
        return total(parts, name="peak_bytes", unit="byte")

    @property
    def allocated(self) -> Numeric:
        """What tensors take of each stage's peak."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Weights, gradients and optimizer states of one device."""

    weights: Numeric
    gradients: Numeric
    optimizer: Numeric
    update: Numeric
    """Fp32 gradients that exist during the update alone."""
    host: Numeric = 0.0
    """Held by the host instead, with what its update needs."""
    host_updated: Numeric = 0.0
    """Parameters that the host updates."""
    host_weights: Numeric = 0.0
    """Bytes of shards that every pass reads from the host, in the type that is gathered."""
    host_gradients: Numeric = 0.0
    """Bytes of shards that every backward writes to the host."""

    def total(self) -> Numeric:
        """Return all states together: no layout needs less."""
        return self.weights + self.gradients + self.optimizer


def state_bytes(
    model: Model, dense: Numeric, expert: Numeric, degrees: Degrees, workload: Workload, choices: Choices
) -> StateBytes:
    """Return the states of both parameter groups, each over its own shards."""
    precision, offload = workload.precision, choices.offload
    beside = STORAGE_BYTES[precision.parameters] if choices.kernels.keeps_product_gradients else 0.0
    moments = moments_per_parameter(model, workload.optimizer)
    weight, gradient = STORAGE_BYTES[precision.parameters], STORAGE_BYTES[precision.gradients] + beside
    update = update_element_bytes(precision)
    dense_state = optimizer_element_bytes(precision, moments.dense)
    expert_state = optimizer_element_bytes(precision, moments.expert)

    def over_shards(function: Callable[..., Numeric], size: float, other: float) -> Numeric:
        shards, zero = state_shards(degrees, choices.tp_kind), degrees.zero
        return function(parameters=dense, element_bytes=size, shards=shards, zero=zero) + function(
            parameters=expert, element_bytes=other, shards=degrees.expert_shards, zero=zero
        )

    held = StateBytes(
        weights=over_shards(weight_bytes, weight, weight),
        gradients=over_shards(gradient_bytes, gradient, gradient),
        update=over_shards(update_bytes, update, update),
        optimizer=over_shards(optimizer_bytes, dense_state, expert_state),
    )
    if not (offload.updates or offload.parameters):
        return held
    left = 0.0 if offload.master else optimizer_element_bytes(precision, 0.0)
    moved = over_shards(optimizer_bytes, dense_state - left, expert_state - left)
    return on_host(held, offload, degrees.zero, moved, over_shards(optimizer_bytes, 1.0, 1.0))


def on_host(
    held: StateBytes, offload: Offload, zero: Numeric, moved: Numeric, parameters: Numeric
) -> StateBytes:
    """Return the states with those of `parameters` that are offloaded moved to the host."""
    whole = at_stage_3(zero=zero, sharded=1.0, otherwise=0.0) if offload.parameters else 0.0
    share = largest(first=offload.optimizer, second=whole)
    updated = share * parameters
    beside = STORAGE_BYTES["fp32"] * (1.0 if offload.master else 2.0)
    return StateBytes(
        weights=held.weights * (1.0 - whole),
        gradients=held.gradients * (1.0 - whole),
        optimizer=held.optimizer - share * moved,
        update=held.update * (1.0 - share),
        host=share * moved + beside * updated + whole * held.weights,
        host_updated=updated,
        host_weights=whole * parameters * GATHERED_BYTES,
        host_gradients=whole * held.gradients,
    )


def memory_parts(
    setting: Setting,
    inputs: Inputs,
    states: StateBytes,
    sums: Sums,
    count: Numeric,
    outside: Outside,
) -> MemoryParts:
    """Return the memory of every stage; `sums` are over the costs of its layers."""
    kernels = setting.choices.kernels
    activations, host = _activations(setting, inputs, sums, count)
    standing = standing_buffers(setting, inputs) if inputs.floor is None else 0.0
    freed = 0.0 if setting.choices.graphs == "full" else activations  # a graph's memory is not the update's
    buffers = largest(first=standing, second=states.update - freed) + pool_bytes(setting, inputs)
    ratio = float(setting.overhead.fragmentation.expected)
    lost = smallest(first=states.update, second=activations) if kernels.flat_update else 0.0
    weights = states.weights + (narrow_weights(setting, inputs) if inputs.floor is None else 0.0)
    allocated = weights + states.gradients + states.optimizer + activations + buffers
    overhead = {
        "outside the allocator": outside.expected,
        "fragmentation": fragmentation_bytes(allocated=allocated, ratio=ratio),
        "gradients of the update that find no room": lost,
        "memory of the gathering stream": _gathered_aside(setting, inputs),
    }
    return MemoryParts(
        weights=weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=activations,
        buffers=buffers,
        overhead=total(overhead, name="overhead", unit="byte"),
        host=states.host + host,
    )


def _activations(setting: Setting, inputs: Inputs, sums: Sums, count: Numeric) -> tuple[Numeric, Numeric]:
    """Return what activations take on the device, at work and in flight, and what of them lies on the host."""
    degrees, stages, head = inputs.degrees, inputs.stages, inputs.pieces.head.cost
    offloads = setting.choices.offload.activations

    def kept(on: Stages) -> Numeric:
        return layers_kept(inputs, on, sums)

    def moved(on: Stages) -> Numeric:
        return offloaded_bytes(setting, inputs, on)

    saved, beside_loss = most_held(inputs, count, (lambda on: kept(on) - moved(on)) if offloads else kept)
    part = 1.0 if inputs.pipeline is None else 1.0 / inputs.pipeline.num_splits
    loss = stages.last * largest(first=head.forward_bytes, second=head.backward_bytes)
    activations: Numeric = largest(
        first=saved + part * _working_set(setting, inputs), second=beside_loss + part * loss
    )
    host: Numeric = 0.0
    if offloads:
        host, _ = most_held(inputs, count, moved)
        activations = resident_bytes(kept=activations, in_transit=in_transit(setting, inputs, moved(stages)))
    if inputs.pipeline is not None:
        waiting = inputs.pipeline.losses_waiting - part
        activations = activations + stages.last * waiting * head.kept_bytes
    if setting.choices.kernels.keeps_stage_outputs:
        outputs = stage_output_bytes(
            message_bytes=message_bytes(setting, inputs),
            microbatches=shares_in_flight(inputs, count),
            pp=degrees.pp,
        )
        copies = 1 if inputs.pipeline is None else inputs.pipeline.copies
        sending = degrees.vpp - stages.last / float(copies)  # chunks but the last of the model
        activations = activations + sending * outputs
    return activations, host


def narrow_weights(setting: Setting, inputs: Held) -> Numeric:
    """Return what weights in 8 or 4 bits add on every stage: copies of theirs, the type of the others."""
    precision, held, degrees = setting.workload.precision, inputs.held, inputs.degrees
    narrow = over_stages(
        inputs.stages, held, lambda block: block.narrow, num_mtp=setting.model.num_mtp_layers
    )
    added = added_weight_bytes(
        parameters=narrow, element_bytes=setting.narrow_weight_bytes, zero=degrees.zero
    )
    wide = wide_weight_bytes(precision)
    if wide == 0.0:
        return added
    others = inputs.traffic.dense + inputs.traffic.expert - narrow
    shards = state_shards(degrees, setting.choices.tp_kind)
    return added + weight_bytes(parameters=others, element_bytes=wide, shards=shards, zero=degrees.zero)


def _working_set(setting: Setting, inputs: Inputs) -> Numeric:
    """Return what the fullest block of each stage needs at work beyond what it keeps, forward or backward."""
    stages = inputs.stages
    working: Numeric = 0.0 * stages.first
    policy = setting.choices.recompute
    for kind, piece in enumerate(inputs.pieces.layers):
        unit = float(policy.unit - 1) * piece.plain.kept_bytes  # a unit's other layers, replayed with it
        extra = _at_work(piece.cost, unit)
        working = largest(first=working, second=any_of(count=stages.replayed[kind]) * extra)
        if not policy.takes_all:
            others = any_of(count=stages.counts[kind] - stages.replayed[kind])
            working = largest(first=working, second=others * _at_work(piece.plain, 0.0))
    return working


def _at_work(cost: BlockCost, replayed_beside: Numeric) -> Numeric:
    """Return what a block needs beyond what it keeps in the fuller of its passes."""
    return largest(
        first=cost.forward_bytes - cost.kept_bytes,
        second=cost.backward_bytes - cost.kept_bytes + replayed_beside,
    )


def standing_buffers(setting: Setting, inputs: Held) -> Numeric:
    """Return the buffers that exist throughout forward and backward."""
    kernels = setting.choices.kernels
    parts: dict[str, Numeric] = {
        "gathered parameters": _gathered(setting, inputs),
        "workspaces of libraries": setting.workspace_bytes,
    }
    if setting.overlap_workspace_bytes:
        parts["workspaces of overlapped products"] = (
            several(degree=inputs.degrees.tp) * setting.overlap_workspace_bytes
        )
    if kernels.accumulate_in_product:
        parts["dummy gradients"] = _dummy_gradients(setting.workload, inputs)
    parts["buckets"] = kernels.bucket_elements * STORAGE_BYTES[setting.workload.precision.gradients]
    return total(parts, name="standing buffers", unit="byte")


def message_bytes(setting: Setting, inputs: Inputs) -> Numeric:
    """Return the bytes of one micro-batch between stages."""
    workload = setting.workload
    layout = Layout(
        degrees=inputs.degrees,
        choices=setting.choices,
        precision=workload.precision,
        seq_len=float(workload.seq_len),
    )
    return layout.tokens("residual") * setting.model.hidden_size * layout.element_bytes


def _dummy_gradients(workload: Workload, inputs: Held) -> Numeric:
    """Return the cached dummy gradients of the distinct weight shapes on each stage."""
    users: dict[str, tuple[int, ...]] = {}
    elements: dict[str, Numeric] = {}
    for kind, block in enumerate(inputs.held.layers):
        for name, size in block.products.items():
            users[name] = (*users.get(name, ()), kind)
            elements.setdefault(name, size)
    result: Numeric = 0.0 * inputs.stages.first
    for kinds in dict.fromkeys(users.values()):
        shapes = {name: elements[name] for name, using in users.items() if using == kinds}
        layers: Numeric = 0.0
        for kind in kinds:
            layers = layers + inputs.stages.counts[kind]
        result = result + dummy_gradient_bytes(
            elements=total(shapes, name="weights of distinct shape", unit="parameter"),
            element_bytes=max(STORAGE_BYTES[workload.precision.parameters], NARROWEST_GRADIENT_BYTES),
            layers=layers,
            zero=inputs.degrees.zero,
        )
    return result


def _gathered(setting: Setting, inputs: Held) -> Numeric:
    """Return the gathered parameters and unreduced gradients of the largest block, or weight, at stage 3."""
    degrees, stages = inputs.degrees, inputs.stages
    workload, head = setting.workload, inputs.held.head
    buffers: Numeric = 0.0 * stages.first
    groups: list[tuple[Numeric, float, Numeric, Numeric]]
    shards = state_shards(degrees, setting.choices.tp_kind)
    reduced = STORAGE_BYTES[workload.precision.gradients]
    if setting.choices.kernels.gathers_each_weight:
        reduced = 0.0  # reduced as the product made it
        groups = [(1.0, 2.0, block.dense_weight, block.expert_weight) for block in inputs.held.layers]
        groups.append((stages.last, 1.0, head.vocabulary, 0.0))
    else:
        groups = [(1.0, 2.0, block.dense, block.expert) for block in inputs.held.layers]
        groups.append((stages.last, 1.0, head.dense + head.vocabulary, head.expert))
    for present, copies, dense, expert in groups:
        both: Numeric = 0.0
        for parameters, ranks in ((dense, shards), (expert, degrees.expert_shards)):
            both = both + gathered_parameter_bytes(
                parameters=parameters,
                copies=copies,
                reduced_bytes=reduced,
                shards=ranks,
                zero=degrees.zero,
            )
        buffers = largest(first=buffers, second=present * both)
    reshard = setting.choices.reshard
    if not isinstance(reshard, str):
        return buffers + _copies_among(float(reshard), inputs, shards)
    whole = kept_whole(pp=degrees.pp, reshard=reshard)
    return resharded_bytes(always=buffers, never=_whole(workload, inputs, shards), whole=whole)


def _gathered_aside(setting: Setting, inputs: Inputs) -> Numeric:
    """Return what the largest group takes where it is received: a block, or what stands at the root of the model."""
    if inputs.floor is not None or not setting.choices.kernels.gathers_aside:
        return 0.0
    held, stages, degrees = inputs.held, inputs.stages, inputs.degrees
    head, shards = held.head, state_shards(inputs.degrees, setting.choices.tp_kind)
    groups = [(block.dense, shards) for block in held.layers]
    groups += [(block.expert, degrees.expert_shards) for block in held.layers]
    root = stages.first * held.embedding.dense + stages.last * (head.dense + head.vocabulary)
    buffers: Numeric = 0.0 * stages.first
    for parameters, ranks in [*groups, (root, shards)]:
        own = gather_stream_bytes(parameters=parameters, shards=ranks, zero=degrees.zero)
        buffers = largest(first=buffers, second=own)
    return buffers


def _copies_among(ranks: float, inputs: Held, dense_shards: Numeric) -> Numeric:
    """Return a stage's parameters sharded over some neighbours only, beside the shards of all ranks."""
    degrees, traffic = inputs.degrees, inputs.traffic
    groups = ((traffic.dense, dense_shards), (traffic.expert, degrees.expert_shards))
    dense, expert = (
        resharded_copy_bytes(parameters=parameters, ranks=ranks, shards=shards, zero=degrees.zero)
        for parameters, shards in groups
    )
    return dense + expert


def _whole(workload: Workload, inputs: Held, dense_shards: Numeric) -> Numeric:
    """Return a stage's whole parameters and unreduced gradients at stage 3."""
    degrees, reduced = inputs.degrees, STORAGE_BYTES[workload.precision.gradients]
    expert_shards = degrees.expert_shards
    return whole_parameter_bytes(
        parameters=inputs.traffic.dense, reduced_bytes=reduced, shards=dense_shards, zero=degrees.zero
    ) + whole_parameter_bytes(
        parameters=inputs.traffic.expert, reduced_bytes=reduced, shards=expert_shards, zero=degrees.zero
    )

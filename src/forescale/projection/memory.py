"""Memory of every stage: states, activations in flight, buffers, overhead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forescale.formula import named, total
from forescale.graph.layout import Degrees
from forescale.memory.activations import any_of, in_flight, largest, saved_bytes
from forescale.memory.buffers import Overhead, dummy_gradient_bytes, gathered_parameter_bytes, load_overhead
from forescale.memory.states import gradient_bytes, optimizer_bytes, optimizer_element_bytes, weight_bytes
from forescale.numeric import Numeric
from forescale.spec.workload import STORAGE_BYTES, Workload

if TYPE_CHECKING:
    from forescale.projection.evaluate import Inputs, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes per stage and candidate, (stages, candidates)."""

    weights: Numeric
    gradients: Numeric
    optimizer: Numeric
    activations: Numeric
    buffers: Numeric
    overhead: Numeric

    def total(self) -> Numeric:
        """Return the peak of each stage."""
        parts = {f"{name}_bytes": getattr(self, name) for name in MemoryParts.__dataclass_fields__}
        return total(parts, name="peak_bytes", unit="byte")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Weights, gradients and optimizer states of one device."""

    weights: Numeric
    gradients: Numeric
    optimizer: Numeric

    def total(self) -> Numeric:
        """Return all states together: no layout needs less."""
        return self.weights + self.gradients + self.optimizer


def state_bytes(dense: Numeric, expert: Numeric, degrees: Degrees, workload: Workload) -> StateBytes:
    """Return the states of both parameter groups, each over its own shards."""
    precision = workload.precision
    shards = degrees.dp_shard * degrees.cp
    sizes = {
        "weights": (weight_bytes, STORAGE_BYTES[precision.parameters]),
        "gradients": (gradient_bytes, STORAGE_BYTES[precision.gradients]),
        "optimizer": (optimizer_bytes, optimizer_element_bytes(precision, workload.optimizer)),
    }
    held = {
        name: function(parameters=dense, element_bytes=size, shards=shards, zero=degrees.zero)
        + function(parameters=expert, element_bytes=size, shards=degrees.expert_dp, zero=degrees.zero)
        for name, (function, size) in sizes.items()
    }
    return StateBytes(**held)


def memory_parts(
    setting: Setting, inputs: Inputs, states: StateBytes, kept: Numeric, count: Numeric
) -> MemoryParts:
    """Return the memory of every stage; `kept` is what one micro-batch keeps on it."""
    degrees, stages, pieces = inputs.degrees, inputs.stages, inputs.pieces
    overhead: Overhead = load_overhead()
    held = in_flight(stage=stages.index, pp=degrees.pp, vpp=degrees.vpp, num_microbatches=count)
    working: Numeric = 0.0 * stages.first
    for layers, piece in zip(stages.counts, pieces.layers, strict=True):
        extra = piece.cost.backward_bytes - piece.cost.kept_bytes
        working = largest(first=working, second=any_of(count=layers) * extra)
    head = pieces.head.cost
    loss = stages.last * largest(first=head.forward_bytes, second=head.backward_bytes)
    layers_kept = kept - stages.last * head.kept_bytes
    activations = saved_bytes(per_microbatch=layers_kept, microbatches=held) + largest(
        first=working, second=loss
    )
    buffers = _gathered(setting.workload, inputs)
    if setting.choices.kernels.accumulate_in_product:
        buffers = buffers + _dummy_gradients(setting.workload, inputs)
    allocated = states.weights + states.gradients + states.optimizer + activations + buffers
    return MemoryParts(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=activations,
        buffers=buffers,
        overhead=overhead.context_bytes[1] + (overhead.fragmentation[1] - 1.0) * allocated,
    )


def _dummy_gradients(workload: Workload, inputs: Inputs) -> Numeric:
    """Return the cached dummy gradients of the distinct weight shapes on each stage."""
    counts: dict[str, list[tuple[Numeric, Numeric]]] = {}
    for layers, block in zip(inputs.stages.counts, inputs.held.layers, strict=True):
        for name, elements in block.products.items():
            counts.setdefault(name, []).append((elements, layers))
    result: Numeric = 0.0 * inputs.stages.first
    for name, uses in counts.items():
        layers: Numeric = uses[0][1]
        for _, count in uses[1:]:
            layers = layers + count
        dummy = dummy_gradient_bytes(
            elements=uses[0][0],
            element_bytes=STORAGE_BYTES[workload.precision.parameters],
            layers=layers,
            zero=inputs.degrees.zero,
        )
        result = result + named(dummy, name, unit="byte")
    return result


def _gathered(workload: Workload, inputs: Inputs) -> Numeric:
    """Return the gathered parameters and unreduced gradients of the largest block at stage 3."""
    degrees, stages = inputs.degrees, inputs.stages
    head = inputs.held.head
    buffers: Numeric = 0.0 * stages.first
    groups: list[tuple[Numeric, float, Numeric, Numeric]]
    groups = [(1.0, 2.0, block.dense, block.expert) for block in inputs.held.layers]
    groups.append((stages.last, 1.0, head.dense + head.vocabulary, head.expert))
    for present, copies, dense, expert in groups:
        both: Numeric = 0.0
        for parameters, shards in ((dense, degrees.dp_shard * degrees.cp), (expert, degrees.expert_dp)):
            both = both + gathered_parameter_bytes(
                parameters=parameters,
                copies=copies,
                reduced_bytes=STORAGE_BYTES[workload.precision.gradients],
                shards=shards,
                zero=degrees.zero,
            )
        buffers = largest(first=buffers, second=present * both)
    return buffers

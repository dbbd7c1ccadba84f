"""Evaluate layouts: step time and memory of one candidate or of an array of them, by one definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from forescale.formula import formula, total, value_of
from forescale.graph.layout import Choices, Degrees
from forescale.graph.ops import Collective, Elementwise
from forescale.memory.activations import in_flight, largest, saved_bytes
from forescale.memory.buffers import Overhead, gathered_parameter_bytes, load_overhead
from forescale.memory.states import gradient_bytes, optimizer_bytes, optimizer_element_bytes, weight_bytes
from forescale.numeric import Array, Numeric
from forescale.projection.blocks import BlockCost, Pricing
from forescale.projection.pieces import Piece, Pieces, recomputed_share
from forescale.projection.step import bubble_time, exposed_gather, exposed_pipeline_time, exposed_reduction, num_microbatches
from forescale.spec.model import Model
from forescale.spec.workload import STORAGE_BYTES, Workload

OPTIMIZER_PASSES = 2.0
"""Master copy and moments are read and written once each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Stage plans of all candidates: arrays (stages, candidates); unused rows have multiplicity 0."""

    counts: tuple[Array, ...]
    """Layers by kind."""
    first: Array
    last: Array
    index: Array
    multiplicity: Array

    @property
    def num_layers(self) -> Array:
        """Decoder layers on each stage."""
        return sum(self.counts[1:], start=self.counts[0])


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
class Evaluation:
    """What one evaluation says of every candidate."""

    step_time: Numeric
    time_parts: dict[str, Numeric]
    """Seconds by part; they sum to the step time."""
    num_microbatches: Numeric
    stage_forward: Numeric
    """(stages, candidates) seconds of one micro-batch."""
    stage_backward: Numeric
    slowest: Array
    """(candidates,) row of the stage that sets the pace."""
    memory: MemoryParts
    stage_peak: Numeric
    peak: Numeric
    flops: Numeric
    """Executed FLOP per step and device of the slowest stage."""
    parameters: Numeric
    """(stages, candidates) elements held by one device, before sharding over data parallel ranks."""


def evaluate(
    model: Model, workload: Workload, degrees: Degrees, choices: Choices, stages: Stages, pieces: Pieces, pricing: Pricing,
    microbatch_overhead: float = 0.0, step_overhead: float = 0.0,
) -> Evaluation:
    """Compose priced pieces into steps.

    Shapes: degrees and pieces (candidates,), stages (stages, candidates).
    """
    count = num_microbatches(
        global_batch_size=float(workload.global_batch_size), dp=degrees.dp, micro_batch_size=degrees.micro_batch_size
    )
    shape = _StageSums(model, stages, pieces, choices)
    forward = shape.total(lambda cost: _sum(cost.forward)) 
    backward = shape.total(lambda cost: _sum(cost.backward)) + microbatch_overhead
    data = _data_parallel(workload, degrees, choices, stages, pieces, shape, forward, backward, count, pricing)
    stage_time = forward + backward + data.per_microbatch
    plain = np.where(stages.multiplicity > 0, value_of(stage_time), -1.0)
    slowest = np.argmax(plain, axis=0)
    at = _Picker(slowest)
    parts = {name: count * at(value) for name, value in shape.parts().items()}
    parts["data_comm"] = parts.get("data_comm", 0.0) + count * at(data.per_microbatch) + at.maximum(data.once, stages)
    parts["overhead"] = count * microbatch_overhead + step_overhead
    slow_time = at(stage_time)
    all_stages = _stage_sum(stage_time * stages.multiplicity)
    parts["bubble"] = bubble_time(total_stage_time=all_stages, slowest_stage_time=slow_time, vpp=degrees.vpp)
    parts["pipeline_comm"] = exposed_pipeline_time(
        hop=pieces.hop, slowest_stage_time=slow_time, microbatches=count, pp=degrees.pp, vpp=degrees.vpp,
        overlapped=choices.overlap.pipeline,
    )
    states = _states(model, workload, degrees, shape, pieces)
    parts["optimizer"] = at.maximum(_optimizer_time(states, workload, pricing), stages)
    memory = _memory(workload, degrees, stages, pieces, shape, states, count)
    peaks = memory.total()
    return Evaluation(
        step_time=total(parts, name="step_time_s", unit="s"),
        time_parts=parts,
        num_microbatches=count,
        stage_forward=forward,
        stage_backward=backward,
        slowest=slowest,
        memory=memory,
        stage_peak=peaks,
        peak=at.maximum(peaks, stages),
        flops=count * at(shape.total(lambda cost: cost.flops)),
        parameters=states.dense + states.expert,
    )


def _sum(parts: dict[str, Numeric]) -> Numeric:
    return total(parts, name="block_time", unit="s")


@formula(unit="s", source="every stage is crossed once while the pipeline fills and drains")
def sum_over_stages(*, values: Numeric) -> Numeric:
    """Σ over stages."""
    return np.add.reduce(np.asarray(values), axis=0)


def _stage_sum(values: Numeric) -> Numeric:
    return sum_over_stages(values=values)


class _Picker:
    """Takes the numbers of one stage per candidate."""

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        self.columns = np.arange(len(rows))

    def __call__(self, values: Numeric) -> Numeric:
        """Return the value of the chosen stage."""
        if np.ndim(value_of(values)) < 2:
            return values
        picked: Numeric = values[self.rows, self.columns]  # type: ignore[index]
        return picked

    def maximum(self, values: Numeric, stages: Stages) -> Numeric:
        """Return the largest value over the stages that exist."""
        plain = np.where(stages.multiplicity > 0, value_of(values), -np.inf)
        return _Picker(np.argmax(plain, axis=0))(values)


class _StageSums:
    """Sums block quantities over the layers and ends that stand on each stage."""

    def __init__(self, model: Model, stages: Stages, pieces: Pieces, choices: Choices) -> None:
        self.stages, self.pieces, self.num_mtp = stages, pieces, float(model.num_mtp_layers)
        limit = choices.recompute.num_layers
        self.share: Numeric = 1.0
        if limit is not None:
            self.share = recomputed_share(num_layers=float(limit), layers_on_stage=stages.num_layers)

    def total(self, of: Callable[[BlockCost], Numeric]) -> Numeric:
        """Return Σ layers × quantity of a layer's cost, ends included."""
        return self.over(lambda piece: self._mixed(piece, of))

    def _mixed(self, piece: Piece, of: Callable[[BlockCost], Numeric]) -> Numeric:
        if piece.plain is piece.cost or isinstance(self.share, float):
            return of(piece.cost)
        return self.share * of(piece.cost) + (1.0 - self.share) * of(piece.plain)

    def over(self, of: Callable[[Piece], Numeric]) -> Numeric:
        """Return Σ layers × quantity of a piece, ends included."""
        result: Numeric = self.stages.first * of(self.pieces.embedding) + self.stages.last * of(self.pieces.head)
        for count, piece in zip(self.stages.counts, self.pieces.layers, strict=True):
            result = result + count * of(piece)
        if self.pieces.mtp is not None:
            result = result + self.stages.last * self.num_mtp * of(self.pieces.mtp)
        return result

    def parts(self) -> dict[str, Numeric]:
        """Return seconds per micro-batch by part, (stages, candidates)."""
        pieces = [*self.pieces.layers, self.pieces.embedding, self.pieces.head]
        if self.pieces.mtp is not None:
            pieces.append(self.pieces.mtp)
        names = dict.fromkeys(
            part for piece in pieces for cost in (piece.cost, piece.plain) for part in (*cost.forward, *cost.backward)
        )
        return {
            name: self.total(lambda cost, name=name: cost.forward.get(name, 0.0) + cost.backward.get(name, 0.0))  # type: ignore[misc]
            for name in names
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _DataParallel:
    per_microbatch: Numeric
    once: Numeric


@formula(unit="s", source="definition")
def when_sharded(*, zero: Numeric, at_stage_3: Numeric, below: Numeric) -> Numeric:
    """The first at ZeRO stage 3, the second below it."""
    return np.where(np.asarray(zero) >= 3, at_stage_3, below)


@formula(unit="s", source="definition")
def when_reduced(*, zero: Numeric, scattered: Numeric, reduced: Numeric) -> Numeric:
    """The first from ZeRO stage 1 (reduce-scatter), the second without sharding (all-reduce)."""
    return np.where(np.asarray(zero) >= 1, scattered, reduced)


def _data_parallel(
    workload: Workload, degrees: Degrees, choices: Choices, stages: Stages, pieces: Pieces, shape: _StageSums,
    forward: Numeric, backward: Numeric, count: Numeric, pricing: Pricing,
) -> _DataParallel:
    """Return exposed data-parallel communication: per micro-batch (stage 3), and once per step."""
    overlap = choices.overlap
    dense = shape.over(lambda piece: piece.dense_parameters)
    expert = shape.over(lambda piece: piece.expert_parameters)
    gradient = STORAGE_BYTES[workload.precision.gradients]
    buckets = stages.num_layers
    scattered = _both(pricing, "reduce_scatter", dense * gradient, expert * gradient, "dp_cp")
    reduced = _both(pricing, "all_reduce", dense * gradient, expert * gradient, "dp_cp")
    replicas = pricing.seconds(Collective(kind="all_reduce", axis="dp_replicate", num_bytes=dense * gradient / (degrees.dp_shard * degrees.cp)))
    gathered = _both(pricing, "all_gather", dense * 2.0, expert * 2.0, "dp_cp")
    reduction = when_reduced(zero=degrees.zero, scattered=scattered, reduced=reduced)
    gather_once = when_reduced(zero=degrees.zero, scattered=gathered, reduced=0.0 * gathered)
    exposed_once = exposed_reduction(
        reduction=reduction + replicas, cover=backward, buckets=buckets, overlapped=overlap.grad_reduce
    ) + exposed_reduction(reduction=gather_once, cover=forward, buckets=buckets, overlapped=overlap.param_gather)
    fsdp = shape.over(lambda piece: _gathers(piece, overlap.param_gather)) + pieces.embedding.gather
    replicas_exposed = exposed_reduction(reduction=replicas, cover=backward, buckets=buckets, overlapped=overlap.grad_reduce)
    del count
    return _DataParallel(
        per_microbatch=when_sharded(zero=degrees.zero, at_stage_3=fsdp, below=0.0 * fsdp),
        once=when_sharded(zero=degrees.zero, at_stage_3=replicas_exposed, below=exposed_once),
    )


def _both(pricing: Pricing, kind: str, dense: Numeric, expert: Numeric, axis: str) -> Numeric:
    seconds = pricing.seconds(Collective(kind=kind, axis=axis, num_bytes=dense))  # type: ignore[arg-type]
    return seconds + pricing.seconds(Collective(kind=kind, axis="expert_dp", num_bytes=expert))  # type: ignore[arg-type]


def _gathers(piece: Piece, overlapped: bool) -> Numeric:
    """Return what one block under stage 3 shows of its two gathers and its reduction."""
    forward, backward = _sum(piece.cost.forward), _sum(piece.cost.backward)
    return exposed_gather(gather=piece.gather, cover=forward, overlapped=overlapped) + exposed_gather(
        gather=piece.gather + piece.reduce, cover=backward, overlapped=overlapped
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _States:
    dense: Numeric
    expert: Numeric
    weights: Numeric
    gradients: Numeric
    optimizer: Numeric


@formula(unit="1", source="Megatron-LM: tied embedding and head share one matrix on one stage, two copies on two")
def head_copies(*, pp: Numeric, tied: bool) -> Numeric:
    """1; 0 where tied and both ends stand on one stage."""
    return np.where((np.asarray(pp) == 1) & tied, 0.0, 1.0)


def _states(model: Model, workload: Workload, degrees: Degrees, shape: _StageSums, pieces: Pieces) -> _States:
    precision = workload.precision
    head = pieces.head_weight * head_copies(pp=degrees.pp, tied=model.tied_embeddings)
    dense = shape.over(lambda piece: piece.dense_parameters) + shape.stages.last * head
    expert = shape.over(lambda piece: piece.expert_parameters)
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
    return _States(dense=dense, expert=expert, **held)


def _optimizer_time(states: _States, workload: Workload, pricing: Pricing) -> Numeric:
    """Return the seconds of the update: gradients read, master and moments read and written, weights written."""
    moved = states.optimizer * (OPTIMIZER_PASSES + _gradient_share(workload))
    return pricing.seconds(Elementwise(bytes_moved=moved, family="optimizer"))


def _gradient_share(workload: Workload) -> float:
    """Bytes of gradient read and weight written per byte of optimizer state."""
    precision = workload.precision
    state = optimizer_element_bytes(precision, workload.optimizer)
    return (STORAGE_BYTES[precision.gradients] + STORAGE_BYTES[precision.parameters]) / max(state, 1.0)


def _memory(
    workload: Workload, degrees: Degrees, stages: Stages, pieces: Pieces, shape: _StageSums, states: _States, count: Numeric
) -> MemoryParts:
    overhead: Overhead = load_overhead()
    held = in_flight(stage=stages.index, pp=degrees.pp, vpp=degrees.vpp, num_microbatches=count)
    working: Numeric = pieces.layers[0].cost.working_bytes
    for piece in pieces.layers[1:]:
        working = largest(first=working, second=piece.cost.working_bytes)
    head = stages.last * pieces.head.cost.kept_bytes
    layers = shape.total(lambda cost: cost.kept_bytes) - head
    activations = saved_bytes(per_microbatch=layers, microbatches=held) + largest(first=working, second=head)
    precision = workload.precision
    element, gradient = 2.0, STORAGE_BYTES[precision.gradients]
    buffers: Numeric = 0.0 * stages.first
    for piece in pieces.layers:
        gathered: Numeric = 0.0
        for parameters, shards in (
            (piece.dense_parameters, degrees.dp_shard * degrees.cp), (piece.expert_parameters, degrees.expert_dp),
        ):
            gathered = gathered + gathered_parameter_bytes(
                parameters=parameters, element_bytes=element, gradient_element_bytes=gradient, shards=shards, zero=degrees.zero
            )
        buffers = largest(first=buffers, second=gathered)
    allocated = states.weights + states.gradients + states.optimizer + activations + buffers
    return MemoryParts(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=activations,
        buffers=buffers,
        overhead=overhead.context_bytes[1] + (overhead.fragmentation[1] - 1.0) * allocated,
    )

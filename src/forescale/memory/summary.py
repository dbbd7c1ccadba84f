"""From an evaluation to what a projection says of memory: stages, interval, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from forescale.formula import value_of
from forescale.graph.stage import StagePlan
from forescale.graph.stages import Picker, Stages
from forescale.memory.anchor import fit
from forescale.memory.outside import Outside
from forescale.memory.overhead import Bounds, Overhead, away, fragmentation_bytes, load_residual, overhead_of
from forescale.memory.peak import MemoryParts
from forescale.numeric import Numeric
from forescale.projection.result import MemorySummary, Note, StageMemory
from forescale.spec.cluster import Cluster
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload
from forescale.units import format_bytes

if TYPE_CHECKING:
    from forescale.evaluate import Evaluation, Footprint


def memory_summary(
    cluster: Cluster, strategy: Strategy, workload: Workload, plan: StagePlan, evaluation: Evaluation
) -> MemorySummary:
    """Return the fullest device against its capacity, and every stage."""
    parts = {
        f"{name}_bytes": _of_stages(getattr(evaluation.memory, name), len(plan.counts))
        for name in MemoryParts.__dataclass_fields__
    }
    outside = evaluation.outside
    beside, others = _number(outside.expected), _number(outside.communicators.expected)
    stages = tuple(
        StageMemory(
            stage=stage,
            num_layers=int(plan.counts[stage].sum()),
            peak_bytes=peak,
            fragmentation_bytes=parts["overhead_bytes"][stage] - beside,
            communicators_bytes=others,
            **{name: values[stage] for name, values in parts.items()},
        )
        for stage, peak in enumerate(_of_stages(evaluation.stage_peak, len(plan.counts)))
    )
    worst = max(stages, key=lambda stage: stage.peak_bytes)
    held = overhead_of(cluster.device, strategy.allocator, varied=workload.varied_lengths)
    low, high = (_away(worst, held, outside, end) for end in ("low", "high"))
    capacity = cluster.device.hbm_bytes
    return MemorySummary(
        peak_bytes=worst.peak_bytes,
        peak_low_bytes=worst.peak_bytes - low,
        peak_high_bytes=worst.peak_bytes + high,
        capacity_bytes=capacity,
        verdict=fit(
            point_bytes=worst.peak_bytes - low,
            upper_bytes=worst.peak_bytes + high,
            capacity_bytes=capacity,
        ),
        stages=stages,
    )


def _away(worst: StageMemory, held: Overhead, outside: Outside, end: Literal["low", "high"]) -> float:
    """Return by how much the peak of the fullest stage may be lower, or higher, than expected.

    Before it gives up, the allocator returns what it holds unused: low is what it cannot return.
    """
    ratios, residual = held.fragmentation, load_residual()

    def off(bounds: Bounds) -> float:
        return _number(getattr(bounds, end)) - _number(bounds.expected)

    usual = fragmentation_bytes(allocated=worst.allocated_bytes, ratio=_number(ratios.expected))
    returned = worst.fragmentation_bytes - _number(usual) if end == "low" else 0.0
    return _number(
        away(
            context=off(outside.context),
            communicators=off(outside.communicators),
            fragmentation=worst.allocated_bytes * off(ratios) - returned,
            formulas=worst.reserved_bytes * off(residual),
        )
    )


def highest_peak(evaluation: Evaluation | Footprint, held: Overhead, stages: Stages) -> Numeric:
    """Return what the fullest device of every candidate needs at the upper end of its range."""
    memory, outside = evaluation.memory, evaluation.outside
    allocated = memory.allocated
    reserved = allocated + memory.overhead - outside.expected
    ratios, residual = held.fragmentation, load_residual()
    peaks = evaluation.stage_peak + away(
        context=outside.context.high - outside.context.expected,
        communicators=outside.communicators.high - outside.communicators.expected,
        fragmentation=allocated * (ratios.high - ratios.expected),
        formulas=reserved * (residual.high - residual.expected),
    )
    return Picker.slowest(peaks, stages)(peaks)


def fragmentation_note(
    memory: MemorySummary, cluster: Cluster, strategy: Strategy, workload: Workload
) -> tuple[Note, ...]:
    """Say so where segments that grow would make a layout fit for sure."""
    now, then = (
        overhead_of(cluster.device, allocator, varied=workload.varied_lengths).fragmentation
        for allocator in (strategy.allocator, "expandable_segments")
    )
    fullest = max(memory.stages, key=lambda stage: stage.peak_bytes)
    saved = fullest.allocated_bytes * (_number(now.high) - _number(then.high))
    if memory.verdict != "AT RISK" or memory.peak_high_bytes - saved > memory.capacity_bytes:
        return ()
    text = (
        "fragmentation may break it: with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        f"(--allocator expandable_segments) it needs at most {format_bytes(memory.peak_high_bytes - saved)}"
    )
    return (Note(topic="allocator", text=text),)


def _of_stages(values: object, count: int) -> list[float]:
    """Return a quantity of one layout on each stage."""
    return [float(value) for value in np.broadcast_to(np.asarray(value_of(values)), (count, 1))[:, 0]]


def _number(value: object) -> float:
    return float(np.asarray(value_of(value)).reshape(-1)[0])

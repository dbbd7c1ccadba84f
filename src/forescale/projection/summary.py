"""From an evaluation to what a projection says of memory: stages, interval, verdict."""

from __future__ import annotations

import numpy as np

from forescale.formula import value_of
from forescale.graph.stage import StagePlan
from forescale.memory.overhead import load_overhead
from forescale.projection.evaluate import Evaluation
from forescale.projection.memory import MemoryParts
from forescale.projection.result import MemorySummary, Note, StageMemory
from forescale.spec.cluster import Cluster
from forescale.spec.strategy import Allocator
from forescale.units import format_bytes


def memory_summary(
    cluster: Cluster, allocator: Allocator, plan: StagePlan, evaluation: Evaluation
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
    held = load_overhead().fragmentation[allocator]
    low, high = (
        worst.peak_bytes
        + worst.allocated_bytes * (_number(getattr(held, end)) - _number(held.expected))
        + sum(_number(getattr(each, end)) for each in (outside.context, outside.communicators))
        - beside
        for end in ("low", "high")
    )
    capacity = cluster.device.hbm_bytes
    return MemorySummary(
        peak_bytes=worst.peak_bytes,
        peak_low_bytes=low,
        peak_high_bytes=high,
        capacity_bytes=capacity,
        verdict="OOM" if worst.peak_bytes > capacity else "AT RISK" if high > capacity else "FITS",
        stages=stages,
    )


def fragmentation_note(memory: MemorySummary, allocator: Allocator) -> tuple[Note, ...]:
    """Say so where segments that grow would make a layout fit for sure."""
    ratios = load_overhead().fragmentation
    fullest = max(memory.stages, key=lambda stage: stage.peak_bytes)
    saved = fullest.allocated_bytes * (
        _number(ratios[allocator].high) - _number(ratios["expandable_segments"].high)
    )
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

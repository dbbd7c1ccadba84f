"""Notes on what of a layout's memory its verdict does not say."""

from __future__ import annotations

from forescale.formula import number_of
from forescale.memory.inputs import EvalContext
from forescale.memory.overhead import overhead_of
from forescale.projection.result import MemorySummary
from forescale.question import Note
from forescale.spec.cluster import Cluster
from forescale.units import format_bytes


def memory_notes(memory: MemorySummary, setting: EvalContext) -> tuple[Note, ...]:
    """Return the notes on what the host keeps and on segments that grow."""
    return (*_host_note(memory, setting.cluster), *_fragmentation_note(memory, setting))


def _fragmentation_note(memory: MemorySummary, setting: EvalContext) -> tuple[Note, ...]:
    """Say so where segments that grow would make a layout fit with margin; a measured gap is what it is."""
    if setting.overhead.measured is not None:
        return ()
    device, varied = setting.cluster.device, setting.workload.varied_lengths
    now, then = (
        overhead_of(device, allocator, varied=varied).fragmentation
        for allocator in (setting.choices.allocator, "expandable_segments")
    )
    fullest = max(memory.stages, key=lambda stage: stage.peak_bytes)
    saved = fullest.allocated_bytes * (number_of(now.high) - number_of(then.high))
    if memory.verdict != "AT RISK" or memory.peak_high_bytes - saved > memory.capacity_bytes:
        return ()
    text = (
        "fragmentation may break it: with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        f"(--allocator expandable_segments) it needs at most {format_bytes(memory.peak_high_bytes - saved)}"
    )
    return (Note(topic="allocator", text=text),)


def _host_note(memory: MemorySummary, cluster: Cluster) -> tuple[Note, ...]:
    """Say what the host of a node keeps of what is offloaded; how much memory it has is not known."""
    most = max(stage.host_bytes for stage in memory.stages)
    if not most:
        return ()
    ranks = min(cluster.devices_per_node, cluster.num_devices)
    text = (
        f"a node keeps {format_bytes(ranks * most)} in host memory of what is offloaded "
        f"({format_bytes(most)} of each device), which is not held against what it has"
    )
    return (Note(topic="host memory", text=text),)

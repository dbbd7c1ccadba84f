"""Notes on what of a layout's memory its verdict does not say."""

from __future__ import annotations

from forescale.formula import number_of
from forescale.memory.inputs import EvalContext
from forescale.memory.overhead import overhead_of
from forescale.projection.result import MemorySummary
from forescale.question import Note
from forescale.units import format_bytes


def memory_notes(memory: MemorySummary, setting: EvalContext) -> tuple[Note, ...]:
    """Return the notes on what the host keeps and on segments that grow."""
    return (*_host_note(memory), *_fragmentation_note(memory, setting))


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


def _host_note(memory: MemorySummary) -> tuple[Note, ...]:
    """Say what the host of a node keeps of what is offloaded, and how much memory it has where that is known."""
    if not memory.host_bytes:
        return ()
    most, capacity = max(stage.host_bytes for stage in memory.stages), memory.host_capacity_bytes
    known = f"of {format_bytes(capacity)}; pinned buffers may take up to twice as much"
    unknown = "which is not compared with what it has (--set cluster.host_memory_bytes=512GiB)"
    text = (
        f"a node keeps {format_bytes(memory.host_bytes)} in host memory of what is offloaded "
        f"({format_bytes(most)} of each device), {known if capacity else unknown}"
    )
    return (Note(topic="host memory", text=text),)

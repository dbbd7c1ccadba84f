"""A step in the Chrome trace format that Perfetto reads: slices, send-to-receive flows, memory counters."""

from __future__ import annotations

from typing import Any

from forescale.schedule.actions import Kind
from forescale.schedule.draw.timeline import Timeline

_TRACKS = {Kind.OFFLOAD: 1, Kind.RELOAD: 2}


def to_perfetto(*timelines: Timeline, unit_s: float = 1e-3) -> dict[str, Any]:
    """Return steps as one Chrome trace object, each step's ranks after those of the step before.

    Parameters
    ----------
    timelines
        Simulated or measured steps.
    unit_s
        Seconds per unit of the steps' times; the trace is in microseconds.
    """
    events: list[dict[str, Any]] = []
    first = 0
    for timeline in timelines:
        step = f", {timeline.title}" if len(timelines) > 1 else ""
        events += _events(timeline, unit_s * 1e6, first=first, step=step)
        first += timeline.num_ranks
    titles = " | ".join(timeline.title for timeline in timelines)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": titles}}


def _events(timeline: Timeline, micro: float, *, first: int, step: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for rank in range(timeline.num_ranks):
        pid = first + rank
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"rank {rank}{step}"}})
        events += [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            for tid, name in ((0, "compute"), (1, "to host"), (2, "from host"))
        ]
        events += [
            {"ph": "C", "name": "activations", "pid": pid, "ts": when * micro, "args": {"held": kept}}
            for when, kept in timeline.memory[rank]
        ]
    for bar in timeline.bars:
        events.append(
            {
                "ph": "X",
                "name": bar.name,
                "cat": bar.kind.name,
                "pid": first + bar.rank,
                "tid": _TRACKS.get(bar.kind, 0),
                "ts": bar.start * micro,
                "dur": (bar.end - bar.start) * micro,
                "args": {"microbatch": bar.microbatch, "chunk": bar.chunk},
            }
        )
    for number, (sender, receiver) in enumerate(timeline.messages):
        source, target = timeline.bars[sender], timeline.bars[receiver]
        common = {"cat": "p2p", "name": "send", "id": f"{first}.{number}" if first else number, "tid": 0}
        when = source.end - (source.end - source.start) * 1e-3
        events.append({**common, "ph": "s", "pid": first + source.rank, "ts": when * micro})
        events.append(
            {**common, "ph": "f", "bp": "e", "pid": first + target.rank, "ts": target.start * micro}
        )
    return events

"""A step in the Chrome trace format that Perfetto reads: slices, send-to-receive flows, memory counters."""

from __future__ import annotations

from typing import Any

from forescale.schedule.actions import Kind
from forescale.schedule.draw.timeline import Timeline

_TRACKS = {Kind.OFFLOAD: 1, Kind.RELOAD: 2}


def to_perfetto(timeline: Timeline, *, unit_s: float = 1e-3) -> dict[str, Any]:
    """Return a step as a Chrome trace object.

    Parameters
    ----------
    timeline
        A simulated or a measured step.
    unit_s
        Seconds per unit of the step's times; the trace is in microseconds.
    """
    micro = unit_s * 1e6
    events: list[dict[str, Any]] = []
    for rank in range(timeline.num_ranks):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        events += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": name}}
            for tid, name in ((0, "compute"), (1, "to host"), (2, "from host"))
        ]
        events += [
            {"ph": "C", "name": "activations", "pid": rank, "ts": when * micro, "args": {"held": held}}
            for when, held in timeline.memory[rank]
        ]
    for bar in timeline.bars:
        events.append(
            {
                "ph": "X",
                "name": bar.name,
                "cat": bar.kind.name,
                "pid": bar.rank,
                "tid": _TRACKS.get(bar.kind, 0),
                "ts": bar.start * micro,
                "dur": (bar.end - bar.start) * micro,
                "args": {"microbatch": bar.microbatch, "chunk": bar.chunk},
            }
        )
    for number, (sender, receiver) in enumerate(timeline.messages):
        source, target = timeline.bars[sender], timeline.bars[receiver]
        common = {"cat": "p2p", "name": "send", "id": number, "tid": 0}
        inside = (source.end - source.start) * 1e-3
        events.append({**common, "ph": "s", "pid": source.rank, "ts": (source.end - inside) * micro})
        events.append({**common, "ph": "f", "bp": "e", "pid": target.rank, "ts": target.start * micro})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": timeline.title}}

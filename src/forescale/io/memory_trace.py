"""Memory timelines as files: counters for Perfetto, and snapshots for PyTorch's memory_viz page.

Instants have no durations; each takes one microsecond of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forescale.memory.timeline import Instant, Timeline

Event = dict[str, Any]


def perfetto_counters(timeline: Timeline, *, rank: int) -> Event:
    """Return a Chrome trace document: one counter of bytes, and the instants by name."""
    events: list[Event] = [_named("process_name", rank, f"rank {rank}")]
    for time, instant in enumerate(timeline.instants):
        counter = {"ph": "C", "name": "activation bytes", "args": {"bytes": instant.num_bytes}}
        slice_ = {"ph": "X", "name": instant.operator, "dur": 1, "tid": 0, "args": _arguments(instant)}
        events += [{**event, "pid": rank, "ts": time} for event in (counter, slice_)]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def memory_snapshot(timeline: Timeline, *, rank: int = 0) -> Event:
    """Return the content of a snapshot that pytorch.org/memory_viz draws; pickle it to a file."""
    addresses: dict[str, int] = {}
    trace: list[Event] = []
    alive: dict[str, float] = {}
    for time, instant in enumerate(timeline.instants):
        now = timeline.tensors(instant)
        for name in alive.keys() - now.keys():
            trace += [
                _change(action, addresses[name], alive[name], time, name)
                for action in ("free_requested", "free_completed")
            ]
        for name in now.keys() - alive.keys():
            addresses.setdefault(name, (len(addresses) + 1) << 40)
            trace.append(_change("alloc", addresses[name], now[name], time, name))
        alive = now
    traces: list[list[Event]] = [[] for _ in range(rank)]
    return {"segments": [], "device_traces": [*traces, trace]}


def _named(name: str, rank: int, text: str) -> Event:
    return {"ph": "M", "name": name, "pid": rank, "args": {"name": text}}


def _arguments(instant: Instant) -> Event:
    return {"phase": instant.phase, "microbatch": instant.microbatch, "block": instant.block}


def _change(action: str, address: int, size: float, time: int, name: str) -> Event:
    return {
        "action": action,
        "addr": address,
        "size": round(size),
        "stream": 0,
        "time_us": time,
        "frames": list(_frames(name)),
    }


def _frames(name: str) -> Iterator[Event]:
    """Yield the tensor, its block and its micro-batch as a stack, innermost first."""
    for part in reversed(name.split("/")):
        yield {"filename": "forescale", "line": 0, "name": part}

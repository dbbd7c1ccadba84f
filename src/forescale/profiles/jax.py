"""Categories of the events of JAX's traces (`*.trace.json.gz`), which name threads and operators instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forescale.profiles.events import Header, TraceArguments, TraceEvent, Truncated

DEVICE, STREAM, OPERATORS = "/device:", "Stream", "XLA Ops"
"""Beginnings of the names of a device's process, and of its threads on which kernels run."""
NONE = TraceArguments()


def with_categories(
    events: Iterable[Header | TraceEvent | Truncated],
) -> Iterator[Header | TraceEvent | Truncated]:
    """Yield events; operators of XLA and steps of `StepTraceAnnotation` with the category that torch gives them."""
    names: dict[tuple[str, object, object], str] = {}
    lines: set[tuple[object, object]] | None = None
    for event in events:
        if isinstance(event, TraceEvent) and not event.cat:
            args = event.args or NONE
            if event.ph == "M" and args.name is not None:
                thread = event.tid if event.name == "thread_name" else None
                names[event.name, event.pid, thread] = str(args.name)
            elif event.ph == "X":
                lines = _lines(names) if lines is None else lines
                if args.step_num is not None:
                    event.name, event.cat = f"ProfilerStep#{args.step_num}", "user_annotation"
                elif (event.pid, event.tid) in lines:
                    event.cat = "kernel"
                elif not lines and args.hlo_op is not None:
                    event.cat = "cpu_op"
        yield event


def _lines(names: dict[tuple[str, object, object], str]) -> set[tuple[object, object]]:
    """Return the threads of the first device on which kernels run: its streams, or what stands for them."""
    devices = {name: pid for (kind, pid, _), name in names.items() if kind == "process_name"}
    first = min((name for name in devices if name.startswith(DEVICE)), default=None)
    threads = {
        (pid, tid): name
        for (kind, pid, tid), name in names.items()
        if kind == "thread_name" and first is not None and pid == devices[first]
    }
    streams = {place for place, name in threads.items() if name.startswith(STREAM)}
    return streams or {place for place, name in threads.items() if name == OPERATORS}

"""Bytes that torch hands out over a step, by phase: the device's allocator, or all that the CPU's allocator reports."""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from forescale.bench.training import Training

PHASES = ("idle", "forward", "backward", "update")
MESSAGES = {"reduce": "backward", "share": "update"}
"""What is sent after backward and after the update counts as part of them."""
STEPS = 2
"""The first makes the optimizer's states, the second is weighed."""


def weighed(
    make: Callable[[], Training], device: torch.device
) -> tuple[Training, dict[str, float], dict[str, float]]:
    """Return what `make` makes, the peak of each phase of a step that is not the first, and peaks of the whole.

    The latter are `allocated`, `reserved` and `device` [byte]; of a CPU they are one figure, since nothing is held
    beyond what is handed out, and nothing outside is counted.
    """
    return _of_device(make) if device.type == "cuda" else _of_host(make)


def _of_device(make: Callable[[], Training]) -> tuple[Training, dict[str, float], dict[str, float]]:
    training = make()
    training.check(training.step())
    torch.cuda.synchronize()
    peaks: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    running = ["idle"]

    def begin(phase: str) -> None:
        torch.cuda.synchronize()
        peaks[running[0]] = max(peaks[running[0]], float(torch.cuda.max_memory_allocated()))
        torch.cuda.reset_peak_memory_stats()
        running[0] = MESSAGES.get(phase, phase)

    torch.cuda.reset_peak_memory_stats()
    training.step(begin)
    peaks["idle"] = float(torch.cuda.memory_allocated())
    free, total = torch.cuda.mem_get_info()
    whole = {
        "allocated": max(peaks.values()),
        "reserved": float(torch.cuda.memory_reserved()),
        "device": float(total - free),
    }
    return training, peaks, whole


def _of_host(make: Callable[[], Training]) -> tuple[Training, dict[str, float], dict[str, float]]:
    """Weigh on a CPU: the profiler is told of every allocation, if it runs from before the model is made."""
    marks: list[tuple[int, str]] = []

    def begin(phase: str) -> None:
        marks.append((time.time_ns(), phase))

    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as ran:
        training = make()
        training.check(training.step(begin))
        weighed_from = time.time_ns()
        training.step(begin)
    peaks: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    kept = 0
    for moment, size, running in _changes(ran, marks):
        phase = MESSAGES.get(running, running)
        if moment >= weighed_from:
            peaks[phase] = max(peaks[phase], float(kept), float(kept + size))
        kept += size
    peaks["idle"] = float(kept)
    most = max(peaks.values())
    return training, peaks, dict.fromkeys(("allocated", "reserved", "device"), most)


def _changes(ran: Any, marks: list[tuple[int, str]]) -> Iterator[tuple[int, int, str]]:  # noqa: ANN401 (a profile)
    """Yield when how many bytes were handed out (or taken back, below 0), and in which phase, in order.

    The profiler does not see what another thread gives back, as gloo's does with a message that it was the last to
    hold. Such bytes live for a moment only and do not count: those whose address is handed out again, and those of
    all but the update itself that seem to be left over.
    """
    begins = [moment for moment, _ in marks]
    names = ["idle", *(phase for _, phase in marks)]
    changes = [
        (moment, size, names[bisect(begins, moment)], address)
        for moment, size, address in sorted(
            _allocations(ran.profiler.kineto_results.experimental_event_tree())
        )
    ]
    values: dict[int, int] = {}
    unseen = set()
    for place, (_, size, _, address) in enumerate(changes):
        before = values.pop(address, None)
        if size > 0:
            values[address] = place
            unseen |= {before} - {None}
    unseen |= {place for place in values.values() if changes[place][2] not in ("idle", "update")}
    yield from (change[:3] for place, change in enumerate(changes) if place not in unseen)


def _allocations(events: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield time, bytes and address of each allocation among events and those inside them."""
    for event in events:
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.ptr
        yield from _allocations(event.children)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the profiler's library writes to the terminal by itself from it."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)

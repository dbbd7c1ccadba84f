"""Bytes that torch hands out over a step, by phase: the device's allocator, or all that the CPU's allocator reports."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from forescale.bench.training import Training

PHASES = ("idle", "forward", "backward", "update")
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
        running[0] = phase

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
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as ran:
        training = make()
        training.check(training.step())
        training.step(lambda phase: marks.append((time.time_ns(), phase)))
    peaks: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    held, at = 0, -1
    for moment, size in sorted(_changes(ran), key=lambda change: change[0]):
        while at + 1 < len(marks) and marks[at + 1][0] <= moment:
            at += 1
            phase = marks[at][1]
            peaks[phase] = max(peaks[phase], float(held))
        held += size
        if at >= 0:
            peaks[marks[at][1]] = max(peaks[marks[at][1]], float(held))
    peaks["idle"] = float(held)
    most = max(peaks.values())
    return training, peaks, dict.fromkeys(("allocated", "reserved", "device"), most)


def _changes(ran: Any) -> Iterator[tuple[int, int]]:  # noqa: ANN401 (a profile)
    """Yield when how many bytes were handed out (or taken back, below 0)."""
    for event in ran.profiler.kineto_results.events():
        if event.name() == "[memory]":
            yield event.start_ns(), event.nbytes()


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

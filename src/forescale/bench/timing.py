"""Durations of what runs on a device, repeated until their median stands still or their time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

Sample: TypeAlias = Callable[[], Mapping[str, float]]
"""Runs once and returns the seconds of each of its parts."""
WARM_UP = 2
FEWEST, MOST = 5, 200
"""Samples that are taken at least, and at most."""
STEADY = 0.005
"""Half-width of the median's interval, as a share of it, at which it stands still."""
FLUSHED_BYTES = 256 * 2**20
"""Written between samples of single kernels, so that they find nothing in the device's cache (triton's do_bench)."""


class Watch:
    """The clock of one device: events where it works by itself, the host's elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._by_device = device, device.type == "cuda"
        self._flushed = (
            torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device) if self._by_device else None
        )

    def seconds(self, run: Callable[[], object]) -> float:
        """Return how long `run` takes."""
        if not self._by_device:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return 1e-3 * float(begin.elapsed_time(end))

    def flush(self) -> None:
        """Leave nothing of the last sample in the device's cache; a CPU's holds what it held, as in a run."""
        if self._flushed is not None:
            self._flushed.zero_()


def repeated(sample: Sample, *, budget_s: float) -> dict[str, dict[str, Any]]:
    """Return the spread of every part of a sample (`Timed`): median, p10, p90 and repeats.

    All ranks take as many samples: the first says when it is enough.
    """
    for _ in range(WARM_UP):
        sample()
    taken: list[Mapping[str, float]] = []
    end = time.perf_counter() + budget_s
    while True:
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.barrier()
        taken.append(sample())
        enough = len(taken) >= FEWEST and (time.perf_counter() > end or _steady(taken))
        if _agreed(enough or len(taken) >= MOST):
            return {part: spread([each[part] for each in taken]) for part in taken[0]}


def spread(seconds: Iterable[float]) -> dict[str, Any]:
    """Return median, p10 and p90, and how many there are, as fields of `Timed`."""
    low, middle, high = np.percentile(list(seconds), (10, 50, 90)).tolist()
    return {"seconds": middle, "p10_s": low, "p90_s": high, "repeats": len(list(seconds))}


def _steady(taken: list[Mapping[str, float]]) -> bool:
    """Say whether the medians of all parts stand still; 10 samples say too little."""
    if len(taken) < 2 * FEWEST:
        return False
    for part in taken[0]:
        low, middle, high = np.percentile([each[part] for each in taken], (25, 50, 75))
        if (high - low) / np.sqrt(len(taken)) > STEADY * middle:
            return False
    return True


def _agreed(enough: bool) -> bool:
    """Return what the first rank says."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return enough
    said = [enough]
    dist.broadcast_object_list(said)
    return said[0]

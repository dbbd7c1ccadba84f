"""Durations of what runs on a device, repeated until their median stands still or their time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
import torch.distributed as dist

Part = TypeVar("Part", bound=Hashable)
Sample: TypeAlias = Callable[[], Mapping[Part, float]]
"""Runs once and returns the seconds of each of its parts."""
WARM_UP = 2
FEWEST, MOST = 5, 200
"""Samples that are taken at least, and at most."""
STEADY = 0.005
"""Half-width of the median's interval, as a share of it, at which it stands still."""
FLUSHED_BYTES, FLUSHES = 256 * 2**20, 4
"""Written between samples of single kernels, so that they find nothing in the device's cache (triton's do_bench); often
enough for the host to start meanwhile what is timed."""


class Watch:
    """The clock of one device: events where it works by itself, the host's elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._by_device = device, device.type == "cuda"
        self._flushed: torch.Tensor | None = None
        self._nothing: float | None = None

    def seconds(self, run: Callable[[], object]) -> float:
        """Return how long `run` takes; what the device still does meanwhile hides what the host takes to start it."""
        begin = self.mark()
        run()
        end = self.mark()
        self.wait()
        return self.between(begin, end)

    def wait(self) -> None:
        """Wait until the device has done all it was given."""
        if self._by_device:
            torch.cuda.synchronize()

    def mark(self) -> Any:  # noqa: ANN401 (a number, or an event)
        """Return the moment at which the device is done with what it was given so far."""
        if not self._by_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:  # noqa: ANN401
        """Return the seconds between two moments that are over."""
        return 1e-3 * float(begin.elapsed_time(end)) if self._by_device else float(end - begin)

    def alone(self, run: Callable[[], object]) -> float:
        """Return how long one kernel takes that finds nothing in the device's cache; a CPU's holds what it held.

        What two moments lie apart with nothing between them is taken off.
        """
        if self._by_device and self._nothing is None:
            taken = [self._flushing(lambda: None) for _ in range(MOST)]
            self._nothing = float(np.median(taken))
        return self._flushing(run) - (self._nothing or 0.0)

    def _flushing(self, run: Callable[[], object]) -> float:
        if self._by_device:
            if self._flushed is None:
                self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=self.device)
            for _ in range(FLUSHES):
                self._flushed.zero_()
        return self.seconds(run)


def repeated(sample: Sample[Part], *, budget_s: float) -> dict[Part, dict[str, Any]]:
    """Return the spread of every part of a sample (`Timed`): median, p10, p90 and repeats.

    All ranks take as many samples: the first says when it is enough.
    """
    for _ in range(WARM_UP):
        sample()
    taken: list[Mapping[Part, float]] = []
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


def _steady(taken: list[Mapping[Part, float]]) -> bool:
    """Say whether the medians of all parts stand still beside the largest; 10 samples say too little."""
    if len(taken) < 2 * FEWEST:
        return False
    seconds = [[each[part] for each in taken] for part in taken[0]]
    low, middle, high = np.percentile(seconds, (25, 50, 75), axis=1)
    return bool(((high - low) / np.sqrt(len(taken)) <= STEADY * middle.max()).all())


def _agreed(enough: bool) -> bool:
    """Return what the first rank says."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return enough
    said = [enough]
    dist.broadcast_object_list(said)
    return said[0]

"""The clock of one rank: the host's, or events of the device that its passes run on."""

from __future__ import annotations

import time
from typing import Any, TypeAlias

import torch

Mark: TypeAlias = Any
"""A moment: seconds of the host, or an event of the device."""


class Clock:
    """Moments of a step, told in seconds of the host once the step is over."""

    def __init__(self, device: torch.device) -> None:
        self._by_device = device.type == "cuda"
        self.begin()

    def begin(self) -> None:
        """Begin a step: moments of the device count from here."""
        if self._by_device:
            torch.cuda.synchronize()
        self.start_s = time.perf_counter()
        self._first = self.now()

    def now(self) -> Mark:
        """Return this moment; of a device, when what it was given so far is done."""
        if not self._by_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def end(self) -> None:
        """Wait for all that the device was given."""
        if self._by_device:
            torch.cuda.synchronize()

    def seconds(self, moment: Mark) -> float:
        """Return a moment in seconds of the host."""
        if not self._by_device:
            return float(moment)
        return self.start_s + 1e-3 * float(self._first.elapsed_time(moment))

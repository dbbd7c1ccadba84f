"""Processor time, and the loop that makes figures of different machines comparable."""

from __future__ import annotations

import time
from collections.abc import Callable

ADDITIONS = 300_000
REPEATS = 10


def least(function: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the least processor seconds of a call, after one that fills caches."""
    function()
    return min(_seconds(function) for _ in range(repeats))


def _seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def additions() -> float:
    """Return the processor seconds of a plain loop of additions."""
    return least(_loop)


def _loop() -> int:
    total = 0
    for number in range(ADDITIONS):
        total += number
    return total

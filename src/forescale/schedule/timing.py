"""What a step of a schedule takes, from the times of its ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forescale.numeric import Array, Numeric
from forescale.schedule.flat import Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timing:
    """What a step takes; arrays over ranks (p,) or over ranks and candidates (p, N)."""

    first_start: Array
    last_end: Array
    runs: tuple[tuple[Ints, Array], ...]
    """Pairs (duration class of each rank, how often it runs there) that add up to the busy time."""
    nodes: Array
    """Durations by class."""

    @property
    def busy(self) -> Array:
        """Time each rank computes."""
        total = np.zeros_like(self.last_end)
        for classes, counts in self.runs:
            spent = self.nodes[classes]
            total += spent * counts.reshape(-1, *([1] * (spent.ndim - 1)))
        return total

    @property
    def makespan(self) -> Numeric:
        """Time from the step's start to the last end of any rank: what an optimizer barrier waits for."""
        return _scalar(self.last_end.max(axis=0))

    @property
    def longest_span(self) -> Numeric:
        """Longest time of one rank from its first start to its last end (the zero-bubble papers' measure)."""
        return _scalar((self.last_end - self.first_start).max(axis=0))

    @property
    def bubble_rate_makespan(self) -> Numeric:
        """Idle share of all ranks' time under an optimizer barrier."""
        return _idle_share(self.busy.mean(axis=0), self.last_end.max(axis=0))

    @property
    def bubble_rate_span(self) -> Numeric:
        """Idle share of all ranks' time where each rank's step is as long as the longest span."""
        return _idle_share(self.busy.mean(axis=0), (self.last_end - self.first_start).max(axis=0))


def _idle_share(busy: Array, total: Array) -> Numeric:
    """Return the idle part of a time; none of no time."""
    return _scalar(1.0 - np.divide(busy, total, out=np.ones_like(busy), where=np.asarray(total) > 0))


def _scalar(value: Array) -> Numeric:
    return float(value) if np.ndim(value) == 0 else value

"""Repeats of what is timed: how long they may take, and what they say together."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch.distributed as dist

Part = TypeVar("Part", bound=Hashable)
Answer = TypeVar("Answer", bool, int)
Sample: TypeAlias = Callable[[], Mapping[Part, float]]
"""Runs once and returns the seconds of each of its parts."""
WARM_UP = 2
FEWEST, MOST = 5, 200
"""Half of the samples from which on a median can stand still, and samples at most."""
STEADY = 0.005
"""Half-width of the median's interval, as a share of it, at which it stands still."""


class Budget:
    """Seconds that measuring may take from now on.

    Parameters
    ----------
    repeats
        Samples at most of each thing that is timed.
    clock
        Seconds of a clock that only goes forward.
    """

    def __init__(
        self, seconds: float, *, repeats: int = MOST, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.seconds, self.repeats, self.clock = seconds, repeats, clock
        self.start = clock()

    @property
    def left(self) -> float:
        """Seconds until it is spent; below 0 after that."""
        return self.start + self.seconds - self.clock()

    def until(self, share: float) -> Budget:
        """Return what is left until a share of the whole has passed."""
        return Budget(self.left - (1.0 - share) * self.seconds, repeats=self.repeats, clock=self.clock)

    def shared(self, among: int) -> Budget:
        """Return an equal part of what is left."""
        return Budget(max(0.0, self.left) / among, repeats=self.repeats, clock=self.clock)

    def is_spent(self) -> bool:
        """Return whether nothing is left, by the clock of the first rank."""
        return agreed(self.left <= 0.0)


def repeated(sample: Sample[Part], budget: Budget, *, warmed: bool = False) -> dict[Part, dict[str, Any]]:
    """Return the spread of every part of a sample (`Timed`): median, p10, p90 and repeats.

    No sample begins that would end after the budget, but one is taken in any case, after a run to warm up unless it is
    `warmed`. All ranks take as many samples: the first says when it is enough.
    """
    taken: list[Mapping[Part, float]] = []
    warm_ups, least = 0, 0 if warmed else 1
    while True:
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.barrier()
        begin = budget.clock()
        result = sample()
        last = agreed(budget.left < budget.clock() - begin)
        if warm_ups < least or (warm_ups < WARM_UP and not last):
            warm_ups += 1
            continue
        taken.append(result)
        if agreed(last or len(taken) >= budget.repeats or _steady(taken)):
            return {part: spread([item[part] for item in taken]) for part in taken[0]}


def spread(seconds: Iterable[float]) -> dict[str, Any]:
    """Return median, p10 and p90, and how many there are, as fields of `Timed`."""
    low, middle, high = np.percentile(list(seconds), (10, 50, 90)).tolist()
    return {"seconds": middle, "p10_s": low, "p90_s": high, "repeats": len(list(seconds))}


def _steady(taken: list[Mapping[Part, float]]) -> bool:
    """Return whether the medians of all parts are stable relative to the largest; 10 samples are too few."""
    if len(taken) < 2 * FEWEST:
        return False
    seconds = [[item[part] for item in taken] for part in taken[0]]
    low, middle, high = np.percentile(seconds, (25, 50, 75), axis=1)
    return bool(((high - low) / np.sqrt(len(taken)) <= STEADY * middle.max()).all())


def agreed(answer: Answer) -> Answer:
    """Return what the first rank says."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return answer
    message = [answer]
    dist.broadcast_object_list(message)
    return message[0]

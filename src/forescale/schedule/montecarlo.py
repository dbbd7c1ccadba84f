"""What jitter and slow ranks do to a step: the same schedule timed with many random durations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forescale.numeric import Array
from forescale.schedule.compiled import CompiledSchedule
from forescale.schedule.times import FREE, LinkTimes, StageTimes

_TOGETHER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Random durations: each action's is multiplied by a log-normal factor of mean one."""

    spread: float = 0.0
    """Standard deviation of the factor's logarithm."""
    slow_ranks: Mapping[int, float] | None = None
    """Constant factor on all of a rank's actions."""
    seed: int = 0


def sample_makespans(
    compiled: CompiledSchedule,
    times: StageTimes,
    links: LinkTimes = FREE,
    *,
    jitter: Jitter,
    num_samples: int,
) -> Array:
    """Return the makespan of each sample; (num_samples,). The same seed gives the same samples."""
    laid = compiled.durations(times, links)
    levels, streams = compiled.node_class.shape
    factor = np.ones(streams)
    for rank, slow in (jitter.slow_ranks or {}).items():
        factor[rank] = slow
    random = np.random.default_rng(jitter.seed)
    found = np.empty(num_samples)
    for low in range(0, num_samples, _TOGETHER):
        count = min(_TOGETHER, num_samples - low)
        noise = random.standard_normal((count, levels, streams)) * jitter.spread - jitter.spread**2 / 2
        scaled = np.exp(np.moveaxis(noise, 0, 2)) * factor[:, None]
        state, _ = compiled.run(laid, noise=scaled)
        last = state[-1 - streams : -1][: compiled.schedule.num_ranks]
        found[low : low + count] = last.max(axis=0)
    return found

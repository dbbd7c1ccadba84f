"""The fewest micro-batches with which a schedule's bubble is at most a share of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

from forescale.errors import ForescaleError
from forescale.schedule.simulation import Step

MOST_MICROBATCHES, TRIES = 4096, 8
"""Micro-batches up to which a bubble is searched, and numbers of them that are tried."""


def fewest_microbatches(run: Callable[[int], Step], ranks: int, share: float) -> Step:
    """Return the step with the fewest micro-batches that idle at most a share of it.

    Ranks idle as long whatever the number of micro-batches once there are several for each, which gives a multiple of
    the ranks; a schedule that runs with other numbers is tried with those below it.

    Parameters
    ----------
    run
        Returns the simulated step of a number of micro-batches.
    ranks
        Pipeline ranks.
    share
        Of the step, above 0 and below 1.

    Raises
    ------
    ForescaleError
        If there is none up to `MOST_MICROBATCHES`.
    """
    count = 4 * ranks
    step = run(count)
    idle = step.makespan * step.bubble_rate_makespan
    busy = (step.makespan - idle) / count
    count = max(1, math.ceil(idle * (1.0 - share) / (share * busy) / ranks - 1e-9)) * ranks
    found: Step | None = None
    for _ in range(TRIES):
        if not ranks <= count <= MOST_MICROBATCHES:
            break
        step = run(count)
        if step.bubble_rate_makespan <= share + 1e-9:
            found, count = step, count - ranks
        elif found is None:
            count += ranks
        else:
            break
    if found is None:
        tried = step.schedule.num_microbatches
        raise ForescaleError(
            f"no number of micro-batches up to {MOST_MICROBATCHES:,} is known to have a bubble of {share:.3g}: "
            f"it is {step.bubble_rate_makespan:.2%} with {tried:,}"
        )
    return _fewer(run, found, ranks, share)


def _fewer(run: Callable[[int], Step], found: Step, ranks: int, share: float) -> Step:
    """Return the step with the fewest micro-batches above the next smaller multiple, where the schedule allows it."""
    most = found.schedule.num_microbatches
    least = most - ranks
    while most - least > 1:
        middle = (least + most) // 2
        try:
            step = run(middle)
        except ForescaleError:
            return found
        if not step.report.valid:
            return found
        if step.bubble_rate_makespan <= share + 1e-9:
            found, most = step, middle
        else:
            least = middle
    return found

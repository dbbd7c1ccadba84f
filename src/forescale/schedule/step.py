"""Around the pipeline: parameter gathers, gradient reductions and the optimizer.

A gather comes before a stage's first forward, a reduction after its last backward, the optimizer behind a
barrier of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forescale.numeric import Array
from forescale.schedule.actions import Kind

if TYPE_CHECKING:
    from forescale.schedule.compiled import CompiledSchedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCosts:
    """Data-parallel communication and optimizer of one step; numbers or arrays over stages (num_stages,).

    Each rank runs its gathers, and its reductions, one after the other beside compute.
    """

    param_gather: float | Array = 0.0
    grad_reduce: float | Array = 0.0
    optimizer: float = 0.0
    overlap: bool = True
    """False: gathers come before all compute, reductions after all compute of the rank."""


NO_STEP_COSTS = StepCosts()


def releases(compiled: CompiledSchedule, step: StepCosts) -> Array | None:
    """Return the earliest start of each cell (num_levels, num_streams) that gathers allow; None if any."""
    if not np.any(step.param_gather):
        return None
    flat, schedule = compiled.program.flat, compiled.schedule
    gather = _per_stage(step.param_gather, len(schedule.placement.rank_of_stage), schedule.num_stages)
    release = np.zeros(compiled.node_class.size)
    for rank in range(schedule.num_ranks):
        low, high = flat.bounds[rank], flat.bounds[rank + 1]
        forwards = low + np.nonzero(flat.kind[low:high] == Kind.F)[0]
        stages, where = np.unique(flat.stage[forwards], return_index=True)
        by_use = np.argsort(where)
        ready = np.cumsum(gather[stages[by_use]])
        if not step.overlap:
            ready[:] = ready[-1:] if ready.size else 0.0
        at = forwards[where[by_use]]
        release[compiled.position[compiled.program.node_of_action[at]]] = ready
    return release.reshape(compiled.node_class.shape)


def step_end(compiled: CompiledSchedule, step: StepCosts, end: Array) -> float:
    """Return the step's end: reductions behind each stage's last backward, a barrier, the optimizer."""
    flat, schedule = compiled.program.flat, compiled.schedule
    last = float(end.max(initial=0.0))
    if np.any(step.grad_reduce):
        reduce = _per_stage(step.grad_reduce, len(schedule.placement.rank_of_stage), schedule.num_stages)
        finished = np.nonzero((flat.kind == Kind.W) | (flat.kind == Kind.B))[0]
        for rank in range(schedule.num_ranks):
            mine = finished[flat.rank[finished] == rank]
            stages, where = np.unique(flat.stage[mine][::-1], return_index=True)
            ready = end[mine[::-1][where]]
            clock = 0.0
            for index in np.argsort(ready, kind="stable"):
                begin = ready[index] if step.overlap else ready.max()
                clock = max(clock, float(begin)) + float(reduce[stages[index]])
            last = max(last, clock)
    return last + step.optimizer


def _per_stage(value: float | Array, num_stages: int, logical: int) -> Array:
    spread = np.broadcast_to(np.asarray(value, dtype=np.float64), (logical,))
    return np.tile(spread, num_stages // logical)

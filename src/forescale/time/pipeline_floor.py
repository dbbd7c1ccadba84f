"""What no schedule of a family goes below, without building one: waiting and what is in flight.

Where a rank starts, everything before its first virtual stage has been crossed once; then the rank does all of its
own work; and where it ends, gradients still have to go back through everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from forescale.formula import formula
from forescale.graph.stages import (
    StagePlan,
    Stages,
    least_chunks,
    plan_placed,
    stack_plans,
    stages_of_ranks,
    virtual_stages,
)
from forescale.memory.in_flight import AtLeast
from forescale.numeric import Array, Numeric, mapped, taking
from forescale.schedule import Family, family
from forescale.schedule.family import RankShape
from forescale.spec.model import Model
from forescale.spec.strategy import Recompute
from forescale.time.pipeline import Pipeline

Shape = tuple[int, int, int]
"""Ranks, chunks of each, micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineFloor(Pipeline):
    """Bounds that stand for the simulated schedules of candidates of any shape."""

    in_closed_form: ClassVar[bool] = False
    before: Stages
    """(stages, candidates) layers before the first virtual stage of each rank; none where that is not one path."""
    splits_backward: bool

    def take(self, candidates: NDArray[np.int64]) -> PipelineFloor:
        """Return the bounds of some candidates."""
        return mapped(self, taking(candidates))


@formula(unit="s", source="a rank starts once the first micro-batch reaches it and then does its own work")
def least_makespan(*, fill: Numeric, drain: Numeric, work: Numeric, urgent: Numeric) -> Numeric:
    """Max over ranks of fill + max(work, urgent + drain): the drain follows what cannot wait for the step's end.

    `work` is (ranks, candidates) seconds of all micro-batches, `urgent` those of it that a schedule cannot leave for
    last: all, or where it splits backward all but weight gradients.
    """
    least: Array = np.max(np.asarray(fill + np.maximum(work, urgent + drain)), axis=0)
    return least


def floor_of(
    model: Model, schedule: str, shapes: Sequence[Shape], *, recompute: Recompute, num_splits: int = 1
) -> tuple[PipelineFloor, Stages]:
    """Return the bounds of a named schedule in some shapes, and the layers of their ranks; one column per shape."""
    kind = family(schedule)
    plans: dict[tuple[int, int], tuple[StagePlan, StagePlan]] = {}
    for pp, vpp, _ in shapes:
        if (pp, vpp) not in plans:
            plans[pp, vpp] = _plans(model, kind, pp, vpp, recompute)
    of_shape = [plans[pp, vpp] for pp, vpp, _ in shapes]
    ranks = stack_plans([plan for plan, _ in of_shape])
    degree, _, count = np.array(shapes, dtype=float).T
    held = kind.held(RankShape(rank=ranks.index, pp=degree, num_microbatches=count))
    first = kind.place(*shapes[0][:2]).rank_of_stage
    num_splits = num_splits if kind.splits_sequences else 1
    floor = PipelineFloor(
        in_flight=AtLeast(
            held=np.broadcast_to(held, ranks.index.shape),
            num_splits=num_splits,
            copies=kind.parameter_copies,
        ),
        ends_apart=first[0] != first[-1],
        before=stack_plans([before for _, before in of_shape]),
        splits_backward=kind.splits_backward,
    )
    return floor, ranks


def _plans(
    model: Model, kind: Family, pp: int, vpp: int, recompute: Recompute
) -> tuple[StagePlan, StagePlan]:
    """Return the layers of distinct ranks, and what lies before each: of equal ranks, before the last one."""
    placement = kind.place(pp, vpp)
    of_stage = placement.rank_of_stage[: placement.num_stages]
    chunks = virtual_stages(model, of_stage, recompute=recompute)
    ranks = plan_placed(chunks, placement.rank_of_stage, placement.num_replicas)
    stage_of = stages_of_ranks(placement.rank_of_stage, placement.num_replicas)
    if stage_of.shape[1] > 1:
        ranks = replace(ranks, moments=(least_chunks(chunks, stage_of),))
    whole = ranks.compressed()
    one_path = placement.num_replicas == 1 and not kind.splits_sequences
    starts = [of_stage.index(_last_alike(ranks, int(rank))) if one_path else 0 for rank in whole.index]
    summed: dict[str, Any] = {name: _sums(getattr(chunks, name), starts) for name in _SUMMED}
    return whole, replace(whole, **summed, moments=())


_SUMMED = ("counts", "replayed", "heads", "first", "last")


def _last_alike(ranks: StagePlan, rank: int) -> int:
    """Return the last rank that holds the same layers: it starts latest."""
    alike: Any = np.ones(len(ranks.index), dtype=bool)
    for name in _SUMMED:
        values = getattr(ranks, name).reshape(len(alike), -1)
        alike &= (values == values[rank]).all(axis=1)
    return int(np.flatnonzero(alike)[-1])


def _sums(values: Array, ends: Sequence[int]) -> Array:
    """Return the sums of the first rows up to each of `ends`."""
    before = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
    return before[list(ends)]

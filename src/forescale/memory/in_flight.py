"""What micro-batches in flight hold: of every chunk as many passes as its rank holds at the fullest moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np

from forescale.formula import formula, named
from forescale.graph.stage import (
    EVERY_LAYER,
    StagePlan,
    plan_stages,
    stages_of_ranks,
    virtual_stages,
    with_moments,
)
from forescale.memory.activations import in_flight, largest, saved_bytes
from forescale.numeric import Numeric
from forescale.schedule.memory import live_chunks
from forescale.spec.model import Model
from forescale.spec.strategy import Recompute
from forescale.time.pipeline_floor import PipelineFloor

if TYPE_CHECKING:
    from forescale.evaluate import Inputs
    from forescale.graph.stages import Stages


@lru_cache(maxsize=256)
def interleaved_stages(
    model: Model,
    *,
    pp: int,
    vpp: int,
    stage_layers: tuple[int, ...] | None = None,
    recompute: Recompute = EVERY_LAYER,
) -> StagePlan:
    """Return the plan of ranks under (interleaved) 1F1B, with what their chunks hold; errors as `plan_stages`."""
    plan = plan_stages(model, pp=pp, vpp=vpp, stage_layers=stage_layers, recompute=recompute)
    if vpp == 1:
        return plan
    ranks = tuple(range(pp)) * vpp
    chunks = virtual_stages(model, ranks, stage_layers=stage_layers, recompute=recompute.selection)
    return with_moments(plan, chunks, stages_of_ranks(ranks), live_chunks(pp, vpp), apart=1)


@formula(
    unit="byte",
    source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2: the order of interleaved 1F1B, chunk by chunk",
)
def held_bytes(*, plain: Numeric, few: Numeric, many: Numeric, vpp: Numeric, rounds: Numeric) -> Numeric:
    """Of one chunk per rank `plain`; of several `few` where each passes micro-batches in one round, else `many`."""
    return np.where(np.asarray(vpp) > 1, np.where(np.asarray(rounds) > 1, many, few), plain)


def most_held(inputs: Inputs, count: Numeric, of: Callable[[Stages], Numeric]) -> tuple[Numeric, Numeric]:
    """Return the most bytes that micro-batches in flight hold on each stage, ever and while the last has a loss.

    Parameters
    ----------
    inputs
        The candidates.
    count
        Micro-batches per step.
    of
        Sums what one micro-batch keeps over the layers of stages.
    """
    shares, (few, *many) = shares_in_flight(inputs, count), inputs.stages.moments or (None,)
    if few is None or isinstance(inputs.pipeline, PipelineFloor):
        plain = saved_bytes(per_microbatch=of(few or inputs.stages), microbatches=shares)
        return plain, plain
    if inputs.pipeline is not None:
        most = _most([of(few), *map(of, many)])
        return most, most
    plain, first = saved_bytes(per_microbatch=of(inputs.stages), microbatches=shares), of(few)
    vpp, rounds = inputs.degrees.vpp, count / inputs.degrees.pp
    most = held_bytes(plain=plain, few=first, many=_most(map(of, many)), vpp=vpp, rounds=rounds)
    return most, held_bytes(plain=plain, few=first, many=first, vpp=vpp, rounds=rounds)


def _most(values: Iterable[Numeric]) -> Numeric:
    return reduce(lambda one, other: largest(first=one, second=other), values)


def shares_in_flight(inputs: Inputs, count: Numeric) -> Numeric:
    """Return the most micro-batches of a device's full share that each stage holds at once."""
    if inputs.pipeline is not None:
        return named(inputs.pipeline.held, "in flight, from the schedule", unit="1")
    degrees = inputs.degrees
    return in_flight(stage=inputs.stages.index, pp=degrees.pp, vpp=degrees.vpp, num_microbatches=count)

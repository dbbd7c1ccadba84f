"""What a named schedule adds to the slowest rank's own time: waiting and messages, simulated or bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.projection.blocks import BlockCost
from forescale.projection.hiding import Seconds
from forescale.projection.pipeline import Pipeline
from forescale.projection.pipeline_floor import PipelineFloor, least_makespan
from forescale.projection.stages import Stages


class Sums(Protocol):
    """Sums of layers' costs over what stands on stages."""

    def on(self, stages: Stages, *, copies: int) -> Sums:
        """Return the same sums over other stages."""
        ...

    def total(self, of: Callable[[BlockCost], Numeric]) -> Numeric:
        """Return what one micro-batch meets on every stage."""
        ...

    def kept(self) -> Numeric:
        """Return the bytes that one micro-batch keeps."""
        ...


@formula(unit="s", source="simulated schedule: what its makespan exceeds the slowest rank's work by")
def beyond(*, makespan: Numeric, work: Numeric) -> Numeric:
    """Makespan − work."""
    return makespan - work


def simulated_waiting(
    pipeline: Pipeline, sums: Sums, others: Numeric, hop: Numeric, work: Numeric, *, host_bandwidth: Numeric
) -> Seconds:
    """Return bubble and messages of a simulated schedule, its backward split as the operators are.

    Parameters
    ----------
    pipeline
        The schedule.
    sums
        Costs of the layers on stages.
    others
        (ranks, candidates) seconds that a micro-batch waits on a rank beside its operators.
    hop
        Seconds of a micro-batch's message between stages.
    work
        Seconds of all micro-batches on the slowest rank.
    host_bandwidth
        byte/s between a device and its host.
    """
    chunks = sums.on(pipeline.stages, copies=1)
    weight = chunks.total(lambda cost: cost.weight_seconds)
    waits = pipeline.per_stage(others)
    with_messages, alone = pipeline.seconds(
        forward=chunks.total(lambda cost: cost.forward_seconds),
        input_grad=chunks.total(lambda cost: cost.backward_seconds) - weight + waits,
        weight_grad=weight,
        copied=chunks.kept() / host_bandwidth,
        hop=hop,
        causal=_causal(chunks) if pipeline.num_splits > 1 else (0.0, 0.0),
    )
    return {
        "bubble": beyond(makespan=alone, work=work),
        "pipeline_comm": beyond(makespan=with_messages, work=alone),
    }


def least_waiting(
    pipeline: PipelineFloor, sums: Sums, stage_time: Numeric, count: Numeric, work: Numeric
) -> Seconds:
    """Return the least waiting of any schedule of a family; messages may all be hidden."""
    before = sums.on(pipeline.before, copies=1)
    own = count * stage_time
    if pipeline.splits_backward:
        drain = before.total(_input_gradient)
        urgent = count * (sums.total(lambda cost: cost.forward_seconds) + sums.total(_input_gradient))
    else:
        drain, urgent = before.total(lambda cost: cost.backward_seconds), own
    least = least_makespan(
        fill=before.total(lambda cost: cost.forward_seconds), drain=drain, work=own, urgent=urgent
    )
    return {"bubble": np.maximum(beyond(makespan=least, work=work), 0.0)}


def _input_gradient(cost: BlockCost) -> Numeric:
    """Return the seconds of the input's gradient, without waiting for the host, which weight gradients may cover."""
    return cost.backward_seconds - cost.backward.get("overhead", 0.0) - cost.weight_seconds


def _causal(chunks: Sums) -> tuple[Numeric, Numeric]:
    """Return what of forward and backward grows with a token's place, of every virtual stage."""
    forward = chunks.total(lambda cost: cost.causal_forward)
    return forward, chunks.total(lambda cost: cost.causal_backward)

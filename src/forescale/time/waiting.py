"""What a named schedule adds to the slowest rank's own time: waiting and messages, simulated or bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from forescale.formula import formula
from forescale.graph.stages import Stages
from forescale.numeric import Numeric, larger
from forescale.time.blocks import BlockCost
from forescale.time.data_parallel import Exposed, Passes
from forescale.time.overlap import Seconds
from forescale.time.pipeline import Pipeline
from forescale.time.pipeline_floor import PipelineFloor, least_makespan


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
    """max(0, makespan − work)."""
    return larger(makespan - work, 0.0)


def seconds_of(sums: Sums) -> Passes:
    """Return the seconds of forward, of the input's gradient, and of weight gradients, on every stage."""
    weight = sums.total(lambda cost: cost.weight_seconds)
    backward = sums.total(lambda cost: cost.backward_seconds)
    return sums.total(lambda cost: cost.forward_seconds), backward - weight, weight


def simulated_waiting(
    pipeline: Pipeline, sums: Sums, data: Exposed, hop: Numeric, work: Numeric, *, host_bandwidth: Numeric
) -> Seconds:
    """Return bubble and messages of a simulated schedule, its backward split as the operators are.

    Parameters
    ----------
    pipeline
        The schedule.
    sums
        Costs of the layers on stages.
    data
        What a micro-batch waits for beside its operators.
    hop
        Seconds of a micro-batch's message between stages.
    work
        Seconds of all micro-batches on the slowest rank.
    host_bandwidth
        byte/s between a device and its host.
    """
    chunks = sums.on(pipeline.stages, copies=1)
    forward, backward, weight = seconds_of(chunks)
    assert data.passes is not None
    before, behind, beside = data.passes
    with_messages, alone = pipeline.seconds(
        forward=forward + before,
        input_grad=backward + behind,
        weight_grad=weight + beside,
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
    return {"bubble": beyond(makespan=least, work=work)}


def _input_gradient(cost: BlockCost) -> Numeric:
    return cost.backward_seconds - cost.weight_seconds


def _causal(chunks: Sums) -> tuple[Numeric, Numeric]:
    """Return what of forward and backward grows with a token's place, of every virtual stage."""
    forward = chunks.total(lambda cost: cost.causal_forward)
    return forward, chunks.total(lambda cost: cost.causal_backward)

"""Step time and memory of any schedule of the library, by simulation with the stages' own durations.

1F1B and interleaved 1F1B have closed forms (`time.step`) and do not come here unless asked for by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from forescale.errors import SpecError
from forescale.formula import value_of
from forescale.graph.stage import (
    EVERY_LAYER,
    StagePlan,
    check_layer_ids,
    plan_placed,
    stages_of_ranks,
    virtual_stages,
    with_moments,
)
from forescale.graph.stages import Stages, stack_plans
from forescale.memory.in_flight import interleaved_stages
from forescale.numeric import Array, Numeric
from forescale.schedule import (
    CompiledSchedule,
    LinkTimes,
    Request,
    Schedule,
    StageTimes,
    build_schedule,
    compile_schedule,
    cuts_sequences,
    family,
)
from forescale.schedule.memory import ActivationSizes, live_passes, peak_activations, peak_memory
from forescale.spec.model import Model
from forescale.spec.strategy import Recompute, Strategy
from forescale.spec.workload import Workload, num_microbatches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pipeline:
    """One schedule of one shape: which layers each stage and rank hold, and how it is timed."""

    compiled: CompiledSchedule
    ranks: StagePlan
    """Layers per rank."""
    stages: Stages
    """Layers per virtual stage, in the order of the model; one column."""
    rank_of_stage: tuple[int, ...]
    peaks: Array
    """(ranks,) most micro-batches of a device's full share held at once."""
    losses_waiting: float = 1.0
    """Most micro-batches whose loss waits for its backward: what the head keeps exists that often."""
    copies: int = 1
    """Copies of every parameter in the pipeline; each micro-batch goes through one."""

    def seconds(
        self,
        *,
        forward: Numeric,
        input_grad: Numeric,
        weight_grad: Numeric,
        copied: Numeric,
        hop: Numeric,
        causal: tuple[Numeric, Numeric] = (0.0, 0.0),
    ) -> tuple[Numeric, Numeric]:
        """Return the makespan with and without the stages' messages.

        Durations are (virtual stages, candidates), the hop (candidates,); `copied` is that of moving a stage's
        activations to the host or back, for schedules that do; `causal` is the part of forward and of input
        gradient that grows with a token's place, for schedules that cut sequences.
        """
        passes = [np.asarray(value_of(each)) for each in (forward, input_grad, weight_grad, copied)]
        growing, shrinking = (value_of(each) for each in causal)
        message = np.atleast_1d(value_of(hop))
        width = max(message.size, *(each.shape[1] for each in passes))
        stages = self.compiled.schedule.num_stages
        first, second, third, moved = (np.broadcast_to(each, (stages, width)) for each in passes)
        times = StageTimes(
            forward=first,
            input_grad=second,
            weight_grad=third,
            offload=moved,
            reload=moved,
            causal_forward=growing,
            causal_backward=shrinking,
        )
        links = LinkTimes(transfer=np.broadcast_to(message, (stages - 1, width)))
        return self.compiled.time(times, links).makespan, self.compiled.time(times).makespan

    @property
    def num_splits(self) -> int:
        """Pieces that each sequence is cut into."""
        return self.compiled.schedule.num_splits

    @property
    def held(self) -> Array:
        """Most micro-batches in flight, (ranks, 1)."""
        return self.peaks[:, None]

    @property
    def ends_apart(self) -> bool:
        """Whether the first and the last stage lie on different ranks."""
        return self.rank_of_stage[0] != self.rank_of_stage[-1]

    def per_stage(self, per_rank: Numeric) -> Array:
        """Return equal shares of what each rank (ranks, candidates) spends, on each of its virtual stages."""
        placement = self.compiled.schedule.placement
        of_stage = list(self.rank_of_stage[: placement.num_stages])
        share: Array = np.asarray(value_of(per_rank))[of_stage] / placement.vpp
        return share

    def per_rank(self, per_stage: Numeric) -> Array:
        """Return what a micro-batch spends on each rank, of (virtual stages, candidates)."""
        passing = np.tile(np.asarray(value_of(per_stage)), (self.copies, 1))
        spent = np.zeros((self.compiled.schedule.num_ranks, passing.shape[1]))
        np.add.at(spent, np.asarray(self.rank_of_stage), passing)
        return spent / self.copies


@lru_cache(maxsize=64)
def pipeline_of(
    model: Model,
    schedule: str,
    pp: int,
    vpp: int,
    num_microbatches: int,
    *,
    recompute: Recompute = EVERY_LAYER,
    stage_layers: tuple[int, ...] | None = None,
    num_splits: int = 1,
) -> Pipeline:
    """Return the pipeline of a model under a named schedule.

    Raises
    ------
    SpecError
        If the schedule is unknown, cannot be built for this shape, or needs what a projection does not know, or
        the layers of stages do not fit.
    """
    kind = family(schedule)
    request = Request(pp=pp, vpp=vpp, num_microbatches=num_microbatches, num_splits=num_splits)
    if reason := refusal(schedule, pp, vpp, num_microbatches):
        msg = f"schedule {schedule}: {reason}"
        raise SpecError(msg)
    if kind.splits_sequences and not _all_causal(model):
        msg = f"schedule {schedule} cuts sequences, and {model.name} has attention that is not causal"
        raise SpecError(msg)
    built = build_schedule(kind.name, request, vpp=vpp)
    placement = built.placement
    of_stage = placement.rank_of_stage[: placement.num_stages]
    stages = virtual_stages(model, of_stage, stage_layers=stage_layers, recompute=recompute)
    ranks = plan_placed(stages, placement.rank_of_stage, placement.num_replicas)
    stage_of = stages_of_ranks(placement.rank_of_stage, placement.num_replicas)
    if stage_of.shape[1] > 1:  # of a rank's copies a sum over its layers is the mean
        ranks = with_moments(ranks, stages, stage_of, live_passes(built) * placement.num_replicas)
    return Pipeline(
        compiled=compile_schedule(built),
        ranks=ranks,
        stages=stack_plans([stages]),
        rank_of_stage=placement.rank_of_stage,
        peaks=peak_activations(built),
        losses_waiting=_losses_waiting(built),
        copies=placement.num_replicas,
    )


def _all_causal(model: Model) -> bool:
    return all(getattr(kind.attention, "causal", True) for kind in model.layer_kinds)


def _losses_waiting(schedule: Schedule) -> float:
    """Return the most micro-batches between forward and input gradient of the last stage."""
    last = np.zeros(schedule.num_stages)
    last[-1] = 1.0
    return float(peak_memory(schedule, ActivationSizes(saved=last, weight_part=0.0)).max())


def lay_out(model: Model, strategy: Strategy, workload: Workload) -> tuple[StagePlan, Pipeline | None]:
    """Return the layers of every rank, and the pipeline of a schedule that was asked for by name.

    Raises
    ------
    SpecError
        If the schedule cannot be projected for this shape, or explicit stage layers do not fit.
    """
    if strategy.schedule is None or strategy.pp == 1:
        plan = interleaved_stages(
            model,
            pp=strategy.pp,
            vpp=strategy.vpp,
            stage_layers=strategy.stage_layers,
            recompute=strategy.recompute,
        )
        return plan, None
    count = num_microbatches(
        global_batch_size=workload.global_batch_size,
        dp=strategy.dp,
        micro_batch_size=strategy.micro_batch_size,
    )
    pieces = strategy.sequence_pieces
    if cuts_sequences(strategy.schedule) and workload.seq_len % pieces:
        msg = f"sequence_pieces must divide the {workload.seq_len} tokens of a sequence; got {pieces}"
        raise SpecError(msg)
    check_layer_ids(model, strategy.recompute)
    pipeline = pipeline_of(
        model,
        strategy.schedule,
        strategy.pp,
        strategy.vpp,
        int(count),
        recompute=strategy.recompute.selection,
        stage_layers=strategy.stage_layers,
        num_splits=pieces,
    )
    return pipeline.ranks, pipeline


def refusal(schedule: str, pp: int, vpp: int, num_microbatches: int) -> str:
    """Return why a schedule cannot be projected for a shape; empty if it can."""
    kind = family(schedule)
    return kind.why_not(Request(pp=pp, vpp=vpp, num_microbatches=num_microbatches))

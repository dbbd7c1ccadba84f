"""One layout as the analysis accounts for it: memory columns, volumes, times and MFU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from forescale.cost.roofline import peak_rate
from forescale.errors import SpecError
from forescale.formula import number_of
from forescale.graph.counts import count_parameters
from forescale.graph.layout import Choices, Degrees, split_strategy
from forescale.graph.stages import plan_stages
from forescale.inputs import recorded_degrees
from forescale.numeric import Numeric, summed
from forescale.presets.almodel.memory import (
    device_memory,
    kept_by_kind,
    logits_kept,
)
from forescale.presets.almodel.step import Clock, SequenceFlops, Step, parts_of_compute, sequence_flops
from forescale.presets.almodel.terms import ANALYSIS, Terms, measured_terms
from forescale.presets.preset import (
    Account,
    StageBytes,
    memory_projection,
    microbatches_of,
    recorded,
    timed_projection,
)
from forescale.projection.result import Projection
from forescale.question import Note, Question
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload

PRESET = "almodel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One layout with everything that the analysis says of it; every number is a float."""

    projection: Projection
    memory: StageBytes
    """Of the fullest stage."""
    step: Step
    flops: SequenceFlops

    @property
    def strategy(self) -> Strategy:
        """The layout."""
        return self.projection.strategy

    @property
    def fsdp(self) -> int:
        """FSDP as the analysis counts it, without EP."""
        return self.strategy.dp_shard // self.strategy.ep

    @property
    def per_device_batch(self) -> float:
        """PDB, MaxText's batch per device: the micro-batch over TP × CP."""
        return self.strategy.micro_batch_size / (self.strategy.tp * self.strategy.cp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Almodel:
    """The account of the ALModel analysis, by default on the terms of its detailed configurations."""

    name: str = PRESET
    source: str = ANALYSIS
    terms: Terms = field(default_factory=measured_terms)

    def project(self, question: Question) -> Projection:
        """Project one layout; `dp_shard` is FSDP × EP there, `dp_replicate` is DP, `micro_batch_size` MB."""
        return self.rank(question).projection

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage, as terms."""
        degrees = recorded_degrees(split_strategy(question.layout)[0])
        return self._stages(question.model, question.layout, question.workload, degrees)

    def seconds(self, question: Question) -> Mapping[str, Numeric]:
        """Return seconds of a step by part, as terms."""
        degrees = recorded_degrees(split_strategy(question.layout)[0])
        fullest = max(self.stages(question), key=lambda stage: number_of(stage.total))
        model, cluster, strategy, workload = question.parts
        flops = sequence_flops(
            model, seq_len=workload.seq_len, recompute=strategy.recompute, quirks=self.terms.quirks
        )
        clock = Clock(model=model, cluster=cluster, workload=workload, terms=self.terms)
        told = SequenceFlops(**recorded(**asdict(flops)))
        return _parts(model, workload, clock.step(degrees, fullest, told), told)

    def account(self, model: Model, strategy: Strategy, workload: Workload) -> Account:
        """Return bytes by stage.

        Raises
        ------
        SpecError
            If states are not sharded by FSDP, or recompute is selective: what that keeps is not stated.
        """
        return Account(
            stages=self._stages(model, strategy, workload, split_strategy(strategy)[0]),
            total_parameters=count_parameters(model).total,
            notes=_NOTES,
        )

    def rank(self, question: Question) -> Ranked:
        """Return one layout with its memory, messages and times."""
        model, cluster, strategy, workload = question.parts
        account = self.account(model, strategy, workload)
        stated = memory_projection(account, question, preset=self.name)
        fullest = max(account.stages, key=lambda stage: float(stage.total))
        flops = sequence_flops(
            model, seq_len=workload.seq_len, recompute=strategy.recompute, quirks=self.terms.quirks
        )
        clock = Clock(model=model, cluster=cluster, workload=workload, terms=self.terms)
        step = clock.step(split_strategy(strategy)[0], fullest, flops)
        return Ranked(projection=_timed(stated, step, flops), memory=fullest, step=step, flops=flops)

    def _stages(
        self, model: Model, strategy: Strategy, workload: Workload, degrees: Degrees
    ) -> list[StageBytes]:
        refuse(strategy, self.name)
        choices = split_strategy(strategy)[1]
        plan = plan_stages(model, pp=strategy.pp, vpp=strategy.vpp, stage_layers=strategy.stage_layers)
        kept = kept_by_kind(model, degrees, choices, workload, self.terms)
        logits = logits_kept(model, degrees, workload)
        accumulation = float(microbatches_of(strategy, workload))
        found = []
        for rank, counts in enumerate(plan.counts):
            layers = summed(count * size for count, size in zip(counts.tolist(), kept, strict=True))
            in_flight = min(float(strategy.pp - rank), accumulation)
            last = logits if rank == strategy.pp - 1 else 0.0
            stage = device_memory(model, degrees, layers * in_flight + last, self.terms)
            found.append(replace(stage, num_layers=int(counts.sum())))
        return found


def refuse(strategy: Strategy, preset: str) -> None:
    """Raise if the layout has something that the analysis does not know."""
    if strategy.recompute.granularity == "selective":
        msg = (
            f"preset {preset}: the analysis does not say what is kept with recompute 'selective'; use none "
            f"(save_all), full, or a policy such as save_out_proj"
        )
        raise SpecError(msg)
    if strategy.dp_shard % strategy.ep:
        msg = f"preset {preset}: dp_shard is FSDP × EP there, but ep {strategy.ep} does not divide {strategy.dp_shard}"
        raise SpecError(msg)
    if strategy.dp_shard > strategy.ep and strategy.zero != 3:
        msg = f"preset {preset} shards weights, gradients and optimizer alike: use zero 3 (FSDP), not {strategy.zero}"
        raise SpecError(msg)


def evaluate(preset: Almodel, clock: Clock, degrees: Degrees, choices: Choices) -> tuple[StageBytes, Step]:
    """Return memory and step of many layouts without a pipeline, as arrays."""
    model, workload = clock.model, clock.workload
    kept = kept_by_kind(model, degrees, choices, workload, preset.terms)
    layers = sum(model.layers.count(kind) * size for kind, size in zip(model.layer_kinds, kept, strict=True))
    memory = device_memory(model, degrees, layers + logits_kept(model, degrees, workload), preset.terms)
    flops = sequence_flops(
        model, seq_len=workload.seq_len, recompute=choices.recompute, quirks=preset.terms.quirks
    )
    return memory, clock.step(degrees, memory, flops)


def _timed(stated: Projection, step: Step, flops: SequenceFlops) -> Projection:
    """Return a projection of memory with the times of the step; recompute belongs to backward."""
    work, executed = stated.workload, flops.useful + flops.replayed
    once = float(step.compute) / stated.num_microbatches
    forward = once * flops.forward / executed
    return timed_projection(
        stated,
        step_time=float(step.total),
        time_s={name: number_of(value) for name, value in _parts(stated.model, work, step, flops).items()},
        stage_times=[(forward, once - forward)] * len(stated.memory.stages),
        peak_rate=peak_rate(stated.cluster.device, work.precision.compute),
        hardware_flops=executed * float(work.global_batch_size),
        notes=_NOTES,
    )


def _parts(model: Model, workload: Workload, step: Step, flops: SequenceFlops) -> dict[str, Numeric]:
    """Return the seconds of a step by part."""
    useful = step.compute * flops.useful / (flops.useful + flops.replayed)
    shares = parts_of_compute(model, workload.seq_len)
    whole = {
        "recompute": step.compute - useful,
        "tensor_comm": step.tp.seconds,
        "context_comm": step.cp.seconds,
        "expert_comm": step.ep.seconds,
        "data_comm": step.fsdp_exposed + step.dp.seconds,
        "bubble": step.bubble,
        "optimizer": step.optimizer.seconds,
    }
    return {str(part): useful * share for part, share in shares.items()} | whole


_NOTES = (
    Note(
        topic="flops",
        text="MFU of the analysis is the one with full attention; it counts 0.1 % more forward than the products",
    ),
    Note(
        topic="activations",
        text="policies that keep queries, keys and values come out 0.1 % above the analysis; without recompute "
        "(save_all) bytes per layer and score are inferred from its ten slowest configurations",
    ),
    Note(
        topic="buffers",
        text="its full layer weight is the experts of one layer and the embedding table: attention and the second "
        "gathered layer's own size are not in it",
    ),
    Note(
        topic="network",
        text="the rates of expert exchange are inferred; tensor and pipeline parallelism are in its formulas, but in "
        "none of its figures",
    ),
)
ALMODEL = Almodel()

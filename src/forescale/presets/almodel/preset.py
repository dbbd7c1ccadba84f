"""One layout as the analysis accounts for it: memory columns, volumes, times and MFU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.cost.roofline import peak_rate
from forescale.errors import InfeasibleError, not_a_factor, not_one_of, unsupported_by
from forescale.formula import number_of
from forescale.graph.counts import count_parameters
from forescale.graph.sharding import Degrees, StructuralOptions, split_layout
from forescale.graph.stages import plan_stages
from forescale.inputs import recorded_degrees
from forescale.numeric import Array, Numeric, divisors, summed
from forescale.presets.almodel.step import (
    ANALYSIS,
    QUESTION,
    Clock,
    SequenceFlops,
    Step,
    Terms,
    device_memory,
    kept_by_kind,
    logits_kept,
    measured_terms,
    parts_of_compute,
    sequence_flops,
)
from forescale.presets.preset import (
    Account,
    Preset,
    PresetScores,
    StageBytes,
    memory_projection,
    microbatches_of,
    recorded,
    timed_projection,
    without_quirks,
)
from forescale.projection.result import Projection
from forescale.question import Note, Question
from forescale.repr import ReprMixin
from forescale.spec.cluster import Cluster
from forescale.spec.constraints import legal
from forescale.spec.layout import Layout, Recompute, RematPolicy
from forescale.spec.model import Model
from forescale.spec.proposal import ManyLayouts, Proposal
from forescale.spec.workload import Workload
from forescale.struct import Struct
from forescale.units import counted, format_bytes

OTHERS = ("torch_per_op", "torch_per_op_compiled", "torch_per_mm_compiled", "custom")
OF_MAXTEXT = tuple(policy for policy in get_args(RematPolicy) if policy not in OTHERS)
POLICIES = (
    Recompute(),
    *(Recompute(granularity="policy", policy=policy) for policy in OF_MAXTEXT),
    Recompute(granularity="full"),
)
"""save_all, MaxText's policies and full, in the order of the analysis."""
LARGEST_CP = 8
"""The analysis has no layout with more: at 16 one would be slower than its slowest."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AlmodelResult(ReprMixin):
    """What the search found."""

    model: Model
    cluster: Cluster
    workload: Workload
    preset: Almodel
    best: tuple[Ranked, ...]
    """Layouts, fastest first, each with the policy and micro-batch that are fastest for it."""
    slowest: tuple[Ranked, ...]
    """Of all layouts and policies, each with the largest micro-batch that fits, slowest first."""
    num_candidates: int
    """Layouts, policies and micro-batches together."""
    num_feasible: int
    """Layouts and policies of which some micro-batch fits."""
    num_layouts: int
    """Layouts of which something fits."""
    refused: dict[str, int]
    elapsed_s: float = field(compare=False)


def search_almodel(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    preset: Almodel | None = None,
    top: int = 10,
    worst: int = 10,
    least_mfu: float = 0.0,
) -> AlmodelResult:
    """Rank every layout of DP × EP × FSDP × CP with every policy of the analysis.

    Parameters
    ----------
    least_mfu
        MFU (attention unmasked) below which a layout is not listed among the best.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits.
    """
    started = time.perf_counter()
    account = preset or Almodel()
    question = Question(model=model, cluster=cluster, workload=workload)
    result = _Scores.from_question(account, question)
    fastest = result.fastest_of_each_layout()

    def ranked(values: NDArray[np.int64]) -> Iterator[Ranked]:
        return (account.rank(question.with_layout(result.strategy(index))) for index in values.tolist())

    best = tuple(ranked(fastest[:top]))
    return AlmodelResult(
        model=model,
        cluster=cluster,
        workload=workload,
        preset=account,
        best=tuple(one for one in best if one.projection.mfu_full_attention >= least_mfu),
        slowest=tuple(ranked(np.argsort(-result.step, kind="stable")[:worst])),
        num_candidates=result.num_candidates,
        num_feasible=len(result.rows),
        num_layouts=len(fastest),
        refused=result.refused,
        elapsed_s=time.perf_counter() - started,
    )


class _Scores(Struct, frozen=True, kw_only=True):
    """Layouts and policies with the largest micro-batch that fits: row, policy, layout and step time of each."""

    rows: NDArray[np.int64]
    policies: NDArray[np.int64]
    layouts: NDArray[np.int64]
    step: Array
    peak: Array
    columns: dict[str, NDArray[np.int64]]
    """Of all legal layouts."""
    refused: dict[str, int]

    @classmethod
    def from_question(cls, account: Almodel, question: Question) -> _Scores:
        """Evaluate every policy over all legal layouts and keep the largest micro-batch of each that fits.

        Raises
        ------
        InfeasibleError
            If no layout is legal, or none fits.
        """
        model, cluster, workload = question.model, question.cluster, question.workload
        columns, refused = _columns(model, cluster, workload)
        devices = counted(cluster.num_devices, "device")
        size, layouts = len(columns["cp"]), columns["layout"]
        if size == 0:
            msg = f"no legal layout of {model.name} on {devices} of {cluster.name}"
            raise InfeasibleError(msg, tuple(refused.items()))
        clock = Clock(model=model, cluster=cluster, workload=workload, terms=account.terms)
        degrees = Degrees(**{name: columns[name].astype(float) for name in Degrees.__dataclass_fields__})
        values = []
        for number, policy in enumerate(POLICIES):
            memory, step = evaluate(account, clock, degrees, StructuralOptions(recompute=policy))
            rows = np.flatnonzero(memory.total <= question.memory_limit)
            rows = rows[np.flatnonzero(np.diff(layouts[rows], append=-1))]
            figures = (np.broadcast_to(item, size)[rows] for item in (step.total, memory.total))
            values.append((rows, np.full(len(rows), number), *figures))
        rows, policies, seconds, peaks = (np.concatenate(item) for item in zip(*values, strict=True))
        if not len(rows):
            msg = f"no layout of {model.name} fits {format_bytes(question.memory_limit)} on {devices}"
            raise InfeasibleError(msg, [*refused.items(), ("memory", size * len(POLICIES))])
        return cls(
            rows=rows,
            policies=policies,
            layouts=layouts[rows],
            step=seconds,
            peak=peaks,
            columns=columns,
            refused=refused,
        )

    @property
    def num_candidates(self) -> int:
        """Number of legal layouts and policies."""
        return len(self.columns["cp"]) * len(POLICIES)

    def strategy(self, index: int) -> Layout:
        """Return one layout with its policy."""
        row = self.rows[index]
        degrees: dict[str, Any] = {
            name: int(self.columns[name][row]) for name in Degrees.__dataclass_fields__
        }
        return Layout(**degrees, recompute=POLICIES[self.policies[index]])

    def fastest_of_each_layout(self) -> NDArray[np.int64]:
        """Return the fastest entry of every layout, fastest first."""
        order = np.argsort(self.step, kind="stable")
        _, first = np.unique(self.layouts[order], return_index=True)
        return np.asarray(order[np.sort(first)], dtype=np.int64)


def _columns(
    model: Model, cluster: Cluster, workload: Workload
) -> tuple[dict[str, NDArray[np.int64]], dict[str, int]]:
    """Return every legal layout and micro-batch, micro-batches of one layout ascending; and what was refused.

    TP and PP stay 1: the analysis shows no layout with more, and 21 layers are not divisible by a power of two.
    """
    devices, batch = cluster.num_devices, workload.global_batch_size
    experts = 1 if model.moe is None else model.moe.num_experts
    table = [
        (layout, cp, ep, dp, fsdp * ep, batch_per_device * cp)
        for layout, (cp, ep, fsdp, dp) in enumerate(_layouts(devices, experts))
        if batch % (devices // cp) == 0
        for batch_per_device in divisors(batch // (devices // cp))
        if batch // (devices // cp) % (batch_per_device * cp) == 0
    ]
    names = ("layout", "cp", "ep", "dp_replicate", "dp_shard", "micro_batch_size")
    columns = dict(zip(names, np.array(table, dtype=np.int64).reshape(-1, len(names)).T, strict=True))
    one = np.ones(len(table), dtype=np.int64)
    columns |= dict.fromkeys(("tp", "etp", "pp", "vpp"), one) | {"zero": 3 * one}
    degrees = ManyLayouts(columns, Layout())
    mask, refused = legal(Proposal(model=model, cluster=cluster, workload=workload, degrees=degrees))
    kept = {name: values[mask] for name, values in columns.items()}
    return kept, {name: count for name, count in refused.items() if count}


def _layouts(devices: int, experts: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (cp, ep, fsdp, dp) that fill the devices."""
    for cp in divisors(devices):
        if cp > LARGEST_CP:
            continue
        for ep in divisors(devices // cp):
            if experts % ep:
                continue
            for fsdp in divisors(devices // (cp * ep)):
                yield cp, ep, fsdp, devices // (cp * ep * fsdp)


PRESET = "almodel"
PLAN: Mapping[str, Any] = {
    "model": QUESTION.model,
    "cluster": QUESTION.cluster,
    "devices": QUESTION.devices,
    "workload": {"seq_len": QUESTION.seq_len, "global_batch_size": QUESTION.global_batch_size},
}
"""What the analysis asks, as sections of a plan."""


class Ranked(Struct, frozen=True, kw_only=True):
    """One layout with everything that the analysis says of it; every number is a float."""

    projection: Projection
    memory: StageBytes
    """Of the fullest stage."""
    step: Step
    flops: SequenceFlops

    @property
    def strategy(self) -> Layout:
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


class Almodel(Preset, frozen=True, kw_only=True):
    """The account of the ALModel analysis, by default on the terms of its detailed configurations."""

    name: str = PRESET
    source: str = ANALYSIS
    terms: Terms = msgspec.field(default_factory=measured_terms)

    usual = PLAN

    def without(self, quirks: Sequence[str]) -> Almodel:
        """Return the account without some slips of the analysis."""
        return replace(self, terms=replace(self.terms, quirks=without_quirks(self.terms.quirks, quirks)))

    def scores(self, question: Question) -> PresetScores:
        """Return each layout and policy of the analysis's space with the largest micro-batch that fits."""
        result = _Scores.from_question(self, question)
        return PresetScores(
            step_time=result.step,
            peak=result.peak,
            group=result.layouts,
            num_legal=result.num_candidates,
            refused=result.refused,
            project=lambda index: self.project(question.with_layout(result.strategy(index))),
        )

    def project(self, question: Question) -> Projection:
        """Project one layout; `dp_shard` is FSDP × EP there, `dp_replicate` is DP, `micro_batch_size` MB."""
        return self.rank(question).projection

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage, as terms."""
        degrees = recorded_degrees(split_layout(question.layout)[0])
        return self._stages(question.model, question.layout, question.workload, degrees)

    def seconds(self, question: Question) -> Mapping[str, Numeric]:
        """Return seconds of a step by part, as terms."""
        degrees = recorded_degrees(split_layout(question.layout)[0])
        fullest = max(self.stages(question), key=lambda stage: number_of(stage.total))
        model, cluster, layout, workload = question.parts
        flops = sequence_flops(
            model, seq_len=workload.seq_len, recompute=layout.recompute, quirks=self.terms.quirks
        )
        clock = Clock(model=model, cluster=cluster, workload=workload, terms=self.terms)
        explicit = SequenceFlops(**recorded(**asdict(flops)))
        return _parts(model, workload, clock.step(degrees, fullest, explicit), explicit)

    def account(self, model: Model, layout: Layout, workload: Workload) -> Account:
        """Return bytes by stage.

        Raises
        ------
        SpecError
            If states are not sharded by FSDP, or recompute is selective: what that keeps is not stated.
        """
        return Account(
            stages=self._stages(model, layout, workload, split_layout(layout)[0]),
            total_parameters=count_parameters(model).total,
            complete=True,
            notes=_NOTES,
        )

    def rank(self, question: Question) -> Ranked:
        """Return one layout with its memory, messages and times."""
        model, cluster, layout, workload = question.parts
        account = self.account(model, layout, workload)
        stated = memory_projection(account, question, preset=self.name)
        fullest = max(account.stages, key=lambda stage: float(stage.total))
        flops = sequence_flops(
            model, seq_len=workload.seq_len, recompute=layout.recompute, quirks=self.terms.quirks
        )
        clock = Clock(model=model, cluster=cluster, workload=workload, terms=self.terms)
        step = clock.step(split_layout(layout)[0], fullest, flops)
        return Ranked(projection=_timed(stated, step, flops), memory=fullest, step=step, flops=flops)

    def _stages(self, model: Model, layout: Layout, workload: Workload, degrees: Degrees) -> list[StageBytes]:
        refuse(layout, self.name)
        choices = split_layout(layout)[1]
        plan = plan_stages(model, pp=layout.pp, vpp=layout.vpp, stage_layers=layout.stage_layers)
        kept = kept_by_kind(model, degrees, choices, workload, self.terms)
        logits = logits_kept(model, degrees, workload)
        accumulation = float(microbatches_of(layout, workload))
        result = []
        for rank, counts in enumerate(plan.counts):
            layers = summed(count * size for count, size in zip(counts, kept, strict=True))
            in_flight = min(float(layout.pp - rank), accumulation)
            last = logits if rank == layout.pp - 1 else 0.0
            stage = device_memory(model, degrees, layers * in_flight + last, self.terms)
            result.append(replace(stage, num_layers=int(sum(counts))))
        return result


def refuse(layout: Layout, preset: str) -> None:
    """Raise if the layout has something that the analysis does not know."""
    if layout.recompute.granularity == "selective":
        value = "recompute 'selective': the analysis does not say what it keeps"
        key = f"preset {preset}"
        raise unsupported_by(key, value, "use none (save_all), full, or a policy such as save_out_proj")
    if layout.dp_shard % layout.ep:
        raise not_a_factor("ep", layout.ep, layout.dp_shard, "dp_shard (FSDP × EP)").at(f"preset {preset}")
    if layout.dp_shard > layout.ep and layout.zero != 3:
        fix = "it shards weights, gradients and optimizer alike"
        raise not_one_of(f"zero of preset {preset}", layout.zero, (3,), fix)


def evaluate(
    preset: Almodel, clock: Clock, degrees: Degrees, choices: StructuralOptions
) -> tuple[StageBytes, Step]:
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

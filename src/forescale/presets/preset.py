"""What a preset is, and how an account that states memory only becomes a projection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from forescale.errors import not_one_of
from forescale.formula import as_term, number_of
from forescale.graph.counts import count_parameters, model_flops
from forescale.graph.stages import layers_per_stage
from forescale.numeric import Numeric
from forescale.projection.result import (
    TIME_PARTS,
    Interval,
    MemorySummary,
    ParameterSummary,
    Projection,
    StageMemory,
    StageTime,
    Verdict,
    days,
    tokens_per_device_second,
    utilisation,
)
from forescale.question import Note, Question
from forescale.spec.layout import Layout, TensorKind
from forescale.spec.model import Model
from forescale.spec.workload import Workload, num_microbatches
from forescale.struct import Struct


class Preset(Protocol):
    """A published account of memory or time, reproduced on its own terms."""

    @property
    def name(self) -> str:
        """What `Question.preset` calls it."""
        ...

    @property
    def source(self) -> str:
        """Where the account was published."""
        ...

    def project(self, question: Question) -> Projection:
        """Project one layout as the account does; notes say what it leaves out and where it is wrong."""
        ...


class MemoryPreset(Preset, Protocol):
    """An account that states memory stage by stage."""

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage, terms where the account says what they are made of."""
        ...


class TimePreset(MemoryPreset, Protocol):
    """An account that states the time of a step as well."""

    def seconds(self, question: Question) -> Mapping[str, Numeric]:
        """Return seconds of a step by part, terms where the account says what they are made of."""
        ...


class StageBytes(Struct, frozen=True, kw_only=True):
    """Bytes that an account puts on one device of a pipeline stage, or of many; what it leaves out is zero.

    Each may be a term, which remembers what it was made of.
    """

    num_layers: int
    parameters: Numeric
    """Elements on the device."""
    weights: Numeric = 0.0
    gradients: Numeric = 0.0
    optimizer: Numeric = 0.0
    activations: Numeric = 0.0
    buffers: Numeric = 0.0
    overhead: Numeric = 0.0

    @property
    def total(self) -> Numeric:
        """Sum of all parts."""
        states = self.weights + self.gradients + self.optimizer
        return states + self.activations + self.buffers + self.overhead


class Account(Struct, frozen=True, kw_only=True):
    """What an account says of one layout: bytes by stage, parameters, remarks."""

    stages: Sequence[StageBytes]
    total_parameters: float
    complete: bool
    """Whether the account counts every part that fills a device. Otherwise no layout is said to fit."""
    tensor_kinds: tuple[TensorKind, ...] = ("1d",)
    """Kinds of tensor parallelism that the account knows."""
    notes: tuple[Note, ...] = ()


def recorded(**numbers: float) -> dict[str, Any]:
    """Return numbers that remember their names: what formulas make of them is a tree."""
    return {name: as_term(float(number), name=name) for name, number in numbers.items()}


def microbatches_of(layout: Layout, workload: Workload) -> int:
    """Return the micro-batches per step of a legal layout."""
    return int(
        num_microbatches(
            global_batch_size=workload.global_batch_size,
            dp=layout.dp,
            micro_batch_size=layout.micro_batch_size,
        )
    )


def layers_of(model: Model, layout: Layout) -> tuple[int, ...]:
    """Return the layers of every pipeline rank."""
    return layout.rank_layers or tuple(
        len(rank) for rank in layers_per_stage(model.num_layers, layout.pp, layout.vpp)
    )


def replayed_layers(layout: Layout, num_layers: int) -> int:
    """Return how many of a rank's layers full recompute runs again."""
    if layout.recompute.granularity != "full":
        return 0
    limit = layout.recompute.num_layers
    return num_layers if limit is None else min(limit * layout.vpp, num_layers)


NO_TIME = Note(
    topic="time",
    text="this preset states memory only: step time, throughput and utilisation are left at zero",
)


def memory_projection(account: Account, question: Question, *, preset: str) -> Projection:
    """Return the projection of a question by an account that states memory only.

    Raises
    ------
    SpecError
        If the account does not know the layout's tensor parallelism.
    """
    model, cluster, layout, workload = question.parts
    if layout.tp_kind not in account.tensor_kinds:
        raise not_one_of(f"tp_kind of preset {preset}", layout.tp_kind, ", ".join(account.tensor_kinds))
    flops = model_flops(model, workload.seq_len)
    per_stage = tuple(round(number_of(stage.parameters)) for stage in account.stages)
    nothing = Interval(low=0.0, expected=0.0, high=0.0)
    return Projection(
        model=model,
        cluster=cluster,
        strategy=layout,
        workload=workload,
        preset=preset,
        step_time=nothing,
        num_microbatches=microbatches_of(layout, workload),
        tokens_per_s_per_device=0.0,
        mfu=0.0,
        mfu_full_attention=0.0,
        hfu=0.0,
        model_flops_per_step=flops.masked * workload.global_batch_size,
        model_flops_full_attention_per_step=flops.full * workload.global_batch_size,
        hardware_flops_per_step=0.0,
        params=ParameterSummary(
            total=round(account.total_parameters),
            active=count_parameters(model).active,
            trained=round(account.total_parameters),
            per_device_max=max(per_stage),
            per_stage=per_stage,
        ),
        time_s=dict.fromkeys(TIME_PARTS, 0.0),
        stage_times=tuple(
            StageTime(stage=stage, forward_s=0.0, backward_s=0.0) for stage in range(len(account.stages))
        ),
        memory=_summary(account, cluster.device.hbm_bytes),
        training_days=None,
        notes=(*account.notes, NO_TIME),
    )


def timed_projection(
    stated: Projection,
    *,
    step_time: float,
    time_s: Mapping[str, float],
    stage_times: Iterable[tuple[float, float]],
    peak_rate: float,
    hardware_flops: float,
    notes: tuple[Note, ...],
) -> Projection:
    """Return a projection of memory with the times of its step.

    Parameters
    ----------
    time_s
        Seconds of the step by part.
    stage_times
        Seconds of one micro-batch on each stage, forward and backward.
    peak_rate
        FLOP/s of one device, of which MFU and HFU are shares.
    hardware_flops
        FLOP that all devices execute in a step.
    """
    work, devices = stated.workload, float(stated.cluster.num_devices)
    tokens = work.tokens_per_step
    rates = {"peak_rate": peak_rate, "num_devices": devices, "step_time": step_time}
    a_second = tokens_per_device_second(tokens=tokens, step_time=step_time, num_devices=devices)
    whole = None if work.tokens is None else float(work.tokens)
    return replace(
        stated,
        step_time=Interval(low=step_time, expected=step_time, high=step_time),
        tokens_per_s_per_device=float(a_second),
        mfu=float(utilisation(flops=stated.model_flops_per_step, **rates)),
        mfu_full_attention=float(utilisation(flops=stated.model_flops_full_attention_per_step, **rates)),
        hfu=float(utilisation(flops=hardware_flops, **rates)),
        hardware_flops_per_step=hardware_flops,
        time_s={**dict.fromkeys(TIME_PARTS, 0.0), **time_s},
        stage_times=tuple(
            StageTime(stage=stage, forward_s=forward, backward_s=backward)
            for stage, (forward, backward) in enumerate(stage_times)
        ),
        training_days=None
        if whole is None
        else float(days(total_tokens=whole, tokens=tokens, step_time=step_time)),
        notes=notes,
    )


def _summary(account: Account, capacity: float) -> MemorySummary:
    stages = tuple(
        StageMemory(
            stage=index,
            num_layers=stage.num_layers,
            weights_bytes=number_of(stage.weights),
            gradients_bytes=number_of(stage.gradients),
            optimizer_bytes=number_of(stage.optimizer),
            activations_bytes=number_of(stage.activations),
            buffers_bytes=number_of(stage.buffers),
            overhead_bytes=number_of(stage.overhead),
            peak_bytes=number_of(stage.total),
        )
        for index, stage in enumerate(account.stages)
    )
    peak = max(stage.peak_bytes for stage in stages)
    fits: Verdict = "FITS" if account.complete else "AT RISK"
    return MemorySummary(
        peak_bytes=peak,
        peak_low_bytes=peak,
        peak_high_bytes=peak,
        capacity_bytes=capacity,
        verdict="OOM" if peak > capacity else fits,
        stages=stages,
    )

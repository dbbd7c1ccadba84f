"""What a preset is, and how an account that states memory only becomes a projection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeVar

from msgspec import field
from msgspec.structs import replace

from forescale.errors import SpecError, UnknownNameError, no_effect, not_one_of
from forescale.formula import as_term, number_of
from forescale.graph.counts import count_parameters, model_flops
from forescale.graph.ops import CollectiveKind
from forescale.graph.stages import layers_per_stage
from forescale.numeric import Array, Integers, Numeric
from forescale.projection.result import (
    MEMORY_PARTS,
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
from forescale.question import Note, PresetOptions, Question
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout, TensorKind
from forescale.spec.model import Model
from forescale.spec.workload import Workload, num_microbatches
from forescale.struct import Struct

Q = TypeVar("Q")


class Preset(Struct, frozen=True, kw_only=True):
    """A published analysis of memory or time. What it defines is overridden; commands ask `defines` for the rest."""

    name: str
    """What `Question.preset` calls it."""
    source: str
    """Where it was published."""

    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Sections of a plan that the analysis states, used where a question gives no value."""
    takes_length_of_model: ClassVar[bool] = False
    """Whether sequences are as long as the model's longest unless a question gives a length."""

    def project(self, question: Question) -> Projection:
        """Project one layout as the analysis does; notes name what it leaves out and where it is wrong."""
        raise NotImplementedError

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage, as terms where the analysis has a formula."""
        raise NotImplementedError

    def seconds(self, question: Question) -> Mapping[str, Numeric]:
        """Return seconds of a step by part, as terms where the analysis has a formula."""
        raise NotImplementedError

    def quantities(self, question: Question) -> Mapping[str, Numeric]:
        """Return other quantities of a layout by name, as terms where the analysis has a formula."""
        raise NotImplementedError

    def scores(self, question: Question) -> PresetScores:
        """Return all layouts of the analysis's own search that fit, with step time and memory.

        Raises
        ------
        InfeasibleError
            If no layout is legal, or none fits.
        """
        raise NotImplementedError

    def collective(
        self, cluster: Cluster, *, kind: CollectiveKind, num_bytes: float, num_ranks: int, near: float
    ) -> float | None:
        """Return the seconds of a collective, `near` of its ranks in each fast domain; None if it has no formula."""
        raise NotImplementedError

    def operations(self, question: Question) -> tuple[ShapedOperation, ...]:
        """Return the operations of one layer on one device with the shapes of their tensors."""
        raise NotImplementedError

    def defines(self, what: str) -> bool:
        """Whether the analysis defines a quantity: the name of one of the methods above."""
        return getattr(type(self), what) is not getattr(Preset, what)

    def with_options(self, options: PresetOptions) -> Self:
        """Return the preset under its options.

        Raises
        ------
        SpecError
            If it does not have one of them.
        """
        for option in ("tensor_parallel", "fix"):
            if getattr(options, option) and option not in self.__struct_fields__:
                raise no_effect(option, f"preset {self.name} has no such option")
        names = (name for name in options.__struct_fields__ if name in self.__struct_fields__)
        held = {name: getattr(options, name) for name in names}
        preset = replace(self, **held) if held else self
        return preset.without(options.without_quirks) if options.without_quirks else preset

    def without(self, quirks: Sequence[str]) -> Self:
        """Return the preset without some peculiarities of the published figures, or without any if `all` is named."""
        raise SpecError(f"preset {self.name} has no quirks to leave out; got {', '.join(quirks)}")


class ShapedTensor(Struct, frozen=True, kw_only=True):
    """A tensor as it is on one device."""

    name: str
    shape: tuple[str, ...]
    """Dimensions in the symbols of the analysis."""
    size: tuple[int, ...]


class ShapedOperation(Struct, frozen=True, kw_only=True):
    """One operation of a layer in one direction, on one device."""

    name: str
    direction: Literal["forward", "backward"]
    tensors: tuple[ShapedTensor, ...]
    collective: str
    """Collectives with the axes over which they run; empty if there are none."""
    volume_bytes: float
    flops: float
    num_bytes: float
    """Bytes that pass through the device's memory."""


class PresetScores(Struct, frozen=True, kw_only=True):
    """Layouts that fit, by an index from 0."""

    step_time: Array
    peak: Array
    group: Integers | None = None
    """Layouts with the same number are variants of one, of which a ranking shows the best; None keeps all."""
    num_legal: int
    project: Callable[[int], Projection]
    """Returns the projection of one layout."""
    refused: Mapping[str, int] = field(default_factory=dict)


def without_quirks(quirks: Q, names: Sequence[str]) -> Q:
    """Return a struct of quirks without those named, or without any if `all` is."""
    known = tuple(asdict(quirks))  # type: ignore[call-overload]
    left_out = [name.replace("-", "_") for name in names]
    for name in left_out:
        if name not in (*known, "all"):
            raise UnknownNameError("quirk", name, (*known, "all"))
    return replace(quirks, **dict.fromkeys(known if "all" in left_out else left_out, False))  # type: ignore[type-var]


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
            **{f"{name}_bytes": number_of(getattr(stage, name)) for name in MEMORY_PARTS},
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

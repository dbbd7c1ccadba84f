"""A projection anchored on a measurement: what formulas miss is measured once, and added at the target.

A run at a small size is measured (peak allocated, peak reserved), and single layers of it. What scales with the
layout is computed at the target; the gap between measurement and formulas at the small size is carried over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forescale.brief import Brief
from forescale.errors import SpecError
from forescale.formula import formula
from forescale.limits import Amount, OptionalExtent
from forescale.memory.peak import fit
from forescale.memory.timeline import StageLoad, block_loads, schedule_of, stage_loads, total_bytes
from forescale.numeric import Numeric
from forescale.projection.result import Projection, StageMemory, Verdict

DECOMPOSITION = "Primus projection documentation, The decomposition"
EXAMPLE = "Primus projection documentation, Benchmark-Based Memory Projection, example output"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """Peaks of one device over a step [byte]."""

    rank: OptionalExtent = 0
    stage: OptionalExtent = 0
    """Pipeline rank of the device."""
    peak_allocated_bytes: Amount
    """Most that the allocator handed out (torch.cuda.max_memory_allocated)."""
    peak_reserved_bytes: Amount
    """Most that the allocator held (torch.cuda.max_memory_reserved)."""
    peak_device_bytes: Amount | None = None
    """Most that was used of the device by the driver's count, context and communicators included."""

    def __post_init__(self) -> None:
        """Refuse peaks that cannot be of one device."""
        if self.peak_reserved_bytes < self.peak_allocated_bytes:
            msg = (
                f"rank {self.rank}: peak_reserved_bytes {self.peak_reserved_bytes:.0f} is below "
                f"peak_allocated_bytes {self.peak_allocated_bytes:.0f}; an allocator holds what it hands out"
            )
            raise SpecError(msg)
        if self.peak_device_bytes is not None and self.peak_device_bytes < self.peak_reserved_bytes:
            msg = (
                f"rank {self.rank}: peak_device_bytes {self.peak_device_bytes:.0f} is below "
                f"peak_reserved_bytes {self.peak_reserved_bytes:.0f}; leave it out if it is not known"
            )
            raise SpecError(msg)

    @property
    def outside_bytes(self) -> float | None:
        """What lies outside the allocator; None where it was not measured."""
        return None if self.peak_device_bytes is None else self.peak_device_bytes - self.peak_reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasurement:
    """One layer of one kind, for one micro-batch on one device."""

    kind: str
    """Attention and feed-forward such as "attention+dense"; or one of the two, where it says enough."""
    activation_bytes: Amount | None = None
    """What the layer keeps from forward to backward."""
    forward_s: Amount | None = None
    backward_s: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Measured against computed bytes that one layer of a kind keeps of one micro-batch."""

    kind: str
    measured_bytes: float
    analytical_bytes: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredStage:
    """One pipeline rank at the target [byte]."""

    stage: int
    activations_bytes: float
    """After correction."""
    outside_bytes: float
    """Outside the allocator: context and communicators, measured where the artifact has it."""
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AnchoredMemory(Brief):
    """What a measurement says of the target, beside what formulas alone say."""

    measured: RankPeak
    """The fullest rank that was measured."""
    analytical_at_bench_bytes: float
    """What formulas, corrected, say is allocated there."""
    corrections: tuple[Correction, ...]
    residual: Residual
    stages: tuple[AnchoredStage, ...]

    @property
    def worst(self) -> AnchoredStage:
        """The fullest pipeline rank."""
        return max(self.stages, key=lambda stage: stage.estimate.point_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return the table `anchored` of a projection document."""
        estimate = self.worst.estimate
        own = ("analytical_bytes", "point_bytes", "upper_bytes", "capacity_bytes", "safety_margin", "verdict")
        return {
            "measured": asdict(self.measured),
            "analytical_at_bench_bytes": self.analytical_at_bench_bytes,
            "corrections": [asdict(correction) for correction in self.corrections],
            **asdict(self.residual),
            **{name: getattr(estimate, name) for name in own},
            "stage": self.worst.stage,
            "stages": [
                {
                    "stage": stage.stage,
                    "activations_bytes": stage.activations_bytes,
                    "outside_bytes": stage.outside_bytes,
                    "point_bytes": stage.estimate.point_bytes,
                    "upper_bytes": stage.estimate.upper_bytes,
                    "verdict": stage.estimate.verdict,
                }
                for stage in self.stages
            ],
        }


def anchored_memory(
    target: Projection,
    bench: Projection,
    *,
    ranks: Sequence[RankPeak],
    layers: Sequence[LayerMeasurement] = (),
    safety_margin: float,
) -> AnchoredMemory:
    """Return the target's memory anchored on what was measured at the bench's layout.

    Measured layers scale the activations of their kind, at the bench as at the target, so that the excess holds
    only what is left. Of the overhead, fragmentation is replaced by the measured gap between reserved and
    allocated; communicators lie outside PyTorch's allocator, so none of them is in that gap.

    Raises
    ------
    SpecError
        If a rank is of a stage, or a measured layer of a kind, that the bench does not have, or the margin is negative.
    """
    if safety_margin < 0.0:
        msg = f"the safety margin must be 0 or more, such as 0.05; got {safety_margin:g}"
        raise SpecError(msg)
    stages = bench.strategy.pp
    for rank in ranks:
        if rank.stage >= stages:
            msg = f"rank {rank.rank} is of stage {rank.stage}; with pp {stages} they are 0 to {stages - 1}"
            raise SpecError(msg)
    measured = max(ranks, key=lambda rank: rank.peak_reserved_bytes)
    corrections = _corrections(bench, layers)
    at_bench = bench.memory.stages[measured.stage]
    analytical = (
        at_bench.allocated_bytes
        + _corrected_activations(bench, corrections)[measured.stage]
        - at_bench.activations_bytes
    )
    residual = measured_residual(
        allocated_bytes=measured.peak_allocated_bytes,
        reserved_bytes=measured.peak_reserved_bytes,
        analytical_bytes=analytical,
    )
    activations = _corrected_activations(target, corrections)
    return AnchoredMemory(
        measured=measured,
        analytical_at_bench_bytes=analytical,
        corrections=corrections,
        residual=residual,
        stages=tuple(
            _stage(target, stage, corrected, residual, measured.outside_bytes, safety_margin)
            for stage, corrected in zip(target.memory.stages, activations, strict=True)
        ),
    )


def _stage(
    target: Projection,
    stage: StageMemory,
    activations: float,
    residual: Residual,
    outside: float | None,
    safety_margin: float,
) -> AnchoredStage:
    beside = stage.overhead_bytes - stage.fragmentation_bytes if outside is None else outside
    estimate = anchored_estimate(
        analytical_bytes=stage.allocated_bytes - stage.activations_bytes + activations + beside,
        residual=residual,
        safety_margin=safety_margin,
        capacity_bytes=target.memory.capacity_bytes,
    )
    return AnchoredStage(
        stage=stage.stage, activations_bytes=activations, outside_bytes=beside, estimate=estimate
    )


def _corrections(bench: Projection, layers: Sequence[LayerMeasurement]) -> tuple[Correction, ...]:
    blocks = block_loads(bench.model, bench.strategy, bench.workload).layers
    found = []
    for layer in layers:
        alike = [block for block in blocks if layer.kind == block.name or layer.kind in block.name.split("+")]
        if len(alike) != 1:
            known = ", ".join(block.name for block in blocks)
            many = "no kind" if not alike else "several kinds"
            msg = f"the measured layer {layer.kind!r} is of {many} of layer that {bench.model.name} has: {known}"
            raise SpecError(msg)
        if layer.activation_bytes is None:
            continue
        computed = total_bytes(alike[0].kept)
        factor = activation_correction(measured_bytes=layer.activation_bytes, analytical_bytes=computed)
        found.append(
            Correction(
                kind=alike[0].name,
                measured_bytes=layer.activation_bytes,
                analytical_bytes=computed,
                factor=float(factor),
            )
        )
    return tuple(found)


def _corrected_activations(result: Projection, corrections: Sequence[Correction]) -> list[float]:
    """Return the activations of every rank with the kept tensors of each measured kind scaled."""
    activations = [stage.activations_bytes for stage in result.memory.stages]
    if not corrections:
        return activations
    placement = schedule_of(result.strategy, result.num_microbatches).placement
    loads = stage_loads(result.model, result.strategy, result.workload, placement)
    corrected = []
    for stage, total in zip(result.memory.stages, activations, strict=True):
        own = [load for load in loads if load.rank == stage.stage]
        held = total - max(total_bytes(work) for load in own for work in (load.forward, load.backward))
        value = total
        for correction in corrections:
            value = float(
                corrected_bytes(
                    uncorrected=value,
                    layer_bytes=held * _share(own, correction.kind),
                    correction=correction.factor,
                )
            )
        corrected.append(value)
    return corrected


def _share(loads: Sequence[StageLoad], kind: str) -> float:
    """Return the part of what a rank keeps that layers of one kind keep."""
    everything = [tensor for load in loads for tensor in load.kept]
    of_kind = [tensor for tensor in everything if tensor.owner == kind]
    return total_bytes(of_kind) / total_bytes(everything)


@formula(unit="byte", source=DECOMPOSITION)
def framework_overhead(
    *, reserved_bytes: Numeric, allocated_bytes: Numeric, comm_buffer_bytes: Numeric
) -> Numeric:
    """max(0, peak reserved − peak allocated − communication buffers that formulas count already)."""
    return np.maximum(reserved_bytes - allocated_bytes - comm_buffer_bytes, 0.0)


@formula(unit="byte", source=DECOMPOSITION)
def live_tensor_excess(*, allocated_bytes: Numeric, analytical_bytes: Numeric) -> Numeric:
    """max(0, peak allocated − what formulas say of the measured layout)."""
    return np.maximum(allocated_bytes - analytical_bytes, 0.0)


@formula(unit="1", source=f"{EXAMPLE}: Activation correction (measured / analytical at bench)")
def activation_correction(*, measured_bytes: Numeric, analytical_bytes: Numeric) -> Numeric:
    """Measured / analytical bytes that one layer keeps of one micro-batch."""
    return measured_bytes / analytical_bytes


@formula(unit="byte", source=f"{EXAMPLE}: Activation total after correction")
def corrected_bytes(*, uncorrected: Numeric, layer_bytes: Numeric, correction: Numeric) -> Numeric:
    """Uncorrected + bytes of one kind of layer × (correction − 1)."""
    return uncorrected + layer_bytes * (correction - 1.0)


@formula(unit="byte", source=f"{DECOMPOSITION}: point estimate")
def point_estimate(
    *, analytical_bytes: Numeric, framework_overhead_bytes: Numeric, live_tensor_excess_bytes: Numeric
) -> Numeric:
    """Analytical bytes at the target + framework overhead + live-tensor excess."""
    return analytical_bytes + framework_overhead_bytes + live_tensor_excess_bytes


@formula(unit="byte", source=f"{DECOMPOSITION}: upper bound")
def upper_bound(
    *,
    analytical_bytes: Numeric,
    framework_overhead_bytes: Numeric,
    live_tensor_excess_bytes: Numeric,
    safety_margin: Numeric,
) -> Numeric:
    """Analytical bytes + (1 + margin) × (framework overhead + live-tensor excess)."""
    return analytical_bytes + (1.0 + safety_margin) * (framework_overhead_bytes + live_tensor_excess_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What a measurement has beyond the formulas, at the measured size [byte]."""

    framework_overhead_bytes: float
    """Reserved beyond allocated: pages of the allocator, fragmentation."""
    live_tensor_excess_bytes: float
    """Allocated beyond what formulas say; zero where they say more."""

    @property
    def total_bytes(self) -> float:
        """Both together."""
        return self.framework_overhead_bytes + self.live_tensor_excess_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One device at the target: expected peak and upper bound against its capacity [byte]."""

    analytical_bytes: float
    residual: Residual
    safety_margin: float
    point_bytes: float
    upper_bytes: float
    capacity_bytes: float
    verdict: Verdict

    @property
    def analytical_share(self) -> float:
        """Part of the point estimate that formulas give."""
        return self.analytical_bytes / self.point_bytes

    @property
    def residual_share(self) -> float:
        """Part of the point estimate that was measured."""
        return self.residual.total_bytes / self.point_bytes


def measured_residual(
    *,
    allocated_bytes: float,
    reserved_bytes: float,
    analytical_bytes: float,
    comm_buffer_bytes: float = 0.0,
) -> Residual:
    """Split a measured peak into what formulas explain and the two terms that they do not.

    Parameters
    ----------
    allocated_bytes, reserved_bytes
        Peaks of the allocator of one device [byte].
    analytical_bytes
        What formulas say is allocated on that device at the measured layout [byte].
    comm_buffer_bytes
        Communication buffers inside the reserved bytes that the target's formulas count again [byte].
    """
    return Residual(
        framework_overhead_bytes=float(
            framework_overhead(
                reserved_bytes=reserved_bytes,
                allocated_bytes=allocated_bytes,
                comm_buffer_bytes=comm_buffer_bytes,
            )
        ),
        live_tensor_excess_bytes=float(
            live_tensor_excess(allocated_bytes=allocated_bytes, analytical_bytes=analytical_bytes)
        ),
    )


def anchored_estimate(
    *, analytical_bytes: float, residual: Residual, safety_margin: float, capacity_bytes: float
) -> Estimate:
    """Return the peak of one device at the target: formulas there plus the residual measured elsewhere."""
    terms = {
        "analytical_bytes": analytical_bytes,
        "framework_overhead_bytes": residual.framework_overhead_bytes,
        "live_tensor_excess_bytes": residual.live_tensor_excess_bytes,
    }
    point = float(point_estimate(**terms))
    upper = float(upper_bound(**terms, safety_margin=safety_margin))
    return Estimate(
        analytical_bytes=analytical_bytes,
        residual=residual,
        safety_margin=safety_margin,
        point_bytes=point,
        upper_bytes=upper,
        capacity_bytes=capacity_bytes,
        verdict=fit(point_bytes=point, upper_bytes=upper, capacity_bytes=capacity_bytes),
    )

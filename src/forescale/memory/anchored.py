"""A projection anchored on a measurement: what formulas miss is measured once, and added at the target.

A run at a small size is measured (peak allocated, peak reserved), and single layers of it. What scales with the
layout is computed at the target; the gap between measurement and formulas at the small size is carried over.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from msgspec.structs import replace

from forescale.cost.anchor import Correction, Residual
from forescale.errors import out_of_range
from forescale.limits import Amount, OptionalExtent
from forescale.memory.peak import fit
from forescale.projection.result import Projection, StageMemory, Verdict
from forescale.repr import ReprMixin
from forescale.struct import Struct, attributes


class PhasePeak(Struct, frozen=True, kw_only=True):
    """Most that was allocated while one part of a step ran [byte]."""

    phase: Literal["idle", "forward", "backward", "update"]
    """idle is between two steps: what stands all the time."""
    peak_allocated_bytes: Amount


class RankPeak(Struct, frozen=True, kw_only=True):
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
    phases: tuple[PhasePeak, ...] = ()

    def __post_init__(self) -> None:
        """Refuse peaks that cannot be of one device."""
        if self.peak_reserved_bytes < self.peak_allocated_bytes:
            raise out_of_range(
                "peak_reserved_bytes",
                self.peak_reserved_bytes,
                f"peak_allocated_bytes {self.peak_allocated_bytes:.0f} or more: an allocator holds what it hands out",
            ).at(f"rank {self.rank}")
        if self.peak_device_bytes is not None and self.peak_device_bytes < self.peak_reserved_bytes:
            allowed = f"peak_reserved_bytes {self.peak_reserved_bytes:.0f} or more"
            fix = "leave it out if it is not known"
            key = "peak_device_bytes"
            raise out_of_range(key, self.peak_device_bytes, allowed, fix).at(f"rank {self.rank}")

    @property
    def outside_bytes(self) -> float | None:
        """Return the bytes on the device outside the allocator; None where they were not measured."""
        return None if self.peak_device_bytes is None else self.peak_device_bytes - self.peak_reserved_bytes


class LayerMeasurement(Struct, frozen=True, kw_only=True):
    """One layer of one kind, for one micro-batch on one device."""

    kind: str
    """Attention and feed-forward such as "attention+dense", or one of the two where it says enough; embedding; head."""
    activation_bytes: Amount | None = None
    """What the layer keeps from forward to backward."""


ENDS = ("embedding", "head")
"""Blocks of which there is one each: what they keep beyond the formulas stays in the residual."""


class PeakEstimate(Struct, frozen=True, kw_only=True):
    """One device at the target: expected peak and upper bound against its capacity [byte].

    Source: Primus projection documentation, The decomposition.
    """

    analytical_bytes: float
    residual: Residual
    safety_margin: float
    capacity_bytes: float
    above_bytes: float | None = None
    """By how much the upper end lies above the expected, where it is not the margin of what was measured."""

    @property
    def point_bytes(self) -> float:
        """Return the estimated peak in bytes: the formulas for the target plus the residual measured at the bench."""
        return self.analytical_bytes + self.residual.total_bytes

    @property
    def upper_bytes(self) -> float:
        """Return the upper bound of the peak in bytes: the residual grows by the margin and is never subtracted."""
        above = self.residual.above(self.safety_margin) if self.above_bytes is None else self.above_bytes
        return self.point_bytes + above

    @property
    def residual_share(self) -> float:
        """Return the fraction of the point estimate that was measured (0 to 1)."""
        return self.residual.total_bytes / self.point_bytes

    @property
    def verdict(self) -> Verdict:
        """How both stand to the capacity."""
        return fit(
            point_bytes=self.point_bytes, upper_bytes=self.upper_bytes, capacity_bytes=self.capacity_bytes
        )


class AnchoredStage(Struct, frozen=True, kw_only=True):
    """One pipeline rank at the target [byte]."""

    stage: int
    activations_bytes: float
    """After correction."""
    outside_bytes: float
    """Outside the allocator: context and communicators, measured where the artifact has it."""
    estimate: PeakEstimate


class BenchMemory(Struct, frozen=True, kw_only=True):
    """What a run measured of memory, beside what formulas say of it."""

    measured: RankPeak
    """The fullest rank that was measured."""
    analytical_at_bench_bytes: float
    """What formulas, corrected, say is allocated there."""
    corrections: tuple[Correction, ...]
    residual: Residual


class AnchoredMemory(ReprMixin, Struct, frozen=True, kw_only=True):
    """What a measurement says of the target, and how."""

    bench: BenchMemory
    stages: tuple[AnchoredStage, ...]

    @property
    def worst(self) -> AnchoredStage:
        """The fullest pipeline rank."""
        return max(self.stages, key=lambda stage: stage.estimate.point_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return the table `anchored` of a projection document."""
        estimate, bench = self.worst.estimate, self.bench
        names = (
            "analytical_bytes",
            "point_bytes",
            "upper_bytes",
            "capacity_bytes",
            "safety_margin",
            "verdict",
        )
        return {
            "measured": asdict(bench.measured),
            "analytical_at_bench_bytes": bench.analytical_at_bench_bytes,
            "corrections": [
                {**asdict(correction), "factor": correction.factor} for correction in bench.corrections
            ],
            **asdict(estimate.residual),
            **attributes(estimate, *names),
            "stage": self.worst.stage,
            "stages": [
                {
                    **attributes(stage, "stage", "activations_bytes", "outside_bytes"),
                    **attributes(stage.estimate, "point_bytes", "upper_bytes", "verdict"),
                }
                for stage in self.stages
            ],
        }


def anchored_memory(target: Projection, bench: BenchMemory, *, safety_margin: float) -> AnchoredMemory:
    """Return the decomposition of a target that was projected from what `bench` measured."""
    memory, tracked = target.memory, bench.residual.tracked
    above = memory.peak_high_bytes - memory.peak_bytes if tracked else None

    def of_stage(stage: StageMemory) -> AnchoredStage:
        beyond = stage.fragmentation_bytes - bench.residual.live_tensor_excess_bytes
        residual = replace(bench.residual, framework_overhead_bytes=beyond)
        return AnchoredStage(
            stage=stage.stage,
            activations_bytes=stage.activations_bytes,
            outside_bytes=stage.overhead_bytes - residual.total_bytes,
            estimate=PeakEstimate(
                analytical_bytes=stage.peak_bytes - residual.total_bytes,
                residual=residual,
                safety_margin=safety_margin,
                capacity_bytes=memory.capacity_bytes,
                above_bytes=above,
            ),
        )

    return AnchoredMemory(bench=bench, stages=tuple(map(of_stage, memory.stages)))

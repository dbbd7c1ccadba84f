"""A projection anchored on a measurement: what formulas miss is measured once, and added at the target.

A run at a small size is measured (peak allocated, peak reserved), and single layers of it. What scales with the
layout is computed at the target; the gap between measurement and formulas at the small size is carried over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from forescale.brief import Brief
from forescale.errors import SpecError
from forescale.limits import Amount, OptionalExtent
from forescale.memory.peak import fit
from forescale.memory.timeline import StageLoad, block_loads, schedule_of, stage_loads, total_bytes
from forescale.projection.result import Projection, StageMemory, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """Most that was allocated while one part of a step ran [byte]."""

    phase: Literal["idle", "forward", "backward", "update"]
    """idle is between two steps: what stands all the time."""
    peak_allocated_bytes: Amount


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
    phases: tuple[PhasePeak, ...] = ()

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
    """Attention and feed-forward such as "attention+dense", or one of the two where it says enough; embedding; head."""
    activation_bytes: Amount | None = None
    """What the layer keeps from forward to backward."""


ENDS = ("embedding", "head")
"""Blocks of which there is one each: what they keep beyond the formulas stays in the residual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Measured against computed bytes that one layer of a kind keeps of one micro-batch."""

    kind: str
    measured_bytes: float
    analytical_bytes: float

    @property
    def factor(self) -> float:
        """What activations of the kind are multiplied by."""
        return self.measured_bytes / self.analytical_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What a measurement has beyond the formulas, at the measured size [byte]."""

    framework_overhead_bytes: float
    """Reserved beyond allocated: pages of the allocator, fragmentation."""
    live_tensor_excess_bytes: float
    """Allocated beyond what formulas say; zero where they say more."""

    @classmethod
    def of(cls, *, allocated_bytes: float, reserved_bytes: float, analytical_bytes: float) -> Residual:
        """Split the measured peaks of an allocator into what formulas explain and the two terms that they do not."""
        return cls(
            framework_overhead_bytes=max(reserved_bytes - allocated_bytes, 0.0),
            live_tensor_excess_bytes=max(allocated_bytes - analytical_bytes, 0.0),
        )

    @property
    def total_bytes(self) -> float:
        """Both together."""
        return self.framework_overhead_bytes + self.live_tensor_excess_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One device at the target: expected peak and upper bound against its capacity [byte].

    Source: Primus projection documentation, The decomposition.
    """

    analytical_bytes: float
    residual: Residual
    safety_margin: float
    capacity_bytes: float

    @property
    def point_bytes(self) -> float:
        """What formulas say of the target, and the residual measured elsewhere."""
        return self.analytical_bytes + self.residual.total_bytes

    @property
    def upper_bytes(self) -> float:
        """The same with the residual grown by the margin."""
        return self.analytical_bytes + (1.0 + self.safety_margin) * self.residual.total_bytes

    @property
    def residual_share(self) -> float:
        """Part of the point estimate that was measured."""
        return self.residual.total_bytes / self.point_bytes

    @property
    def verdict(self) -> Verdict:
        """How both stand to the capacity."""
        return fit(
            point_bytes=self.point_bytes, upper_bytes=self.upper_bytes, capacity_bytes=self.capacity_bytes
        )


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
            "corrections": [{**asdict(each), "factor": each.factor} for each in self.corrections],
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
    residual = Residual.of(
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
    estimate = Estimate(
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
    for layer in (each for each in layers if each.kind not in ENDS):
        alike = [block for block in blocks if layer.kind == block.name or layer.kind in block.name.split("+")]
        if len(alike) != 1:
            known = ", ".join(block.name for block in blocks)
            many = "no kind" if not alike else "several kinds"
            msg = f"the measured layer {layer.kind!r} is of {many} of layer that {bench.model.name} has: {known}"
            raise SpecError(msg)
        if layer.activation_bytes is not None:
            own, computed = layer.activation_bytes, total_bytes(alike[0].kept)
            found.append(Correction(kind=alike[0].name, measured_bytes=own, analytical_bytes=computed))
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
        more = (held * _share(own, each.kind) * (each.factor - 1.0) for each in corrections)
        corrected.append(total + sum(more))
    return corrected


def _share(loads: Sequence[StageLoad], kind: str) -> float:
    """Return the part of what a rank keeps that layers of one kind keep."""
    everything = [tensor for load in loads for tensor in load.kept]
    of_kind = [tensor for tensor in everything if tensor.owner == kind]
    return total_bytes(of_kind) / total_bytes(everything)

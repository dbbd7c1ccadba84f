"""A projection of one layout, anchored on the measured peak of another: which terms are carried over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forescale.brief import Brief
from forescale.errors import SpecError
from forescale.memory.anchor import (
    Estimate,
    Residual,
    activation_correction,
    anchored_estimate,
    corrected_bytes,
    measured_residual,
)
from forescale.memory.loads import StageLoad, block_loads, stage_loads, total_bytes
from forescale.memory.measurement import LayerMeasurement, RankPeak
from forescale.memory.timeline import schedule_of
from forescale.projection.result import Projection, StageMemory


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
        If a measured layer is of no kind that the model has, or the margin is negative.
    """
    if safety_margin < 0.0:
        msg = f"the safety margin must be 0 or more, such as 0.05; got {safety_margin:g}"
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

"""The account of the Ultra-Scale Playbook: memory of a layout, and its ratios as notes."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.graph.counts import count_parameters
from forescale.presets.korthikanti2022 import drops_scores, gpt_note, heads_of, korthikanti_replayed_layer
from forescale.presets.playbook.formulas import (
    PLAYBOOK,
    playbook_activation_bytes,
    playbook_parameters,
    playbook_ratios,
    playbook_zero_bytes,
)
from forescale.presets.preset import (
    Account,
    StageBytes,
    layers_of,
    memory_projection,
    microbatches_of,
    replayed_layers,
)
from forescale.projection.result import Projection
from forescale.question import Note, Question
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import STORAGE_BYTES, Precision, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesPerParameter:
    """What one parameter takes, as the playbook sums it up."""

    weights: float
    gradients: float
    accumulated: float
    """A second copy of the gradients, in fp32."""
    optimizer: float
    """fp32 weights and moments."""

    @property
    def total(self) -> float:
        """Sum."""
        return self.weights + self.gradients + self.accumulated + self.optimizer


def bytes_per_parameter(precision: Precision) -> BytesPerParameter:
    """Return 4 + 4 + 8 in full precision, 2 + 2 + 12 mixed, and 4 more with fp32 gradients."""
    weights = STORAGE_BYTES[precision.parameters]
    mixed = precision.parameters != "fp32"
    return BytesPerParameter(
        weights=weights,
        gradients=weights,
        accumulated=4.0 if mixed and precision.gradients == "fp32" else 0.0,
        optimizer=12.0 if mixed else 8.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """Memory of a layout as the Ultra-Scale Playbook counts it."""

    name: str = "playbook"
    source: str = PLAYBOOK

    def project(self, question: Question) -> Projection:
        """Project memory; notes hold the playbook's ratios of communication to compute."""
        return memory_projection(self.account(*question.parts), question, preset=self.name)

    def account(self, model: Model, cluster: Cluster, strategy: Strategy, workload: Workload) -> Account:
        """Return bytes by stage: N / (tp·pp) parameters each, sharded by ZeRO, and activations."""
        total = float(
            playbook_parameters(
                hidden_size=float(model.hidden_size),
                vocab_size=float(model.vocab_size),
                num_layers=float(model.num_layers),
            )
        )
        layers = layers_of(model, strategy)
        own = total / (strategy.tp * strategy.pp)
        states = zero_states(own, bytes_per_parameter(workload.precision), strategy)
        stages = tuple(
            StageBytes(
                num_layers=count,
                parameters=own,
                **states,
                activations=_activations(model, strategy, workload, count, self.name),
            )
            for count in layers
        )
        return Account(
            stages=stages,
            total_parameters=total,
            notes=(
                _parameter_note(model, total),
                *gpt_note(model),
                *(
                    Note(topic=each.part, text=f"{each.name}: ratio {each.value:.3g}")
                    for each in playbook_ratios(model, cluster, strategy, workload, num_layers=min(layers))
                ),
            ),
        )


def zero_states(parameters: float, each: BytesPerParameter, strategy: Strategy) -> dict[str, float]:
    """Return bytes of weights, gradients and optimizer under ZeRO: stage 1 shards the last, 2 two, 3 all."""
    shards = float(strategy.dp_shard)
    groups = {
        "weights": (each.weights, 3),
        "gradients": (each.gradients + each.accumulated, 2),
        "optimizer": (each.optimizer, 1),
    }
    return {
        name: float(
            playbook_zero_bytes(
                parameters=parameters,
                whole=0.0 if strategy.zero >= stage else size,
                sharded=size if strategy.zero >= stage else 0.0,
                shards=shards,
            )
        )
        for name, (size, stage) in groups.items()
    }


def _activations(model: Model, strategy: Strategy, workload: Workload, count: int, preset: str) -> float:
    """Return bytes of a stage: its layers, for p micro-batches, over the ranks that split the sequence or heads."""
    held = min(float(strategy.pp), float(microbatches_of(strategy, workload)))
    split = float(strategy.tp * strategy.cp)
    replayed = replayed_layers(strategy, count)
    size = {"seq_len": float(workload.seq_len), "hidden_size": float(model.hidden_size)}
    batch = float(strategy.micro_batch_size)
    kept = playbook_activation_bytes(
        num_layers=float(count - replayed),
        batch=batch,
        num_heads=float(heads_of(model, preset=preset)),
        scores=0.0 if strategy.flash_attention or drops_scores(strategy) else 1.0,
        **size,
    )
    inputs = korthikanti_replayed_layer(micro_batch_size=batch, sequence_ranks=1.0, **size)
    return float(kept + replayed * inputs) * held / split


def _parameter_note(model: Model, total: float) -> Note:
    counted = count_parameters(model).total
    text = (
        f"h·v + L·(12h² + 13h) + 2h gives {total:,.0f} parameters; {model.name} has {counted:,} "
        f"({counted / total - 1.0:+.1%}): the formula ties embeddings and has no experts, gates or grouped heads"
    )
    return Note(topic="parameters", text=text)


PLAYBOOK_2025 = Playbook()

"""The account of the Ultra-Scale Playbook: memory of a layout, and its ratios as notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forescale.formula import number_of
from forescale.graph.counts import count_parameters
from forescale.numeric import Numeric
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
    recorded,
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

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage."""
        return self.account(*question.parts).stages

    def account(self, model: Model, cluster: Cluster, strategy: Strategy, workload: Workload) -> Account:
        """Return bytes by stage: N / (tp·pp) parameters each, sharded by ZeRO, and activations."""
        sizes = recorded(
            hidden_size=model.hidden_size, vocab_size=model.vocab_size, num_layers=model.num_layers
        )
        whole, split = playbook_parameters(**sizes), recorded(tp=strategy.tp, pp=strategy.pp)
        total, layers = number_of(whole), layers_of(model, strategy)
        own = whole / (split["tp"] * split["pp"])
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


def zero_states(parameters: Numeric, each: BytesPerParameter, strategy: Strategy) -> dict[str, Numeric]:
    """Return bytes of weights, gradients and optimizer under ZeRO: stage 1 shards the last, 2 two, 3 all."""
    groups = {
        "weights": (each.weights, 3),
        "gradients": (each.gradients + each.accumulated, 2),
        "optimizer": (each.optimizer, 1),
    }
    return {
        name: playbook_zero_bytes(
            parameters=parameters,
            **recorded(
                whole=0.0 if strategy.zero >= stage else size,
                sharded=size if strategy.zero >= stage else 0.0,
                shards=strategy.dp_shard,
            ),
        )
        for name, (size, stage) in groups.items()
    }


def _activations(model: Model, strategy: Strategy, workload: Workload, count: int, preset: str) -> Numeric:
    """Return bytes of a stage: its layers, for p micro-batches, over the ranks that split the sequence or heads."""
    replayed = replayed_layers(strategy, count)
    size = recorded(seq_len=workload.seq_len, hidden_size=model.hidden_size)
    batch, plain = (
        recorded(batch=strategy.micro_batch_size),
        strategy.flash_attention or drops_scores(strategy),
    )
    more = recorded(
        in_flight=min(strategy.pp, microbatches_of(strategy, workload)),
        ranks=strategy.tp * strategy.cp,
        replayed=replayed,
        sequence_ranks=1,
    )
    kept = playbook_activation_bytes(
        **recorded(
            num_layers=count - replayed,
            num_heads=heads_of(model, preset=preset),
            scores=0.0 if plain else 1.0,
        ),
        **batch,
        **size,
    )
    inputs = korthikanti_replayed_layer(
        micro_batch_size=batch["batch"], sequence_ranks=more["sequence_ranks"], **size
    )
    held: Numeric = (kept + more["replayed"] * inputs) * more["in_flight"] / more["ranks"]
    return held


def _parameter_note(model: Model, total: float) -> Note:
    counted = count_parameters(model).total
    text = (
        f"h·v + L·(12h² + 13h) + 2h gives {total:,.0f} parameters; {model.name} has {counted:,} "
        f"({counted / total - 1.0:+.1%}): the formula ties embeddings and has no experts, gates or grouped heads"
    )
    return Note(topic="parameters", text=text)


PLAYBOOK_2025 = Playbook()

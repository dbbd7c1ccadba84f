"""Primus's analytical memory projection, as documented and as its source has it today."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forescale.graph.counts import count_parameters
from forescale.graph.stages import given_chunks, layers_per_chunk
from forescale.presets.preset import Account, StageBytes, memory_projection
from forescale.presets.primus.collectives import Network, documented_all_reduce, pipelined_all_reduce
from forescale.presets.primus.communication import AllReduce, communication_notes
from forescale.presets.primus.components import (
    DOCUMENT,
    Component,
    Sizes,
    Terms,
    first_components,
    last_components,
    layer_component,
    layer_components,
    primus_accumulation_saving,
    primus_interleaving_penalty,
    primus_total_activation,
    sizes,
)
from forescale.projection.result import Projection
from forescale.question import Note, Question
from forescale.spec.cluster import Cluster
from forescale.spec.model import Layer, Model, MoeFfn
from forescale.spec.strategy import Recompute, Strategy
from forescale.spec.workload import Workload
from forescale.units import GIB

_OPTIMIZER_BYTES = {"muon": 6.0}
_ADAM_BYTES = 10.0
"""Of optimizer states per parameter; weights and gradients take 2 each, whole (documentation, Param + Optimizer)."""
_PARAMETERS = (
    "its total leaves out final norm and head where they are not on rank 0, assumes a padded vocabulary of "
    "{vocab:,.0f} and counts three norms of 2·H per layer; {name} has {counted:,}"
)
_MEMORY = (
    "weights and gradients are not divided by tp; optimizer states are divided by world / (ep·pp), right for experts "
    "alone; every rank is charged with pp micro-batches in flight, though only the first holds that many"
)
_DOCUMENTED = (
    "as documented, 1 + (pp − 1)/(pp·vpp) also at vpp = 1, and one expert result per choice. The source of 2026-08 "
    "(preset primus-2026) drops both. It is right in the first: 1F1B holds pp micro-batches, no more. In the second it "
    "is right that results are summed; neither counts the permuted input of the experts, as large as what is dropped"
)
_SELECTIVE = "selective recompute drops everything that attention keeps, whatever modules are named"
DOCUMENTED = Terms(
    output_per_choice=True,
    penalty_without_interleaving=True,
    statistics_as_query=True,
    unfused_loss=False,
    per_micro_batch_accumulation=True,
    recompute_working_memory=True,
)
SOURCE_2026_08 = Terms(
    output_per_choice=False,
    penalty_without_interleaving=False,
    statistics_as_query=True,
    unfused_loss=True,
    per_micro_batch_accumulation=False,
    recompute_working_memory=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimusPreset:
    """One state of Primus's memory formulas."""

    name: str
    source: str
    terms: Terms
    all_reduce: AllReduce = documented_all_reduce
    vocab_size: int | None = 100_352
    """Padded vocabulary that Primus assumes of every model; None takes the model's own, padded."""

    def project(self, question: Question) -> Projection:
        """Project memory by Primus's formulas; its step time starts from layers it measures."""
        return memory_projection(self.account(*question.parts), question, preset=self.name)

    def account(self, model: Model, cluster: Cluster, strategy: Strategy, workload: Workload) -> Account:
        """Return bytes by stage, the total that Primus prints, and remarks."""
        s = self.sizes(model, strategy, workload)
        chunks = layer_chunks(model, strategy)
        stages = tuple(
            self._stage(model, cluster, strategy, workload, s, chunks, rank) for rank in range(strategy.pp)
        )
        whole = self.sizes(model, Strategy(), workload)
        ends = _ends(s, first=True, last=strategy.pp == 1)
        total = sum(layer_component(layer, whole).parameters for layer in model.layers)
        total += sum(part.parameters for part in ends)
        return Account(
            stages=stages,
            total_parameters=total,
            notes=(
                *self._notes(model, strategy, s),
                *communication_notes(model, strategy, workload, Network.of(cluster), self.all_reduce),
            ),
        )

    def sizes(self, model: Model, strategy: Strategy, workload: Workload) -> Sizes:
        """Return what the formulas need of one layout."""
        vocab = self.vocab_size
        if vocab is None:
            multiple = model.vocab_multiple * strategy.tp
            vocab = -(-model.vocab_size // multiple) * multiple
        return sizes(model, strategy, workload, terms=self.terms, vocab_size=vocab)

    def _stage(
        self,
        model: Model,
        cluster: Cluster,
        strategy: Strategy,
        workload: Workload,
        s: Sizes,
        chunks: tuple[tuple[tuple[int, ...], ...], ...],
        rank: int,
    ) -> StageBytes:
        own = chunks[rank]
        ends = _ends(s, first=rank == 0, last=rank == strategy.pp - 1)
        layers = [layer_component(model.layers[index], s) for chunk in own for index in chunk]
        parameters = sum(part.parameters for part in (*layers, *ends))
        shards = cluster.num_devices / (strategy.ep * strategy.pp)  # ranks of tp and cp count as replicas
        element = _OPTIMIZER_BYTES.get(workload.optimizer, _ADAM_BYTES)
        return StageBytes(
            num_layers=len(layers),
            parameters=parameters,
            weights=parameters * 2.0,
            gradients=parameters * 2.0,
            optimizer=parameters * element / (max(1.0, shards) if strategy.zero else 1.0),
            activations=self._activations(model, strategy, workload, s, own, ends, shards),
        )

    def _activations(
        self,
        model: Model,
        strategy: Strategy,
        workload: Workload,
        s: Sizes,
        chunks: tuple[tuple[int, ...], ...],
        ends: tuple[Component, ...],
        shards: float,
    ) -> float:
        kept = [
            layer_activation(model.layers[index], s, strategy.recompute, position)
            for chunk in chunks
            for position, index in enumerate(chunk)
        ]
        outside = sum(part.activation for part in ends)
        batch = strategy.micro_batch_size if self.terms.per_micro_batch_accumulation else 1
        saving = primus_accumulation_saving(
            accumulation=float(workload.global_batch_size // (batch * shards)), pp=float(strategy.pp)
        )
        penalty = primus_interleaving_penalty(pp=float(strategy.pp), vpp=float(strategy.vpp))
        interleaved = strategy.vpp > 1 or self.terms.penalty_without_interleaving
        scale = {"pp": float(strategy.pp), "penalty": penalty if interleaved else 1.0, "saving": saving}
        if self.terms.recompute_working_memory and replays_all(strategy.recompute):
            working = max(layer_component(layer, s).activation for layer in model.layer_kinds)
            return float(primus_total_activation(base=sum(kept), **scale)) + working + outside
        return float(primus_total_activation(base=sum(kept) + outside, **scale))

    def _notes(self, model: Model, strategy: Strategy, s: Sizes) -> tuple[Note, ...]:
        counted = count_parameters(model).total
        text = _PARAMETERS.format(vocab=s.vocab, name=model.name, counted=counted)
        parts = Note(topic="components", text="; ".join(_listed(model, s)))
        found = [parts, Note(topic="parameters", text=text), Note(topic="memory", text=_MEMORY)]
        if self.terms.penalty_without_interleaving:
            found.append(Note(topic="activations", text=_DOCUMENTED))
        if strategy.recompute.granularity == "selective":
            found.append(Note(topic="recompute", text=_SELECTIVE))
        return tuple(found)


def _listed(model: Model, s: Sizes) -> Iterator[str]:
    """Yield every component as Primus's component-wise output has it: parameters on a rank, bytes of a micro-batch."""
    parts: dict[str, Component] = {**first_components(s)}
    for layer in model.layer_kinds:
        kind = "moe" if isinstance(layer.ffn, MoeFfn) else "dense"
        parts[f"{kind}_transformer_layer"] = layer_component(layer, s)
        parts |= {f"{kind} {name}": part for name, part in layer_components(layer, s).items()}
    for name, part in {**parts, **last_components(s)}.items():
        yield f"{name} {part.parameters / 1e9:.3f} B, {part.activation / GIB:.4f} GiB"


def layer_activation(layer: Layer, s: Sizes, recompute: Recompute, position: int) -> float:
    """Return bytes that one layer at `position` of its virtual stage keeps: sbh alone where it is replayed."""
    limit = recompute.num_layers
    if recompute.granularity == "full" and (limit is None or position < limit):
        return s.hidden_state
    return layer_component(layer, s, selective=recompute.granularity == "selective").activation


def replays_all(recompute: Recompute) -> bool:
    """Whether every layer is replayed."""
    return recompute.granularity == "full" and recompute.num_layers is None


def layer_chunks(model: Model, strategy: Strategy) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return, per rank and virtual stage, the layers: rank r has stages r, r + PP, ..., remainder on the first."""
    given, pp = strategy.stage_layers, strategy.pp
    if given is None:
        chunks = layers_per_chunk(model.num_layers, pp * strategy.vpp, spare_ends=False)
    else:
        chunks = given_chunks(model, given, tuple(range(pp)) * (len(given) // pp))
    return tuple(chunks[rank::pp] for rank in range(pp))


def _ends(s: Sizes, *, first: bool, last: bool) -> tuple[Component, ...]:
    return (
        *(first_components(s).values() if first else ()),
        *(last_components(s).values() if last else ()),
    )


PRIMUS = PrimusPreset(name="primus", source=f"{DOCUMENT} (2026), formulas and example", terms=DOCUMENTED)
PRIMUS_2026 = PrimusPreset(
    name="primus-2026",
    source="AMD-AGI/Primus @fd1eeabb (2026-08-22), memory projection",
    terms=SOURCE_2026_08,
    all_reduce=pipelined_all_reduce,
)

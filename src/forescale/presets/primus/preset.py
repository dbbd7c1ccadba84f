"""Primus's analytical memory projection, as documented and as its source has it today."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from forescale.formula import total
from forescale.graph.counts import count_parameters
from forescale.graph.stages import given_chunks, layers_per_chunk
from forescale.numeric import Numeric
from forescale.presets.preset import Account, Preset, StageBytes, memory_projection, recorded
from forescale.presets.primus.communication import (
    AllReduce,
    Network,
    communication_notes,
    documented_all_reduce,
    gradient_traffic,
    pipelined_all_reduce,
)
from forescale.presets.primus.components import (
    BF16,
    DOCUMENT,
    REPEATED,
    Component,
    Sizes,
    Terms,
    first_components,
    kept_by_component,
    last_components,
    layer_component,
    layer_components,
    primus_accumulation_saving,
    primus_interleaving_penalty,
    primus_total_activation,
    sizes,
)
from forescale.projection.components import CollectiveTime, ComponentBytes
from forescale.projection.result import Projection
from forescale.question import Note, Question
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout, Recompute
from forescale.spec.model import DenseFfn, Layer, Model, MoeFfn
from forescale.spec.workload import Workload

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


class PrimusPreset(Preset, frozen=True, kw_only=True):
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

    def stages(self, question: Question) -> Sequence[StageBytes]:
        """Return bytes by stage."""
        return self.account(*question.parts).stages

    def account(self, model: Model, cluster: Cluster, layout: Layout, workload: Workload) -> Account:
        """Return bytes by stage, the total that Primus prints, and remarks."""
        s = self.sizes(model, layout, workload)
        chunks = layer_chunks(model, layout)
        stages = tuple(
            self._stage(model, cluster, layout, workload, s, chunks, rank) for rank in range(layout.pp)
        )
        whole = self.sizes(model, Layout(), workload)
        ends = _ends(s, first=True, last=layout.pp == 1)
        elements = sum(layer_component(layer, whole).parameters for layer in model.layers)
        elements += sum(part.parameters for part in ends.values())
        return Account(
            stages=stages,
            total_parameters=elements,
            complete=False,
            notes=(
                *self._notes(model, layout, s),
                *communication_notes(model, layout, workload, Network.from_cluster(cluster), self.all_reduce),
            ),
        )

    def components(self, question: Question) -> tuple[ComponentBytes, ...]:
        """Return the components as Primus's component-wise output lists them: on a rank, of one micro-batch.

        It lists a dense layer of every model, one that has none included.
        """
        model, _, layout, workload = question.parts
        s = self.sizes(model, layout, workload)
        layers = {isinstance(kind.ffn, MoeFfn): kind for kind in reversed(model.layer_kinds)}
        if False not in layers and isinstance(routed := layers[True].ffn, MoeFfn):
            dense = DenseFfn(ffn_hidden_size=routed.ffn_hidden_size, gated=routed.gated)
            layers[False] = replace(layers[True], ffn=dense)
        count = sum(isinstance(layer.ffn, MoeFfn) for layer in model.layers)
        times = {True: count, False: model.num_layers - count}
        return (
            *(_listed(name, part) for name, part in first_components(s).items()),
            *(_layer(layers[routed], s, times[routed]) for routed in sorted(layers)),
            *(_listed(name, part) for name, part in last_components(s).items()),
        )

    def collectives(self, question: Question) -> tuple[CollectiveTime, ...]:
        """Return the gradient all-reduce of a step; the time of the all-to-all is measured, not computed."""
        model, cluster, layout, _ = question.parts
        network = Network.from_cluster(cluster)
        if network is None or layout.dp == 1:
            return ()
        traffic = gradient_traffic(model, layout, network, self.all_reduce)
        parts = (
            (
                "gradient_allreduce, experts",
                traffic.expert_bytes,
                traffic.expert_s,
                round(traffic.expert_replicas),
            ),
            ("gradient_allreduce, others", traffic.other_bytes, traffic.other_s, layout.dp),
        )
        return tuple(
            CollectiveTime(
                part="data_comm", name=name, num_bytes=size, num_ranks=ranks, seconds=seconds, calls=1.0
            )
            for name, size, seconds, ranks in parts
            if size
        )

    def sizes(self, model: Model, layout: Layout, workload: Workload) -> Sizes:
        """Return what the formulas need of one layout."""
        vocab = self.vocab_size
        if vocab is None:
            multiple = model.vocab_multiple * layout.tp
            vocab = -(-model.vocab_size // multiple) * multiple
        return sizes(model, layout, workload, terms=self.terms, vocab_size=vocab)

    def _stage(
        self,
        model: Model,
        cluster: Cluster,
        layout: Layout,
        workload: Workload,
        s: Sizes,
        chunks: tuple[tuple[tuple[int, ...], ...], ...],
        rank: int,
    ) -> StageBytes:
        local = chunks[rank]
        ends = _ends(s, first=rank == 0, last=rank == layout.pp - 1)
        layers = [layer_component(model.layers[index], s) for chunk in local for index in chunk]
        shards = cluster.num_devices / (layout.ep * layout.pp)  # ranks of tp and cp count as replicas
        sizes = recorded(
            parameters=sum(part.parameters for part in (*layers, *ends.values())),
            bytes_per_parameter=BF16,
            optimizer_bytes=_OPTIMIZER_BYTES.get(workload.optimizer, _ADAM_BYTES),
            shards=max(1.0, shards) if layout.zero else 1.0,
        )
        states = sizes["parameters"] * sizes["bytes_per_parameter"]
        return StageBytes(
            num_layers=len(layers),
            parameters=sizes["parameters"],
            weights=states,
            gradients=states,
            optimizer=sizes["parameters"] * sizes["optimizer_bytes"] / sizes["shards"],
            activations=self._activations(model, layout, workload, s, local, ends, shards),
        )

    def _activations(
        self,
        model: Model,
        layout: Layout,
        workload: Workload,
        s: Sizes,
        chunks: tuple[tuple[int, ...], ...],
        ends: Mapping[str, Component],
        shards: float,
    ) -> Numeric:
        kept = _kept(model, s, layout.recompute, chunks)
        outside = total(
            recorded(**{name: part.activation for name, part in ends.items()}), name="outside", unit="byte"
        )
        batch = layout.micro_batch_size if self.terms.per_micro_batch_accumulation else 1
        saving = primus_accumulation_saving(
            accumulation=float(workload.global_batch_size // (batch * shards)), pp=float(layout.pp)
        )
        scale = recorded(pp=layout.pp, penalty=1.0, saving=float(saving))
        if layout.vpp > 1 or self.terms.penalty_without_interleaving:
            scale["penalty"] = primus_interleaving_penalty(pp=scale["pp"], **recorded(vpp=layout.vpp))
        if self.terms.recompute_working_memory and replays_all(layout.recompute):
            working = recorded(
                working=max(layer_component(layer, s).activation for layer in model.layer_kinds)
            )
            value: Numeric = primus_total_activation(base=kept, **scale) + working["working"] + outside
            return value
        return primus_total_activation(base=kept + outside, **scale)

    def _notes(self, model: Model, layout: Layout, s: Sizes) -> tuple[Note, ...]:
        counted = count_parameters(model).total
        text = _PARAMETERS.format(vocab=s.vocab, name=model.name, counted=counted)
        result = [Note(topic="parameters", text=text), Note(topic="memory", text=_MEMORY)]
        if self.terms.penalty_without_interleaving:
            result.append(Note(topic="activations", text=_DOCUMENTED))
        if layout.recompute.granularity == "selective":
            result.append(Note(topic="recompute", text=_SELECTIVE))
        return tuple(result)


def _listed(name: str, part: Component, times: int = 1) -> ComponentBytes:
    return ComponentBytes(
        name=name, parameters=round(part.parameters), kept_bytes=round(part.activation), times=times
    )


def _layer(layer: Layer, s: Sizes, times: int) -> ComponentBytes:
    """Return a layer with its components; norms and residual additions are listed once each."""
    kind = "moe" if isinstance(layer.ffn, MoeFfn) else "dense"
    whole = _listed(f"{kind}_transformer_layer", layer_component(layer, s), times)
    below = tuple(
        _listed(name, part, REPEATED.get(name, 1)) for name, part in layer_components(layer, s).items()
    )
    return replace(whole, below=below)


def _kept(model: Model, s: Sizes, recompute: Recompute, chunks: tuple[tuple[int, ...], ...]) -> Numeric:
    """Return what the layers of a rank keep of one micro-batch: sbh alone of those that are replayed."""
    full, limit = recompute.granularity == "full", recompute.num_layers
    kinds = Counter(
        (model.layers[index], full and (limit is None or position < limit))
        for chunk in chunks
        for position, index in enumerate(chunk)
    )
    parts: dict[str, Numeric] = {}
    for place, ((layer, replayed), count) in enumerate(kinds.items(), start=1):
        selective = recompute.granularity == "selective"
        kept = {"input": s.hidden_state} if replayed else kept_by_component(layer, s, selective=selective)
        one = total(recorded(**kept), name="one layer", unit="byte")
        parts[f"layers of kind {place}"] = recorded(layers=count)["layers"] * one
    return total(parts, name="layers", unit="byte")


def replays_all(recompute: Recompute) -> bool:
    """Whether every layer is replayed."""
    return recompute.granularity == "full" and recompute.num_layers is None


def layer_chunks(model: Model, layout: Layout) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return, per rank and virtual stage, the layers: rank r has stages r, r + PP, ..., remainder on the first."""
    stage_layers, pp = layout.stage_layers, layout.pp
    if stage_layers is None:
        chunks = layers_per_chunk(model.num_layers, pp * layout.vpp, spare_ends=False)
    else:
        chunks = given_chunks(model, stage_layers, tuple(range(pp)) * (len(stage_layers) // pp))
    return tuple(chunks[rank::pp] for rank in range(pp))


def _ends(s: Sizes, *, first: bool, last: bool) -> dict[str, Component]:
    return {**(first_components(s) if first else {}), **(last_components(s) if last else {})}


PRIMUS = PrimusPreset(name="primus", source=f"{DOCUMENT} (2026), formulas and example", terms=DOCUMENTED)
PRIMUS_2026 = PrimusPreset(
    name="primus-2026",
    source="AMD-AGI/Primus @fd1eeabb (2026-08-22), memory projection",
    terms=SOURCE_2026_08,
    all_reduce=pipelined_all_reduce,
)

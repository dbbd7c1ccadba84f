"""Which layers of a model go on which pipeline stage, by what they cost in one layout.

The costs of layers, embedding, head and multi-token prediction are those of the projection; the cut is the exact
one of `forescale.schedule.optimise.partition`. The layout it gives is projected beside the even one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter

import numpy as np
from msgspec.structs import replace

from forescale.errors import wrong_count
from forescale.formula import number_of
from forescale.graph.recompute import NO_RECOMPUTE
from forescale.graph.stages import virtual_stages
from forescale.inputs import Prepared, prepare
from forescale.memory.inputs import EvalContext
from forescale.memory.parameters import NO_ELEMENTS, BlockParameters, Elements, head_copies, second_embedding
from forescale.memory.states import weights_and_updates
from forescale.numeric import Array, Numeric
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.repr import ReprMixin
from forescale.schedule.optimise.partition import Layer, Partition, partition_layers
from forescale.spec.layout import Layout, Recompute
from forescale.spec.model import Model
from forescale.struct import Struct
from forescale.time.blocks import BlockSeconds
from forescale.time.pipeline import Simulated
from forescale.time.step import Inputs
from forescale.units import counted

FULL = Recompute(granularity="full")


class Partitioned(ReprMixin, Struct, frozen=True, kw_only=True):
    """The cut, and what it changes."""

    partition: Partition
    """Its layers are the embedding, the decoder's, and the head with multi-token prediction."""
    strategy: Layout
    """The layout with `stage_layers`, and recompute by layer where stages do not fit without."""
    projection: Projection
    even: Projection
    """The layout as it was given."""


def partition_stages(question: Question, measured: Array | None = None) -> Partitioned:
    """Return the layers of every virtual stage that make the slowest as fast as can be, within memory.

    States and kept activations may take what buffers, overhead and a block at work leave of the device, equal
    parts of it where a rank has several stages. Where the layout recomputes nothing, the layers that a full
    stage has to recompute are chosen too. A layout that fits and is as fast as it was given stays as it is.

    Parameters
    ----------
    question
        Of one layout. Recompute that is assumed, or of some layers alone, is chosen anew.
    measured
        Seconds of a micro-batch on every virtual stage of the layout, as measured; (num_stages,). Every layer then
        counts as much as its stage took, in the proportions of the projection, and the slowest stage decides.

    Raises
    ------
    SpecError
        If the layout is illegal, or something else was measured.
    ScheduleError
        If there are fewer layers than stages, or no cut fits the memory.
    """
    if "recompute" in question.assumed or not question.layout.recompute.takes_all:
        question = question.with_layout(replace(question.layout, recompute=NO_RECOMPUTE))
    prepared = prepare(question)
    even, inputs, layout = project(question), prepared.inputs, question.layout
    ranks, in_flight = _in_flight(prepared)
    layers = _layers(prepared)
    if measured is not None:
        layers = _as_measured(question, layers, ranks, measured)
    room = question.cluster.device.hbm_bytes - _beside(even, inputs)
    share = len(ranks) / (max(ranks) + 1)
    result = partition_layers(
        layers, len(ranks), in_flight=[float(in_flight[rank]) for rank in ranks], memory_limit=room / share
    )
    selected = _strategy(question.model, layout, result)
    cut = project(question.with_layout(selected))
    fits = even.memory.peak_bytes <= question.cluster.device.hbm_bytes
    slower = (
        even.step_time_s <= cut.step_time_s if measured is None else float(measured.max()) <= result.longest
    )
    if fits and slower:
        selected, cut = layout, even
    return Partitioned(partition=result, strategy=selected, projection=cut, even=even)


def _as_measured(
    question: Question, layers: Sequence[Layer], ranks: tuple[int, ...], measured: Array
) -> list[Layer]:
    """Return the layers with times that add up to those of the stages that they were on."""
    if measured.shape != (len(ranks),):
        raise wrong_count("the measurement", counted(len(measured), "stage"), "the layout", len(ranks))
    plan = virtual_stages(question.model, ranks, stage_layers=question.layout.stage_layers)
    ends = 1 + np.cumsum(plan.num_layers).astype(int)
    bounds = [0, *ends[:-1].tolist(), len(layers)]
    result: list[Layer] = []
    for (low, high), seconds in zip(pairwise(bounds), measured.tolist(), strict=True):
        factor = seconds / sum(layer.time for layer in layers[low:high])
        result += [
            replace(
                layer,
                forward=factor * layer.forward,
                input_grad=factor * layer.input_grad,
                weight_grad=factor * layer.weight_grad,
            )
            for layer in layers[low:high]
        ]
    return result


def _in_flight(prepared: Prepared) -> tuple[tuple[int, ...], list[float]]:
    """Return the rank of every virtual stage, and the micro-batches each rank holds at once."""
    layout, inputs, pipeline = prepared.question.layout, prepared.inputs, prepared.inputs.pipeline
    count = prepared.setting.num_microbatches(inputs.degrees)
    share = np.asarray(pipeline.in_flight.shares(inputs.degrees, inputs.stages, count))[:, 0].tolist()
    if isinstance(pipeline, Simulated):
        return pipeline.rank_of_stage[: pipeline.compiled.schedule.num_stages], share
    return tuple(range(layout.pp)) * layout.vpp, share


class _Present(Struct, frozen=True, kw_only=True):
    """So many of a block: as the layout has it, its bytes recomputed in full, and its parameters."""

    number: float = 1.0
    seconds: BlockSeconds
    kept: Numeric
    least: Numeric
    holding: BlockParameters


def _layers(prepared: Prepared) -> list[Layer]:
    """Return the embedding, the decoder's layers, and the head with multi-token prediction."""
    setting, inputs = prepared.setting, prepared.inputs
    model, recompute = setting.model, setting.choices.recompute
    kept, again = inputs.block_parameters, prepared.priced.under(FULL).bytes
    now = inputs.seconds.zipped(inputs.blocks, lambda seconds, local: (seconds.replayed, local.replayed.kept))

    def layer(present: Sequence[_Present], name: str, beside: float = 0.0) -> Layer:
        states = _states(setting, inputs, present, beside)
        return _layer(present, states, name, choosing=recompute.granularity == "none")

    def present(
        block_seconds: tuple[BlockSeconds, Numeric], holding: BlockParameters, number: float = 1.0
    ) -> _Present:
        return _Present(
            number=number,
            seconds=block_seconds[0],
            kept=block_seconds[1],
            least=block_seconds[1],
            holding=holding,
        )

    kinds = [
        layer([replace(present(local, holding), least=full.replayed.kept)], "layer")
        for local, full, holding in zip(now.layers, again.layers, kept.layers, strict=True)
    ]
    last, again_embedded = [present(now.head, kept.head)], 0.0
    if now.mtp is not None and kept.mtp is not None:
        last.append(present(now.mtp, kept.mtp, float(model.num_mtp_layers)))
        apart = second_embedding(first=inputs.stages.first, last=inputs.stages.last)
        again_embedded = float(np.max(apart))
    tower = zip(now.vision, kept.vision, strict=True)
    first = [present(local, holding, float(times)) for (times, local), (_, holding) in tower]
    embedding = layer([present(now.embedding, kept.embedding), *first], "embedding")
    decoder = [kinds[model.layer_kinds.index(layer)] for layer in model.layers]
    return [embedding, *decoder, layer(last, "head", again_embedded)]


def _layer(present: Sequence[_Present], states: float, name: str, *, choosing: bool) -> Layer:
    def summed(get: Callable[[_Present], Numeric]) -> float:
        return sum(item.number * number_of(get(item)) for item in present)

    kept, weight = summed(lambda local: local.kept), summed(lambda local: local.seconds.weight)
    return Layer(
        forward=summed(lambda local: local.seconds.forward),
        input_grad=summed(lambda local: local.seconds.backward) - weight,
        weight_grad=weight,
        activation=kept,
        recomputed_activation=summed(lambda local: local.least) if choosing else kept,
        state=states,
        name=name,
    )


def _states(setting: EvalContext, inputs: Inputs, present: Sequence[_Present], beside: float) -> float:
    """Return the bytes of the states of some blocks, and of `beside` more embeddings, on one device."""
    copies = number_of(head_copies(pp=inputs.degrees.pp, tied=setting.model.tied_embeddings))

    def summed(of: Callable[[BlockParameters], Elements | None]) -> Elements:
        kept = [(item.number, of(item.holding) or NO_ELEMENTS) for item in present]
        if beside:
            kept.append((beside, of(inputs.block_parameters.embedding) or NO_ELEMENTS))
        return Elements(
            dense=sum(
                number * (number_of(local.dense) + copies * number_of(local.vocabulary))
                for number, local in kept
            ),
            expert=sum(number * number_of(local.expert) for number, local in kept),
        )

    trained, frozen, quantised = map(summed, map(attrgetter, ("trained", "frozen", "quantised")))
    sharded = replace(inputs, trained=trained, frozen=frozen, quantised=quantised)
    return number_of(weights_and_updates(setting, sharded).total())


def _beside(even: Projection, inputs: Inputs) -> float:
    """Return what a rank of the even layout needs at most beside states and kept activations."""
    names = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")
    stages = even.memory.stages
    standing = max(stage.peak_bytes - sum(getattr(stage, name) for name in names) for stage in stages)
    active = max(
        number_of(np.maximum(item.replayed.forward, item.replayed.backward) - item.replayed.kept)
        for item in inputs.blocks.all()
    )
    return float(standing + active)


def _strategy(model: Model, layout: Layout, partition: Partition) -> Layout:
    """Return the layout with the partition's layers, and the recompute that it chose."""
    most = model.num_layers
    counts = [min(high - 1, most) - max(low - 1, 0) for low, high in pairwise(partition.bounds)]
    layers = tuple(max(0, count) for count in counts)
    again = tuple(item - 1 for stage in partition.recomputed for item in stage if 0 < item <= most)
    selected = replace(layout, stage_layers=layers)
    if again:
        selected = replace(selected, recompute=replace(FULL, layer_ids=again))
    return selected

"""The one builder of what `evaluate` takes: every answer to a question is made of these.

Each function takes the whole `Question`, so none can price with other costs, or forget a limit. They hold for one
layout, whose degrees are numbers, for arrays of candidates, and for the recorded degrees of an explanation alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from msgspec.structs import replace

from forescale.arrays import np
from forescale.cost.calibration import RunFactors
from forescale.cost.mesh import AXES, Group, Inside, Order, groups, order_of
from forescale.cost.model import TRACED
from forescale.cost.run_calibration import usual_software
from forescale.errors import unsupported_by
from forescale.formula import Term
from forescale.graph.layer import block_name
from forescale.graph.ops import MeshAxis
from forescale.graph.per_block import PerBlock, RecomputeSplit
from forescale.graph.sharding import Degrees, StructuralOptions, split_layout
from forescale.graph.stages import StagePlan, even_stage_layers, stack_plans
from forescale.memory.in_flight import InFlight
from forescale.memory.inputs import EvalContext, MemoryInputs, StateBytes
from forescale.memory.liveness import BlockBytes
from forescale.memory.outside import Places, outside_bytes
from forescale.memory.overhead import Outside
from forescale.memory.parameters import Sharded
from forescale.memory.peak import Footprint, footprint, memory_summary
from forescale.memory.states import state_bytes
from forescale.numeric import Integers, mapped, taking
from forescale.projection.result import MemorySummary
from forescale.question import Question
from forescale.schedule.legality import LEGALITY
from forescale.spec.constraints import check
from forescale.spec.context import CONTEXT_KINDS, inner_ranks
from forescale.spec.dispatchers import DISPATCHERS
from forescale.spec.groups import group_of
from forescale.spec.layout import Layout, settled
from forescale.spec.model import Model
from forescale.spec.traced_constraints import SPLITS, has_only_adapters, splits_blocks
from forescale.spec.workload import STORAGE_BYTES, Workload, frozen_storage
from forescale.struct import Struct
from forescale.time.blocks import BlockCosts, PricedModel, price_model
from forescale.time.data_parallel import DataTraffic, data_traffic, free_traffic
from forescale.time.pipeline import Pipeline, lay_out
from forescale.time.price import Pricing, TimeSources, time_sources
from forescale.time.step import Inputs, Microbatch, depends_on_count, microbatch_seconds

KEPT = 32
"""Prepared layouts that are kept: whether one fits, its projection, pictures and explanation ask for the same."""
KEPT_RECORDED = 4
"""Of those whose terms are recorded, which are some megabytes each."""
RECORDED = "transformers"
"""Library whose model classes are recorded."""


class Evaluated(Struct, frozen=True, kw_only=True, dict=True, eq=False):
    """What is worked out once of a layout, for all batches that change nothing of it."""

    setting: EvalContext
    inputs: Inputs
    plan: StagePlan
    priced: PricedModel

    @cached_property
    def footprint(self) -> Footprint:
        """The memory of the layout."""
        return footprint(self.setting, self.inputs)

    @cached_property
    def memory(self) -> MemorySummary:
        """The fullest device against its capacity, and every stage."""
        return memory_summary(self.setting, self.plan, self.footprint)

    @cached_property
    def microbatch(self) -> Microbatch | None:
        """What one micro-batch takes; None where that depends on how many there are."""
        return None if depends_on_count(self.setting) else microbatch_seconds(self.setting, self.inputs)

    @cached_property
    def sources(self) -> TimeSources:
        """Where the seconds come from."""
        num_mtp = self.setting.model.num_mtp_layers
        return time_sources(self.priced.priced, self.plan, num_mtp=num_mtp)


class Prepared(Struct, frozen=True, kw_only=True):
    """One legal layout, ready to be evaluated."""

    question: Question
    """With everything that its layout leaves to the cluster."""
    plan: StagePlan
    setting: EvalContext
    inputs: Inputs
    priced: PricedModel
    """The operators behind the inputs, under any recompute policy."""
    known: Evaluated
    """What other batches of the layout share."""


def prepare(question: Question, *, recorded: bool = False) -> Prepared:
    """Return the layout of a question with its priced blocks; that of one site where sites train by themselves.

    Parameters
    ----------
    recorded
        Whether degrees, places and stages are terms that remember what is made of them.

    Raises
    ------
    SpecError
        If the question has no layout, or an illegal one; the message names every violated constraint.
    """
    ready = (_recorded if recorded else _ready)(question.site, recorded)
    return replace(ready, question=replace(ready.question, notes=question.notes, assumed=question.assumed))


@lru_cache(maxsize=KEPT)
def _ready(question: Question, recorded: bool) -> Prepared:
    workload = question.workload
    check(question.model, question.cluster, question.layout, workload, LEGALITY)
    batch = workload.global_batch_size if recorded else saturating_batch(question.layout, workload)
    make = _prepared.__wrapped__ if recorded else _prepared
    request, known = make(_without_batch(question, batch), recorded)
    run = {"global_batch_size": workload.global_batch_size, "tokens": workload.tokens}
    model, workload = request.model, replace(request.workload, **run)
    return Prepared(
        question=replace(question, model=model, workload=workload, strategy=request.strategy),
        plan=known.plan,
        setting=replace(known.setting, workload=workload),
        inputs=known.inputs,
        priced=known.priced,
        known=known,
    )


_recorded = lru_cache(maxsize=KEPT_RECORDED)(_ready.__wrapped__)


def saturating_batch(layout: Layout, workload: Workload) -> int:
    """Return the least batch of which a layout holds as much as of the one asked about, and takes as long for each.

    Ranks hold no more of further rounds of micro-batches, but for schedules that are counted as they run, and for
    frameworks that keep a buffer for each.
    """
    batch, one = workload.global_batch_size, layout.dp * layout.micro_batch_size
    kernels = layout.kernels
    if layout.schedule is not None or kernels.receives_ahead or batch % one:
        return batch
    group = group_of(layout)
    least = 2 * (layout.pp + (group or layout.pp)) + kernels.deferred_head_gradients + 2
    further = batch // one - least
    return batch if further <= 0 else (least + (further % group if group else 0)) * one


def _without_batch(question: Question, batch: int) -> Question:
    """Return the same question of a batch, without what no layout depends on."""
    work = replace(question.workload, global_batch_size=batch, tokens=None)
    return Question(
        model=question.model,
        cluster=question.cluster,
        workload=work,
        strategy=question.strategy,
        framework=question.framework,
        costs=question.costs,
    )


@lru_cache(maxsize=KEPT)
def _prepared(question: Question, recorded: bool) -> tuple[Question, Evaluated]:
    question = with_high_precision_layers(recorded_question(question))
    model, cluster, workload = question.model, question.cluster, question.workload
    layout = with_dealt_layers(question, settled(question.layout, cluster.domain))
    degrees, choices = split_layout(layout, domain=cluster.domain)
    plan, pipeline = lay_out(model, layout, workload)
    order = order_of(layout)
    if recorded:
        degrees, order = recorded_degrees(degrees), _recorded_order(order)
    setting, pricing = setting_of(question, choices), pricing_of(question, degrees, choices, order)
    built = price_model(model, setting.sharding(degrees), pricing)
    stages = stack_plans([plan]) if recorded else plan.alone
    if recorded:
        stages = stages.recorded([layer.block.name for layer in built.priced.layers])
    sharded = Sharded.from_model(model, built.block_parameters, stages, degrees)
    ready = unpriced(
        setting,
        sharded,
        traffic=data_traffic(setting, sharded, pricing),
        pricing=pricing,
        pipeline=pipeline,
    )
    inputs = ready.under(setting, built.under(choices.recompute))
    known = Evaluated(setting=setting, inputs=inputs, plan=plan, priced=built)
    return question.with_layout(layout), known


def with_dealt_layers(question: Question, layout: Layout) -> Layout:
    """Return a layout with its evenly dealt layers as `stage_layers` where its framework would deal them otherwise.

    A framework completes a layout that has no `stage_layers`; this one means the same to whoever reads it.
    """
    framework, model = question.framework, question.model
    if framework is None or layout.stage_layers is not None or layout.pp == 1:
        return layout
    dealt, _ = framework.applied(layout, question.workload, model, question.cluster)
    if dealt.stage_layers is None:
        return layout
    return replace(layout, stage_layers=even_stage_layers(model.num_layers, layout.pp, layout.vpp))


def with_high_precision_layers(question: Question) -> Question:
    """Return a question whose model marks the layers at its ends that an 8- or 4-bit recipe leaves alone."""
    types, model = question.workload.precision, question.model
    first, last = types.num_layers_at_start_in_bf16, model.num_layers - types.num_layers_at_end_in_bf16
    if not types.is_narrow or (first == 0 and last == model.num_layers):
        return question
    layers = tuple(
        replace(layer, high_precision=True) if place < first or place >= last else layer
        for place, layer in enumerate(model.layers)
    )
    return replace(question, model=replace(model, layers=layers))


def recorded_question(question: Question) -> Question:
    """Return a question whose model has the operators that its own code runs in eager PyTorch.

    It is the same question where they were not recorded, or cannot describe the layout.
    """
    layout = question.layout
    if layout.recompute.granularity not in ("none", "full") or layout.offload.activations:
        _check_trained(question)
        return question
    recorded = recorded_blocks(question, layout)
    legal = all(splits_blocks(recorded.model, layout, axis) for axis in SPLITS if recorded.model.traces)
    return recorded if legal and 1 in (layout.tp, layout.ep) else question


def recorded_blocks(question: Question, layout: Layout) -> Question:
    """Return the same, for layouts of recorded splits that share the choices of one layout.

    Raises
    ------
    SpecError
        If the sequence length is outside of the valid range of a trace that cannot be made again, or the operators are
        not known of what is trained.
    """
    result = _recorded_blocks(question, layout)
    _check_trained(result)
    for trace in result.model.traces:
        trace.check_seq_len(question.workload.seq_len, question.model.name)
    return result


def _check_trained(question: Question) -> None:
    """Refuse a part of a traced model to be trained where its operators are those of training all of it."""
    traces = question.model.traces
    if question.workload.trainable.is_all or all(trace.has_frozen for trace in traces):
        return
    fix = (
        "give adapters of linear layers alone, 16-bit products, no activations on the host, and no documents"
    )
    model = f"{question.model.name} (a model of recorded operators)"
    raise unsupported_by(model, "these adapters, or parts that are not trained", fix)


def _recorded_blocks(question: Question, layout: Layout) -> Question:
    framework, workload, model = question.framework, question.workload, question.model
    kernels = layout.kernels
    is_eager = (
        framework is not None
        and framework.model_code == RECORDED
        and kernels.cross_entropy in ("eager", "fused_linear")
        and not kernels.fused
    )
    if not (is_eager or model.traces) or question.costs.anchor is not None:
        return question
    if not _is_plain(workload) or _is_wrapped(model):
        return question
    from forescale.graph.compiled import compiled_model
    from forescale.graph.dealing import deals_experts, with_whole_experts
    from forescale.graph.recorded import recorded_model

    attention = "sdpa" if layout.flash_attention else "eager"
    recorded = recorded_model(model, seq_len=workload.seq_len, attention=attention, workload=workload)
    if recorded is None:
        return question
    if is_eager and not deals_experts(recorded):
        recorded = with_whole_experts(recorded)
    if kernels.compile != "none" or usual_software(question.cluster.device) == "xla":
        recorded = compiled_model(recorded)  # XLA fuses as Inductor does
    return replace(question, model=recorded)


def _is_wrapped(model: Model) -> bool:
    """Return whether a model was traced as a module that freezes some of its parameters, or has adapters already."""
    return bool(model.traces) and all(trace.has_frozen for trace in model.traces)


def _is_plain(workload: Workload) -> bool:
    """Return whether a workload has whole sequences in bf16, and trains all weights, or adapters alone in fp16, too."""
    precision, trainable = workload.precision, workload.trainable
    if workload.document_len is not None or not (trainable.is_all or has_only_adapters(trainable)):
        return False
    types = ("bf16",) if trainable.is_all else ("bf16", "fp16")
    return (
        precision.compute in types
        and precision.activations == precision.compute
        and precision.parameters in (precision.compute, "fp32")
        and frozen_storage(precision) in (precision.compute, "fp32")
    )


def setting_of(question: Question, choices: StructuralOptions) -> EvalContext:
    """Return what all candidates of a question that share their choices have in common."""
    return EvalContext(
        model=question.model,
        cluster=question.cluster,
        workload=question.workload,
        choices=choices,
        run=question.costs.run_factors(
            question.cluster.device, software_of(question.model, choices), experts=question.model.is_moe
        ),
        anchor=question.costs.anchor,
    )


def software_of(model: Model, choices: StructuralOptions) -> str | None:
    """Return the software whose losses count; recorded operators are priced one by one whatever the framework."""
    return TRACED[choices.kernels.compile] if model.traces else choices.software


def pricing_of(
    question: Question,
    degrees: Degrees,
    choices: StructuralOptions,
    order: Order,
    *,
    run: RunFactors | None = None,
) -> Pricing:
    """Return what prices candidates whose ranks lie in one order; `run` replaces what the costs say of losses."""
    return pricing_between(question, choices, communicators(degrees, choices, order), run=run)


def communicators(degrees: Degrees, choices: StructuralOptions, order: Order) -> dict[MeshAxis, Group]:
    """Return the communicator of every mesh axis of candidates whose ranks lie in one order."""
    halves = CONTEXT_KINDS[choices.cp_kind].halves
    inner = (
        inner_ranks(cp=degrees.cp, tp=degrees.tp, wanted=choices.cp_inner, domain=choices.domain)
        if halves
        else None
    )
    return groups(degrees, order, choices.tp_kind, cp_inner=inner)


def pricing_between(
    question: Question,
    choices: StructuralOptions,
    communicators: Mapping[MeshAxis, Group],
    *,
    run: RunFactors | None = None,
) -> Pricing:
    """Return what prices candidates with these communicators."""
    routed = question.model.moe if DISPATCHERS[choices.dispatcher].sends_once else None
    row_bytes = 0.0
    if routed is not None:
        width = float(routed.latent_size or question.model.hidden_size)
        row_bytes = width * STORAGE_BYTES[question.workload.precision.activations]
    return Pricing(
        models=question.costs.models(
            question.cluster,
            software_of(question.model, choices),
            experts=question.model.is_moe,
            routed=routed,
            row_bytes=row_bytes,
            dispatcher=choices.dispatcher,
            run=run,
        ),
        groups=communicators,
        graphs=choices.graphs,
        blocking=choices.kernels.blocking_launches,
        deterministic=choices.kernels.deterministic,
    )


class Unpriced(Struct, frozen=True, kw_only=True):
    """What layouts are evaluated from but for the costs of blocks: the same whatever is recomputed."""

    sharded: Sharded
    states: StateBytes
    outside: Outside
    traffic: DataTraffic
    pricing: Pricing
    pipeline: Pipeline

    def take(self, rows: Integers) -> Unpriced:
        """Return the same of some candidates."""
        select = taking(rows)
        return Unpriced(
            sharded=mapped(self.sharded, select),
            states=mapped(self.states, select),
            outside=mapped(self.outside, select),
            traffic=mapped(self.traffic, select),
            pricing=self.pricing.take(rows),
            pipeline=self.pipeline.take(rows),
        )

    def resident(self, setting: EvalContext, blocks: PerBlock[RecomputeSplit[BlockBytes]]) -> MemoryInputs:
        """Return the memory side of what layouts are evaluated from, given the bytes of their blocks."""
        return MemoryInputs(
            **_fields(self.sharded),
            states=self.states,
            outside=self.outside,
            blocks=_corrected(setting, blocks),
            in_flight=self.pipeline.in_flight,
        )

    def under(self, setting: EvalContext, costs: BlockCosts) -> Inputs:
        """Return what layouts are evaluated from, given what their blocks cost."""
        return Inputs(
            **_fields(self.resident(setting, costs.bytes)),
            seconds=costs.seconds,
            traffic=self.traffic,
            pricing=self.pricing,
            pipeline=self.pipeline,
        )


def unpriced(
    setting: EvalContext,
    sharded: Sharded,
    *,
    pricing: Pricing,
    pipeline: Pipeline,
    traffic: DataTraffic | None = None,
    least: StateBytes | None = None,
) -> Unpriced:
    """Return what layouts are evaluated from; for bounds of all ways to shard without `traffic`, and with the `least`.

    These are the bytes of states, and of what stands beside them, that no way goes below, (stages, candidates).
    """
    states, outside = _standing(setting, sharded, pricing, least)
    return Unpriced(
        sharded=sharded,
        states=states,
        outside=outside,
        traffic=free_traffic(sharded.block_parameters) if traffic is None else traffic,
        pricing=pricing,
        pipeline=pipeline,
    )


def resident_of(
    setting: EvalContext,
    sharded: Sharded,
    blocks: PerBlock[RecomputeSplit[BlockBytes]],
    places: Places,
    in_flight: InFlight,
    least: StateBytes | None = None,
) -> MemoryInputs:
    """Return the memory side of the same."""
    states, outside = _standing(setting, sharded, places, least)
    return MemoryInputs(
        **_fields(sharded),
        states=states,
        outside=outside,
        blocks=_corrected(setting, blocks),
        in_flight=in_flight,
    )


def _standing(
    setting: EvalContext, sharded: Sharded, places: Places, least: StateBytes | None
) -> tuple[StateBytes, Outside]:
    """Return the bytes of states, and of what lies outside the allocator."""
    outside = outside_bytes(setting, sharded.degrees, places, every_sharding=least is not None)
    return least or state_bytes(setting, sharded), outside


def _corrected(
    setting: EvalContext, blocks: PerBlock[RecomputeSplit[BlockBytes]]
) -> PerBlock[RecomputeSplit[BlockBytes]]:
    """Return the bytes of layers that keep what such layers were measured to keep, where any were."""
    anchor = setting.anchor
    if anchor is None:
        return blocks
    factors = [
        anchor.corrections[name].factor if (name := block_name(kind)) in anchor.corrections else 1.0
        for kind in setting.model.layer_kinds
    ]
    layers = (
        block.map(lambda item, by=factor: item.corrected(by))  # type: ignore[misc]
        for block, factor in zip(blocks.layers, factors, strict=True)
    )
    return replace(blocks, layers=tuple(layers))


def _fields(value: Sharded) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def recorded_degrees(degrees: Degrees) -> Degrees:
    """Return the degrees of one layout as terms, each by its name."""
    return Degrees(
        **{
            name: Term(np.array([getattr(degrees, name)]), name=name, unit="1")  # type: ignore[arg-type]
            for name in Degrees.__dataclass_fields__
        }
    )


def _recorded_order(order: Order) -> Order:
    """Return an order of ranks whose shares of tiers are recorded."""
    return tuple(
        Inside(
            **{
                axis: Term(np.array([getattr(item, axis)]), name=f"{axis} in tier {tier}", unit="1")  # type: ignore[arg-type]
                for axis in AXES
            }
        )
        if isinstance(item, Inside)
        else item
        for tier, item in enumerate(order)
    )  # type: ignore[return-value]

"""`project`: one layout in, its memory and step time out. Wiring only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from forescale.cost.anchor import Anchor, Measured
from forescale.cost.calibration import Spread
from forescale.cost.provenance import provenance
from forescale.cost.roofline import peak_rate as device_peak_rate
from forescale.cost.run_calibration import FRAMEWORK, Novelty, usual_software
from forescale.cost.select import Costs
from forescale.errors import PhysicsError, SpecError, no_effect
from forescale.evaluate import Evaluation, evaluate
from forescale.formula import number_of, value_of
from forescale.goodput.operations import calendar
from forescale.graph.counts import (
    Convention,
    ModelFlops,
    count_parameters,
    count_saved,
    count_trained,
    flops_by_part,
    model_flops,
)
from forescale.graph.per_block import counted_weight_part
from forescale.inputs import Prepared, prepare
from forescale.memory.notes import memory_notes
from forescale.memory.parameters import NO_ELEMENTS, BlockParameters, Elements
from forescale.memory.states import weights_and_updates
from forescale.numeric import Numeric, numbers, summed
from forescale.projection.estimate import Estimate
from forescale.projection.notes import notes_of
from forescale.projection.result import (
    TIME_PARTS,
    Calendar,
    CostSummary,
    Interval,
    MemorySummary,
    ParameterSummary,
    Projection,
    Restored,
    Sites,
    StageTime,
    TowerSummary,
    days,
    tokens_per_device_second,
    utilisation,
)
from forescale.question import Note, Question, question_of
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout, Routing
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.time.blocks import BlockSeconds
from forescale.time.price import coverage, message_coverage
from forescale.time.straggler import straggler_share
from forescale.units import GIB, counted

if TYPE_CHECKING:
    from forescale.memory.timeline import MemoryTimeline
    from forescale.schedule.measured import MeasuredStep


def project(
    question: Question | Model,
    cluster: Cluster | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    *,
    costs: Costs | None = None,
    stages: MeasuredStep | None = None,
) -> Projection:
    """Project memory and step time of one layout by our own engine; it takes a question, or the parts of one.

    Where `stages` were measured in a run of as many, they take what they took there.

    Raises
    ------
    SpecError
        If the layout is illegal; the message names every violated constraint. Also if a preset is asked:
        `presets.project_as` answers as it does.
    PhysicsError
        If a result breaks a physical law: a defect to report.
    """
    request = question_of(question, cluster, workload, strategy=strategy, costs=costs)
    _check_preset(request)
    result = _projection(prepare(request), stages)
    if request.workload.outer is not None:
        result = _over_sites(request, result)
    return replace(result, workload=request.workload, notes=(*result.notes, *request.notes))


def estimate(question: Question) -> Estimate:
    """Return step time, interval, peak memory and verdict as `project` does, without computing anything else.

    Raises as `project` does.
    """
    _check_preset(question)
    prepared = prepare(question)
    evaluation, memory = _evaluated(prepared), prepared.known.memory
    step = _interval(prepared.question, _time_parts(evaluation), evaluation)
    _check_physics(prepared.question, memory, step.expected, {"HFU": _hfu(prepared.question, evaluation)})
    if question.workload.outer is not None:
        step = _interval_over_sites(question, step)
    return Estimate.from_parts(step, memory, question.notes)


def _check_preset(question: Question) -> None:
    if question.preset != "default":
        reason = f"project is our own engine; presets.project_as answers as {question.preset}"
        raise no_effect("the preset", reason)


def _interval_over_sites(question: Question, one: Interval) -> Interval:
    """Return the step time of all sites from that of one."""
    from forescale.time.outer import step_of_sites

    model, cluster, _, workload = question.parts
    low, expected, high = (
        step_of_sites(model, cluster, workload, item) for item in (one.low, one.expected, one.high)
    )
    return Interval(low=low, expected=expected, high=high)


def _over_sites(question: Question, one: Projection) -> Projection:
    """Return what one of the sites of a question does as all of them do, with what they wait for each other."""
    from forescale.time.outer import utilisation_of, waited_for_sites

    model, cluster, layout, workload = question.parts
    sites, step_time = cluster.num_sites, one.step_time
    step = _interval_over_sites(question, step_time)
    used = utilisation_of(model, cluster, workload, step_time.expected)
    waited = number_of(waited_for_sites(step_time=step_time.expected, utilisation=used))
    ends, endless = _calendar(question, step)
    slower = ("tokens_per_s_per_device", "mfu", "mfu_full_attention", "hfu")
    more = ("model_flops_per_step", "model_flops_full_attention_per_step", "hardware_flops_per_step")
    figures = {name: getattr(one, name) * used for name in slower}
    figures |= {name: getattr(one, name) * sites for name in more}
    summary = _sites(question, one, used)
    return replace(
        one,
        **figures,
        cluster=cluster,
        strategy=layout,
        workload=workload,
        step_time=step,
        time_s={**one.time_s, "data_comm": one.time_s["data_comm"] + waited},
        training_days=_ideal_days(workload, step.expected),
        calendar=ends,
        endless=endless,
        sites=summary,
        notes=(*one.notes, _sites_note(summary, workload)),
    )


def _sites(question: Question, one: Projection, used: float) -> Sites:
    """Return how sites exchange, beside a step in which they reduce gradients over the same link."""
    from forescale.time.outer import OUTER_BYTES, exchanged_bytes

    outer, cluster, trained = question.workload.outer, question.cluster, one.params.trained
    assert outer is not None
    layout = replace(question.layout, axis_order=("tp", "cp", "pp", "dp"), placement=None)
    together = replace(question.with_layout(layout), workload=replace(question.workload, outer=None))
    sent = exchanged_bytes(parameters=trained, bits=outer.bits, num_sites=float(cluster.num_sites))
    kept = OUTER_BYTES * trained if outer.method == "diloco" else 0.0
    return Sites(
        num_sites=cluster.num_sites,
        bandwidth=cluster.tiers[-1].bandwidth * cluster.site.num_devices,
        exchanged_bytes=number_of(sent),
        site_step_s=one.step_time_s,
        utilisation=used,
        host_bytes=kept / cluster.site.num_devices,
        every_step_s=_projection(prepare(together)).step_time_s,
    )


def _sites_note(sites: Sites, workload: Workload) -> Note:
    """Return where training by themselves pays, and what it does to the batch."""
    outer, gain = workload.outer, sites.every_step_s * sites.utilisation / sites.site_step_s
    assert outer is not None
    batch = workload.global_batch_size // sites.num_sites
    pays = f"{gain:,.3g} times as fast as" if gain > 1.0 else "no faster, so it does not pay, than"
    text = (
        f"each of {sites.num_sites} sites takes {counted(outer.every, 'step')} of {counted(batch, 'sequence')} by "
        f"itself between exchanges, {pays} reducing gradients over the link in every step; what that does to the loss "
        "is not projected"
    )
    return Note(topic="sites", text=text)


def memory_timeline(
    question: Question | Model,
    cluster: Cluster | None = None,
    layout: Layout | None = None,
    workload: Workload | None = None,
    *,
    costs: Costs | None = None,
    most_microbatches: int | None = None,
) -> MemoryTimeline:
    """Return memory over one step of one layout, rank by rank, with the peak named.

    It takes a question or its parts, as `project` does, and raises as that does. `most_microbatches` shortens the
    step: (interleaved) 1F1B repeats itself once every rank is busy.
    """
    from forescale.memory.timeline import build_timeline, schedule_of, stage_loads, standing_of_ranks

    prepared = prepare(question_of(question, cluster, workload, strategy=layout, costs=costs))
    request, result = prepared.question, _projection(prepared)
    standing = standing_of_ranks(result, prepared.setting, prepared.inputs)
    count = min(result.num_microbatches, most_microbatches or result.num_microbatches)
    schedule = schedule_of(
        request.layout, count, counted_weight_part(request.model, request.workload.seq_len)
    )
    loads = stage_loads(request.model, request.layout, request.workload, schedule.placement)
    return build_timeline(result, schedule, loads, standing)


def _projection(prepared: Prepared, stages: MeasuredStep | None = None) -> Projection:
    """Return the result value of one layout that is ready to be evaluated."""
    evaluation = _evaluated(prepared)
    if stages is not None:
        evaluation = _as_run(evaluation, prepared, stages)
    result = _summarised(prepared, evaluation)
    _check_physics(
        prepared.question, result.memory, result.step_time_s, {"MFU": result.mfu, "HFU": result.hfu}
    )
    return _sourced(result, prepared)


def _evaluated(prepared: Prepared) -> Evaluation:
    """Return time and memory of a layout, with what other batches of it share."""
    known = prepared.known
    return evaluate(prepared.setting, prepared.inputs, known.microbatch, known.footprint)


def _as_run(evaluation: Evaluation, prepared: Prepared, stages: MeasuredStep) -> Evaluation:
    """Return an evaluation whose stages take what those of a run took."""
    from forescale.time.measured import measured_parts

    parts, forward, backward = measured_parts(
        {name: number_of(seconds) for name, seconds in evaluation.time_parts.items()},
        prepared.question.layout,
        stages,
        num_microbatches=round(number_of(evaluation.num_microbatches)),
        weight_part=counted_weight_part(prepared.question.model, prepared.question.workload.seq_len),
        behind=number_of(straggler_share(prepared.setting.run, prepared.question.cluster)),
    )
    return replace(
        evaluation,
        step_time=sum(parts.values()),
        time_parts=parts,
        stage_forward=forward[:, None],
        stage_backward=backward[:, None],
    )


NOT_COMPILED = "compile has no effect: the operators of this layout were not recorded (docs/trace.md)"
MUCH_WAITING = 0.3
"""Share of a step above which it is said that the device waits for the host."""
WAITS = (
    "the device waits for the host in {share:.0%} of the step: larger micro-batches (--micro-batch-size), less tensor "
    "parallelism (--tp) or CUDA graphs (--graphs) shorten it"
)
PRIORS = (
    "the efficiencies of {device} are priors, not fits: no kernel and no run of it was measured; "
    "forescale bench and forescale calibrate measure yours"
)
"""What is said of devices that nothing was measured of."""


def _sourced(result: Projection, prepared: Prepared) -> Projection:
    """Return the projection with its cost models, and what was not measured where something was."""
    costs, priced = prepared.question.costs, prepared.priced.priced
    sources = prepared.known.sources
    choice, notes = costs.choice, result.notes
    restored = () if costs.anchor is None else _restored(result, prepared, costs.anchor)
    known = costs.anchor if restored else costs.measurements if choice.measured else None
    if known is not None:
        text = coverage(sources, known.source, choice.compute)
        notes = (*notes, Note(topic="measured", text=text))
    if costs.measurements is not None and costs.measurements.collectives:
        notes = (
            *notes,
            Note(
                topic="measured",
                text=message_coverage(priced, prepared.inputs.pricing, experts=result.model.is_moe),
            ),
        )
    if prepared.question.layout.kernels.compile != "none" and not prepared.question.model.traces:
        notes = (*notes, Note(topic="compile", text=NOT_COMPILED))
    if (share := waiting(result.time_s)) > MUCH_WAITING:
        notes = (*notes, Note(topic="host", text=WAITS.format(share=share)))
    device = result.cluster.device
    if provenance(device, costs.kernel_calibration(device), costs.runs).origin == "priors":
        notes = (*notes, Note(topic="calibration", text=PRIORS.format(device=device.name)))
    files = [item for item in (costs.anchor, costs.measurements) if item is not None]
    unsaid = dict.fromkeys(text for file in files for text in file.notes)
    notes = (*notes, *(Note(topic="file", text=text) for text in unsaid))
    if costs.kernels or costs.links:
        local = ", ".join(costs.own_fits(result.cluster)) or f"none of {result.cluster.name}"
        notes = (*notes, Note(topic="calibration", text=f"fits of one's own: {local}"))
    summary = CostSummary(
        compute=f"measured, {choice.compute}" if choice.measured else choice.compute,
        reason=choice.reason,
        calibration=costs.runs.name,
        novelty=novelty_of(prepared.question),
        device_clock_hz=costs.clock_hz,
        time_sources=sources.shares,
        restored=restored,
    )
    return replace(result, costs=summary, notes=notes)


def _restored(result: Projection, prepared: Prepared, anchor: Anchor) -> tuple[Restored, ...]:
    """Return what of a step follows from measured blocks, an update and a whole step."""

    def row(block: str, part: str, there: Measured, seconds: float) -> Restored:
        return Restored(
            block=block,
            part=part,
            measured_s=there.measured_s,
            modelled_s=there.modelled_s,
            ratio=seconds / there.measured_s,
            rule=anchor.rule if part else "model",
            seconds=seconds,
            kind=there.kind_of(seconds),
            source=there.source,
        )

    rows = [
        row(block.block.name, name, there, number_of(block.compute(name)))
        for block in prepared.priced.priced.all()
        for name, there in block.measured.items()
    ]
    whole = 1.0 if anchor.step is None else anchor.step.scale
    if anchor.update is not None:
        rows.append(row("update", "", anchor.update, result.time_s["optimizer"] / whole))
    if anchor.step is not None:
        rows.append(row("step", "", anchor.step, result.step_time_s))
    return tuple(rows)


def _summarised(prepared: Prepared, evaluation: Evaluation) -> Projection:
    """Return what one evaluated layout says of the step and of the whole run."""
    question = prepared.question
    model, cluster, layout, workload = question.parts
    parts = _time_parts(evaluation)
    interval = _interval(question, parts, evaluation)
    step = interval.expected
    flops = flops_of(model, layout.routing, workload)
    per_step, per_step_full = (item * workload.global_batch_size for item in (flops.masked, flops.full))
    hardware, tokens = _hardware_flops(question, evaluation), workload.tokens_per_step
    used = {"peak_rate": peak_rate(cluster, workload), "num_devices": cluster.num_devices, "step_time": step}
    memory = prepared.known.memory
    ends, endless = _calendar(question, interval)
    return Projection(
        model=model,
        cluster=cluster,
        strategy=layout,
        workload=workload,
        preset=question.preset,
        step_time=interval,
        num_microbatches=round(number_of(evaluation.num_microbatches)),
        tokens_per_s_per_device=number_of(
            tokens_per_device_second(tokens=tokens, step_time=step, num_devices=cluster.num_devices)
        ),
        mfu=number_of(utilisation(flops=per_step, **used)),
        mfu_full_attention=number_of(utilisation(flops=per_step_full, **used)),
        hfu=_hfu(question, evaluation),
        model_flops_per_step=per_step,
        model_flops_full_attention_per_step=per_step_full,
        hardware_flops_per_step=hardware,
        params=_parameters(model, workload, evaluation),
        time_s=parts,
        stage_times=_stage_times(evaluation),
        memory=memory,
        training_days=_ideal_days(workload, step),
        calendar=ends,
        endless=endless,
        framework=None if question.framework is None else question.framework.label,
        framework_assumed=question.framework is not None and FRAMEWORK in question.assumed,
        vision=_tower(prepared, per_step),
        notes=(*notes_of(model, layout, workload), *memory_notes(memory, prepared.setting)),
    )


def _time_parts(evaluation: Evaluation) -> dict[str, float]:
    return {part: number_of(evaluation.time_parts.get(part, 0.0)) for part in TIME_PARTS}


def _interval(question: Question, parts: Mapping[str, float], evaluation: Evaluation) -> Interval:
    """Return the step time, of which the seconds by part are given, with its 80 % interval."""
    spread, step = spread_of(question, parts), number_of(evaluation.step_time)
    return Interval(low=spread.low(step), expected=step, high=spread.high(step))


def _hardware_flops(question: Question, evaluation: Evaluation) -> float:
    return number_of(evaluation.flops) * question.layout.num_devices


def _hfu(question: Question, evaluation: Evaluation) -> float:
    """Return the utilisation by all FLOP that kernels execute; MFU is at most that."""
    return number_of(
        utilisation(
            flops=_hardware_flops(question, evaluation),
            peak_rate=peak_rate(question.cluster, question.workload),
            num_devices=question.cluster.num_devices,
            step_time=number_of(evaluation.step_time),
        )
    )


def novelty_of(question: Question, source: str = "") -> Novelty:
    """Return what is new of a question to the published runs; `source` published a run that it asks about."""
    framework = question.framework.name if question.framework else None
    return question.costs.runs.novelty(question.cluster.device, framework, source)


def waiting(parts: Mapping[str, float]) -> float:
    """Return the share of a step, given its seconds by part, in which the device waits for the host."""
    step = math.fsum(parts.values())
    return max(0.0, parts["overhead"]) / step if step else 0.0


def spread_of(
    question: Question, parts: Mapping[str, float], source: str = "", *, left_open: bool = False
) -> Spread:
    """Return ln(measured / projected) of step times, as it was for questions of which as much was new.

    `parts` are the projected seconds. With `left_open` some of what the question says was assumed.
    """
    from forescale.cost.eager import eager_table

    device, runs = question.cluster.device, question.costs.runs
    software = question.layout.software or usual_software(device)
    spread = runs.spread(
        device,
        question.workload.precision.compute,
        moe=question.model.is_moe,
        novelty=novelty_of(question, source),
        left_open=left_open,
        waits=waiting(parts),
        software=None if FRAMEWORK in question.assumed else software,
    )
    if question.model.traces:
        alone = eager_table().spread(device)
        spread = alone if question.cluster.num_devices == 1 else max(alone, spread, key=lambda item: item.p90)
    if device.name in runs.own:
        return spread
    layout = question.layout
    assumed = runs.doubt(question.assumed, layout.software, moe=question.model.is_moe)
    doubt = math.hypot(question.costs.kernel_calibration(device).doubt, assumed)
    return spread.beside(doubt) if doubt else spread


def _calendar(question: Question, step: Interval) -> tuple[Calendar | None, str]:
    """Return days on the calendar, or why there are none."""
    saved = count_saved(question.model, question.workload.trainable)
    try:
        return calendar(saved, question.cluster, question.workload, step, question.operations), ""
    except SpecError as error:
        return None, str(error)


def _ideal_days(workload: Workload, step: float) -> float | None:
    if workload.tokens is None:
        return None
    return number_of(days(total_tokens=workload.tokens, tokens=workload.tokens_per_step, step_time=step))


def _parameters(model: Model, workload: Workload, evaluation: Evaluation) -> ParameterSummary:
    counts = count_parameters(model)
    per_stage = tuple(round(elements) for elements in numbers(value_of(evaluation.parameters)))
    return ParameterSummary(
        total=counts.total,
        active=counts.active,
        trained=count_trained(model, workload.trainable),
        per_device_max=max(per_stage),
        per_stage=per_stage,
    )


def _tower(prepared: Prepared, flops_per_step: float) -> TowerSummary | None:
    """Return a vision tower's share, if there is one; `flops_per_step` are those of the whole model."""
    question, inputs, kept = prepared.question, prepared.inputs, prepared.inputs.block_parameters.vision
    model, workload, images = question.model, question.workload, question.workload.images
    if (vision := model.vision) is None:
        return None
    text = flops_of(model.text, question.layout.routing, workload)

    def of_seconds(get: Callable[[BlockSeconds], Numeric]) -> float:
        return sum(times * number_of(get(item.replayed)) for times, item in inputs.seconds.vision)

    def together(get: Callable[[BlockParameters], Elements | None]) -> Elements:
        kinds = [(float(times), get(item) or NO_ELEMENTS) for times, item in kept]
        return Elements(dense=summed(times * item.dense for times, item in kinds), expert=0.0)

    trained, frozen, quantised = map(together, map(attrgetter, ("trained", "frozen", "quantised")))
    alone = replace(inputs, trained=trained, frozen=frozen, quantised=quantised)
    return TowerSummary(
        parameters=count_parameters(model).vision,
        patches=images.count * vision.num_tiles(images) * vision.patches(images),
        image_tokens=images.count * vision.tokens(images),
        model_flops_per_step=flops_per_step - text.masked * workload.global_batch_size,
        forward_s=of_seconds(attrgetter("forward")),
        backward_s=of_seconds(attrgetter("backward")),
        states_bytes=number_of(weights_and_updates(prepared.setting, alone).total()),
        activations_bytes=sum(
            times * number_of(local.replayed.kept) for times, local in inputs.blocks.vision
        ),
    )


def flops_of(model: Model, routing: Routing, workload: Workload) -> ModelFlops:
    """Return the FLOP of one sequence of a workload."""
    return model_flops(model, workload.seq_len, **_of_sequences(routing, workload))


def parts_of_flops(
    model: Model, routing: Routing, workload: Workload, *, full: bool = False
) -> dict[str, float]:
    """Return the same by part of the model, with every query-key pair counted if `full`."""
    convention: Convention = "full" if full else "masked"
    return flops_by_part(model, workload.seq_len, convention, **_of_sequences(routing, workload))


def _of_sequences(routing: Routing, workload: Workload) -> dict[str, Any]:
    return {
        "routed_share": routing.share,
        "document_len": workload.document_len,
        "trainable": workload.trainable,
        "images": workload.images,
    }


def _check_physics(
    question: Question, memory: MemorySummary, step_time: float, shares: Mapping[str, float]
) -> None:
    """Refuse a result that a physical law forbids: the fault of one's own measurements or fits, or else of ours."""
    costs = question.costs
    if not (broken := _broken_law(question, memory, step_time, shares)):
        return
    sources = [item.source for item in (costs.anchor, costs.measurements) if item is not None]
    if costs.kernels or costs.links or costs.calibration:
        sources.append(costs.calibration_file or "the calibration given")
    if sources:
        raise SpecError(
            f"{broken}, by {', '.join(dict.fromkeys(sources))}: that is of another device, model or layout, or the "
            "device's figures are wrong"
        )
    raise PhysicsError(f"{broken}; please report this")


def _broken_law(
    question: Question, memory: MemorySummary, step_time: float, shares: Mapping[str, float]
) -> str:
    """Return which law a result breaks, nothing if none; a clock above the device's own raises its peak as well."""
    name, most = max(shares.items(), key=itemgetter(1))
    where, peak = f"{question.model.name} on {question.cluster.name}", memory.peak_bytes
    if most > max(question.costs.clock_share(question.cluster.device), 1.0) or not math.isfinite(step_time):
        return f"projected {name} {most:.3f} of {where} breaks the device's peak rate"
    states = max(stage.weights_bytes for stage in memory.stages)
    if not states <= peak < math.inf:
        sizes = f"{peak / GIB:.1f} GiB, is below the {states / GIB:.1f} GiB of its weights"
        return f"projected peak memory of {where}, {sizes}"
    return ""


def peak_rate(cluster: Cluster, workload: Workload) -> float:
    """Return the matrix rate against which utilisation is stated [FLOP/s per device]."""
    return device_peak_rate(cluster.device, workload.precision.compute)


def _stage_times(evaluation: Evaluation) -> tuple[StageTime, ...]:
    times = (numbers(value_of(item)) for item in (evaluation.stage_forward, evaluation.stage_backward))
    return tuple(
        StageTime(stage=stage, forward_s=forward, backward_s=backward)
        for stage, (forward, backward) in enumerate(zip(*times, strict=True))
    )

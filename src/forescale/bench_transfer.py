"""From what was measured at a bench to an anchor of every layout: block by block, by what the models say of both.

The blocks of the bench's layout are priced as those of any layout; what their kernels are multiplied by is solved for
so that each pass takes what it took. Messages stay those of the models, which know timed ones: inside the bench they
are as measured, outside it the difference of the models is added. Memory is anchored alike: layers keep what they were
measured to keep, and what formulas miss of a device's peak is carried over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from forescale.cost.anchor import Anchor, Correction, Measured, Pass, Residual
from forescale.cost.measured import Measurements
from forescale.cost.select import Costs
from forescale.cost.timings import BlockTiming, Part, ProfiledOperator, StepTiming
from forescale.errors import (
    ambiguous,
    implausible,
    other_run,
    out_of_memory,
    out_of_range,
    unknown_name,
)
from forescale.evaluate import evaluate
from forescale.formula import number_of
from forescale.inputs import Prepared, prepare
from forescale.memory.anchored import ENDS, BenchMemory, LayerMeasurement, RankPeak
from forescale.project import peak_rate, project
from forescale.projection.result import StageMemory
from forescale.question import Question
from forescale.struct import Struct
from forescale.time.blocks import BlockSeconds
from forescale.units import GIB, format_seconds

PASSES: Mapping[Part, tuple[Pass, ...]] = {
    "forward": ("forward",),
    "backward": ("backward_input", "backward_weight"),
    "input_gradient": ("backward_input",),
    "weight_gradient": ("backward_weight",),
}
"""What of a block's work each timing is of; an update is none of a micro-batch."""
WHOLE = "model"
"""Kind of an update that is of the whole model."""
ROOM = 1.1
"""Of a device's memory, what a measurement may have held at most: capacities are rounded and counted in GB or GiB."""
STATES = 0.5
"""Of weights, gradients and optimizer states by formulas, what a rank must have allocated at least."""
ROUNDS, CLOSE = 40, 1e-12
"""Corrections of the factors at most, and the relative difference that ends them."""


class Bench(Struct, frozen=True, kw_only=True):
    """A run that was measured, and what of it."""

    question: Question
    source: str
    """Its file, with date and software."""
    is_assumed: bool = False
    """Whether the file does not say which layout ran: then formulas that say more than its peak are not corrected."""
    is_tracked: bool = False
    """Whether memory was counted on fake tensors, where there is no allocator."""
    blocks: tuple[BlockTiming, ...] = ()
    steps: tuple[StepTiming, ...] = ()
    ranks: tuple[RankPeak, ...] = ()
    layers: tuple[LayerMeasurement, ...] = ()
    profile: tuple[ProfiledOperator, ...] = ()
    measurements: Measurements | None = None
    """Kernels and messages timed with it, which are looked up."""
    notes: tuple[str, ...] = ()
    """What its file does not say, in sentences."""


def anchored(question: Question, benches: Sequence[Bench]) -> Question:
    """Return a question that is priced from what several runs measured.

    Raises
    ------
    SpecError
        As `anchor_of` does, or if its layout cuts sequences into more parts than were measured.
    """
    for bench in benches:
        question = _within_cp(question, bench)
    measurements = question.costs.measurements
    timed = [
        measurement
        for measurement in (measurements, *(bench.measurements for bench in benches))
        if measurement is not None
    ]
    joined = Measurements.joined(timed) if timed else None
    costs = replace(question.costs, measurements=joined, beside=measurements)
    return replace(question, costs=replace(costs, anchor=anchor_of(benches, costs)))


def _within_cp(question: Question, bench: Bench) -> Question:
    """Return a question whose layouts cut sequences into no more parts than a run did."""
    most, space = bench.question.layout.cp, question.space
    request = (question.strategy.cp,) if question.strategy is not None else space.cp
    if request is not None and min(request) > most:
        fix = "measure with as many context-parallel ranks"
        raise other_run(str(bench.source), f"cp {most}", f"cp {min(request)}", fix)
    if question.strategy is not None:
        return question
    cuts = tuple(cp for cp in request or range(1, most + 1) if cp <= most)
    return replace(question, space=replace(space, cp=cuts))


def anchor_of(benches: Sequence[Bench], costs: Costs) -> Anchor:
    """Return what several runs measured, of which the last counts where several measured the same.

    Raises
    ------
    SpecError
        If a kind of block is none of the measured model's, or took less than its messages take by the models.
    """
    anchor = Anchor(
        source="; ".join(bench.source for bench in benches),
        rule=costs.rule,
        timed=any(bench.blocks or bench.steps for bench in benches),
        safety_margin=costs.safety_margin,
        notes=tuple(note for bench in benches for note in bench.notes),
    )
    for bench in benches:
        of_one = _of_one(bench, costs)
        if bench.profile:
            anchor = replace(anchor, **_profiled(bench))
        blocks = {name: {**anchor.blocks.get(name, {}), **passes} for name, passes in of_one.blocks.items()}
        anchor = replace(
            anchor,
            blocks={**anchor.blocks, **blocks},
            update=of_one.update or anchor.update,
            step=of_one.step or anchor.step,
            corrections={**anchor.corrections, **of_one.corrections},
            residual=of_one.residual or anchor.residual,
            outside_bytes=anchor.outside_bytes if of_one.residual is None else of_one.outside_bytes,
        )
    return anchor


def _profiled(bench: Bench) -> dict[str, Any]:
    """Return the recorded operators of a run, and how many micro-batches and layers they are of."""
    layout, work = bench.question.layout, bench.question.workload
    count = work.global_batch_size // (layout.dp * layout.micro_batch_size)
    return {
        "profile": bench.profile,
        "profiled_microbatches": count,
        "profiled_layers": bench.question.model.num_layers,
    }


def _of_one(bench: Bench, costs: Costs) -> Anchor:
    plain = prepare(_priced(bench.question, replace(costs, anchor=Anchor(source=bench.source))))
    anchor = Anchor(
        source=bench.source,
        blocks=_blocks(bench, plain, costs),
        update=_update(bench, plain),
    )
    anchor = replace(anchor, step=_step(bench, replace(costs, anchor=anchor)))
    _check_rate(bench, replace(costs, anchor=anchor))
    _check_room(bench)
    corrections = {correction.kind: correction for correction in _corrections(bench, plain)}
    if not bench.ranks:
        return replace(anchor, corrections=corrections)
    memory = bench_memory(bench, costs)
    return replace(
        anchor,
        corrections=corrections,
        residual=memory.residual,
        outside_bytes=memory.measured.outside_bytes,
    )


def _check_rate(bench: Bench, costs: Costs) -> None:
    """Refuse times in which no device of the bench's kind can do the work of its layout."""
    if not (bench.blocks or bench.steps):
        return
    prepared = prepare(_priced(bench.question, costs))
    device = bench.question.cluster.device
    result = evaluate(prepared.setting, prepared.inputs)
    peak = peak_rate(bench.question.cluster, bench.question.workload) * max(costs.clock_share(device), 1.0)
    took, least = number_of(result.step_time), number_of(result.flops) / peak
    if took < least * (1.0 - CLOSE):
        bound = f"{format_seconds(least)} at the peak rate of {device.name} for {bench.question.model.name}"
        fix = "it was measured of another model, layout or device, or matrix_flops of the device are too low"
        raise implausible("a step", format_seconds(took), bound, fix).at(bench.source)


def _check_room(bench: Bench) -> None:
    """Refuse peaks that a device of the bench's kind cannot hold."""
    device = bench.question.cluster.device
    for rank in bench.ranks:
        if rank.peak_reserved_bytes > ROOM * device.hbm_bytes and not bench.is_tracked:
            reserved, capacity = (
                f"{size / GIB:.4g} GiB" for size in (rank.peak_reserved_bytes, device.hbm_bytes)
            )
            fix = f"it was not measured on {device.name}; give the device that it was measured on"
            raise out_of_memory(f"rank {rank.rank}", reserved, capacity, fix).at(bench.source)


def _check_states(bench: Bench, measured: RankPeak, there: StageMemory) -> None:
    """Refuse a peak that is below what weights, gradients and optimizer states take, where the layout is known."""
    states = there.weights_bytes + there.gradients_bytes + there.optimizer_bytes
    if not bench.is_assumed and measured.peak_allocated_bytes < STATES * states:
        peak = f"{measured.peak_allocated_bytes / GIB:.4g} GiB"
        bound = f"the {states / GIB:.4g} GiB of weights, gradients and optimizer states of {bench.question.model.name}"
        fix = "it was measured of another model or layout"
        raise implausible(f"rank {measured.rank}", peak, bound, fix).at(bench.source)


def bench_memory(bench: Bench, costs: Costs) -> BenchMemory:
    """Return the fullest measured rank, and what of its peaks the formulas do not explain.

    Measured layers scale the activations of their kind, so that the excess holds only what is left.

    Raises
    ------
    SpecError
        If a rank is of a stage that the bench does not have.
    """
    stages = bench.question.layout.pp
    for rank in bench.ranks:
        if rank.stage >= stages:
            allowed = f"from 0 to {stages - 1} (pp {stages})"
            raise out_of_range(f"the stage of rank {rank.rank}", rank.stage, allowed).at(bench.source)
    measured = max(bench.ranks, key=lambda rank: rank.peak_reserved_bytes)
    bare = _priced(bench.question, replace(costs, anchor=None))
    corrections = _corrections(bench, prepare(bare))
    anchor = Anchor(
        source=bench.source, corrections={correction.kind: correction for correction in corrections}
    )
    there = project(_priced(bare, replace(costs, anchor=anchor))).memory.stages[measured.stage]
    _check_states(bench, measured, there)
    return BenchMemory(
        measured=measured,
        analytical_at_bench_bytes=there.allocated_bytes,
        corrections=corrections,
        residual=Residual.from_rows(
            allocated_bytes=measured.peak_allocated_bytes,
            reserved_bytes=measured.peak_reserved_bytes,
            analytical_bytes=there.allocated_bytes,
            signed=costs.rule == "model" and not bench.is_assumed,
            tracked=bench.is_tracked,
        ),
    )


def _corrections(bench: Bench, plain: Prepared) -> tuple[Correction, ...]:
    names = tuple(layer.block.name for layer in plain.priced.priced.layers)
    kept = dict(zip(names, (layer.replayed.kept for layer in plain.inputs.blocks.layers), strict=True))
    return tuple(
        Correction(
            kind=(name := _named(layer.kind, names, bench)),
            measured_bytes=layer.activation_bytes,
            analytical_bytes=number_of(kept[name]),
        )
        for layer in bench.layers
        if layer.activation_bytes is not None and layer.kind not in ENDS
    )


def _priced(question: Question, costs: Costs) -> Question:
    return replace(question, costs=costs)


Key: TypeAlias = tuple[str, tuple[Pass, ...]]
"""Name of a block, and the passes that were timed together."""


def _blocks(bench: Bench, plain: Prepared, costs: Costs) -> dict[str, dict[Pass, Measured]]:
    """Return the measured passes of every block, their messages taken off."""
    blocks = {item.block.name: item for item in plain.priced.priced.all()}
    values: dict[Key, float] = {}
    for timing in bench.blocks:
        if timing.part != "update":
            values[_named(timing.kind, tuple(blocks), bench), PASSES[timing.part]] = timing.seconds
    _share_out(values)
    modelled = {
        (name, pass_): {
            operator.operator.name: number_of(getattr(operator, pass_)[0])
            for operator in blocks[name].operators.values()
        }
        for name, passes in values
        for pass_ in passes
    }
    spent = {key: sum(sum(modelled[key[0], item].values()) for item in key[1]) for key in values}
    values = {key: seconds for key, seconds in values.items() if spent[key]}
    factors = dict.fromkeys(values, 1.0)
    for _ in range(ROUNDS):
        measured = _measured(factors, modelled, bench)
        there = _seconds(bench, replace(costs, anchor=Anchor(source=bench.source, blocks=measured)))
        away = {key: seconds - _of_passes(there[key[0]], key[1]) for key, seconds in values.items()}
        if all(abs(away[key]) <= CLOSE * seconds for key, seconds in values.items()):
            break
        for key, seconds in away.items():
            factors[key] += seconds / spent[key]
            if factors[key] <= 0.0:
                _refuse(bench, key, values[key])
    return measured if values else {}


def _share_out(values: dict[Key, float]) -> None:
    """Give whole backward passes to their two gradients, in the shares that these took apart where they were timed."""
    both = PASSES["backward"]
    for name in [name for name, passes in values if passes == both]:
        halves = (name, both[:1]), (name, both[1:])
        if all(half in values for half in halves):
            whole = values.pop((name, both)) / sum(values[half] for half in halves)
            values.update({half: whole * values[half] for half in halves})


def _measured(
    factors: Mapping[Key, float], modelled: Mapping[tuple[str, Pass], Mapping[str, float]], bench: Bench
) -> dict[str, dict[Pass, Measured]]:
    measureds: dict[str, dict[Pass, Measured]] = defaultdict(dict)
    for (name, passes), factor in factors.items():
        for pass_ in passes:
            if seconds := sum(modelled[name, pass_].values()):
                measureds[name][pass_] = Measured(
                    measured_s=factor * seconds,
                    modelled_s=seconds,
                    source=bench.source,
                    operators=modelled[name, pass_],
                    tp=float(bench.question.layout.tp),
                )
    return dict(measureds)


def _seconds(bench: Bench, costs: Costs) -> dict[str, BlockSeconds]:
    """Return what every block of the bench takes under some costs."""
    prepared = prepare(_priced(bench.question, costs))
    names = (item.block.name for item in prepared.priced.priced.all())
    return dict(zip(names, (item.replayed for item in prepared.inputs.seconds.all()), strict=True))


def _of_passes(block: BlockSeconds, passes: tuple[Pass, ...]) -> float:
    match passes:
        case ("forward",):
            return number_of(block.forward)
        case ("backward_input",):
            return number_of(block.input_gradient)
        case ("backward_weight",):
            return number_of(block.weight)
        case _:
            return number_of(block.backward)


def _refuse(bench: Bench, key: Key, seconds: float) -> None:
    name, passes = key
    allowed = "the time of their messages alone by the models"
    fix = "measure the collectives of the same run too"
    value = format_seconds(seconds)
    raise implausible(f"{' and '.join(passes)} of {name}", value, allowed, fix).at(bench.source)


def _named(kind: str, names: Sequence[str], bench: Bench) -> str:
    """Return the block that a measured kind means: its name, or one of its halves where that says enough."""
    alike = [name for name in names if kind == name] or [name for name in names if kind in name.split("+")]
    if len(alike) != 1:
        kinds = f"kind of layer of {bench.question.model.name}"
        error = ambiguous("the measured layer", kind, alike) if alike else unknown_name(kinds, kind, names)
        raise error.at(bench.source)
    return alike[0]


def _update(bench: Bench, plain: Prepared) -> Measured | None:
    """Return the update of all blocks that were measured, beside what the models say of their share of it."""
    priced, kept = plain.priced.priced.all(), plain.priced.block_parameters.all()
    names = tuple(item.block.name for item in priced)
    counts = (*plain.plan.of_kind, 1, 1, 1)
    size = {
        name: number_of(item.dense) + number_of(item.expert) for name, item in zip(names, kept, strict=True)
    }
    times = dict(zip(names, counts, strict=False))
    whole = sum(size[name] * times[name] for name in names)
    updates = {block.kind: block.seconds for block in bench.blocks if block.part == "update"}
    together = number_of(evaluate(plain.setting, plain.inputs).time_parts["optimizer"])
    if together and (measured := updates.get(WHOLE)):
        return Measured(measured_s=measured, modelled_s=together, source=bench.source)
    timed = {_named(kind, names, bench): seconds for kind, seconds in updates.items()}
    share = sum(size[name] * times[name] for name in timed) / whole
    if not (together and share):
        return None
    measured = sum(seconds * times[name] for name, seconds in timed.items())
    return Measured(measured_s=measured, modelled_s=together * share, source=bench.source)


def _step(bench: Bench, costs: Costs) -> Measured | None:
    """Return the last measured step beside the same step put together from blocks, messages and update."""
    if not bench.steps:
        return None
    timing, question = bench.steps[-1], bench.question
    batch = timing.num_microbatches * question.layout.dp * question.layout.micro_batch_size
    same = replace(question, workload=replace(question.workload, global_batch_size=batch))
    prepared = prepare(_priced(same, costs))
    together = number_of(evaluate(prepared.setting, prepared.inputs).step_time)
    return Measured(measured_s=timing.seconds, modelled_s=together, source=bench.source)

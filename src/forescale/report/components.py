"""What a layout consists of: parameters and kept bytes of every component of a block, and every collective of a step.

The tables answer the component-wise report and the communication breakdown of Primus' projection documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forescale.formula import number_of, value_of
from forescale.graph.operator import Block
from forescale.graph.ops import Collective
from forescale.graph.per_block import message_bytes
from forescale.graph.recompute import NO_RECOMPUTE, keep
from forescale.inputs import Prepared, prepare
from forescale.memory.parameters import gathered_bytes
from forescale.numeric import Numeric, numbers
from forescale.presets import load_preset
from forescale.projection.components import CollectiveTime, ComponentBytes
from forescale.question import Question
from forescale.spec.workload import STORAGE_BYTES
from forescale.time.price import COMMUNICATION_PART, PricedBlock


def components_of(question: Question) -> tuple[ComponentBytes, ...]:
    """Return the blocks of a model: the embedding, layers by kind, the head, multi-token prediction, a vision tower.

    Nothing is recomputed in them.

    Those of a preset are as its account lists them; none where it lists none. Raises as `prepare` does.
    """
    if question.preset != "default":
        listed = getattr(load_preset(question.preset), "components", None)
        return () if listed is None else listed(question)
    return tuple(_block(block, times) for block, times in counted_blocks(prepare(question)))


def counted_blocks(prepared: Prepared) -> Iterator[tuple[PricedBlock, int]]:
    """Yield the embedding, layers by kind, the head, multi-token prediction and a vision tower, with their counts."""
    priced, model = prepared.priced.priced, prepared.question.model
    yield priced.embedding, 1
    yield from zip(priced.layers, (model.layers.count(kind) for kind in model.layer_kinds), strict=True)
    yield priced.head, 1
    if priced.mtp:
        yield priced.mtp, 1
    yield from ((block, count) for count, block in priced.vision)


def _block(priced: PricedBlock, times: int) -> ComponentBytes:
    """Return a block with its components; a tensor that several operators keep belongs to the first of them."""
    block = priced.block
    parts: dict[str, dict[str, list[int]]] = {}
    for name, parameters, kept in (*_weights(block), *_activations(block)):
        group, _, leaf = name.partition(".")
        values = parts.setdefault(group, {}).setdefault(leaf or group, [0, 0])
        values[0] += parameters
        values[1] += kept
    below = tuple(_sum(group, (_leaf(*item) for item in leaves.items())) for group, leaves in parts.items())
    return _sum(block.name, below, times)


def _weights(block: Block) -> Iterator[tuple[str, int, int]]:
    for parameter in block.parameters:
        yield parameter.name.removesuffix(".weight"), round(number_of(parameter.local_elements)), 0


def _activations(block: Block) -> Iterator[tuple[str, int, int]]:
    owner = {name: operator.name for operator in reversed(block.operators) for name in operator.saves}
    for tensor in keep(block, NO_RECOMPUTE).tensors:
        yield owner.get(tensor.name, tensor.name), 0, round(number_of(tensor.num_bytes))


def _leaf(name: str, values: list[int]) -> ComponentBytes:
    return ComponentBytes(name=name, parameters=values[0], kept_bytes=values[1])


def _sum(name: str, several: Iterable[ComponentBytes], times: int = 1) -> ComponentBytes:
    below = tuple(item for item in several if item.parameters or item.kept_bytes)
    return ComponentBytes(
        name=name,
        parameters=sum(item.parameters for item in below),
        kept_bytes=sum(item.kept_bytes for item in below),
        times=times,
        below=below if len(below) > 1 or name not in [item.name for item in below] else (),
    )


def collectives_of(question: Question) -> tuple[CollectiveTime, ...]:
    """Return the collectives of a step: of layers by pass and kind, between stages, and over replicas once a step.

    Those of a preset are as its account states them; none where it states none. Raises as `prepare` does.
    """
    if question.preset != "default":
        stated = getattr(load_preset(question.preset), "collectives", None)
        return () if stated is None else stated(question)
    prepared = prepare(question)
    return (*_of_layers(prepared), *_between_stages(prepared), *_of_gradients(prepared))


def _of_layers(prepared: Prepared) -> Iterator[CollectiveTime]:
    """Yield the collectives of decoder layers on the stage that sends longest, those that a replay repeats included."""
    plan, layers = prepared.plan, prepared.priced.priced.layers
    alone = [_alone(priced) for priced in layers]
    rows = [sum(count * seconds for count, seconds in zip(row, alone, strict=True)) for row in plan.counts]
    stage = rows.index(max(rows))
    microbatches = number_of(prepared.setting.num_microbatches(prepared.inputs.degrees))
    for count, repeated, priced in zip(plan.counts[stage], plan.replayed[stage], layers, strict=True):
        replayed = {item.name for item in keep(priced.block, prepared.question.layout.recompute).replayed}
        for name, operator in priced.operators.items():
            for phase, (primitive, seconds) in zip(operator.passes, operator.primitives, strict=True):
                if not isinstance(primitive, Collective) or not number_of(seconds):
                    continue
                again = repeated if phase == "forward" and name in replayed else 0
                yield _collective(
                    prepared,
                    primitive,
                    f"{name} {phase.partition('_')[0]}",
                    number_of(seconds),
                    calls=float(count + again) * microbatches,
                )


def _alone(priced: PricedBlock) -> float:
    """Return the seconds of the collectives of a block's passes, each alone."""
    passes = (pair for operator in priced.operators.values() for pair in operator.primitives)
    return sum(number_of(seconds) for item, seconds in passes if isinstance(item, Collective))


def _collective(
    prepared: Prepared, primitive: Collective, name: str, seconds: float, *, calls: float, part: str = ""
) -> CollectiveTime:
    return CollectiveTime(
        part=part or COMMUNICATION_PART[primitive.axis],
        name=f"{name} {primitive.kind}",
        num_bytes=number_of(primitive.num_bytes),
        num_ranks=round(number_of(prepared.inputs.pricing.groups[primitive.axis].num_ranks)),
        seconds=seconds,
        calls=calls,
    )


def _between_stages(prepared: Prepared) -> Iterator[CollectiveTime]:
    """Yield the messages that a stage sends: of every micro-batch and chunk, forward and backward."""
    layout, setting = prepared.question.layout, prepared.setting
    if layout.pp == 1:
        return
    degrees, pricing = prepared.inputs.degrees, prepared.inputs.pricing
    size = message_bytes(setting.model, setting.sharding(degrees))
    message = Collective(kind="p2p", axis="pp", num_bytes=size)
    calls = 2.0 * layout.vpp * number_of(setting.num_microbatches(degrees))
    seconds = number_of(pricing.seconds(message))
    yield _collective(prepared, message, "stage", seconds, calls=calls, part="pipeline_comm")


def _of_gradients(prepared: Prepared) -> Iterator[CollectiveTime]:
    """Yield the collectives of data parallelism on the stage with the most parameters."""
    layout, inputs = prepared.question.layout, prepared.inputs
    traffic, precision = inputs.traffic, prepared.question.workload.precision
    elements = _largest(inputs.trained.dense) + _largest(inputs.trained.expert)
    gradient, weight = STORAGE_BYTES[precision.gradients], gathered_bytes(precision)
    layers = max(prepared.plan.num_layers)
    passes = layers * number_of(prepared.setting.num_microbatches(inputs.degrees))
    if layout.zero == 3:
        block = inputs.traffic.blocks.layers[0]
        share = elements / max(layers, 1.0)
        rows: tuple[tuple[str, Numeric, float, float], ...] = (
            ("layer all_gather before forward", block.gather, weight * share, passes),
            ("layer all_gather before backward", block.regather, weight * share, passes),
            ("layer gradients reduce_scatter", block.reduce, gradient * share, passes),
        )
    elif layout.zero:
        rows = (
            ("gradients reduce_scatter", traffic.reduce_scatter, gradient * elements, 1.0),
            ("parameters all_gather", traffic.all_gather, weight * elements, 1.0),
        )
    else:
        rows = (("gradients all_reduce", traffic.all_reduce, gradient * elements, 1.0),)
    for name, seconds, num_bytes, calls in rows:
        if _largest(seconds):
            yield CollectiveTime(
                part="data_comm",
                name=name,
                num_bytes=num_bytes,
                num_ranks=layout.dp * layout.cp,
                seconds=_largest(seconds),
                calls=calls,
            )


def _largest(values: Numeric) -> float:
    """Return the largest value over the stages."""
    return max(numbers(value_of(values)))

"""What turns the operators of one question into seconds: its cost models, communicators and losses of whole runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeAlias, cast, get_args

from msgspec.structs import replace

from forescale.cost.anchor import Measured, Pass
from forescale.cost.mesh import Group, LazyGroups
from forescale.cost.model import CollectiveModel, Prices, Provenance, ProvenanceKind
from forescale.cost.select import CostModels
from forescale.files import packaged
from forescale.formula import Term, formula, number_of, value_of
from forescale.graph.counts import executed_flops
from forescale.graph.operator import ROUTING, Block, Operator, Work
from forescale.graph.ops import (
    Collective,
    CollectiveKind,
    Compute,
    EagerKernel,
    Elementwise,
    GroupedGemm,
    MeshAxis,
    Primitive,
    flags_of,
    stacked,
)
from forescale.graph.per_block import PerBlock
from forescale.graph.sharding import several
from forescale.graph.stages import StagePlan
from forescale.numeric import (
    Integers,
    Numeric,
    all_true,
    any_true,
    mapped,
    maximum,
    minimum,
    spread,
    summed,
    taking,
)
from forescale.spec.layout import LaunchGraphs
from forescale.struct import Struct
from forescale.time.anywhere import Anywhere, Range
from forescale.time.kernel_switches import DETERMINISTIC, switched
from forescale.time.stacked import Known, alike, priced_together

Seconds: TypeAlias = dict[str, Numeric]
"""Seconds by part."""
COMMUNICATION_PART = {
    "tp": "tensor_comm",
    "cp": "context_comm",
    "cp_inner": "context_comm",
    "cp_outer": "context_comm",
    "tp_cp": "expert_comm",
    "ep": "expert_comm",
    "etp": "expert_comm",
}
PASSES: tuple[Pass, ...] = get_args(Pass)
FURTHER_LAUNCH: float = packaged("calibrations/time/overlap")["further_launch"]
"""A kernel that one call launches beside its first, over the call."""
LOOPED_LAUNCH: float = packaged("calibrations/time/overlap")["looped_launch"]
"""The same of products and casts that a compiled loop launches expert by expert."""


@formula(unit="s", source="run calibration: rates that last in whole runs over those of collectives alone")
def collective_in_a_run(*, seconds: Numeric, rate_share: Numeric) -> Numeric:
    """Seconds of the collective alone / share of that rate which whole runs reach."""
    return seconds / rate_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """The cost models and communicators that turn operators into seconds."""

    models: CostModels
    groups: Mapping[MeshAxis, Group]
    graphs: LaunchGraphs = "none"
    blocking: bool = False
    """The host waits for each kernel before it launches the next."""
    deterministic: bool = False
    anywhere: Mapping[MeshAxis, Anywhere] = field(default_factory=dict)
    """Where communicators may lie, if that is open: a message then takes the least, for bounds."""
    _prices: dict[MeshAxis, Prices] = field(default_factory=dict, init=False, repr=False, compare=False)
    _messages: dict[tuple[MeshAxis, CollectiveKind], Callable[[Numeric], Numeric]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Prices by communicator and collective, each worked out when first asked for."""
    without_flops: bool = False
    """FLOP do not matter: operators have none."""
    known: Known | None = field(default=None, repr=False, compare=False)
    """Seconds of kernels, and of messages of open communicators, that others have priced for the same rows."""
    _of_arrays: dict[int, tuple[Primitive, Numeric]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Seconds of primitives whose extents are arrays, by identity."""
    _seconds: dict[Primitive, Numeric] = field(default_factory=dict, init=False, repr=False, compare=False)
    _origins: dict[Primitive, Provenance] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Of primitives whose extents are numbers: equal ones of a layout are looked at once."""

    def take(self, rows: Integers) -> Pricing:
        """Return what prices some of the candidates."""
        return replace_fields(
            self,
            groups=LazyGroups(self.groups, lambda axis: mapped(self.groups[axis], taking(rows))),
            anywhere={axis: replace(item, rows=item.rows[rows]) for axis, item in self.anywhere.items()},
        )

    def kernels(self, operator: Operator, work: Work) -> Numeric:
        """Return the host cost of launching one pass of an operator, in number of calls from the framework."""
        routes = self.graphs != "none" and (operator.name in ROUTING or "shared_experts" in operator.modules)
        if self.graphs == "full" or routes or (self.graphs == "partial" and operator.part != "moe"):
            return 0.0
        calls = summed(calls_of(item, self.groups, self.models.run.looping) for item in work)
        return calls * DETERMINISTIC if self.deterministic else calls

    def prepare(self, ops: Iterable[Primitive]) -> None:
        """Price kernels together that differ in extents only, as a model prices many in the time of a few."""
        if not self.models.run.is_single:  # each has a price for each set of factors
            return
        groups: dict[tuple[object, ...], dict[Compute, None]] = {}
        arrays, known = dict[int, Primitive](), self.models.known
        for op in ops:
            if isinstance(op, Collective):
                arrays |= {} if isinstance(op.num_bytes, float) else {id(op): op}
                continue
            try:
                if (seconds := known.get(op)) is None:
                    groups.setdefault(flags_of(op), {})[op] = None
                else:
                    self._seconds[op] = seconds
            except TypeError:  # extents that are arrays, or terms, have no hash
                arrays[id(op)] = op
        self._prepare_arrays(arrays.values())
        for group in map(tuple, groups.values()):
            priced: Any = self.models.compute.seconds(stacked(group))
            new = list(zip(group, spread(priced, len(group)), strict=True))
            known.update(new)
            self._seconds.update(new)

    def _prepare_arrays(self, ops: Iterable[Primitive]) -> None:
        """Price those of `ops` together whose extents are arrays: kernels, and messages of an axis and kind."""
        for flags, group in alike(ops).items():
            model: object = self.models.compute
            places, known = 1, self.known or Known()
            if isinstance(op := group[0], Collective):
                model, place = self.models.collectives, self.anywhere.get(op.axis)
                places, known = (1, Known()) if place is None else (place.num_places, known)
            for op, seconds in priced_together(flags, group, self._priced, known, model, places):
                self._of_arrays[id(op)] = op, seconds

    def seconds(self, op: Primitive) -> Numeric:
        """Return the duration of one primitive [s]."""
        if self._of_arrays and (priced := self._of_arrays.get(id(op))) is not None:
            return priced[1]
        try:
            known = self._seconds.get(op)
        except TypeError:  # extents that are arrays, or terms, have no hash
            return self._priced(op)
        if known is None:
            known = self._seconds[op] = self._priced(op)
        return known

    def provenance(self, op: Primitive) -> Provenance:
        """Return where the duration of one primitive comes from."""
        try:
            known = self._origins.get(op)
        except TypeError:
            return self._origin(op)
        if known is None:
            known = self._origins[op] = self._origin(op)
        return known

    def titled(self, op: Primitive, *title: str) -> Numeric:
        """Return the duration [s]; recorded, it has a title and says where its parameters come from."""
        seconds: Any = self.seconds(op)
        if not isinstance(seconds, Term):
            return cast("Numeric", seconds)
        origin = self.provenance(op)
        source = "; ".join(filter(None, (seconds.source, f"{origin.kind}: {origin.source}")))
        name = " ".join((*title, _kind_of(op)))
        return cast("Numeric", seconds.renamed(name, unit="s", source=source))

    def _priced(self, op: Primitive) -> Numeric:
        if isinstance(op, Collective):
            alone = self._price_of(op)(op.num_bytes)
            key = "dispatch" if op.axis == "ep" else "network"
            if key not in self.models.run.sustained:
                return alone
            return collective_in_a_run(seconds=alone, rate_share=self.models.run.rate(key))
        return self.models.compute.seconds(op)

    def places(self, axis: MeshAxis) -> tuple[Group, ...]:
        """Return the communicators of an axis at every place where they may lie."""
        return self.anywhere[axis].groups if axis in self.anywhere else (self.groups[axis],)

    def least(self, axis: MeshAxis, of: Callable[[Group], Range]) -> Range:
        """Return a range of the communicator of an axis: the least of each end where it may lie at several places."""
        return self.anywhere[axis].least_of(of) if axis in self.anywhere else of(self.groups[axis])

    def _price_of(self, op: Collective) -> Callable[[Numeric], Numeric]:
        where, places = (op.axis, op.kind), self.anywhere.get(op.axis)
        if op.axis not in self._prices:
            group = self.groups[op.axis] if places is None else places.group
            self._prices[op.axis] = self.models.collectives.within(group)
        if where not in self._messages:
            price = self._prices[op.axis](op.kind)
            self._messages[where] = price if places is None else places.least(price)
        return self._messages[where]

    def _origin(self, op: Primitive) -> Provenance:
        if not isinstance(op, Collective):
            return self.models.compute.provenance(op)
        return self.looked_up(op).provenance(kind=op.kind)

    def looked_up(self, op: Collective) -> CollectiveModel:
        """Return the model that a message's seconds come from: of timed messages, or what it falls back on."""
        model = self.models.collectives
        if not hasattr(model, "covers"):
            return model
        from forescale.cost.measured import MeasuredMessages

        assert isinstance(model, MeasuredMessages)
        covers = model.covers(kind=op.kind, num_bytes=op.num_bytes, group=self.groups[op.axis])
        return model if covers else model.base

    def communicators(self, others: Iterable[Primitive]) -> tuple[tuple[MeshAxis, CollectiveKind], ...]:
        """Return communicators of several ranks, and the collectives, of `others` and of what was priced so far."""
        used = [(op.axis, op.kind) for op in others if isinstance(op, Collective)]
        return tuple(
            (axis, kind)
            for axis, kind in dict.fromkeys((*used, *self._messages))
            if any_true(value_of(self.groups[axis].num_ranks) > 1.0)
        )


def _kind_of(op: Primitive) -> str:
    """Return what kind of kernel or message a primitive is."""
    if isinstance(op, Collective):
        return op.kind
    return op.operator if isinstance(op, EagerKernel) else type(op).__name__


@formula(
    unit="s",
    source="kernels start in order: the device waits for the host where launches take longer than kernels",
)
def launch_gap(*, kernels: Numeric, interval: Numeric, busy: Numeric, blocking: bool = False) -> Numeric:
    """max(0, kernels · interval − busy); kernels · interval where every launch waits for its kernel."""
    launches = kernels * interval
    return launches if blocking else maximum(launches - busy, 0.0)


def calls_of(primitive: Primitive, groups: Mapping[MeshAxis, Group], looping: Numeric = 1.0) -> Numeric:
    """Return the host cost of launching a primitive, in number of calls from the framework.

    A message within one rank and a step that moves nothing are not launched.
    """
    if isinstance(primitive, EagerKernel):
        return primitive.kernels
    looped = isinstance(primitive, GroupedGemm) or getattr(primitive, "family", None) == "cast"
    further = LOOPED_LAUNCH * looping if looped else FURTHER_LAUNCH
    calls = 1.0 + further * (getattr(primitive, "kernels", 1.0) - 1.0)
    if isinstance(primitive, Collective):
        return calls * several(degree=groups[primitive.axis].num_ranks)
    if not isinstance(primitive, Elementwise):
        return calls
    return (calls if primitive.called else further * primitive.kernels) * minimum(primitive.bytes_moved, 1.0)


def calls_of_steps(calls: Numeric, steps: Numeric | None) -> Numeric:
    """Return the host cost of steps of `calls` launches each: the first is called and launches those of the others."""
    return calls if steps is None else calls * (1.0 + FURTHER_LAUNCH * (steps - 1.0))


class PricedOperator(Struct, frozen=True, kw_only=True):
    """Seconds of one operator's three passes, compute and communication apart; and its FLOP."""

    operator: Operator
    forward: tuple[Numeric, Seconds]
    backward_input: tuple[Numeric, Seconds]
    backward_weight: tuple[Numeric, Seconds]
    forward_flops: Numeric
    flops: Numeric
    forward_kernels: Numeric = 0.0
    backward_kernels: Numeric = 0.0
    weight_kernels: Numeric = 0.0
    """Of `backward_kernels`, those of weight gradients."""
    primitives: tuple[tuple[Primitive, Numeric], ...] = ()
    """Every kernel and message of the three passes, with its seconds."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The pass of each of `primitives`."""
        return tuple(name for name in PASSES for _ in getattr(self.operator, name))


class Origin(Struct, frozen=True, kw_only=True):
    """Where the seconds of one kernel or message come from."""

    operator: str
    primitive: Primitive
    seconds: Numeric
    provenance: Provenance

    @property
    def message(self) -> bool:
        """Whether it is a message."""
        return isinstance(self.primitive, Collective)


class PricedBlock(Struct, frozen=True, kw_only=True, dict=True):
    """A block and the price of each of its operators, by name."""

    block: Block
    operators: dict[str, PricedOperator]
    pricing: Pricing

    @cached_property
    def origins(self) -> tuple[Origin, ...]:
        """Where the seconds of all kernels and messages come from, in the order of the operators."""
        return tuple(
            Origin(
                operator=operator.operator.name,
                primitive=primitive,
                seconds=seconds,
                provenance=self.anchored(name, primitive)
                if name in self.measured and not isinstance(primitive, Collective)
                else self.pricing.provenance(primitive),
            )
            for operator in self.operators.values()
            for name, (primitive, seconds) in zip(operator.passes, operator.primitives, strict=True)
        )

    @cached_property
    def spent(self) -> dict[tuple[ProvenanceKind, str | None], float]:
        """Seconds of kernels by provenance and operator, of messages by provenance alone."""
        spent: dict[tuple[ProvenanceKind, str | None], float] = defaultdict(float)
        for origin in self.origins:
            spent[origin.provenance.kind, None if origin.message else origin.operator] += float(
                origin.seconds
            )
        return dict(spent)

    @property
    def measured(self) -> Mapping[Pass, Measured]:
        """What was measured of this block at a bench, by pass."""
        anchor = self.pricing.models.anchor
        return {} if anchor is None else anchor.blocks.get(self.block.name, {})

    def compute(self, name: Pass) -> Numeric:
        """Return the seconds of the kernels of one pass."""
        return summed(getattr(operator, name)[0] for operator in self.operators.values())

    def anchored(self, name: Pass, primitive: Primitive) -> Provenance:
        """Return where a kernel of a measured pass comes from: what was measured itself, or restored from it.

        The models' errors cancel in part where it is restored; by how much nobody knows, so it is as uncertain as they.
        """
        from forescale.cost.measured import REPEATED

        there, (low, high) = self.measured[name], REPEATED
        kind = there.kind_of(number_of(self.compute(name)))
        if kind == "restored":
            known = self.pricing.provenance(primitive)
            low, high = known.low, known.high
        return Provenance(kind=kind, source=there.source, low=low, high=high)


def price_operators(
    block: Block, pricing: Pricing, known: dict[int, PricedOperator] | None = None
) -> PricedBlock:
    """Price every operator of a block that is not among the `known`, by identity; they are added to those."""
    result = {} if known is None else known
    for operator in block.operators:
        if id(operator) not in result:
            result[id(operator)] = _priced_operator(operator, pricing)
    operators = {operator.name: result[id(operator)] for operator in block.operators}
    priced = PricedBlock(block=block, operators=operators, pricing=pricing)
    if not (measured := priced.measured):
        return priced
    anchored = {name: _restored(operator, measured, pricing) for name, operator in operators.items()}
    return PricedBlock(block=block, operators=anchored, pricing=pricing)


def _restored(
    priced_operator: PricedOperator, measured: Mapping[Pass, Measured], pricing: Pricing
) -> PricedOperator:
    """Return an operator whose kernels take what was measured of its block; their launches are part of that."""
    changed: dict[str, Any] = {}
    share: dict[Pass, Numeric] = {}
    for name, there in measured.items():
        compute, messages = getattr(priced_operator, name)
        seconds = _restored_compute(priced_operator.operator, compute, there, pricing)
        changed[name] = seconds, messages
        share[name] = seconds / compute if all_true(value_of(compute)) else 1.0
        launches = ("forward_kernels",) if name == "forward" else ("backward_kernels", "weight_kernels")
        changed |= dict.fromkeys(launches, 0.0)
    primitives = tuple(
        (item, seconds * share[name])
        if name in share and not isinstance(item, Collective)
        else (item, seconds)
        for name, (item, seconds) in zip(priced_operator.passes, priced_operator.primitives, strict=True)
    )
    return replace(priced_operator, primitives=primitives, **changed)


def _restored_compute(operator: Operator, modelled: Numeric, there: Measured, pricing: Pricing) -> Numeric:
    """Return the seconds of an operator's kernels in one pass, by the rule of the anchor.

    Routed experts are sharded by expert parallelism, and keep their share of a rank where that is reduced.
    """
    anchor = pricing.models.anchor
    if anchor is None or anchor.rule == "model" or operator.name not in there.operators:
        return there.restored(modelled)
    tp = there.tp if operator.part == "moe" else pricing.groups["tp"].num_ranks
    return there.proportional(operator.name, tp)


def _priced_operator(operator: Operator, pricing: Pricing) -> PricedOperator:
    """Return the price of an operator; of one layout it is kept where the operator sends no messages."""
    kept = pricing.models.operators
    key = id(operator), pricing.graphs, pricing.deterministic, pricing.without_flops
    if key in kept:  # which holds the operator, so that its id stays its own
        return cast("PricedOperator", kept[key])
    priced = _price(operator, pricing)
    if isinstance(priced.flops, float) and all(
        isinstance(seconds, float) and not isinstance(item, Collective) for item, seconds in priced.primitives
    ):
        kept[key] = priced
    return priced


def _price(operator: Operator, pricing: Pricing) -> PricedOperator:
    switch = partial(switched, deterministic=pricing.deterministic, contention=pricing.models.run.contention)
    passes = [
        [(item, switch(pricing.titled(item, operator.name, name), item)) for item in getattr(operator, name)]
        for name in PASSES
    ]
    backward, times = (*operator.backward_input, *operator.backward_weight), operator.panels
    if times is not None:
        passes = [[(item, times * seconds) for item, seconds in done] for done in passes]
    forward, backward_input, backward_weight = map(_split, passes)
    priced = PricedOperator(
        operator=operator,
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        forward_flops=0.0,
        flops=0.0,
        primitives=tuple(chain.from_iterable(passes)),
        forward_kernels=calls_of_steps(pricing.kernels(operator, operator.forward), times),
        backward_kernels=calls_of_steps(pricing.kernels(operator, backward), times),
        weight_kernels=calls_of_steps(pricing.kernels(operator, operator.backward_weight), times),
    )
    if pricing.without_flops:
        return priced
    forward_flops = _often(_flops(operator.forward), times)
    return replace(
        priced,
        forward_flops=forward_flops,
        flops=forward_flops
        + _often(_flops(operator.backward_input), times)
        + _often(_flops(operator.backward_weight), times),
    )


def _often(amount: Numeric, times: Numeric | None) -> Numeric:
    return amount if times is None else times * amount


def _split(priced: Sequence[tuple[Primitive, Numeric]]) -> tuple[Numeric, Seconds]:
    """Return the seconds of kernels, and of messages by part."""
    compute: Numeric = 0.0
    communication: Seconds = {}
    for primitive, seconds in priced:
        if isinstance(primitive, Collective):
            part = COMMUNICATION_PART[primitive.axis]
            communication[part] = communication.get(part, 0.0) + seconds
        else:
            compute = compute + seconds
    return compute, communication


def _flops(primitives: tuple[Primitive, ...]) -> Numeric:
    """Return the FLOP that kernels execute, masked query-key pairs included where their kernel computes them."""
    return summed(map(executed_flops, primitives))


def price_blocks(blocks: PerBlock[Block], pricing: Pricing) -> PerBlock[PricedBlock]:
    """Price every operator of every block, once where blocks share it."""
    pricing.models.forget()
    pricing.prepare(
        op for block in blocks.all() for operator in block.operators for op in operator.primitives
    )
    known: dict[int, PricedOperator] = {}
    return blocks.map(lambda block: price_operators(block, pricing, known))


EXPERT_AXES = ("ep", "etp", "expert_dp")
SHOWN = 6
"""Operators that a note names."""


class TimeSources(Struct, frozen=True, kw_only=True):
    """Shares of the seconds of all kernels and messages of one micro-batch, before anything overlaps."""

    shares: dict[str, float]
    """By kind of provenance; they sum to 1."""
    kernel_shares: dict[str, float]
    """The same of kernels alone."""
    not_measured: tuple[str, ...]
    """Operators with kernels that were neither measured nor interpolated, the longest first."""


def time_sources(priced: PerBlock[PricedBlock], plan: StagePlan, *, num_mtp: int) -> TimeSources:
    """Return where the seconds of one layout come from; every block counts as often as the model has it."""
    kernels: dict[str, float] = dict.fromkeys(get_args(ProvenanceKind), 0.0)
    messages = dict(kernels)
    missing: dict[str, float] = defaultdict(float)
    for block, count in _counted(priced, plan, num_mtp=num_mtp):
        for (kind, operator), seconds in block.spent.items():
            if operator is None:
                messages[kind] += count * seconds
                continue
            kernels[kind] += count * seconds
            if kind not in ("measured", "restored", "interpolated"):
                missing[operator] += count * seconds
    return TimeSources(
        shares=_shares({kind: kernels[kind] + messages[kind] for kind in kernels}),
        kernel_shares=_shares(kernels),
        not_measured=tuple(sorted(missing, key=lambda name: -missing[name])),
    )


def all_origins(
    priced: PerBlock[PricedBlock], plan: StagePlan, *, num_mtp: int
) -> Iterator[tuple[Origin, float]]:
    """Yield every kernel and message of a model with its seconds in one micro-batch."""
    for block, count in _counted(priced, plan, num_mtp=num_mtp):
        yield from ((origin, count * float(origin.seconds)) for origin in block.origins)


def _counted(
    priced: PerBlock[PricedBlock], plan: StagePlan, *, num_mtp: int
) -> Iterable[tuple[PricedBlock, float]]:
    """Return every block with how often one micro-batch meets it."""
    predicted = () if priced.mtp is None else (float(num_mtp),)
    tower = (float(times) for times, _ in priced.vision)
    return zip(priced.all(), (*plan.of_kind, 1.0, 1.0, *predicted, *tower), strict=True)


def coverage(sources: TimeSources, source: str, fallback: str) -> str:
    """Return the sentence that says how much of the kernels' time was measured, and what was not."""
    shares = sources.kernel_shares
    restored = f"{shares['restored']:.0%} restored from measured blocks, " if shares["restored"] else ""
    text = (
        f"{shares['measured']:.0%} of kernel time was measured ({source}), {restored}{shares['interpolated']:.0%} lies "
        "between measured shapes"
    )
    if not sources.not_measured:
        return text
    names = ", ".join(sources.not_measured[:SHOWN])
    more = len(sources.not_measured) - SHOWN
    return f"{text}; by the {fallback} model: {names}{f' and {more} more' if more > 0 else ''}"


def message_coverage(priced: PerBlock[PricedBlock], pricing: Pricing, *, experts: bool) -> str:
    """Return the sentence that says which messages of a layout may be looked up; all others are not timed."""
    from forescale.cost.measured import MeasuredMessages

    model = pricing.models.collectives
    if not isinstance(model, MeasuredMessages):
        return "the timed collectives are all-to-alls, and this dispatcher sends no such messages"
    sent = (
        op for block in priced.all() for operator in block.operators.values() for op, _ in operator.primitives
    )
    texts = [
        f"{kind} over {axis}"
        for axis, kind in pricing.communicators(sent)
        if (experts or axis not in EXPERT_AXES) and model.covers(kind=kind, group=pricing.groups[axis])
    ]
    return (
        f"{model.source} timed {model.timed}; within these sizes looked up: "
        f"{', '.join(texts) or 'nothing of this layout'}; all other messages by the model of links"
    )


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    whole = sum(seconds.values())
    return {kind: value / whole if whole else 0.0 for kind, value in seconds.items()}

"""Which layers stand on which stage: the plan of one pipeline, and plans of many as arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, chain, pairwise, zip_longest
from operator import add, sub
from typing import Any, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from forescale.arrays import np
from forescale.errors import SpecError, out_of_range
from forescale.formula import Term, formula, value_of
from forescale.graph.per_block import PerBlock, RecomputeSplit
from forescale.numeric import (
    Array,
    Column,
    Integers,
    Numeric,
    Select,
    column,
    mapped,
    summed,
    taking,
    where,
)
from forescale.spec.layout import Recompute
from forescale.spec.model import Model
from forescale.struct import Struct
from forescale.units import counted

T = TypeVar("T")
Chunks: TypeAlias = tuple[tuple[int, ...], ...]
"""Layers of every virtual stage, or of every rank; or the virtual stages of every rank."""
Row: TypeAlias = tuple[float, ...]
Rows: TypeAlias = tuple[Row, ...]
EVERY_LAYER = Recompute(granularity="full")
SUMMED = ("counts", "replayed", "heads", "first", "last")
"""Fields of a plan that add up over its rows."""


class StagePlan(Struct, frozen=True, kw_only=True, dict=True):
    """Layers per pipeline rank, by kind. Rows are ranks (or, compressed, groups of equal ranks)."""

    counts: Rows
    """(stages, kinds) decoder layers of each kind of `Model.layer_kinds`."""
    first: Row
    """(stages,) 1 where the embedding is."""
    last: Row
    """(stages,) 1 where final norm, head, loss and multi-token prediction are."""
    index: Row
    """(stages,) the rank; of a group of equal ranks the lowest, which holds most in flight."""
    multiplicity: Row
    """(stages,) how many ranks the row stands for."""
    replayed: Rows
    """(stages, kinds) layers of `counts` that the recompute policy takes."""
    heads: Rows
    """(stages, kinds) layers of `replayed` whose input is kept: the first of each unit."""
    memory_events: tuple[StagePlan, ...] = ()
    """Layers × passes of theirs in flight, at the moments at which a rank may hold most; none where all of a
    rank's layers are in flight equally often."""
    pending_weight_gradients: tuple[StagePlan, ...] = ()
    """At each of them, layers × passes of theirs that wait for their weight gradients; none where none ever wait."""
    active: tuple[Rows, ...] = ()
    """At each of them, (stages, 3) 1 where a forward runs, a backward, one of the last stage; as many as wait."""
    of_chunks: Rows | None = None
    """(stages, ...) the same numbers chunk by chunk, by which ranks with `memory_events` are told apart."""

    @cached_property
    def alone(self) -> Stages:
        """The plan as that of one candidate."""
        return stack_plans([self], lambda columns: column(columns[0]))

    @property
    def rows(self) -> Rows:
        """(stages, ...) layers and ends of each row."""
        ends = zip(self.first, self.last, strict=True)
        rows = zip(self.counts, self.replayed, self.heads, ends, strict=True)
        return tuple(tuple(chain.from_iterable(row)) for row in rows)

    @cached_property
    def columns(self) -> Array:
        """(..., stages) layers and ends of each row, the rank, and how many ranks it stands for."""
        return np.vstack([np.array(self.rows).T, self.index, self.multiplicity])

    @property
    def num_layers(self) -> Row:
        """(stages,) decoder layers of each row."""
        return tuple(map(sum, self.counts))

    @property
    def of_kind(self) -> Row:
        """(kinds,) decoder layers of all rows."""
        return tuple(map(sum, zip(*self.counts, strict=True)))

    @property
    def others(self) -> Rows:
        """(stages, kinds) layers of `counts` that the recompute policy leaves."""
        pairs = zip(self.counts, self.replayed, strict=True)
        return tuple(tuple(map(sub, whole, taken)) for whole, taken in pairs)

    def compressed(self) -> StagePlan:
        """Return one row per distinct rank: times add up, memory is largest at the lowest rank."""
        keys = self.rows if self.of_chunks is None else self.of_chunks
        times = Counter(keys)
        keep = [keys.index(key) for key in times]
        return replace(self.taken(keep), multiplicity=tuple(map(float, times.values())))

    def taken(self, keep: Sequence[int]) -> StagePlan:
        """Return some rows."""

        def some(rows: tuple[T, ...]) -> tuple[T, ...]:
            return tuple([rows[row] for row in keep])

        subset: dict[str, Any] = {name: some(getattr(self, name)) for name in (*BY_KIND, *OF_STAGE)}
        memory_events, pending_weight_gradients = (
            tuple(plan.taken(keep) for plan in plans)
            for plans in (self.memory_events, self.pending_weight_gradients)
        )
        return StagePlan(
            **subset,
            memory_events=memory_events,
            pending_weight_gradients=pending_weight_gradients,
            active=tuple(map(some, self.active)),
            of_chunks=None if self.of_chunks is None else some(self.of_chunks),
        )


def layers_per_stage(num_layers: int, pp: int, vpp: int = 1) -> Chunks:
    """Return, per rank, the layers of its chunks: pp·vpp virtual stages in order, remainder on the first.

    61 layers on pp=4 give 16, 15, 15, 15 (Primus projection documentation, Tips). With chunks that lack one or
    two layers to be even, the last and then the first go short, as embedding and head weigh about a layer each
    (Megatron-LM --account-for-loss-in-pipeline-split, --account-for-embedding-in-pipeline-split; 126 layers on
    16 x 8 chunks of Llama 3.1 405B).
    """
    chunks = layers_per_chunk(num_layers, pp * vpp, spare_ends=vpp > 1)
    return tuple(tuple(layer for chunk in chunks[rank::pp] for layer in chunk) for rank in range(pp))


@lru_cache(maxsize=1024)
def layers_per_chunk(num_layers: int, num_chunks: int, *, spare_ends: bool) -> Chunks:
    """Return the layers of every virtual stage, in the order of the model."""
    base, extra = divmod(num_layers, num_chunks)
    short = -num_layers % num_chunks
    if spare_ends and 0 < short <= 2:
        last = num_chunks - 1
        sizes = [base + 1 - (chunk == last) - (short == 2 and chunk == 0) for chunk in range(num_chunks)]
    else:
        sizes = [base + (chunk < extra) for chunk in range(num_chunks)]
    return tuple(tuple(range(low, high)) for low, high in pairwise(accumulate(sizes, initial=0)))


def even_stage_layers(num_layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Return the `stage_layers` of every virtual stage that mean the same as none: layers dealt evenly."""
    return tuple(map(len, layers_per_chunk(num_layers, pp * vpp, spare_ends=vpp > 1)))


@lru_cache(maxsize=1024)
def virtual_stages(
    model: Model,
    rank_of_stage: tuple[int, ...],
    *,
    stage_layers: tuple[int, ...] | None = None,
    recompute: Recompute = EVERY_LAYER,
) -> StagePlan:
    """Return the plan of the virtual stages of one replica, in the order of the model, one row each.

    `rank_of_stage` says where they lie, `stage_layers` is as in `plan_stages`.
    """
    count = len(rank_of_stage)
    if stage_layers is None:
        chunks = layers_per_chunk(model.num_layers, count, spare_ends=count > max(rank_of_stage) + 1)
    else:
        chunks = given_chunks(model, stage_layers, rank_of_stage)
    kinds = model.layer_kinds
    of_layer = [kinds.index(layer) for layer in model.layers]

    def count_kinds(layers: Iterable[tuple[int, ...]]) -> Rows:
        rows = []
        for chunk in layers:  # a Counter takes six times as long
            row = [0.0] * len(kinds)
            for layer in chunk:
                row[of_layer[layer]] += 1.0
            rows.append(tuple(row))
        return tuple(rows)

    replayed = [_replayed(chunk, recompute) for chunk in chunks]
    return StagePlan(
        counts=count_kinds(chunks),
        first=tuple(float(stage == 0) for stage in range(count)),
        last=tuple(float(stage == count - 1) for stage in range(count)),
        index=tuple(map(float, range(count))),
        multiplicity=(1.0,) * count,
        replayed=count_kinds(replayed),
        heads=count_kinds(layers[:: recompute.unit] for layers in replayed),
    )


def plan_placed(chunks: StagePlan, rank_of_stage: Sequence[int], num_replicas: int = 1) -> StagePlan:
    """Return the plan of ranks that hold the virtual stages a placement gives them (V: both ends on rank 0).

    With replicas, ranks hold the stages of each (DualPipe: stage r of one and p−1−r of the other).
    """
    stage_of = stages_of_ranks(rank_of_stage, num_replicas)
    return weighted(chunks, stage_of, [[1.0] * len(stages) for stages in stage_of])


def stages_of_ranks(rank_of_stage: Sequence[int], num_replicas: int = 1) -> Chunks:
    """Return the virtual stages of every rank, (ranks, chunks), replica after replica."""
    stages = sorted(range(len(rank_of_stage)), key=rank_of_stage.__getitem__)
    size, replica = len(stages) // (max(rank_of_stage) + 1), len(stages) // num_replicas
    return tuple(
        tuple(stage % replica for stage in stages[low : low + size]) for low in range(0, len(stages), size)
    )


def weighted(chunks: StagePlan, stage_of: Chunks, live: Sequence[Sequence[float]]) -> StagePlan:
    """Return the layers of ranks × (ranks, chunks) passes of theirs."""
    ranks = list(zip(stage_of, live, strict=True))

    def sums(values: Row) -> Row:
        return tuple(
            reduce(add, (times * values[stage] for stage, times in zip(stages, passes, strict=True)), 0.0)
            for stages, passes in ranks
        )

    def of_kinds(rows: Rows) -> Rows:
        return tuple(zip(*map(sums, zip(*rows, strict=True)), strict=True))

    return StagePlan(
        counts=of_kinds(chunks.counts),
        replayed=of_kinds(chunks.replayed),
        heads=of_kinds(chunks.heads),
        first=sums(chunks.first),
        last=sums(chunks.last),
        index=tuple(map(float, range(len(ranks)))),
        multiplicity=(1.0,) * len(ranks),
    )


def plan_stages(
    model: Model,
    *,
    pp: int,
    vpp: int = 1,
    stage_layers: tuple[int, ...] | None = None,
    recompute: Recompute = EVERY_LAYER,
) -> StagePlan:
    """Return the full stage plan of a model.

    Parameters
    ----------
    model
        The model.
    pp, vpp
        Ranks, and virtual stages on each: stage s lies on rank s mod pp.
    stage_layers
        Decoder layers of each rank, cut evenly over its virtual stages, or of each of pp·vpp virtual stages in
        the order of the model; None spreads them evenly.
    recompute
        Whose selection of layers is counted.

    Raises
    ------
    SpecError
        If explicit `stage_layers` are of another number or do not add up to the model's layers, or recompute
        lists a layer that the model does not have.
    """
    check_layer_ids(model, recompute)
    ranks = tuple(range(pp)) * vpp
    chunks = virtual_stages(model, ranks, stage_layers=stage_layers, recompute=recompute.selection)
    return plan_placed(chunks, ranks)


def given_chunks(model: Model, stage_layers: Sequence[int], rank_of_stage: Sequence[int]) -> Chunks:
    """Return the layers of every virtual stage, in the order of the model, where their numbers were given."""
    pp, num_stages = max(rank_of_stage) + 1, len(rank_of_stage)
    if len(stage_layers) not in (pp, num_stages) or sum(stage_layers) != model.num_layers:
        counts = (
            f"{pp} counts" if pp == num_stages else f"{pp} counts, or {num_stages} (one per virtual stage),"
        )
        msg = (
            f"stage_layers {tuple(stage_layers)} must be {counts} that add up to the "
            f"{counted(model.num_layers, 'layer')} of {model.name}; "
            f"they are {len(stage_layers)} and add up to {sum(stage_layers)}"
        )
        raise SpecError(msg)
    sizes = list(stage_layers)
    if len(stage_layers) != num_stages:
        vpp = num_stages // pp
        shares = [[(count + vpp - 1 - chunk) // vpp for chunk in range(vpp)] for count in stage_layers]
        sizes = [shares[rank].pop(0) for rank in rank_of_stage]
    ends = accumulate(sizes)
    return tuple(tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True))


def check_layer_ids(model: Model, recompute: Recompute) -> None:
    """Raise SpecError if recompute lists a layer that the model does not have."""
    most = model.num_layers + model.num_mtp_layers
    beyond = [layer for layer in recompute.layer_ids if layer >= most]
    if beyond:
        allowed = f"from 0 to {most - 1}, the layers of {model.name}"
        raise out_of_range("recompute.layer_ids", beyond[0], allowed)


def replayed_mtp(model: Model, recompute: Recompute) -> int:
    """Return how many multi-token-prediction layers the policy takes: all, or those listed after the decoder's.

    Megatron-LM leaves them out where only some layers of a stage are recomputed.
    """
    if recompute.num_layers is None and not recompute.layer_ids:
        return model.num_mtp_layers
    return sum(layer >= model.num_layers for layer in recompute.layer_ids)


def _replayed(chunk: tuple[int, ...], recompute: Recompute) -> tuple[int, ...]:
    """Return the layers of one virtual stage that the policy takes."""
    if recompute.layer_ids:
        return tuple(layer for layer in chunk if layer in recompute.layer_ids)
    return chunk[: recompute.num_layers]


BY_KIND = ("counts", "replayed", "heads")
"""Fields of `Stages` that have one array per kind of layer."""
OF_STAGE = ("first", "last", "index", "multiplicity")
"""Its other fields."""


class Stages(Struct, frozen=True, kw_only=True):
    """Stage plans of all candidates: arrays (stages, candidates); unused rows have multiplicity 0."""

    counts: tuple[Array, ...]
    """Layers by kind."""
    first: Array
    last: Array
    index: Array
    multiplicity: Array
    replayed: tuple[Array, ...]
    """Layers by kind that the recompute policy takes."""
    heads: tuple[Array, ...]
    """Of those, layers whose input is kept."""
    memory_events: tuple[Stages, ...] = ()
    """As in `StagePlan`, of as many moments as any candidate has; of those that have none, their layers."""
    pending_weight_gradients: tuple[Stages, ...] = ()
    """As many, where passes of any candidate wait; none otherwise."""
    active: tuple[tuple[Array, ...], ...] = ()
    """As many as wait: whether a forward runs, a backward, one of the last stage."""

    @property
    def num_layers(self) -> Array:
        """Decoder layers on each stage."""
        return sum(self.counts[1:], start=self.counts[0])

    @property
    def num_units(self) -> Array:
        """Return the number of layers of every stage where layers that are replayed together count as one."""
        joined = (head - taken for head, taken in zip(self.heads, self.replayed, strict=True))
        return sum(joined, start=self.num_layers)

    def recorded(self, layer_names: Sequence[str]) -> Stages:
        """Return the plans as terms, for an explanation; `layer_names` says what each kind of layer is."""
        named = zip(self.counts, layer_names, strict=True)
        return replace(
            self,
            counts=tuple(
                cast("Array", Term(count, name=f"{name} layers", unit="1")) for count, name in named
            ),
            first=cast("Array", Term(self.first, name="embedding here", unit="1")),
            last=cast("Array", Term(self.last, name="head here", unit="1")),
        )

    def picked(self, pick: Select) -> Stages:
        """Return one stage of every candidate, (candidates,), without its moments."""
        fields: dict[str, Any] = {name: pick(getattr(self, name)) for name in OF_STAGE}
        fields |= {name: tuple(map(pick, getattr(self, name))) for name in BY_KIND}
        return Stages(**fields)

    def take(self, candidates: Integers) -> Stages:
        """Return the plans of some candidates."""
        return mapped(self, taking(candidates))


Columns: TypeAlias = Sequence[Sequence[float]]
"""Numbers of the rows of each plan."""


def _stacked(columns: Columns) -> Array:
    """Return (rows, plans), the columns filled up with 0."""
    return np.array([*zip_longest(*columns, fillvalue=0.0)], dtype=np.float64)


def _layers_of(plans: Sequence[StagePlan], stack: Callable[[Columns], Array]) -> dict[str, Any]:
    """Return the layers and ends of plans, by the fields of `Stages`."""

    def of_kinds(name: str) -> tuple[Array, ...]:
        kinds = range(len(plans[0].counts[0]))
        return tuple(stack([[row[kind] for row in getattr(plan, name)] for plan in plans]) for kind in kinds)

    fields: dict[str, Any] = {name: stack([getattr(plan, name) for plan in plans]) for name in OF_STAGE}
    return fields | {name: of_kinds(name) for name in BY_KIND}


def _layers_of_many(plans: Sequence[StagePlan]) -> dict[str, Any]:
    """Return the same as arrays, (stages, plans), at once."""
    columns = [plan.columns for plan in plans]
    rows = np.zeros((len(columns[0]), max(item.shape[1] for item in columns), len(plans)))
    for nth, item in enumerate(columns):
        rows[:, : item.shape[1], nth] = item
    *layers, first, last, index, multiplicity = rows
    kinds = len(layers) // len(BY_KIND)
    by_kind = {name: tuple(layers[nth * kinds : (nth + 1) * kinds]) for nth, name in enumerate(BY_KIND)}
    return {"first": first, "last": last, "index": index, "multiplicity": multiplicity, **by_kind}


def stack_plans(plans: Sequence[StagePlan], stack: Callable[[Columns], Array] = _stacked) -> Stages:
    """Return one column per plan, padded with rows of multiplicity 0; `stack` makes the numbers of all plans one."""
    fields = _layers_of_many(plans) if stack is _stacked else _layers_of(plans, stack)
    most = max(len(plan.memory_events) for plan in plans)
    memory_events = tuple(
        stack_plans([_memory_event(plan, at) for plan in plans], stack) for at in range(most)
    )
    if not any(plan.pending_weight_gradients for plan in plans):
        return Stages(**fields, memory_events=memory_events)
    pending_weight_gradients = tuple(
        stack_plans([_pending_weight_gradients(plan, at) for plan in plans], stack) for at in range(most)
    )
    active = tuple(
        tuple(stack([[row[which] for row in _active(plan, at)] for plan in plans]) for which in range(3))
        for at in range(most)
    )
    return Stages(
        **fields,
        memory_events=memory_events,
        pending_weight_gradients=pending_weight_gradients,
        active=active,
    )


def _memory_event(plan: StagePlan, at: int) -> StagePlan:
    """Return a moment, the last again where there are fewer, or the plan where there are none."""
    return plan.memory_events[min(at, len(plan.memory_events) - 1)] if plan.memory_events else plan


def _pending_weight_gradients(plan: StagePlan, at: int) -> StagePlan:
    """Return what waits at a moment: nothing where nothing ever does."""
    if plan.pending_weight_gradients:
        return plan.pending_weight_gradients[min(at, len(plan.pending_weight_gradients) - 1)]
    ends, kinds = (0.0,) * len(plan.index), ((0.0,) * len(plan.counts[0]),) * len(plan.index)
    return replace(plan, counts=kinds, replayed=kinds, heads=kinds, first=ends, last=ends, memory_events=())


def _active(plan: StagePlan, at: int) -> Rows:
    """Return whether passes run at a moment: they do where none ever wait."""
    if plan.active:
        return plan.active[min(at, len(plan.active) - 1)]
    return ((1.0, 1.0, 1.0),) * len(plan.index)


def over_stages(
    stages: Stages, parts: PerBlock[T], of: Callable[[T], Numeric], *, num_mtp: int, layers: bool = True
) -> Numeric:
    """Return the sum of layers × quantity on every stage, in the unit of the quantity; `layers` may be left out."""
    result: Numeric = stages.first * of(parts.embedding) + stages.last * of(parts.head)
    if layers:
        for count, part in zip(stages.counts, parts.layers, strict=True):
            result = result + count * of(part)
    if parts.mtp is not None:
        result = result + stages.last * float(num_mtp) * of(parts.mtp)
    for times, part in parts.vision:
        result = result + stages.first * float(times) * of(part)
    return result


class StageSums(Struct, frozen=True, kw_only=True):
    """Sums over what stands on stages: layers that the recompute policy takes, the others, both ends."""

    model: Model
    recompute: Recompute
    stages: Stages
    copies: int = 1
    """Copies of the parameters on a rank: of several a micro-batch meets one, on average."""

    def on(self, stages: Stages, *, copies: int = 1) -> StageSums:
        """Return the same sums over other stages."""
        return replace(self, stages=stages, copies=copies)

    def total(self, blocks: PerBlock[RecomputeSplit[T]], of: Callable[[T], Numeric]) -> Numeric:
        """Return Σ layers × quantity of a layer, ends included: what one micro-batch meets."""
        return self._of_one(self.sum_over(blocks, of, self.stages.replayed))

    def kept(self, blocks: PerBlock[RecomputeSplit[T]], of: Callable[[T], Numeric]) -> Numeric:
        """Return what one micro-batch keeps: of a unit that is replayed together, one layer's input."""
        return self._of_one(self.sum_over(blocks, of, self.stages.heads))

    def _of_one(self, summed: Numeric) -> Numeric:
        return summed if self.copies == 1 else summed / float(self.copies)

    def sum_over(
        self, blocks: PerBlock[RecomputeSplit[T]], of: Callable[[T], Numeric], taken: tuple[Array, ...]
    ) -> Numeric:
        """Sum a quantity over layers that the policy takes, which count as often as `taken` says, and the others."""
        stages, num_mtp = self.stages, self.model.num_mtp_layers

        def replayed(block: RecomputeSplit[T]) -> Numeric:
            return of(block.replayed)

        if self.recompute.takes_all:
            return over_stages(stages, blocks, replayed, num_mtp=num_mtp)
        again = replayed_mtp(self.model, self.recompute)
        result = over_stages(stages, blocks, replayed, num_mtp=again, layers=False)
        if blocks.mtp is not None:
            result = result + stages.last * float(num_mtp - again) * of(blocks.mtp.kept)
        for kind, layer in enumerate(blocks.layers):
            result = result + taken[kind] * of(layer.replayed)
            result = result + (stages.counts[kind] - stages.replayed[kind]) * of(layer.kept)
        return result


@formula(unit="s", source="every stage is crossed once while the pipeline fills and drains")
def sum_over_stages(*, values: Numeric, multiplicity: Numeric) -> Numeric:
    """Σ multiplicity · values, each rounded to the largest / 2⁴⁰: then no grouping of equal stages changes it."""
    grid = greatest_stage(where(multiplicity > 0.0, values, 0.0)) * 2.0**12
    products: Any = ((values + grid) - grid) * multiplicity
    if type(products) is Column:
        return summed(products.values)
    result: Numeric = np.add.reduce(np.asarray(products), axis=0)
    return result


def greatest_stage(values: Any) -> Numeric:  # noqa: ANN401  (stages of one layout or of many)
    """Return the largest of the stages' numbers, (candidates,)."""
    if type(values) is Column:
        return cast("float", max(values.values))
    result: Numeric = np.max(np.asarray(values), axis=0)
    return result


class Picker:
    """Takes the numbers of one stage per candidate."""

    def __init__(self, rows: Sequence[int] | Integers) -> None:
        """Take the stage of each candidate."""
        self._rows = rows
        self._alone = int(rows[0]) if len(rows) == 1 else None

    @cached_property
    def _columns(self) -> Integers:
        return np.arange(len(self._rows))

    @classmethod
    def slowest(cls, stage_time: Numeric, stages: Stages) -> Picker:
        """Return the picker of the stage that sets the pace."""
        times: Any = where(stages.multiplicity > 0, value_of(stage_time), -math.inf)
        if type(times) is Column:
            return cls([times.values.index(max(times.values))])
        return cls(times.argmax(axis=0))

    def __call__(self, values: Numeric) -> Numeric:
        """Return the value of the chosen stage; a number of a single candidate, whose arithmetic is quick."""
        plain = value_of(values)
        if type(plain) is Column:
            return cast("float", plain.values[self._alone or 0])
        if isinstance(plain, float) or plain.ndim < 2:
            return values
        if self._alone is not None and isinstance(values, np.ndarray):
            return float(values.item(self._alone))
        columns = 0 * self._columns if plain.shape[1] == 1 else self._columns  # one may stand for all
        picked: Numeric = values[self._rows, columns]  # type: ignore[index]
        return picked

    def maximum(self, values: Numeric, stages: Stages) -> Numeric:
        """Return the largest value over the stages that exist, (candidates,), in the unit of the values."""
        return values if isinstance(values, float) else Picker.slowest(values, stages)(values)

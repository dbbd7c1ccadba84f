"""Evaluate layouts in batches that share operators, ways to place ranks and schedule; blocks are priced once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
from msgspec import field
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.evaluate import evaluate
from forescale.graph.per_block import PerBlock, counted_weight_part
from forescale.graph.sharding import StructuralOptions, split_layout
from forescale.graph.stages import StagePlan, stack_plans
from forescale.inputs import Unpriced, setting_of, unpriced
from forescale.memory.in_flight import InFlight
from forescale.memory.inputs import StateBytes
from forescale.memory.parameters import BlockParameters, Sharded, holdings
from forescale.memory.peak import Footprint, footprint, highest_peak
from forescale.memory.states import weights_and_updates
from forescale.numeric import Array, mapped, taking
from forescale.question import Question
from forescale.schedule import cuts_sequences, splits_backward
from forescale.search.blocks import KnownBlocks, PricedOnce, blocks_of
from forescale.search.layouts import (
    Candidates,
    Rows,
    Variant,
    as_degrees,
    as_sequence_parallel,
    candidates_of,
    distinct,
    first_rows,
    occurring,
    uncrossed,
)
from forescale.search.ranks import GivenRanks, Ranks, RelaxedPlacement, RelaxedRanks
from forescale.search.stages import StagesOf, stages_of
from forescale.search.tree import branches_of
from forescale.spec.layout import Layout, Recompute, TensorKind
from forescale.spec.model import Model
from forescale.struct import Struct
from forescale.time.data_parallel import DataTraffic, data_traffic
from forescale.time.pipeline import (
    Pipeline,
    Shape,
    floor_of,
    interleaved,
    pipeline_of,
)

T = TypeVar("T", bound=Hashable)
SHAPE = ("pp", "vpp", "count", "selection")
"""What a named schedule depends on: ranks, chunks, micro-batches, and which layers are recomputed."""
CHUNK = 8192
"""Candidates composed at once: small enough for the cache, large enough to hide Python's overhead."""
ROWS_AT_ONCE = 2**17
"""Rows whose blocks are priced at once."""
PARAMETER_KEY = ("tp", "ep", "etp", "pp", "vpp")
"""What the parameters of a stage depend on."""
TRAFFIC_KEY = (*PARAMETER_KEY, "cp", "dp_replicate", "dp_shard")
"""What data-parallel traffic depends on."""


class Batch(Struct, frozen=True, kw_only=True):
    """(variant, row) pairs that share operator list, schedule and the way their ranks are given."""

    pairs: Rows
    """Which of all pairs they are."""
    rows: Rows
    variant: Rows
    """Which of the variants that occur each pair has."""
    policies: tuple[Recompute, ...]
    """What may be recomputed; of counts of layers the first stands for all, stages know each pair's."""
    policy: Rows
    """Which of `policies` each pair has."""
    choices: StructuralOptions
    ranks: Ranks
    blocks: PricedOnce
    at: Rows
    """Where each pair stands in `blocks`."""
    stages: StagesOf
    pipeline: Pipeline = field(default_factory=Pipeline)

    @property
    def block(self) -> Rows:
        """Which of the distinct blocks each pair has."""
        return self.blocks.where[self.at]

    def together(self, model: Model) -> list[list[int]]:
        """Return which of `policies` occur: those that take all layers at once, as they differ in costs alone.

        Those that take some are among them where sums over stages have the same order, as stages know which layers.
        """
        present = occurring(self.policy).tolist()
        merged = not model.num_mtp_layers and model.vision is None
        alike = [
            item
            for item in present
            if (policy := self.policies[item]).takes_all or (merged and policy.unit == 1)
        ]
        return [*([alike] if alike else []), *([item] for item in present if item not in alike)]

    def block_parameters(self, rows: Rows) -> PerBlock[BlockParameters]:
        """Return the parameters of the blocks of some pairs."""
        return mapped(self.blocks.block_parameters, taking(self.block[rows]))

    def take(self, rows: Rows) -> Batch:
        """Return some of the pairs."""
        return replace(
            self,
            pairs=self.pairs[rows],
            rows=self.rows[rows],
            variant=self.variant[rows],
            policy=self.policy[rows],
            ranks=self.ranks.take(rows),
            at=self.at[rows],
            stages=StagesOf(self.stages.plans, self.stages.plan[rows]),
        )


Least: TypeAlias = Callable[[Batch], StateBytes]
"""Returns (stages, pairs) bytes that states need at least, and what is gathered, moment by moment."""
Matters: TypeAlias = Callable[[Array, Array], NDArray[np.bool_]]
"""Says which pairs with these bounds of time and memory are worth a closer one."""


def batches(
    question: Question,
    candidates: Candidates,
    variant: Rows,
    row: Rows,
    *,
    relaxed: RelaxedPlacement | None = None,
    bounded: bool = False,
    known: KnownBlocks | None = None,
) -> Iterator[Batch]:
    """Yield all pairs in batches; a named schedule has one batch per shape of its pipeline.

    Parameters
    ----------
    relaxed
        Where communicators may lie, if that is not for the variants to say.
    bounded
        Whether named schedules are only bounded, all shapes together: nothing is built or simulated.
    known
        Blocks of candidates of the same question, which are not priced again.
    """
    if len(row) == 0:
        return
    present, variant = np.unique(variant, return_inverse=True)
    candidates = replace(candidates, variants=tuple(candidates.variants[item] for item in present.tolist()))
    result = _Batches(question, candidates, relaxed, bounded=bounded, known=known)
    stages, schedule = result.stages(variant, row), result.schedules_of(variant, row)
    parallel = as_sequence_parallel(candidates.columns)
    alike = result.alike(variant, schedule)
    for which in occurring(alike).tolist():
        for sp in (True, False):
            pairs = np.flatnonzero((alike == which) & (parallel[row] == sp))
            if len(pairs):
                local = StagesOf(stages.plans, stages.plan[pairs])
                yield from result.of(pairs, variant[pairs], row[pairs], schedule[pairs], local, sp=sp)


class _Batches:
    """Makes batches of pairs that are alike."""

    def __init__(
        self,
        question: Question,
        candidates: Candidates,
        relaxed: RelaxedPlacement | None,
        *,
        bounded: bool,
        known: KnownBlocks | None,
    ) -> None:
        self.question, self.model, self.candidates = question, question.model, candidates
        self.relaxed, self.bounded, self.known = relaxed, bounded, known or KnownBlocks()
        variants = candidates.variants
        self.common = split_layout(candidates.base, domain=candidates.domain)[1]
        self.policies, self.policy = numbered([uncounted(variant.recompute) for variant in variants])
        self.selections, self.selection = numbered([variant.recompute.selection for variant in variants])
        self.orders, self.order = numbered([variant.rank_order for variant in variants])
        _, self.list = numbered([tuple(variant.choices.values()) for variant in variants])
        _, self.operators = numbered([operators_of(variant) for variant in variants])
        self.schedules, self.schedule = numbered([None, *(variant.schedule for variant in variants)])

    def schedules_of(self, variant: Rows, rows: Rows) -> Rows:
        """Return which of `schedules` pairs run: those of one stage none, as `split_layout` has it."""
        return np.where(self.candidates.columns["pp"][rows] > 1, self.schedule[1:][variant], 0)

    def alike(self, variant: Rows, schedule: Rows) -> Rows:
        """Return a number for each pair, the same of those with the same operators and kind of schedule."""
        kinds, kind = numbered([(cuts_sequences(name), splits_backward(name)) for name in self.schedules])
        return np.asarray(self.operators[variant] * len(kinds) + kind[schedule])

    def of(
        self, pairs: Rows, variant: Rows, rows: Rows, schedule: Rows, stages: StagesOf, *, sp: bool
    ) -> Iterator[Batch]:
        """Yield pairs of the same operators in one batch a list and schedule, or one per pipeline of a named one."""
        first, ranks = self.candidates.variants[variant[0]], self._ranks(variant, rows)
        choices = replace(self.common, sp=sp, **first.choices, schedule=self.schedules[schedule[0]])
        columns, shared = self.candidates.columns, choices.of_operators
        whole = Batch(
            pairs=pairs,
            rows=rows,
            variant=variant,
            policies=self.policies,
            policy=self.policy[variant],
            choices=choices,
            ranks=ranks,
            blocks=self.known.priced(self.question, columns, shared, ranks, rows),
            at=np.arange(len(rows)),
            stages=stages,
        )
        kinds = self.list[variant] * len(self.schedules) + schedule
        for kind in occurring(kinds).tolist():
            pairs = np.flatnonzero(kinds == kind)
            listed, name = (
                self.candidates.variants[variant[pairs[0]]],
                self.schedules[schedule[pairs[0]]],
            )
            local = replace(choices, **listed.choices, schedule=name)
            batch = replace(whole.take(pairs), choices=local)
            if name is None:
                yield from self._in_turn(batch)
            else:
                yield from self._scheduled(batch)

    def _in_turn(self, batch: Batch) -> Iterator[Batch]:
        """Yield what (interleaved) 1F1B runs in one batch; what has a short last group of micro-batches by shape."""
        group = self.candidates.base.microbatch_group
        if group is None:
            yield batch
            return
        short = self.candidates.num_microbatches[batch.rows] % group > 0
        short &= self.candidates.columns["vpp"][batch.rows] > 1
        if not short.all():
            pipeline = Pipeline(in_flight=InFlight(group=float(group)))
            yield replace(batch.take(np.flatnonzero(~short)), pipeline=pipeline)
        if short.any():
            yield from self._scheduled(batch.take(np.flatnonzero(short)))

    def _scheduled(self, batch: Batch) -> Iterator[Batch]:
        """Yield one batch per shape, or of a named schedule one under bounds of all shapes."""
        shapes = {name: self.candidates.columns[name][batch.rows] for name in ("pp", "vpp")}
        shapes["count"] = self.candidates.num_microbatches[batch.rows]
        shapes["selection"] = self.selection[batch.variant]
        table = distinct(shapes, SHAPE)
        pp, vpp, count, selection = (table.columns[name].tolist() for name in SHAPE)
        of_shape = tuple(zip(pp, vpp, count, strict=True))
        recompute = [self.selections[which] for which in selection]
        if self.bounded and batch.choices.schedule is not None:
            yield self._under_floor(batch, of_shape, table.where, recompute)
            return
        for index, shape in enumerate(of_shape):
            take = batch.take(np.flatnonzero(table.where == index))
            yield self._built(take, shape, recompute[index])

    def _built(self, batch: Batch, shape: Shape, recompute: Recompute) -> Batch:
        """Return a batch of one shape with its pipeline, simulated if it has a name."""
        pp, vpp, count = shape
        base = self.candidates.base
        if batch.choices.schedule is None:
            ranks, counted = interleaved(
                self.model,
                pp=pp,
                vpp=vpp,
                num_microbatches=count,
                group=base.microbatch_group,
                recompute=recompute,
                stage_layers=base.stage_layers,
            )
            return _of_pipeline(batch, ranks, counted)
        pipeline = pipeline_of(
            self.model,
            str(batch.choices.schedule),
            pp,
            vpp,
            count,
            recompute=recompute,
            stage_layers=base.stage_layers,
            num_splits=base.sequence_pieces,
            weight_part=counted_weight_part(self.model, self.question.workload.seq_len),
        )
        return _of_pipeline(batch, pipeline.ranks, pipeline)

    def _under_floor(
        self, batch: Batch, of_shape: Sequence[Shape], where: Rows, recompute: Sequence[Recompute]
    ) -> Batch:
        """Return a batch with bounds of its pipelines, of which none is built."""
        name, pieces = str(batch.choices.schedule), self.candidates.base.sequence_pieces
        floor, stages, plan = floor_of(self.model, name, of_shape, recompute=recompute, num_splits=pieces)
        return replace(batch, stages=StagesOf(stages, plan[where]), pipeline=floor.take(where))

    def stages(self, variant: Rows, rows: Rows) -> StagesOf:
        """Return the stage plans of pairs under 1F1B."""
        columns = {name: self.candidates.columns[name][rows] for name in ("pp", "vpp")}
        selected = {**columns, "selection": self.selection[variant]}
        base = self.candidates.base
        return stages_of(
            self.model, selected, self.selections, base.stage_layers, group=base.microbatch_group
        )

    def _ranks(self, variant: Rows, rows: Rows) -> Ranks:
        if self.relaxed is not None:
            return RelaxedRanks(placement=self.relaxed, rows=rows)
        return GivenRanks(
            orders=self.orders, which=self.order[variant], pp=self.candidates.columns["pp"][rows]
        )


def _of_pipeline(batch: Batch, ranks: StagePlan, pipeline: Pipeline) -> Batch:
    """Return a batch whose pairs all have the same plan of ranks, and pipeline."""
    stages = StagesOf(stack_plans([ranks]), np.zeros(len(batch.rows), dtype=np.int64))
    return replace(batch, stages=stages, pipeline=pipeline)


def operators_of(variant: Variant) -> tuple[object, ...]:
    """Return what lists with the same operators and prices have in common."""
    others = {name: value for name, value in variant.choices.items() if name != "overlap"}
    return (*others.values(), variant.overlap.tensor)


def uncounted(recompute: Recompute) -> Recompute:
    """Return what is recomputed, one count of layers for all."""
    return recompute if recompute.num_layers is None else replace(recompute, num_layers=1)


def numbered(values: Sequence[T]) -> tuple[tuple[T, ...], Rows]:
    """Return distinct values, and which of them each is."""
    rank: dict[T, int] = {}
    which = np.array([rank.setdefault(item, len(rank)) for item in values], dtype=np.int64)
    return tuple(rank), which


class Scores(Struct, frozen=True, kw_only=True):
    """What a search ranks by: arrays (variants, rows) as `Candidates`; what was not evaluated is infinite."""

    step_time: Array
    peak: Array


def score(
    question: Question,
    candidates: Candidates,
    *,
    memory_limit: float = np.inf,
    only: NDArray[np.bool_] | None = None,
    chunk: int = CHUNK,
) -> Scores:
    """Return step time and peak memory of every candidate, (variants, rows); the result does not depend on `chunk`.

    Parameters
    ----------
    memory_limit
        Rows whose states alone exceed it are not evaluated: none of their variants can fit.
    only
        (variants, rows) what to evaluate; everything legal by default.
    """
    shape = (len(candidates.variants), candidates.num_rows)
    scores = Scores(step_time=np.full(shape, np.inf), peak=np.full(shape, np.inf))
    if candidates.num_rows == 0:
        return scores
    states = _by_kind(question, candidates) if memory_limit < np.inf else {}
    legal = candidates.legal if only is None else only
    for branch in branches_of(candidates.variants):
        indices = branch.variants.reshape(-1).tolist()
        flags = legal[indices]
        if states and branch.first.schedule is None:
            flags = flags & (states[branch.first.tp_kind] <= memory_limit)
        for start in range(0, candidates.num_rows, ROWS_AT_ONCE):
            which, row = np.nonzero(flags[:, start : start + ROWS_AT_ONCE])
            variant, row = np.array(indices)[which], row + start
            result = score_pairs(question, candidates, variant, row, chunk=chunk)
            scores.step_time[variant, row], scores.peak[variant, row] = result.step_time, result.peak
    return scores


def score_pairs(
    question: Question,
    candidates: Candidates,
    variant: Rows,
    row: Rows,
    *,
    least: Least | None = None,
    exposed: Callable[[Batch], Array] | None = None,
    matters: Matters | None = None,
    relaxed: RelaxedPlacement | None = None,
    known: KnownBlocks | None = None,
    timed: bool = True,
    chunk: int = CHUNK,
) -> Scores:
    """Return step time and peak memory of (variant, row) pairs, which are legal.

    Parameters
    ----------
    least
        Bytes that no sharding of states goes below. With it the scores are bounds of all layouts that differ from
        a row in their sharding alone: the same evaluation without data-parallel traffic.
    exposed
        Beside `least`, returns the seconds of that traffic that show at least, (pairs,) of a batch.
    matters
        Says to which bounds of time and memory they are added.
    relaxed
        Places of every row's communicators. With it the scores are bounds of all layouts that differ in the
        placement of their ranks as well, whatever placement the variants have.
    known
        As in `batches`.
    timed
        Where not, memory alone is worked out, and every step time is 0.
    """
    scores = Scores(step_time=np.full(len(row), np.inf), peak=np.full(len(row), np.inf))
    bounded = least is not None
    result = batches(question, candidates, variant, row, relaxed=relaxed, bounded=bounded, known=known)
    for batch in result:
        group = _Group(question, candidates, batch, least, timed=timed)
        for start in range(0, len(batch.rows), chunk):
            part = np.arange(start, min(start + chunk, len(batch.rows)))
            evaluation = group.scores(part)
            scores.step_time[batch.pairs[part]] = evaluation.step_time
            scores.peak[batch.pairs[part]] = evaluation.peak
        if exposed is not None and matters is not None:
            kept = np.flatnonzero(matters(scores.step_time[batch.pairs], scores.peak[batch.pairs]))
            scores.step_time[batch.pairs[kept]] += exposed(batch.take(kept)) if len(kept) else 0.0
    return scores


def score_layouts(question: Question, layouts: Sequence[Layout]) -> Scores:
    """Return step time and peak memory, (layouts,), of legal layouts whatever they differ in."""
    scores = Scores(step_time=np.full(len(layouts), np.inf), peak=np.full(len(layouts), np.inf))
    alike: dict[Layout, list[int]] = {}
    for index, layout in enumerate(layouts):
        alike.setdefault(uncrossed(layout), []).append(index)
    for base, indices in alike.items():
        candidates, variant = candidates_of(question, [layouts[index] for index in indices], base)
        result = score_pairs(question, candidates, variant, np.arange(len(indices)))
        scores.step_time[indices], scores.peak[indices] = result.step_time, result.peak
    return scores


def states_of(question: Question, candidates: Candidates, variant: Rows, row: Rows) -> Array:
    """Return the bytes of states on the fullest stage of (variant, row) pairs; 0 under schedules with own stages."""
    bytes_of = _by_kind(question, candidates)
    kinds = tuple(bytes_of)
    known = np.stack([np.zeros(candidates.num_rows), *bytes_of.values()])
    which = [0 if variant.schedule else 1 + kinds.index(variant.tp_kind) for variant in candidates.variants]
    return np.asarray(known[np.array(which)[variant], row])


def _by_kind(question: Question, candidates: Candidates) -> dict[TensorKind, Array]:
    """Return the bytes of states on the fullest stage of every row, by the kind of tensor parallelism."""
    stages = stages_of(question.model, candidates.columns)
    common = split_layout(candidates.base, domain=candidates.domain)[1]
    return {
        kind: _states(question, candidates, stages, replace(common, tp_kind=kind))
        for kind in dict.fromkeys(variant.tp_kind for variant in candidates.variants)
    }


def _states(
    question: Question, candidates: Candidates, stages_of_rows: StagesOf, choices: StructuralOptions
) -> Array:
    """Return the bytes of weights, gradients and optimizer states on the fullest stage of every row."""
    model = question.model
    table = distinct(candidates.columns, (*TRAFFIC_KEY, "zero"))
    degrees = as_degrees(table.columns)
    kept = holdings(blocks_of(question, degrees, choices))
    stages = stages_of_rows(first_rows(table.where))
    setting = setting_of(question, choices)
    states = weights_and_updates(setting, Sharded.from_model(model, kept, stages, degrees))
    total = np.asarray(states.least(paged=choices.offload.paged))
    fullest: Array = np.max(np.where(stages.multiplicity > 0, total, 0.0), axis=0)
    return fullest[table.where]


class _Group:
    """Pairs of one batch, with their tables of distinct blocks and traffic."""

    def __init__(
        self,
        question: Question,
        candidates: Candidates,
        batch: Batch,
        least: Least | None = None,
        *,
        timed: bool = True,
    ) -> None:
        self.question, self.batch, self.choices, self.timed = question, batch, batch.choices, timed
        self.setting = setting_of(question, batch.choices)
        self.columns = {name: values[batch.rows] for name, values in candidates.columns.items()}
        self.floor = None if least is None else least(batch)
        self.traffic: DataTraffic | None = None
        if self.floor is None and timed:
            keys = batch.ranks.keys(question.model)
            columns = {**self.columns, "plan": batch.stages.plan, **keys}
            self.traffic_table = distinct(columns, (*TRAFFIC_KEY, "plan", *keys))
            self.traffic = self._traffic()

    def _traffic(self) -> DataTraffic:
        first = first_rows(self.traffic_table.where)
        degrees = as_degrees({name: values[first] for name, values in self.columns.items()})
        kept, stages = self.batch.block_parameters(first), self.batch.stages(first)
        sharded = Sharded.from_model(self.question.model, kept, stages, degrees)
        pricing = self.batch.ranks.pricing(self.question, degrees, self.choices, first)
        return data_traffic(self.setting, sharded, pricing)

    def scores(self, part: Rows) -> Scores:
        """Return the scores of some candidates of the group: each kind of policy is evaluated by itself."""
        batch, safe = self.batch, self.question.safe
        result = Scores(step_time=np.zeros(len(part)), peak=np.empty(len(part)))
        ready = self._unpriced(part)
        for policies in batch.together(self.question.model):
            rows = np.flatnonzero(np.isin(batch.policy[part], policies))
            if len(rows) == 0:
                continue
            recompute = min((batch.policies[item] for item in policies), key=lambda item: item.takes_all)
            setting = replace(self.setting, choices=replace(self.choices, recompute=recompute))
            block = batch.block[part[rows]] + np.searchsorted(policies, batch.policy[part[rows]]) * len(
                batch.blocks
            )
            local = ready if len(rows) == len(part) else ready.take(rows)
            together, stages = [batch.policies[policy] for policy in policies], local.sharded.stages
            used: Footprint
            if self.timed:
                costs = batch.blocks.costs(batch.choices, together)
                used = whole = evaluate(setting, local.under(setting, mapped(costs, taking(block))))
                result.step_time[rows] = whole.step_time
            else:
                kept = mapped(batch.blocks.bytes(batch.choices, together), taking(block))
                used = footprint(setting, local.resident(setting, kept))
            result.peak[rows] = highest_peak(used, setting.overhead, stages) if safe else used.peak
        return result

    def _unpriced(self, part: Rows) -> Unpriced:
        """Return what some candidates of the group are evaluated from, whatever is recomputed."""
        degrees = as_degrees({name: values[part] for name, values in self.columns.items()})
        kept, stages = self.batch.block_parameters(part), self.batch.stages(part)
        sharded = Sharded.from_model(self.question.model, kept, stages, degrees)
        pricing = self.batch.ranks.pricing(self.question, degrees, self.choices, part)
        pipeline = self.batch.pipeline.take(part)
        ready = partial(unpriced, self.setting, sharded, pricing=pricing, pipeline=pipeline)
        if self.floor is not None:
            return ready(least=mapped(self.floor, taking(part)))
        if self.traffic is None:
            return ready()
        return ready(traffic=mapped(self.traffic, taking(self.traffic_table.where[part])))

"""Candidates in batches that are evaluated as one array: alike in their operators, ways to place ranks and schedule."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from forescale.cost.mesh import AXES, Inside, Order
from forescale.graph.layout import Choices, Degrees, split_strategy
from forescale.graph.stage import EVERY_LAYER, plan_stages
from forescale.graph.stages import Stages, stack_plans
from forescale.memory.in_flight import interleaved_stages
from forescale.numeric import Array
from forescale.search.places import Anywhere
from forescale.search.question import Question
from forescale.search.space import Candidates, Columns, Rows, Variant
from forescale.search.tables import distinct
from forescale.spec.model import Model
from forescale.spec.strategy import Axis, Placement, Recompute
from forescale.time.pipeline import Pipeline, pipeline_of
from forescale.time.pipeline_floor import PipelineFloor, Shape, floor_of
from forescale.time.price import Pricing

T = TypeVar("T", bound=Hashable)
SHAPE = ("pp", "vpp", "count")
"""What the order of a named schedule depends on: ranks, chunks and micro-batches."""


@dataclass(frozen=True, slots=True)
class StagesOf:
    """The stage plans of some rows, by their place among those rows."""

    plans: Stages
    plan: Rows

    def __call__(self, rows: Rows) -> Stages:
        """Return the plans of some of the rows."""
        return self.plans.take(self.plan[rows])


class Ranks(Protocol):
    """Where the ranks of pairs lie."""

    def take(self, some: Rows) -> Ranks:
        """Return those of some pairs."""
        ...

    def keys(self, model: Model) -> Columns:
        """Return what else the price of a block depends on, a column per pair."""
        ...

    def pricing(self, question: Question, degrees: Degrees, choices: Choices, pairs: Rows) -> Pricing:
        """Return the cost models of some pairs, whose degrees are given."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Ranks in one order of axes."""

    order: Order
    pp: Rows

    def take(self, some: Rows) -> Ordered:
        """Return the ranks of some pairs."""
        return replace(self, pp=self.pp[some])

    def keys(self, model: Model) -> Columns:
        """Return pp where pipeline stages may stand between the ranks of an expert's group."""
        return {"pp": self.pp} if model.is_moe and self.order[-1] != "pp" else {}

    def pricing(self, question: Question, degrees: Degrees, choices: Choices, pairs: Rows) -> Pricing:  # noqa: ARG002
        """Return the cost models under the order."""
        return question.pricing(degrees, choices, self.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Ranks at placements of equally many tiers, each pair's its own."""

    placements: tuple[Placement, ...]
    place: Rows
    """Which placement each pair has."""
    tiers: int

    def take(self, some: Rows) -> Placed:
        """Return the ranks of some pairs."""
        return replace(self, place=self.place[some])

    def keys(self, model: Model) -> Columns:  # noqa: ARG002
        """Return the placement."""
        return {"place": self.place}

    def pricing(self, question: Question, degrees: Degrees, choices: Choices, pairs: Rows) -> Pricing:
        """Return the cost models, ranks inside each tier an array."""
        place = self.place[pairs]
        inside = tuple(
            Inside(**{axis: self._shares(tier, axis)[place] for axis in AXES}) for tier in range(self.tiers)
        )
        return question.pricing(degrees, choices, inside)

    def _shares(self, tier: int, axis: Axis) -> Array:
        return np.array([float(getattr(each[tier], axis)) if each else 1.0 for each in self.placements])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wherever:
    """Ranks wherever a message takes least."""

    anywhere: Anywhere
    rows: Rows

    def take(self, some: Rows) -> Wherever:
        """Return the ranks of some pairs."""
        return replace(self, rows=self.rows[some])

    def keys(self, model: Model) -> Columns:  # noqa: ARG002
        """Return the sets of places."""
        return self.anywhere.keys(self.rows)

    def pricing(self, question: Question, degrees: Degrees, choices: Choices, pairs: Rows) -> Pricing:
        """Return the cost models of messages at their best places."""
        return self.anywhere.pricing(question, degrees, choices, self.rows[pairs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """(variant, row) pairs that share operator list, schedule and the way their ranks are given."""

    pairs: Rows
    """Which of all pairs they are."""
    rows: Rows
    variant: Rows
    policies: tuple[Recompute, ...]
    """What may be recomputed; of counts of layers the first stands for all, stages know each pair's."""
    policy: Rows
    """Which of `policies` each pair has."""
    choices: Choices
    ranks: Ranks
    stages: StagesOf
    pipeline: Pipeline | PipelineFloor | None = None

    def take(self, some: Rows) -> Batch:
        """Return some of the pairs."""
        return replace(
            self,
            pairs=self.pairs[some],
            rows=self.rows[some],
            variant=self.variant[some],
            policy=self.policy[some],
            ranks=self.ranks.take(some),
            stages=StagesOf(self.stages.plans, self.stages.plan[some]),
        )


def batches(
    question: Question,
    candidates: Candidates,
    variant: Rows,
    row: Rows,
    *,
    anywhere: Anywhere | None = None,
    bounded: bool = False,
) -> Iterator[Batch]:
    """Yield all pairs in batches; a named schedule has one batch per shape of its pipeline.

    Parameters
    ----------
    anywhere
        Where communicators may lie, if that is not for the variants to say.
    bounded
        Whether named schedules are only bounded, all shapes together: nothing is built or simulated.
    """
    if len(row) == 0:
        return
    found = _Batches(question, candidates, anywhere, bounded=bounded)
    stages = found.stages(variant, row)
    for indices in _alike(candidates.variants, placed=anywhere is None):
        of_list = np.zeros(len(candidates.variants), dtype=bool)
        of_list[indices] = True
        for sp in (True, False):
            pairs = np.flatnonzero(of_list[variant] & (candidates.columns["sp"][row] == sp))
            if len(pairs):
                own = StagesOf(stages.plans, stages.plan[pairs])
                yield from found.of(pairs, variant[pairs], row[pairs], own, sp=sp)


def _alike(variants: tuple[Variant, ...], *, placed: bool) -> list[list[int]]:
    """Return variants that one batch may hold: with one operator list, schedule and way to place ranks."""
    found: dict[object, list[int]] = {}
    for index, each in enumerate(variants):
        ranks: object = each.axis_order if each.placement is None else len(each.placement)
        found.setdefault((*each.choices.values(), each.schedule, ranks if placed else None), []).append(index)
    return list(found.values())


class _Batches:
    """Makes batches of pairs that are alike."""

    def __init__(
        self, question: Question, candidates: Candidates, anywhere: Anywhere | None, *, bounded: bool
    ) -> None:
        self.model, self.candidates = question.model, candidates
        self.anywhere, self.bounded = anywhere, bounded
        variants = candidates.variants
        self.common = split_strategy(candidates.base, domain=candidates.domain)[1]
        self.policies, self.policy = _ranked([uncounted(each.recompute) for each in variants])
        self.selections, self.selection = _ranked([each.recompute.selection for each in variants])
        self.placements, self.place = _ranked([each.placement for each in variants])

    def of(self, pairs: Rows, variant: Rows, rows: Rows, stages: StagesOf, *, sp: bool) -> Iterator[Batch]:
        """Yield pairs whose variants are alike in one batch, or in one per pipeline of a named schedule."""
        first = self.candidates.variants[variant[0]]
        choices = replace(self.common, sp=sp, **first.choices, schedule=first.schedule)
        batch = Batch(
            pairs=pairs,
            rows=rows,
            variant=variant,
            policies=self.policies,
            policy=self.policy[variant],
            choices=choices,
            ranks=self._ranks(variant, rows),
            stages=stages,
        )
        if first.schedule is None:
            yield batch
            return
        selection = self.selection[variant]
        for which in np.unique(selection).tolist():
            yield from self._scheduled(batch.take(np.flatnonzero(selection == which)), self.selections[which])

    def _scheduled(self, batch: Batch, recompute: Recompute) -> Iterator[Batch]:
        """Yield the batches of a named schedule: one per shape, or one under bounds of all shapes."""
        shapes = {name: self.candidates.columns[name][batch.rows] for name in ("pp", "vpp")}
        shapes["count"] = self.candidates.num_microbatches[batch.rows]
        built = (shapes["pp"] == 1) if self.bounded else np.ones(len(batch.rows), dtype=bool)
        for chosen in (np.flatnonzero(built), np.flatnonzero(~built)):
            if len(chosen) == 0:
                continue
            table = distinct({name: values[chosen] for name, values in shapes.items()}, SHAPE)
            of_shape = tuple(zip(*(table.columns[name].tolist() for name in SHAPE), strict=True))
            if built[chosen[0]]:
                for index, shape in enumerate(of_shape):
                    own = batch.take(chosen[table.where == index])
                    yield self._built(own, shape, recompute)
            else:
                yield self._under_floor(batch.take(chosen), of_shape, table.where, recompute)

    def _built(self, batch: Batch, shape: Shape, recompute: Recompute) -> Batch:
        """Return a batch of one shape with its simulated pipeline; there is none of one stage."""
        pp, vpp, count = shape
        name, pieces = str(batch.choices.schedule), self.candidates.base.sequence_pieces
        pipeline = (
            None
            if pp == 1
            else pipeline_of(self.model, name, pp, vpp, count, recompute=recompute, num_splits=pieces)
        )
        plan = plan_stages(self.model, pp=1, recompute=recompute) if pipeline is None else pipeline.ranks
        stages = StagesOf(stack_plans([plan]), np.zeros(len(batch.rows), dtype=np.int64))
        return replace(batch, stages=stages, pipeline=pipeline)

    def _under_floor(
        self, batch: Batch, of_shape: Sequence[Shape], where: Rows, recompute: Recompute
    ) -> Batch:
        """Return a batch with bounds of its pipelines, of which none is built."""
        name, pieces = str(batch.choices.schedule), self.candidates.base.sequence_pieces
        floor, stages = floor_of(self.model, name, of_shape, recompute=recompute, num_splits=pieces)
        return replace(batch, stages=StagesOf(stages, where), pipeline=floor.take(where))

    def stages(self, variant: Rows, rows: Rows) -> StagesOf:
        """Return the stage plans of pairs under 1F1B."""
        columns = {name: self.candidates.columns[name][rows] for name in ("pp", "vpp")}
        return stages_of(self.model, {**columns, "selection": self.selection[variant]}, self.selections)

    def _ranks(self, variant: Rows, rows: Rows) -> Ranks:
        if self.anywhere is not None:
            return Wherever(anywhere=self.anywhere, rows=rows)
        first = self.candidates.variants[variant[0]]
        if first.placement is None:
            return Ordered(order=first.order, pp=self.candidates.columns["pp"][rows])
        alike = [each or () for each in self.placements]
        return Placed(placements=tuple(alike), place=self.place[variant], tiers=len(first.placement))


def stages_of(model: Model, columns: Columns, selections: Sequence[Recompute] = (EVERY_LAYER,)) -> StagesOf:
    """Return the compressed stage plans of rows by pp, vpp and, where there are several, selection of layers."""
    names = tuple(name for name in ("pp", "vpp", "selection") if name in columns)
    table = distinct(columns, names)
    plans = [
        interleaved_stages(model, pp=pp, vpp=vpp, recompute=selections[sum(others)]).compressed()
        for pp, vpp, *others in zip(*(table.columns[name].tolist() for name in names), strict=True)
    ]
    return StagesOf(stack_plans(plans), table.where)


def uncounted(recompute: Recompute) -> Recompute:
    """Return what is recomputed, one count of layers for all."""
    return recompute if recompute.num_layers is None else replace(recompute, num_layers=1)


def _ranked(values: Sequence[T]) -> tuple[tuple[T, ...], Rows]:
    """Return distinct values, and which of them each is."""
    rank: dict[T, int] = {}
    which = np.array([rank.setdefault(each, len(rank)) for each in values], dtype=np.int64)
    return tuple(rank), which

"""Candidates in batches that are evaluated together: one operator list, axis order and schedule each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forescale.graph.layout import Choices, split_strategy
from forescale.graph.stage import EVERY_LAYER, plan_stages
from forescale.numeric import Array
from forescale.projection.mesh import Order
from forescale.projection.pipeline import Pipeline, pipeline_of
from forescale.projection.pipeline_floor import PipelineFloor, floor_of
from forescale.projection.stages import Stages, stack_plans
from forescale.search.space import Candidates, Columns, Rows
from forescale.spec.model import Model
from forescale.spec.strategy import Recompute, TensorKind

SHAPE = ("pp", "vpp", "count")
"""What the order of a named schedule depends on: ranks, chunks and micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Distinct rows of some columns, and where each candidate's row stands."""

    columns: Columns
    where: Rows

    def __len__(self) -> int:
        """Return the number of distinct rows."""
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True, slots=True)
class StagesOf:
    """The stage plans of some rows, by their place among those rows."""

    plans: Stages
    plan: Rows

    def __call__(self, rows: Rows | slice) -> Stages:
        """Return the plans of some of the rows."""
        return self.plans.take(self.plan[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows that share operator list, axis order and schedule, with the variants (recompute policies) to try."""

    rows: Rows
    variants: list[int]
    choices: Choices
    order: Order
    stages: StagesOf
    pipeline: Pipeline | PipelineFloor | None = None


class Least(Protocol):
    """Knows how little memory the states of a layout may need, whichever way they are sharded."""

    def __call__(self, batch: Batch) -> Array:
        """Return (stages, rows) bytes of states and standing buffers."""
        ...


def batches(
    model: Model,
    candidates: Candidates,
    *,
    fitting: Mapping[TensorKind, NDArray[np.bool_]],
    only: NDArray[np.bool_] | None,
    bounded: bool,
) -> Iterator[Batch]:
    """Yield all candidates in batches; a named schedule has one batch per shape of its pipeline.

    Parameters
    ----------
    fitting
        Rows whose states fit, by kind of tensor parallelism.
    only
        (variants, rows) what to evaluate; everything legal by default.
    bounded
        Whether named schedules are only bounded, all shapes together: nothing is built or simulated.
    """
    plans, plan_of_row = stage_plans(model, candidates.columns)
    common = split_strategy(candidates.base)[1]
    by_list: dict[tuple[object, ...], list[int]] = {}
    for index, each in enumerate(candidates.variants):
        key = (*each.structure, each.recompute.selection)
        by_list.setdefault(key, []).append(index)
    for indices in by_list.values():
        variant = candidates.variants[indices[0]]
        selection = variant.recompute.selection
        held, held_by_row = plans, plan_of_row
        if selection != EVERY_LAYER:
            held, held_by_row = stage_plans(model, candidates.columns, selection)
        allowed = candidates.allows(variant) if only is None else only[indices].any(axis=0)
        if variant.schedule is None:
            allowed = allowed & fitting[variant.tp_kind]
        for sp in (True, False):
            rows = np.flatnonzero(allowed & (candidates.columns["sp"] == sp))
            if len(rows) == 0:
                continue
            batch = Batch(
                rows=rows,
                variants=indices,
                choices=replace(common, sp=sp, **variant.choices, schedule=variant.schedule),
                order=variant.order,
                stages=StagesOf(held, held_by_row[rows]),
            )
            if variant.schedule is None:
                yield batch
            elif bounded:
                yield from _by_floor(model, candidates, batch, selection)
            else:
                yield from _by_shape(model, candidates, batch, selection)


def _shapes(candidates: Candidates, rows: Rows) -> Columns:
    columns = {name: candidates.columns[name][rows] for name in ("pp", "vpp")}
    return {**columns, "count": candidates.num_microbatches[rows]}


def _by_shape(model: Model, candidates: Candidates, batch: Batch, recompute: Recompute) -> Iterator[Batch]:
    """Split a batch of a named schedule by pipeline shape, each with its simulated pipeline."""
    table = distinct(_shapes(candidates, batch.rows), SHAPE)
    for shape in range(len(table)):
        rows = batch.rows[table.where == shape]
        pp, vpp, count = (int(table.columns[name][shape]) for name in SHAPE)
        name = str(batch.choices.schedule)
        pieces = candidates.base.sequence_pieces
        pipeline = (
            None
            if pp == 1
            else pipeline_of(model, name, pp, vpp, count, recompute=recompute, num_splits=pieces)
        )
        plan = plan_stages(model, pp=1, recompute=recompute) if pipeline is None else pipeline.ranks
        stages = StagesOf(stack_plans([plan]), np.zeros(len(rows), dtype=np.int64))
        yield replace(batch, rows=rows, stages=stages, pipeline=pipeline)


def _by_floor(model: Model, candidates: Candidates, batch: Batch, recompute: Recompute) -> Iterator[Batch]:
    """Split a batch of a named schedule into what has no pipeline, and all others under bounds of theirs."""
    shapes = _shapes(candidates, batch.rows)
    alone = shapes["pp"] == 1
    if alone.any():
        yield from _by_shape(model, candidates, replace(batch, rows=batch.rows[alone]), recompute)
    if alone.all():
        return
    table = distinct({name: values[~alone] for name, values in shapes.items()}, SHAPE)
    of_shape = tuple(zip(*(table.columns[name].tolist() for name in SHAPE), strict=True))
    pieces = candidates.base.sequence_pieces
    floor, stages = floor_of(
        model, str(batch.choices.schedule), of_shape, recompute=recompute, num_splits=pieces
    )
    yield replace(
        batch, rows=batch.rows[~alone], stages=StagesOf(stages, table.where), pipeline=floor.take(table.where)
    )


def distinct(columns: Columns, names: tuple[str, ...]) -> Table:
    """Return the distinct rows of the named columns, in ascending order."""
    key = np.zeros(len(columns[names[0]]), dtype=np.int64)
    for name in names:
        size, code = _codes(columns[name])
        key = _codes(key * size + code)[1]
    first = first_rows(key)
    return Table(columns={name: columns[name][first] for name in names}, where=key)


def _codes(values: Rows) -> tuple[int, Rows]:
    """Return how many distinct non-negative values there are, and the rank of each among them."""
    present = np.zeros(int(values.max(initial=0)) + 1, dtype=bool)
    present[values] = True
    rank = np.cumsum(present) - 1
    return int(rank[-1]) + 1, rank[values]


def first_rows(where: Rows) -> Rows:
    """Return the first row of every code 0, 1, 2, ... in `where`."""
    first = np.empty(int(where.max(initial=-1)) + 1, dtype=np.int64)
    first[where[::-1]] = np.arange(len(where))[::-1]
    return first


def stage_plans(model: Model, columns: Columns, recompute: Recompute = EVERY_LAYER) -> tuple[Stages, Rows]:
    """Return the compressed stage plan of every distinct (pp, vpp), and each candidate's."""
    table = distinct(columns, ("pp", "vpp"))
    pairs = zip(table.columns["pp"].tolist(), table.columns["vpp"].tolist(), strict=True)
    plans = [plan_stages(model, pp=pp, vpp=vpp, recompute=recompute).compressed() for pp, vpp in pairs]
    return stack_plans(plans), table.where

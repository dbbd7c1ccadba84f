"""Bounds that discard whole sub-spaces: no layout behind a cell is faster, or needs less memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from forescale.formula import formula
from forescale.graph.layout import Choices, Degrees, split_strategy
from forescale.graph.recompute import keep
from forescale.graph.stage import plan_stages
from forescale.numeric import Array, Numeric
from forescale.project import setting_of
from forescale.projection.blocks import BlockCost, block_cost
from forescale.projection.data_parallel import DataTraffic, free_traffic
from forescale.projection.evaluate import Setting
from forescale.projection.memory import standing_buffers, state_bytes
from forescale.projection.pieces import NO_RECOMPUTE, Holding, Parts, holdings, price_blocks
from forescale.projection.stages import Stages, over_stages, stack_plans
from forescale.search.cells import Cells, Mask
from forescale.search.evaluate import (
    BLOCK_KEY,
    Batch,
    Least,
    Question,
    Scores,
    as_degrees,
    distinct,
    first_rows,
    score,
)
from forescale.search.space import Columns, Rows, Variant
from forescale.spec.strategy import Axis

MARGIN = 1.0 - 1e-9
"""Rounding never lifts a bound above what it bounds by more than this."""
KEYS_AT_ONCE = 4096
"""Distinct blocks priced at once."""
PLACE_KEY = ("tp", "cp", "ep", "etp", "pp", "vpp", "flagged")
"""What the parameters of a stage and the ways to shard them depend on."""


@formula(unit="s", source="the slowest stage is no faster than the mean, and every micro-batch passes it")
def mean_stage_seconds(
    *, model_seconds: Numeric, global_batch_size: float, ranks: Numeric, micro_batch_size: Numeric
) -> Numeric:
    """m·(model/p) = B/(dp·p·b)·model; `ranks` is dp·p."""
    return global_batch_size / (ranks * micro_batch_size) * model_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantList:
    """Variants that differ in what they recompute alone."""

    variants: tuple[int, ...]
    first: Variant


def variant_lists(variants: tuple[Variant, ...]) -> tuple[VariantList, ...]:
    """Return the variants by operator list, placement and schedule."""
    lists: dict[tuple[object, ...], list[int]] = {}
    for index, each in enumerate(variants):
        lists.setdefault((each.cp_kind, each.axis_order, each.schedule), []).append(index)
    return tuple(VariantList(variants=tuple(found), first=variants[found[0]]) for found in lists.values())


def work_bounds(question: Question, cells: Cells, lists: tuple[VariantList, ...], legal: Mask) -> Array:
    """Return (lists, cells) seconds that no layout of a cell is faster than: the mean stage's own work.

    Infinite where no variant of the list is legal. Recompute, waiting, messages between stages and data-parallel
    traffic only add to it, and so does any communication whose place depends on what a cell leaves open.
    """
    bounds = np.full((len(lists), len(cells)), np.inf)
    columns = cells.whole.columns
    by_kind: dict[object, dict[tuple[str, ...], Array]] = {}
    for row, each in enumerate(lists):
        kind, away = each.first.cp_kind, displaced(each.first.axis_order)
        known = by_kind.setdefault(kind, {})
        if away not in known:
            known[away] = _work(question, cells, each.first, away)
        allowed = legal[each.variants[0]]
        bounds[row, allowed] = known[away][allowed]
    ranks = question.cluster.num_devices / (columns["tp"] * columns["cp"])
    setting = _setting(question, Choices())
    seconds = mean_stage_seconds(
        model_seconds=bounds,
        global_batch_size=float(question.workload.global_batch_size),
        ranks=ranks,
        micro_batch_size=columns["micro_batch_size"].astype(float),
    )
    return np.asarray(seconds * (1.0 + setting.straggler_share) * MARGIN)


def displaced(order: tuple[Axis, ...]) -> tuple[str, ...]:
    """Return the parts of a step that an axis order may make slower than blocks of neighbours are."""
    if order[:2] != ("tp", "cp"):
        return ("tensor_comm", "context_comm", "expert_comm")
    return () if order[-1] == "pp" else ("expert_comm",)


def _work(question: Question, cells: Cells, variant: Variant, without: tuple[str, ...]) -> Array:
    """Return (cells,) seconds of all layers for one micro-batch, forward and backward, without some parts."""
    result = np.full(len(cells), np.inf)
    columns = cells.whole.columns
    order: tuple[Axis, ...] = variant.axis_order if not without else ("tp", "cp", "dp", "pp")
    for sp in (True, False):
        rows = np.flatnonzero(columns["sp"] == sp)
        if len(rows) == 0:
            continue
        table = distinct({name: columns[name][rows] for name in BLOCK_KEY}, BLOCK_KEY)
        choices = replace(split_strategy(cells.whole.base)[1], sp=sp, cp_kind=variant.cp_kind)
        found = [
            _model_seconds(question, as_degrees(part), choices, order, without)
            for part in _parts(table.columns, KEYS_AT_ONCE)
        ]
        result[rows] = np.concatenate(found)[table.where]
    return result


def _parts(columns: Columns, size: int) -> Iterator[Columns]:
    total = len(next(iter(columns.values())))
    for start in range(0, total, size):
        yield {name: values[start : start + size] for name, values in columns.items()}


def _model_seconds(
    question: Question, degrees: Degrees, choices: Choices, order: tuple[Axis, ...], without: tuple[str, ...]
) -> Array:
    model = question.model
    pricing = question.pricing(degrees, choices, order)
    costs = price_blocks(question.blocks(degrees, choices), pricing).map(
        lambda priced: block_cost(priced, keep(priced.block, NO_RECOMPUTE), overlap=choices.overlap)
    )

    def seconds(cost: BlockCost) -> Numeric:
        away: Numeric = 0.0
        for name in without:
            away = away + cost.forward.get(name, 0.0) + cost.backward.get(name, 0.0)
        return cost.forward_seconds + cost.backward_seconds - away

    whole = stack_plans([plan_stages(model, pp=1)])
    found = np.asarray(over_stages(whole, costs, seconds, num_mtp=model.num_mtp_layers))
    return np.asarray(found[0] + 0.0 * degrees.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharded:
    """What standing buffers depend on."""

    degrees: Degrees
    stages: Stages
    held: Parts[Holding]
    traffic: DataTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastStates:
    """The least memory of states and standing buffers of some cells, over all ways to shard each."""

    question: Question
    cells: Cells
    chosen: Rows
    """The cells whose rows are bounded."""

    def __call__(self, batch: Batch) -> Array:
        """Return (stages, rows) bytes, each stage's least by itself."""
        rows = self.chosen[batch.rows]
        columns = {name: values[rows] for name, values in self.cells.whole.columns.items()}
        columns["flagged"] = self.cells.flagged[rows]
        table = distinct(columns, PLACE_KEY)
        first = first_rows(table.where)
        layouts, owner, _ = self.cells.expand(rows[first])
        stages = batch.stages(first).take(owner)
        held = self._bytes(as_degrees(layouts.columns), stages, batch.choices)
        starts = np.searchsorted(owner, np.arange(len(first)))
        least: Array = np.minimum.reduceat(held, starts, axis=1)
        return least[:, table.where]

    def _bytes(self, degrees: Degrees, stages: Stages, choices: Choices) -> Array:
        question, model = self.question, self.question.model
        held = holdings(question.blocks(degrees, choices))
        traffic = free_traffic(
            held, stages, degrees, tied=model.tied_embeddings, num_mtp=model.num_mtp_layers
        )
        states = state_bytes(model, traffic.dense, traffic.expert, degrees, question.workload, choices)
        sharded = _Sharded(degrees=degrees, stages=stages, held=held, traffic=traffic)
        standing = standing_buffers(_setting(question, choices), sharded)
        return np.asarray(states.weights + states.gradients + states.optimizer + standing)


def cell_bounds(question: Question, cells: Cells, chosen: Rows, only: Mask) -> Scores:
    """Return bounds of step time and peak memory of the flagged (variants, chosen cells); infinite elsewhere."""
    least: Least = LeastStates(question=question, cells=cells, chosen=chosen)
    bounds = score(question, cells.take(chosen), only=only, least=least)
    return Scores(step_time=bounds.step_time * MARGIN, peak=bounds.peak * MARGIN)


def _setting(question: Question, choices: Choices) -> Setting:
    return setting_of(question.model, question.cluster, question.workload, replace(choices), question.run)

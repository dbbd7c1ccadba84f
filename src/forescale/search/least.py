"""Bounds of cells: how little memory and data-parallel traffic any way to shard their states needs."""

from __future__ import annotations

import numpy as np

from forescale.inputs import setting_of
from forescale.memory.inputs import EvalContext, StateBytes
from forescale.memory.overhead import load_residual
from forescale.memory.parameters import Sharded
from forescale.memory.states import state_bytes
from forescale.numeric import Array, Numeric
from forescale.question import Question
from forescale.search.blocks import KnownBlocks
from forescale.search.evaluate import Batch, Matters, Scores, score_pairs
from forescale.search.layouts import Columns, Rows, as_degrees, distinct, first_rows
from forescale.search.ranks import RelaxedPlacement
from forescale.search.tree import Cells, Mask
from forescale.struct import Struct
from forescale.time.data_parallel import data_traffic
from forescale.time.step import least_exposed
from forescale.time.straggler import straggler_share

MARGIN = 1.0 - 1e-9
"""Rounding never lifts a bound above what it bounds by more than this."""
PLACE_KEY = ("tp", "cp", "ep", "etp", "pp", "flagged", "plan")
"""What the parameters of a stage and the ways to shard them depend on."""


class Shardings(Struct, frozen=True, kw_only=True):
    """All ways to shard the states of the distinct cells of a batch, one after the other, and their least."""

    sharded: Sharded
    at: Rows
    """Which pair of the batch each sharding is of."""
    starts: Rows
    """Where the shardings of each distinct cell begin."""
    where: Rows
    """(pairs,) which distinct cell each pair has."""

    def least(self, values: Numeric) -> Array:
        """Return (..., pairs) the least of (..., shardings) values."""
        reduced: Array = np.minimum.reduceat(np.asarray(values), self.starts, axis=-1)
        return reduced[..., self.where]


class CellBounds(Struct, frozen=True, kw_only=True):
    """Bounds of some cells over all ways to shard each."""

    question: Question
    cells: Cells
    selected: Rows
    """The cells whose rows are bounded."""

    def shardings(self, batch: Batch, keys: Columns) -> Shardings:
        """Return all shardings of the cells of a batch that differ in `PLACE_KEY` or in further `keys`."""
        rows = self.selected[batch.rows]
        columns = {name: values[rows] for name, values in self.cells.whole.columns.items()}
        plans = batch.stages.for_states()
        columns |= {"flagged": self.cells.flagged[rows], "plan": plans.plan, **keys}
        table = distinct(columns, (*PLACE_KEY, *keys))
        first = first_rows(table.where)
        layouts, owner, _ = self.cells.expand(rows[first])
        at, degrees = first[owner], as_degrees(layouts.columns)
        block_parameters, stages = batch.block_parameters(at), plans(at)
        return Shardings(
            sharded=Sharded.from_model(self.question.model, block_parameters, stages, degrees),
            at=at,
            starts=np.searchsorted(owner, np.arange(len(first))),
            where=table.where,
        )


class LeastStates(CellBounds, frozen=True, kw_only=True):
    """The least memory of states and standing buffers of some cells, over all ways to shard each."""

    def __call__(self, batch: Batch) -> StateBytes:
        """Return (stages, pairs) bytes, of each stage and moment the least by itself."""
        shardings, setting = self.shardings(batch, {}), setting_of(self.question, batch.choices)
        states = state_bytes(setting, shardings.sharded)
        always = states.total() + states.narrow + separate_bytes(setting, states, safe=self.question.safe)

        def least(active: Numeric) -> Array:
            return shardings.least(always + active)

        standing, kept = states.buffers, least(states.buffers)
        return StateBytes(
            weights=kept,
            gradients=0.0,
            optimizer=0.0,
            at_layers=least(standing + states.at_layers) - kept,
            at_loss=least(standing + states.at_loss) - kept,
            at_head=least(standing + states.at_head) - kept,
            lasting=least(states.lasting + states.update) - kept,
        )


class LeastTraffic(CellBounds, frozen=True, kw_only=True):
    """The least data-parallel traffic of some cells that no pass can hide, over all ways to shard each."""

    def __call__(self, batch: Batch) -> Array:
        """Return (pairs,) seconds of a step; 0 where a schedule is simulated, or a measurement scales the step."""
        setting = setting_of(self.question, batch.choices)
        if batch.choices.schedule is not None or setting.anchor is not None:
            return np.zeros(len(batch.rows))
        sizes = self.cells.whole.columns["micro_batch_size"][self.selected[batch.rows]]
        ranks = batch.ranks.keys(self.question.model)
        shardings = self.shardings(batch, {"micro_batch_size": sizes, **ranks})
        sharded = shardings.sharded
        pricing = batch.ranks.pricing(self.question, sharded.degrees, batch.choices, shardings.at)
        traffic = data_traffic(setting, sharded, pricing)
        seconds = shardings.least(least_exposed(setting, traffic, sharded.degrees, sharded.stages))
        return np.asarray((1.0 + straggler_share(setting.run, setting.cluster)) * seconds)


def separate_bytes(setting: EvalContext, states: StateBytes, *, safe: bool) -> Numeric:
    """Return a bound of the allocated bytes of received tensors and of buffers of other streams.

    They are divided by the allocator's fragmentation, with `safe` by the upper end of its range and by the largest
    error of the formulas.
    """
    overhead = setting.overhead
    if overhead.measured is not None:
        return 0.0
    ratio = overhead.fragmentation
    return (states.received + states.aside) / (
        float(ratio.high) * float(load_residual().high) if safe else float(ratio.expected)
    )


def everything(step_time: Array, peak: Array) -> Mask:
    """Return that every bound matters."""
    del peak
    return np.ones(len(step_time), dtype=bool)


def cell_bounds(
    question: Question,
    cells: Cells,
    variant: Rows,
    cell: Rows,
    placement: RelaxedPlacement | None = None,
    *,
    matters: Matters = everything,
    known: KnownBlocks | None = None,
) -> Scores:
    """Return bounds of step time and peak memory of (variant, cell) pairs.

    With a relaxed `placement` they hold for all placements of a variant's ranks. Without one, those that `matters`
    keeps count the data-parallel traffic that always shows. `known` are blocks as in `batches`.
    """
    selected, where = np.unique(cell, return_inverse=True)
    bounds = score_pairs(
        question,
        cells.whole.take(selected),
        variant,
        where,
        least=LeastStates(question=question, cells=cells, selected=selected),
        exposed=LeastTraffic(question=question, cells=cells, selected=selected)
        if placement is None
        else None,
        matters=matters,
        relaxed=None if placement is None else placement.at(selected),
        known=known,
    )
    return Scores(step_time=bounds.step_time * MARGIN, peak=bounds.peak * MARGIN)

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
from forescale.search.evaluate import Batch, Matters, Scores, score_pairs
from forescale.search.layouts import Rows, as_degrees, distinct, first_rows
from forescale.search.ranks import RelaxedPlacement
from forescale.search.tree import Cells, Mask
from forescale.struct import Struct
from forescale.time.data_parallel import data_traffic
from forescale.time.step import least_exposed, straggler_share

MARGIN = 1.0 - 1e-9
"""Rounding never lifts a bound above what it bounds by more than this."""
PLACE_KEY = ("tp", "cp", "ep", "etp", "pp", "flagged", "plan")
"""What the parameters of a stage and the ways to shard them depend on."""


class LeastStates(Struct, frozen=True, kw_only=True):
    """The least memory of states and standing buffers of some cells, over all ways to shard each."""

    question: Question
    cells: Cells
    chosen: Rows
    """The cells whose rows are bounded."""

    def __call__(self, batch: Batch) -> StateBytes:
        """Return (stages, rows) bytes, of each stage and moment the least by itself."""
        rows = self.chosen[batch.rows]
        columns = {name: values[rows] for name, values in self.cells.whole.columns.items()}
        plans = batch.stages.for_states()
        columns |= {"flagged": self.cells.flagged[rows], "plan": plans.plan}
        table = distinct(columns, PLACE_KEY)
        first = first_rows(table.where)
        layouts, owner, _ = self.cells.expand(rows[first])
        stages = plans(first[owner])
        degrees, fixed = as_degrees(layouts.columns), batch.block_parameters(first[owner])
        sharded = Sharded.from_model(self.question.model, fixed, stages, degrees)
        setting = setting_of(self.question, batch.choices)
        states = state_bytes(setting, sharded)
        starts = np.searchsorted(owner, np.arange(len(first)))
        always = states.total() + states.narrow + beside(setting, states, safe=self.question.safe)

        def least(active: Numeric) -> Array:
            reduceat: Array = np.minimum.reduceat(np.asarray(always + active), starts, axis=1)
            return reduceat[:, table.where]

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


class LeastTraffic(Struct, frozen=True, kw_only=True):
    """The least data-parallel traffic of some cells that shows behind any passes, over all ways to shard each."""

    question: Question
    cells: Cells
    chosen: Rows
    """The cells whose rows are bounded."""

    def __call__(self, batch: Batch) -> Array:
        """Return (pairs,) seconds of a step; 0 where a schedule is simulated, or a measurement scales the step."""
        setting = setting_of(self.question, batch.choices)
        if batch.choices.schedule is not None or setting.anchor is not None:
            return np.zeros(len(batch.rows))
        model, rows = self.question.model, self.chosen[batch.rows]
        columns = {name: values[rows] for name, values in self.cells.whole.columns.items()}
        keys = batch.ranks.keys(model)
        plans = batch.stages.for_states()
        columns |= {"flagged": self.cells.flagged[rows], "plan": plans.plan, **keys}
        table = distinct(columns, (*PLACE_KEY, "micro_batch_size", *keys))
        first = first_rows(table.where)
        layouts, owner, _ = self.cells.expand(rows[first])
        at, degrees = first[owner], as_degrees(layouts.columns)
        stages = plans(at)
        sharded = Sharded.from_model(model, batch.block_parameters(at), stages, degrees)
        pricing = batch.ranks.pricing(self.question, degrees, batch.choices, at)
        traffic = data_traffic(setting, sharded, pricing)
        shown = np.asarray(least_exposed(setting, traffic, degrees, stages))
        least = np.minimum.reduceat(shown, np.searchsorted(owner, np.arange(len(first))))
        return np.asarray((1.0 + straggler_share(setting.run, setting.cluster)) * least[table.where])


def beside(setting: EvalContext, states: StateBytes, *, safe: bool) -> Numeric:
    """Return what surely stands in tensors that find no room, and in other streams' memory, as bytes allocated.

    Of these the allocator loses pieces, and at the upper end of its range (`safe`) formulas are off besides: they stand
    for more.
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
) -> Scores:
    """Return bounds of step time and peak memory of (variant, cell) pairs.

    With a relaxed `placement` they hold for all placements of a variant's ranks. Without one, those that `matters`
    keeps count the data-parallel traffic that always shows.
    """
    selected, where = np.unique(cell, return_inverse=True)
    bounds = score_pairs(
        question,
        cells.whole.take(selected),
        variant,
        where,
        least=LeastStates(question=question, cells=cells, chosen=selected),
        exposed=LeastTraffic(question=question, cells=cells, chosen=selected) if placement is None else None,
        matters=matters,
        relaxed=None if placement is None else placement.at(selected),
    )
    return Scores(step_time=bounds.step_time * MARGIN, peak=bounds.peak * MARGIN)

"""Bounds of cells: how little memory and data-parallel traffic any way to shard their states needs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from forescale.graph.sharding import StructuralOptions
from forescale.inputs import setting_of
from forescale.memory.inputs import EvalContext, StateBytes
from forescale.memory.overhead import load_residual
from forescale.memory.parameters import Sharded
from forescale.memory.states import state_bytes
from forescale.numeric import Array, Numeric
from forescale.question import Question
from forescale.search.blocks import KnownBlocks
from forescale.search.evaluate import Batch, Matters, Scores, score_pairs
from forescale.search.host_memory import AtOnce
from forescale.search.layouts import Columns, Rows, as_degrees, distinct, first_rows
from forescale.search.ranks import Ranks, RelaxedPlacement, RelaxedRanks, in_every_order
from forescale.search.stages import StagesOf
from forescale.search.tree import Cells, Mask
from forescale.struct import Struct
from forescale.time.data_parallel import data_traffic
from forescale.time.step import least_exposed
from forescale.time.straggler import straggler_share

MARGIN = 1.0 - 1e-9
"""Rounding never lifts a bound above what it bounds by more than this."""
ORDERS = 8
"""Orders that the ranks of a sharding have in the mean."""
PLACE_KEY = ("tp", "cp", "ep", "etp", "pp", "flagged", "plan")
"""What the parameters of a stage and the ways to shard them depend on."""


class Shardings(Struct, frozen=True, kw_only=True):
    """All ways to shard the states of some cells, one after the other."""

    sharded: Sharded
    ranks: Ranks
    """Where the ranks of each lie."""
    starts: Rows
    """Where the shardings of each cell begin."""

    def least(self, values: Numeric) -> Array:
        """Return (..., cells) the least of (..., shardings) values."""
        reduced: Array = np.minimum.reduceat(np.asarray(values), self.starts, axis=-1)
        return reduced


class CellBounds(Struct, frozen=True, kw_only=True):
    """Bounds of some cells over all ways to shard each."""

    question: Question
    cells: Cells
    selected: Rows
    """The cells whose rows are bounded."""
    at_once: int = AtOnce().shardings
    """Shardings that are looked at together."""

    def bounds(
        self,
        batch: Batch,
        keys: Columns,
        bound: Callable[[Shardings], tuple[Array, ...]],
        *,
        in_orders: bool = False,
    ) -> tuple[Array, ...]:
        """Return (..., pairs) bounds, each the same for cells of a batch that agree in `PLACE_KEY` and in `keys`.

        With `in_orders` each sharding is looked at in every order of ranks.
        """
        rows = self.selected[batch.rows]
        columns = {name: values[rows] for name, values in self.cells.whole.columns.items()}
        plans = batch.stages.for_states()
        columns |= {"flagged": self.cells.flagged[rows], "plan": plans.plan, **keys}
        where = distinct(columns, (*PLACE_KEY, *keys)).where
        first = first_rows(where)
        piece = np.cumsum(self.cells.num_layouts[rows[first]]) // (
            self.at_once // (ORDERS if in_orders else 1)
        )
        ends = np.append(np.flatnonzero(np.diff(piece)) + 1, len(first))
        several = [
            bound(self._shardings(batch, rows, some, plans, in_orders=in_orders))
            for some in np.split(first, ends[:-1].tolist())
        ]
        return tuple(np.concatenate(parts, axis=-1)[..., where] for parts in zip(*several, strict=True))

    def _shardings(
        self, batch: Batch, rows: Rows, first: Rows, plans: StagesOf, *, in_orders: bool
    ) -> Shardings:
        """Return all shardings of some of the pairs of a batch, whose cells are given."""
        layouts, owner, _ = self.cells.expand(rows[first])
        given = None
        if in_orders:
            given, row = in_every_order(layouts)
            layouts, owner = layouts.take(row), owner[row]
        at, degrees = first[owner], as_degrees(layouts.columns)
        block_parameters, stages = batch.block_parameters(at), plans(at)
        return Shardings(
            sharded=Sharded.from_model(self.question.model, block_parameters, stages, degrees),
            ranks=batch.ranks.take(at) if given is None else given,
            starts=np.searchsorted(owner, np.arange(len(first))),
        )


class LeastStates(CellBounds, frozen=True, kw_only=True):
    """The least memory of states and standing buffers of some cells, over all ways to shard each."""

    def __call__(self, batch: Batch) -> StateBytes:
        """Return (stages, pairs) bytes, of each stage and moment the least by itself."""
        setting = setting_of(self.question, batch.choices)

        def least(shardings: Shardings) -> tuple[Array, ...]:
            states = state_bytes(setting, shardings.sharded)
            kept = states.least(paged=batch.choices.offload.paged)
            always = kept + states.narrow + separate_bytes(setting, states, safe=self.question.safe)
            standing = states.buffers
            active = (
                standing,
                standing + states.at_layers,
                standing + states.at_loss,
                standing + states.at_head,
                states.lasting + states.update,
            )
            return tuple(shardings.least(always + item) for item in active)

        kept, at_layers, at_loss, at_head, lasting = self.bounds(batch, {}, least)
        return StateBytes(
            weights=kept,
            gradients=0.0,
            optimizer=0.0,
            at_layers=at_layers - kept,
            at_loss=at_loss - kept,
            at_head=at_head - kept,
            lasting=lasting - kept,
        )


class LeastTraffic(CellBounds, frozen=True, kw_only=True):
    """The least data-parallel traffic of some cells that no pass can hide, over all ways to shard each.

    Where their ranks may lie anywhere it is that in the best order of them.
    """

    known: KnownTraffic | None = None
    """What others have found of the same cells wherever their ranks lie."""

    def __call__(self, batch: Batch) -> Array:
        """Return (pairs,) seconds of a step; 0 where a schedule is simulated, or a measurement scales the step."""
        anywhere = isinstance(batch.ranks, RelaxedRanks)
        if batch.choices.schedule is not None or self.question.costs.anchor is not None:
            return np.zeros(len(batch.rows))
        if self.known is None or not anywhere:
            return self._of(batch)
        seconds, cells = self.known.of(batch.choices, len(self.cells)), self.selected[batch.rows]
        new, first = np.unique(cells, return_index=True)
        first = first[np.isnan(seconds[new])]
        if len(first):
            seconds[cells[first]] = self._of(batch.take(first))
        return seconds[cells]

    def _of(self, batch: Batch) -> Array:
        setting = setting_of(self.question, batch.choices)
        keys = {"micro_batch_size": self.cells.whole.columns["micro_batch_size"][self.selected[batch.rows]]}
        anywhere = isinstance(batch.ranks, RelaxedRanks)
        if not anywhere:
            keys |= batch.ranks.keys(self.question.model)

        def least(shardings: Shardings) -> tuple[Array, ...]:
            sharded, degrees = shardings.sharded, shardings.sharded.degrees
            every = np.arange(len(np.asarray(degrees.pp)))
            pricing = shardings.ranks.pricing(self.question, degrees, batch.choices, every)
            traffic = data_traffic(setting, sharded, pricing)
            return (shardings.least(least_exposed(setting, traffic, degrees, sharded.stages)),)

        (seconds,) = self.bounds(batch, keys, least, in_orders=anywhere)
        return np.asarray((1.0 + straggler_share(setting.run, setting.cluster)) * seconds)


class KnownTraffic:
    """The least data-parallel traffic of cells wherever their ranks lie, by what it depends on of their choices."""

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[StructuralOptions, Array] = {}

    def of(self, choices: StructuralOptions, num_cells: int) -> Array:
        """Return (cells,) seconds, which the caller completes: those not known yet are NaN."""
        key = replace(choices, dispatcher="all_to_all", graphs="none", cp_kind="ring")
        return self._known.setdefault(key, np.full(num_cells, np.nan))


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
    traffic: KnownTraffic | None = None,
    timed: bool = True,
    at_once: int = AtOnce().shardings,
) -> Scores:
    """Return bounds of step time and peak memory of (variant, cell) pairs.

    With a relaxed `placement` they hold for all placements of a variant's ranks. Those that `matters` keeps count the
    data-parallel traffic that always shows, with a placement only if `traffic` has what is known of it. `known` are
    blocks as in `batches`; where not `timed`, memory alone is bounded.
    """
    selected, where = np.unique(cell, return_inverse=True)
    bounds = score_pairs(
        question,
        cells.whole.take(selected),
        variant,
        where,
        least=LeastStates(question=question, cells=cells, selected=selected, at_once=at_once),
        exposed=None
        if (placement is not None and traffic is None) or not timed
        else LeastTraffic(question=question, cells=cells, selected=selected, at_once=at_once, known=traffic),
        matters=matters,
        relaxed=None if placement is None else placement.at(selected),
        known=known,
        timed=timed,
    )
    return Scores(step_time=bounds.step_time * MARGIN, peak=bounds.peak * MARGIN)

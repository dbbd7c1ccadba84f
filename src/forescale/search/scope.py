"""The rows of one search: those that it begins with, and of the others those that a cutoff leaves."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from forescale.numeric import Array
from forescale.question import Question
from forescale.search.bounds import WorkBounds
from forescale.search.layouts import ROW_KEY, Columns, distinct, first_rows
from forescale.search.ranks import relaxed_placement
from forescale.search.tree import Blocks, Cells, Mask, ShapeRows, branches_of
from forescale.spec.layout import Layout
from forescale.spec.space import Space
from forescale.struct import Struct

SAMPLED_FROM, SAMPLED = 65536, 48
"""Rows, each counted once for every operator list, from which on a search starts with a sample of so many of them."""
EXPERT_KEY = ("tp", "cp", "pp", "micro_batch_size", "sp")
"""What experts depend on of a row."""
SPARED = 2
"""Virtual stages that may lack a layer in what a search begins with: embedding and head weigh about a layer each
(Megatron-LM --account-for-embedding-in-pipeline-split)."""


class Scope(Struct, frozen=True, kw_only=True):
    """All rows of a space, with what bounds the time of each."""

    blocks: Blocks
    rows: ShapeRows
    begins: Mask
    """Rows that a search begins with: pipelines whose virtual stages are about equal. A good layout is among them."""
    work: WorkBounds | None = None
    """Bounds of the work of rows, where others come later."""
    least: Array | None = None
    """(rows,) seconds below which no layout of a row is, where `work` is known."""
    promising: Columns | None = None
    """Shapes of rows and experts that may take no longer than a cutoff, where the others are known."""

    @classmethod
    def from_question(cls, question: Question, space: Space, *, by_time: bool) -> Scope:
        """Return the rows of a space; without bounds of their time it is searched at once."""
        blocks = Blocks(question.model, question.cluster, question.workload, space)
        rows = blocks.rows()
        columns = rows.whole.columns
        begins = columns["vpp"] == 1
        begins |= -question.model.num_layers % (columns["pp"] * columns["vpp"]) <= SPARED
        if not by_time or begins.all() or not begins.any():
            return cls(blocks=blocks, rows=rows, begins=np.ones_like(begins))
        return cls(blocks=blocks, rows=rows, begins=begins).bounded(question)

    @property
    def is_large(self) -> bool:
        """Whether a cutoff from a sample spares more than it takes."""
        return self.rows.whole.num_rows * len(branches_of(self.rows.whole.variants)) >= SAMPLED_FROM

    def sample(self) -> Cells:
        """Return the cells of the most promising rows with the smallest micro-batch, one of each tp, cp and pp."""
        assert self.least is not None
        columns = self.rows.whole.columns
        batch, shape = columns["micro_batch_size"], ("tp", "cp", "pp")
        order = np.argsort(self.least, kind="stable")
        order = order[(batch == batch.min())[order]]
        kinds = distinct({name: columns[name][order] for name in shape}, shape)
        mask = np.zeros(len(batch), dtype=bool)
        mask[order[np.sort(first_rows(kinds.where))[:SAMPLED]]] = True
        return self.blocks.cells(self.rows, mask)

    def neighbours(self, layout: Layout) -> Cells:
        """Return the cells of the rows with tp and cp of a layout, and half to twice its pipeline stages."""
        columns = self.rows.whole.columns
        near = (2 * columns["pp"] >= layout.pp) & (columns["pp"] <= 2 * layout.pp)
        alike = (columns["tp"] == layout.tp) & (columns["cp"] == layout.cp)
        return self.blocks.cells(self.rows, near & alike)

    def closer(self, question: Question, cutoff: float) -> Scope:
        """Return the same, experts counted in the bounds of the rows that may take no longer than a cutoff [s]."""
        scope = self.bounded(question)
        assert scope.least is not None and scope.work is not None
        rows = np.flatnonzero(scope.least <= cutoff)
        if not question.model.is_moe or len(rows) == 0:
            return scope
        columns = {name: values[rows] for name, values in self.rows.whole.columns.items()}
        names = ROW_KEY if self.blocks.mixed else EXPERT_KEY
        mask = np.zeros(len(scope.least), dtype=bool)
        mask[rows[first_rows(distinct(columns, names).where)]] = True
        cells = self.blocks.cells(self.rows, mask).whole
        bounds = scope.work.of_shapes(cells, relaxed_placement(cells, question.cluster))
        promising = cells.take(np.flatnonzero(bounds <= cutoff)).columns
        keys = {name: promising[name] for name in (*names, "ep", "etp")}
        least = np.where(_among(self.rows.whole.columns, keys, names), scope.least, np.inf)
        return replace(scope, least=least, promising=keys)

    def bounded(self, question: Question) -> Scope:
        """Return the same with bounds of time, if they are not known yet."""
        if self.work is not None:
            return self
        whole = self.rows.whole
        placement = relaxed_placement(whole, question.cluster, experts=False)
        work = WorkBounds(question, whole, branches_of(whole.variants), placement)
        least = np.min(work.coarse(), axis=0, initial=np.inf)
        return Scope(blocks=self.blocks, rows=self.rows, begins=self.begins, work=work, least=least)

    def first(self) -> Cells:
        """Return the cells that a search begins with."""
        return self.blocks.cells() if self.begins.all() else self.blocks.cells(self.rows, self.begins)

    def within(self, cutoff: float, rows: Mask) -> Cells:
        """Return the cells of some rows whose work may take no longer than a cutoff [s]."""
        assert self.least is not None
        cells = self.blocks.cells(self.rows, rows & (self.least <= cutoff))
        if self.promising is None:
            return cells
        return cells.some(np.flatnonzero(_among(cells.whole.columns, self.promising, tuple(self.promising))))

    def num_layouts(self, rows: Mask) -> int:
        """Return the layouts of some rows."""
        return int(self.rows.num_layouts[rows].sum()) if rows.any() else 0

    @property
    def later_bound(self) -> float:
        """Seconds below which none of them is; infinite if there are none."""
        if self.least is None:
            return np.inf
        return float(np.min(self.least, where=~self.begins, initial=np.inf))


def _among(columns: Columns, others: Columns, names: tuple[str, ...]) -> Mask:
    """Return which rows of some columns are among other rows, by their names."""
    both = {name: np.concatenate([others[name], columns[name]]) for name in names}
    where, count = distinct(both, names).where, len(others[names[0]])
    return np.isin(where[count:], where[:count])

"""The rows of one search: those that it begins with, and of the others those that a cutoff leaves."""

from __future__ import annotations

import numpy as np

from forescale.numeric import Array
from forescale.question import Question
from forescale.search.bounds import WorkBounds
from forescale.search.ranks import relaxed_placement
from forescale.search.tree import Blocks, Cells, Mask, ShapeRows, branches_of
from forescale.spec.space import Space
from forescale.struct import Struct

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

    def within(self, cutoff: float, *, later: bool) -> Cells:
        """Return the cells whose work may take no longer than a cutoff [s], of all rows or of the `later` ones."""
        assert self.least is not None
        requested = self.least <= cutoff
        return self.blocks.cells(self.rows, requested & ~self.begins if later else requested)

    @property
    def num_later(self) -> int:
        """Layouts of the rows that come later."""
        if self.begins.all():
            return 0
        return int(self.rows.num_layouts[~self.begins].sum())

    @property
    def later_bound(self) -> float:
        """Seconds below which none of them is; infinite if there are none."""
        if self.least is None:
            return np.inf
        return float(np.min(self.least, where=~self.begins, initial=np.inf))

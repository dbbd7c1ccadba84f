"""The rows of one search: a sample of them, and those that a cutoff leaves."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from forescale.numeric import Array
from forescale.question import Question
from forescale.search.bounds import WorkBounds
from forescale.search.host_memory import HostMemory
from forescale.search.layouts import ROW_KEY, Columns, distinct, first_rows
from forescale.search.ranks import relaxed_placement
from forescale.search.tree import Blocks, Cells, Mask, ShapeRows, branches_of
from forescale.spec.layout import Layout
from forescale.spec.space import Space
from forescale.struct import Struct
from forescale.workers import ALONE, Workers

SAMPLED_FROM, SAMPLED = 32768, 48
"""Rows, each counted once for every operator list, from which on a search starts with a sample of so many of them."""
SHARED_FROM = 2**20
"""Degrees of rows, experts and shardings, each counted once for every operator list, from which on a search takes more
than about a second, so that several processes are worth their start."""
EXPERT_KEY = ("tp", "cp", "pp", "micro_batch_size", "sp")
"""What experts depend on of a row."""


class Scope(Struct, frozen=True, kw_only=True):
    """All rows of a space, with what bounds the time of each."""

    blocks: Blocks
    rows: ShapeRows
    work: WorkBounds | None = None
    """Bounds of the work of rows."""
    least: Array | None = None
    """(rows,) seconds below which no layout of a row is, where `work` is known."""
    promising: Columns | None = None
    """Shapes of rows and experts that may take no longer than a cutoff, where the others are known."""
    workers: Workers = ALONE
    """Processes that share the search; a small one has one."""

    @classmethod
    def from_question(
        cls, question: Question, space: Space, workers: Workers = ALONE, *, shares_blocks: bool = True
    ) -> Scope:
        """Return the rows of a space, without bounds of their time."""
        of_blocks = workers if shares_blocks else ALONE
        blocks = Blocks(question.model, question.cluster, question.workload, space, of_blocks)
        scope = cls(blocks=blocks, rows=blocks.rows())
        num_cells = int(scope.rows.num_sharded.sum()) * scope.num_lists
        return replace(scope, workers=workers) if num_cells >= SHARED_FROM else scope

    @property
    def num_lists(self) -> int:
        """Operator lists, with their schedules, of the variants."""
        return len(branches_of(self.rows.whole.variants))

    @property
    def is_large(self) -> bool:
        """Whether a cutoff from a sample spares more than it takes."""
        return self.rows.whole.num_rows * self.num_lists >= SAMPLED_FROM

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
        placement = relaxed_placement(cells, question.cluster, workers=self.workers)
        bounds = scope.work.of_shapes(cells, placement, self.workers)
        promising = cells.take(np.flatnonzero(bounds <= cutoff)).columns
        keys = {name: promising[name] for name in (*names, "ep", "etp")}
        least = np.where(_among(self.rows.whole.columns, keys, names), scope.least, np.inf)
        return replace(scope, least=least, promising=keys)

    def bounded(self, question: Question) -> Scope:
        """Return the same with bounds of time, if they are not known yet."""
        if self.work is not None:
            return self
        whole = self.rows.whole
        placement = relaxed_placement(whole, question.cluster, experts=False, workers=self.workers)
        work = WorkBounds(question, whole, branches_of(whole.variants), placement, self.workers)
        least = np.min(work.coarse(self.workers), axis=0, initial=np.inf)
        return replace(self, work=work, least=least)

    def within(self, cutoff: float) -> Cells:
        """Return the cells of the rows whose work may take no longer than a cutoff [s]; all where none is known."""
        if self.least is None or cutoff == np.inf:
            return self.blocks.cells()
        cells = self.blocks.cells(self.rows, self.least <= cutoff)
        if self.promising is None:
            return cells
        return cells.some(np.flatnonzero(_among(cells.whole.columns, self.promising, tuple(self.promising))))

    def host_memory(self, cells: Cells | None = None) -> HostMemory:
        """Return the memory that a search takes of some cells; of no more than its rows where they are not known."""
        num_nodes = 0 if cells is None else len(cells) * self.num_lists
        return HostMemory(num_rows=self.rows.whole.num_rows, num_nodes=num_nodes)

    @property
    def num_layouts(self) -> int:
        """Layouts of all rows."""
        return int(self.rows.num_layouts.sum())


def _among(columns: Columns, others: Columns, names: tuple[str, ...]) -> Mask:
    """Return which rows of some columns are among other rows, by their names."""
    both = {name: np.concatenate([others[name], columns[name]]) for name in names}
    where, count = distinct(both, names).where, len(others[names[0]])
    return np.isin(where[count:], where[:count])

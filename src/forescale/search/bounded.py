"""Branch and bound over cells: the exact best of a space without evaluating all of it.

A cell and a list of variants start with a bound of the work alone; in ascending order of it each gets a bound of
time and memory from the evaluation itself; in ascending order of that the layouts behind it are evaluated. What
cannot be among the best any more is discarded at each step, so the result is that of evaluating everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from forescale.numeric import Array
from forescale.search.bounds import cell_bounds, variant_lists, work_bounds
from forescale.search.cells import Cells, Mask
from forescale.search.evaluate import Question, score
from forescale.search.incumbents import Incumbents, Wanted
from forescale.search.space import Rows

FIRST_CELLS, MOST_CELLS, GROWTH = 2048, 65536, 4
"""Cells bounded at once: few at first, as long as there is nothing to discard by."""
LAYOUTS_AT_ONCE = 32768
"""Layouts evaluated at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a search is."""

    num_legal: int
    num_evaluated: int
    num_irrelevant: int
    best: float
    """Best found so far, in the objective."""
    bound: float
    """Nothing that is left is better than this."""
    elapsed_s: float

    @property
    def gap(self) -> float:
        """Fraction by which the best found may exceed the best there is."""
        if not np.isfinite(self.best):
            return 1.0
        return max(0.0, 1.0 - self.bound / self.best) if self.best > 0.0 else 0.0


Watch = Callable[[Progress], bool]
"""Is told how far a search is; False stops it."""


@dataclass(slots=True, kw_only=True)
class Pool:
    """Bounded (variant, cell) pairs whose layouts wait to be evaluated."""

    variant: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    cell: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    step_time: Array = field(default_factory=lambda: np.zeros(0))
    peak: Array = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self.cell)

    def add(self, variant: Rows, cell: Rows, step_time: Array, peak: Array) -> None:
        """Put more into it."""
        self.variant = np.concatenate([self.variant, variant])
        self.cell = np.concatenate([self.cell, cell])
        self.step_time = np.concatenate([self.step_time, step_time])
        self.peak = np.concatenate([self.peak, peak])

    def take(self, which: Rows | Mask) -> Pool:
        """Return some of it."""
        return Pool(
            variant=self.variant[which],
            cell=self.cell[which],
            step_time=self.step_time[which],
            peak=self.peak[which],
        )


@dataclass(slots=True, kw_only=True)
class Counts:
    """Layouts by what became of them."""

    evaluated: int = 0
    over_memory: int = 0
    """Proven to exceed every limit of memory."""
    beaten: int = 0
    """Proven to be no better than the best."""

    @property
    def settled(self) -> int:
        """All of them."""
        return self.evaluated + self.over_memory + self.beaten


class Bounded:
    """One search by bounds; `run` does it."""

    def __init__(self, question: Question, cells: Cells, wanted: Wanted) -> None:
        self.question, self.cells = question, cells
        self.legal = cells.legal()
        self.num_legal = cells.count(self.legal)
        self.incumbents = Incumbents(wanted=wanted, variants=cells.whole.variants)
        self.counts, self.pool = Counts(), Pool()
        self.lists = variant_lists(cells.whole.variants)
        self.cursor, self.at_once = 0, FIRST_CELLS
        bounds = work_bounds(question, cells, self.lists, self.legal).reshape(-1)
        possible = np.flatnonzero(np.isfinite(bounds))
        self.order = possible[np.argsort(bounds[possible], kind="stable")]
        self.work = bounds[self.order]
        self.started = time.perf_counter()

    def run(self, watch: Watch | None = None) -> Progress:
        """Settle every layout, or all until `watch` says no; return how far it came."""
        while True:
            progress = self.progress()
            if (self.cursor == len(self.order) and not len(self.pool)) or (watch and not watch(progress)):
                return progress
            if self.cursor < len(self.order):
                self._bound_cells()
            self._evaluate()

    def progress(self) -> Progress:
        """Return how far it is."""
        wanted, found = self.incumbents.wanted, self.incumbents
        by_time = wanted.objective == "step_time"
        values = found.step_time if by_time else found.peak
        best = float(values[0]) if len(values) else np.inf
        left = [best, *(self.pool.step_time if by_time else self.pool.peak)]
        if self.cursor < len(self.order):
            left.append(self.work[self.cursor] if by_time else 0.0)
        return Progress(
            num_legal=self.num_legal,
            num_evaluated=self.counts.evaluated,
            num_irrelevant=self.counts.over_memory + self.counts.beaten,
            best=best,
            bound=float(min(left)),
            elapsed_s=time.perf_counter() - self.started,
        )

    def _bound_cells(self) -> None:
        """Bound the next cells by the evaluation itself; all that are left may be beaten by their work alone."""
        chosen = self.order[self.cursor : self.cursor + self.at_once]
        beyond = np.searchsorted(self.work, self.incumbents.horizon, side="right")
        if self.cursor + len(chosen) > beyond:
            self._discard(self.order[max(beyond, self.cursor) :])
            chosen = self.order[self.cursor : beyond]
            self.cursor = len(self.order)
        else:
            self.cursor += len(chosen)
        self.at_once = min(self.at_once * GROWTH, MOST_CELLS)
        if len(chosen) == 0:
            return
        cells, only = self._flags(chosen)
        bounds = cell_bounds(self.question, self.cells, cells, only)
        variant, which = np.nonzero(only)
        self.pool.add(variant, cells[which], bounds.step_time[only], bounds.peak[only])
        self._sift()

    def _flags(self, nodes: Rows) -> tuple[Rows, Mask]:
        """Return the cells of (list, cell) nodes, and (variants, cells) which pairs they are."""
        which, cell = np.divmod(nodes, len(self.cells))
        cells, where = np.unique(cell, return_inverse=True)
        only = np.zeros((len(self.cells.whole.variants), len(cells)), dtype=bool)
        for index, each in enumerate(self.lists):
            of_list = where[which == index]
            for variant in each.variants:
                only[variant, of_list] = True
        return cells, only

    def _discard(self, nodes: Rows) -> None:
        """Count the layouts of (list, cell) nodes that their work alone puts behind the best."""
        which, cell = np.divmod(nodes, len(self.cells))
        sizes = np.array([len(each.variants) for each in self.lists])
        self.counts.beaten += int((sizes[which] * self.cells.num_layouts[cell]).sum())

    def _sift(self) -> None:
        """Drop from the pool what cannot matter any more."""
        found, pool = self.incumbents, self.pool
        matters, fits = found.matters(pool.step_time, pool.peak), found.may_fit(pool.peak)
        size = self.cells.num_layouts[pool.cell]
        self.counts.over_memory += int(size[~matters & ~fits].sum())
        self.counts.beaten += int(size[~matters & fits].sum())
        self.pool = pool.take(matters)

    def _evaluate(self) -> None:
        """Evaluate what waits, most promising first: some at once, then as long as nothing left is more so."""
        by_time = self.incumbents.wanted.objective == "step_time"
        left = self.work[self.cursor] if self.cursor < len(self.order) else np.inf
        first = True
        while len(self.pool):
            value = self.pool.step_time if by_time else self.pool.peak
            fits = self.pool.peak <= self.incumbents.wanted.memory_limit
            order = np.lexsort((value, ~fits)) if first else np.argsort(value, kind="stable")
            if not first and (value[order[0]] > left or (not by_time and left < np.inf)):
                return
            taken = np.cumsum(self.cells.num_layouts[self.pool.cell[order]]) <= LAYOUTS_AT_ONCE
            taken[0] = True
            self._score(self.pool.take(order[taken]))
            self.pool = self.pool.take(np.sort(order[~taken]))
            self._sift()
            first = False

    def _score(self, nodes: Pool) -> None:
        """Evaluate all layouts behind some pairs."""
        cells, where = np.unique(nodes.cell, return_inverse=True)
        only = np.zeros((len(self.cells.whole.variants), len(cells)), dtype=bool)
        only[nodes.variant, where] = True
        layouts, owner, place = self.cells.expand(cells)
        scores = score(self.question, layouts, only=only[:, owner])
        self.counts.evaluated += int(self.cells.num_layouts[nodes.cell].sum())
        self.incumbents.add(layouts, place, scores)

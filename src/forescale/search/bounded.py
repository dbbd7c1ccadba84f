"""Branch and bound over cells: the exact best of a space without evaluating all of it.

A cell and a list of variants start with a bound of its work without experts; in ascending order of it they get one
with them; in ascending order of that a bound of time and memory from the evaluation itself; and in ascending order of
that the layouts behind them are evaluated. What cannot be among the best any more is discarded at each step, so the
result is that of evaluating everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from forescale.numeric import Array
from forescale.search.bounds import WorkBounds, cell_bounds, variant_lists
from forescale.search.cells import Cells, Mask
from forescale.search.evaluate import Question, score
from forescale.search.incumbents import Incumbents, Wanted
from forescale.search.space import Rows

FIRST_CELLS, MOST_CELLS, GROWTH = 2048, 65536, 4
"""Cells bounded at once: few at first, as long as there is nothing to discard by."""
REFINED_AT_ONCE = 65536
"""Cells whose work is bounded at once."""
FIRST_LAYOUTS, LAYOUTS_AT_ONCE = 8192, 65536
"""Layouts evaluated at once: few of the most promising first, to discard others by."""
SIMULATED_FIRST, SIMULATED_AT_ONCE = 128, 512
"""The same where schedules are simulated: each shape of a pipeline is built and timed by itself."""


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
        legal = cells.legal()
        self.num_legal = cells.count(legal)
        self.incumbents = Incumbents(wanted=wanted, variants=cells.whole.variants)
        self.counts, self.pool = Counts(), Pool()
        self.lists = variant_lists(cells.whole.variants)
        self.bounds = WorkBounds(question=question, cells=cells, lists=self.lists)
        values, level = self.bounds.coarse(legal)
        self.order = _ascending(level.reshape(-1))
        self.coarse = values[level.reshape(-1)[self.order]]
        self.cursor, self.at_once = 0, FIRST_CELLS
        self.near, self.fine = self.order[:0], np.zeros(0)
        self.started = time.perf_counter()

    def run(self, watch: Watch | None = None) -> Progress:
        """Settle every layout, or all until `watch` says no; return how far it came."""
        while True:
            progress = self.progress()
            goes_on = watch is None or watch(progress)
            if self.done or not goes_on:
                return progress
            if len(self.near) == 0 or self.fine[0] > self._next_coarse:
                self._refine()
            self._bound_cells()
            self._evaluate()

    @property
    def done(self) -> bool:
        """Say whether every layout is settled."""
        return self.cursor == len(self.order) and not len(self.near) and not len(self.pool)

    @property
    def _next_coarse(self) -> float:
        return float(self.coarse[self.cursor]) if self.cursor < len(self.order) else np.inf

    @property
    def _next_fine(self) -> float:
        return min(self._next_coarse, float(self.fine[0]) if len(self.near) else np.inf)

    def progress(self) -> Progress:
        """Return how far it is."""
        wanted, found = self.incumbents.wanted, self.incumbents
        by_time = wanted.objective == "step_time"
        values = found.step_time if by_time else found.peak
        best = float(values[0]) if len(values) else np.inf
        left = [best, *(self.pool.step_time if by_time else self.pool.peak)]
        if np.isfinite(self._next_fine):
            left.append(self._next_fine if by_time else 0.0)
        return Progress(
            num_legal=self.num_legal,
            num_evaluated=self.counts.evaluated,
            num_irrelevant=self.counts.over_memory + self.counts.beaten,
            best=best,
            bound=float(min(left)),
            elapsed_s=time.perf_counter() - self.started,
        )

    def _refine(self) -> None:
        """Bound the next (list, cell) pairs by all of their work; all that are left may be beaten already."""
        horizon = self.incumbents.horizon
        beyond = int(np.searchsorted(self.coarse, horizon, side="right"))
        end = min(self.cursor + REFINED_AT_ONCE, max(beyond, self.cursor))
        chosen, self.cursor = self.order[self.cursor : end], end
        if end >= beyond:
            self._discard(self.order[end:])
            self.cursor = len(self.order)
        fine = self.bounds.fine(*np.divmod(chosen, len(self.cells)))
        self.near, self.fine = np.concatenate([self.near, chosen]), np.concatenate([self.fine, fine])
        order = np.argsort(self.fine, kind="stable")
        self.near, self.fine = self.near[order], self.fine[order]

    def _bound_cells(self) -> None:
        """Bound the most promising pairs by the evaluation itself."""
        beyond = int(np.searchsorted(self.fine, self.incumbents.horizon, side="right"))
        self._discard(self.near[beyond:])
        end = self.at_once if self.at_once * 2 < beyond else beyond
        chosen = self.near[:end]
        self.near, self.fine = self.near[end:beyond], self.fine[end:beyond]
        self.at_once = min(self.at_once * GROWTH, MOST_CELLS)
        if len(chosen):
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
        left = self._next_fine
        first, at_once = True, self._at_once
        while len(self.pool):
            value = self.pool.step_time if by_time else self.pool.peak
            fits = self.pool.peak <= self.incumbents.wanted.memory_limit
            order = np.lexsort((value, ~fits)) if first else np.argsort(value, kind="stable")
            if not first and (value[order[0]] > left or (not by_time and left < np.inf)):
                return
            taken = np.cumsum(self.cells.num_layouts[self.pool.cell[order]]) <= at_once[not first]
            taken[0] = True
            self._score(self.pool.take(order[taken]))
            self.pool = self.pool.take(np.sort(order[~taken]))
            self._sift()
            first = False

    @property
    def _at_once(self) -> tuple[int, int]:
        """How many layouts are evaluated first, and then at once."""
        if any(each.schedule is not None for each in self.cells.whole.variants):
            return SIMULATED_FIRST, SIMULATED_AT_ONCE
        return FIRST_LAYOUTS, LAYOUTS_AT_ONCE

    def _score(self, nodes: Pool) -> None:
        """Evaluate all layouts behind some pairs."""
        cells, where = np.unique(nodes.cell, return_inverse=True)
        only = np.zeros((len(self.cells.whole.variants), len(cells)), dtype=bool)
        only[nodes.variant, where] = True
        layouts, owner, place = self.cells.expand(cells)
        scores = score(self.question, layouts, only=only[:, owner])
        self.counts.evaluated += int(self.cells.num_layouts[nodes.cell].sum())
        self.incumbents.add(layouts, place, scores)


def _ascending(level: Rows) -> Rows:
    """Return where `level` is not negative, by ascending level, then place; few levels are sorted by counting."""
    possible = np.flatnonzero(level >= 0)
    small = np.uint16 if level.max(initial=0) < 2**16 else np.int64
    return possible[np.argsort(level[possible].astype(small), kind="stable")]

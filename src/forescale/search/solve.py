"""Branch and bound over cells: the exact best of a space without evaluating all of it.

A cell and a list of variants start with a bound of their work without experts, wherever ranks lie; in ascending order
of it they get one with them; in ascending order of that, and for each recompute policy, a bound of time and memory from
the evaluation itself, then the same for each placement; and in ascending order of that the layouts behind them are
evaluated. Where memory is ranked, the first bound is of memory, whatever is recomputed. What cannot be among the best
any more is discarded at each step, so the result is that of evaluating everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from forescale.numeric import Array
from forescale.search.bounds import MemoryBounds, WorkBounds, cell_bounds
from forescale.search.evaluate import Scores, score_pairs
from forescale.search.layouts import Candidates, Rows, Variant
from forescale.search.question import Question
from forescale.search.ranks import anywhere
from forescale.search.tree import Cells, Legality, Mask
from forescale.spec import DEFAULT_AXIS_ORDER

FIRST_CELLS, MOST_CELLS, GROWTH = 4096, 65536, 4
"""Cells bounded at once: few at first, as long as there is nothing to discard by."""
FIRST_PLACED, PLACED_AT_ONCE = 8192, 65536
"""Placements bounded at once, alike."""
REFINED_AT_ONCE = 65536
"""Cells whose work is bounded at once."""
FIRST_LAYOUTS, LAYOUTS_AT_ONCE = 8192, 65536
"""Layouts evaluated at once: few of the most promising first, to discard others by."""
SIMULATED_FIRST, SIMULATED_AT_ONCE = 128, 512
"""The same where schedules are simulated: each shape of a pipeline is built and timed by itself."""
Objective: TypeAlias = Literal["step_time", "peak_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a search is after: the best `top` within a limit, and the fastest within each relaxed one."""

    objective: Objective
    top: int
    memory_limit: float
    relaxed: tuple[float, ...] = ()
    """Further limits of memory, ascending, under each of which the shortest step is to be known."""


SMALLEST = Wanted(objective="peak_memory", top=1, memory_limit=np.inf)


@dataclass(slots=True, kw_only=True)
class Incumbents:
    """Layouts ranked by the objective, ties by the other one, then by the order of the space.

    Of orders of ranks that make no difference to a layout's time and memory the first stands for all.
    """

    wanted: Wanted
    variants: tuple[Variant, ...]
    step_time: Array = field(default_factory=lambda: np.zeros(0))
    peak: Array = field(default_factory=lambda: np.zeros(0))
    variant: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    place: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rows: dict[str, Rows] = field(default_factory=dict)
    fastest: Array = field(init=False)
    """Shortest step under each limit of `wanted.relaxed`."""
    num_feasible: int = 0
    bar: float = np.inf
    """What the last of the best has, in the objective; infinite until there are as many as wanted."""

    def __post_init__(self) -> None:
        """Start without any."""
        self.fastest = np.full(len(self.wanted.relaxed), np.inf)

    def add(self, layouts: Candidates, place: Rows, variant: Rows, row: Rows, scores: Scores) -> None:
        """Take note of the scores of some (variant, row) pairs of layouts, whose rows have these places."""
        for index, limit in enumerate(self.wanted.relaxed):
            within = scores.step_time[scores.peak <= limit]
            self.fastest[index] = min(self.fastest[index], within.min(initial=np.inf))
        fits = scores.peak <= self.wanted.memory_limit
        self.num_feasible += int(np.count_nonzero(fits))
        first = scores.step_time if self.wanted.objective == "step_time" else scores.peak
        chosen = np.flatnonzero(fits & (first <= self.bar))
        if len(chosen) == 0:
            return
        variant, row = variant[chosen], row[chosen]
        self.step_time = np.concatenate([self.step_time, scores.step_time[chosen]])
        self.peak = np.concatenate([self.peak, scores.peak[chosen]])
        self.variant = np.concatenate([self.variant, variant])
        self.place = np.concatenate([self.place, place[row]])
        added = {name: values[row] for name, values in layouts.columns.items()}
        before = self.rows or {name: values[:0] for name, values in added.items()}
        self.rows = {name: np.concatenate([before[name], added[name]]) for name in added}
        self._rank()

    def _rank(self) -> None:
        """Sort, drop what cannot be among the best, and set the bar."""
        values = self.step_time, self.peak
        first, second = values if self.wanted.objective == "step_time" else values[::-1]
        order = np.lexsort((self.place, self.variant, second, first))
        most = self.wanted.top * len({variant.placing for variant in self.variants})
        order = order[:most]
        self.step_time, self.peak = self.step_time[order], self.peak[order]
        self.variant, self.place = self.variant[order], self.place[order]
        self.rows = {name: column[order] for name, column in self.rows.items()}
        best = self.best()
        if len(best) == self.wanted.top:
            last = best[-1]
            self.bar = float((self.step_time if self.wanted.objective == "step_time" else self.peak)[last])

    def best(self) -> list[int]:
        """Return which of the kept are the best, in order."""
        ranked: dict[object, int] = {}
        for index in range(len(self.place)):
            unplaced = replace(
                self.variants[self.variant[index]], axis_order=DEFAULT_AXIS_ORDER, placement=None
            )
            key = (self.place[index], unplaced, self.step_time[index], self.peak[index])
            ranked.setdefault(key, index)
        return list(ranked.values())[: self.wanted.top]

    def matters(self, step_time: Array, peak: Array) -> Mask:
        """Return which layouts with these bounds may still be among the best, or the fastest within a limit."""
        wanted = self.wanted
        if wanted.objective == "peak_memory":
            return np.asarray(peak <= min(self.bar, wanted.memory_limit))
        result = (peak <= wanted.memory_limit) & (step_time <= self.bar)
        for limit, fastest in zip(wanted.relaxed, self.fastest, strict=True):
            result |= (peak <= limit) & (step_time < fastest)
        return np.asarray(result)

    def may_fit(self, peak: Array) -> Mask:
        """Return which layouts with this bound of memory fit some limit."""
        return np.asarray(peak <= max(self.wanted.memory_limit, *self.wanted.relaxed, 0.0))

    @property
    def horizon(self) -> float:
        """Bound of the objective beyond which no layout matters: in seconds, whatever memory it needs."""
        if self.wanted.objective == "peak_memory":
            return min(self.bar, self.wanted.memory_limit)
        return float(max(self.bar, *self.fastest, 0.0))


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

    def least(self, *, by_time: bool) -> float:
        """Return the least bound of what waits; infinite if nothing does."""
        return float((self.step_time if by_time else self.peak).min(initial=np.inf))

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
    """One search by bounds; `run` does it.

    Attributes
    ----------
    smallest
        The search for the smallest layout, where the first ones did not fit.
    hopeless
        Whether not even that fits, so that the search stopped.
    """

    def __init__(self, question: Question, cells: Cells, wanted: Wanted) -> None:
        self.question, self.cells = question, cells
        self.legality = Legality.of(cells)
        self.lists, nodes = self.legality.lists, self.legality.nodes
        self.layouts = self.legality.num_layouts(cells)
        self.num_legal = int((nodes @ self.layouts).sum())
        self.incumbents = Incumbents(wanted=wanted, variants=cells.whole.variants)
        self.counts, self.open, self.placed = Counts(), Pool(), Pool()
        self.anywhere = anywhere(cells.whole, question.cluster)
        self.by_time = wanted.objective == "step_time"
        self.bounds = (
            WorkBounds(question, cells, self.lists, self.anywhere)
            if self.by_time
            else MemoryBounds(question, cells, self.legality, self.anywhere)
        )
        coarse = self.bounds.coarse().reshape(-1)
        self.order = np.flatnonzero(nodes)
        self.order = self.order[np.argsort(coarse[self.order], kind="stable")]
        self.coarse = coarse[self.order]
        self.cursor, self.at_once = 0, FIRST_CELLS
        self.near, self.fine = self.order[:0], np.zeros(0)
        self.smallest: Bounded | None = None
        self.hopeless = False
        self.started = time.perf_counter()

    def run(self, watch: Watch | None = None) -> Progress:
        """Settle every layout, or all until `watch` says no or nothing fits; return how far it came."""
        while True:
            progress = self.progress()
            goes_on = watch is None or watch(progress)
            if self.done or self.hopeless or not goes_on:
                return progress
            if len(self.near) == 0 or self.fine[0] > self._next_coarse:
                self._refine()
            self._bound_cells()
            self._evaluate()
            if self.smallest is None and self._finds_nothing:
                self._look_for_any(watch)

    @property
    def _finds_nothing(self) -> bool:
        """Say whether there is no layout that fits so far, nor one to compare with."""
        return self.by_time and self.incumbents.num_feasible == 0 and self.incumbents.bar == np.inf

    def _look_for_any(self, watch: Watch | None) -> None:
        """Look for the smallest layout: where not even that fits, the search has its answer."""
        run = Bounded(self.question, self.cells, SMALLEST)
        run.run(None if watch is None else lambda _: watch(self.progress()))
        if run.done:
            self.smallest = run
            limit = self.incumbents.wanted.memory_limit
            self.hopeless = not self.done and not (run.incumbents.peak <= limit).any()

    def go_on(self) -> None:
        """Let a search in which nothing fits look for what relaxed limits of memory allow."""
        self.hopeless, self.incumbents.bar = False, 0.0

    @property
    def done(self) -> bool:
        """Say whether every layout is settled."""
        return self.cursor == len(self.order) and not (len(self.near) or len(self.open) or len(self.placed))

    @property
    def _next_coarse(self) -> float:
        return float(self.coarse[self.cursor]) if self.cursor < len(self.order) else np.inf

    @property
    def _next_fine(self) -> float:
        return min(self._next_coarse, float(self.fine[0]) if len(self.near) else np.inf)

    def progress(self) -> Progress:
        """Return how far it is."""
        found, by_time = self.incumbents, self.by_time
        values = found.step_time if by_time else found.peak
        best = float(values[0]) if len(values) else np.inf
        left = [best, self.open.least(by_time=by_time), self.placed.least(by_time=by_time)]
        if np.isfinite(self._next_fine):
            left.append(self._next_fine)
        return Progress(
            num_legal=self.num_legal,
            num_evaluated=self.counts.evaluated,
            num_irrelevant=self.counts.over_memory + self.counts.beaten,
            best=best,
            bound=float(min(left)),
            elapsed_s=time.perf_counter() - self.started,
        )

    def _refine(self) -> None:
        """Bound the next (list, cell) pairs more closely; all that are left may be beaten already."""
        horizon = self.incumbents.horizon
        beyond = int(np.searchsorted(self.coarse, horizon, side="right"))
        end = min(self.cursor + REFINED_AT_ONCE, max(beyond, self.cursor))
        chosen, self.cursor = self.order[self.cursor : end], end
        if end >= beyond:
            self._discard(self.order[end:], self.coarse[end:])
            self.cursor = len(self.order)
        fine = self.bounds.fine(*np.divmod(chosen, len(self.cells)))
        self.near, self.fine = np.concatenate([self.near, chosen]), np.concatenate([self.fine, fine])
        order = np.argsort(self.fine, kind="stable")
        self.near, self.fine = self.near[order], self.fine[order]

    def _bound_cells(self) -> None:
        """Bound the most promising pairs by the evaluation itself, each recompute policy by itself."""
        beyond = int(np.searchsorted(self.fine, self.incumbents.horizon, side="right"))
        self._discard(self.near[beyond:], self.fine[beyond:])
        end = self.at_once if self.at_once * 2 < beyond else beyond
        chosen = self.near[:end]
        self.near, self.fine = self.near[end:beyond], self.fine[end:beyond]
        self.at_once = min(self.at_once * GROWTH, MOST_CELLS)
        if len(chosen):
            which, cell = np.divmod(chosen, len(self.cells))
            policy, node = np.nonzero(self.legality.by_recompute[:, cell])
            variant = np.stack([each.variants[0] for each in self.lists])[which[node], policy]
            cells = cell[node]
            bounds = cell_bounds(self.question, self.cells, variant, cells, self.anywhere)
            self.open.add(variant, cells, bounds.step_time, bounds.peak)
            self._sift()

    def _discard(self, nodes: Rows, bounds: Array) -> None:
        """Count the layouts of (list, cell) nodes whose bounds put them behind the best, or over every limit."""
        sizes = self.layouts[nodes % len(self.cells)]
        over = np.zeros(len(nodes), dtype=bool) if self.by_time else ~self.incumbents.may_fit(bounds)
        self.counts.over_memory += int(sizes[over].sum())
        self.counts.beaten += int(sizes[~over].sum())

    def _sift(self) -> None:
        """Drop from the pools what cannot matter any more."""
        found, sizes = self.incumbents, self.cells.num_layouts
        self.open, *dropped = _sifted(self.open, found, sizes * self.legality.num_placings)
        self.placed, *others = _sifted(self.placed, found, sizes)
        self.counts.over_memory += dropped[0] + others[0]
        self.counts.beaten += dropped[1] + others[1]

    def _evaluate(self) -> None:
        """Evaluate what waits, most promising first: some at once, then as long as nothing left is more so."""
        by_time, first, at_once = self.by_time, True, self._at_once
        left = self._next_fine
        while len(self.open) or len(self.placed):
            waiting, ready = (pool.least(by_time=by_time) for pool in (self.open, self.placed))
            if not first and min(waiting, ready) > left:
                return
            if waiting <= ready:
                self._place(FIRST_PLACED if first else PLACED_AT_ONCE, fitting=first)
            if len(self.placed):
                self._score(at_once[not first], fitting=first)
                first = False

    @property
    def _at_once(self) -> tuple[int, int]:
        """How many layouts are evaluated first, and then at once."""
        if any(each.first.schedule is not None for each in self.lists):
            return SIMULATED_FIRST, SIMULATED_AT_ONCE
        return FIRST_LAYOUTS, LAYOUTS_AT_ONCE

    def _place(self, most: int, *, fitting: bool) -> None:
        """Bound the placements of the most promising pairs."""
        sizes = self.legality.num_placings[self.open.cell]
        nodes = self._taken("open", sizes, most, fitting=fitting)
        placing, node = np.nonzero(self.legality.by_placing[:, nodes.cell])
        list_of, recompute_of = self.legality.list_of, self.legality.recompute_of
        every = np.stack([each.variants for each in self.lists])
        variant = every[list_of[nodes.variant[node]], placing, recompute_of[nodes.variant[node]]]
        cell, step, peak = nodes.cell[node], nodes.step_time[node], nodes.peak[node]
        if len(every[0]) > 1:
            bounds = cell_bounds(self.question, self.cells, variant, cell)
            step, peak = bounds.step_time, bounds.peak
        self.placed.add(variant, cell, step, peak)
        self._sift()

    def _score(self, most: int, *, fitting: bool) -> None:
        """Evaluate all layouts behind the most promising placed pairs."""
        nodes = self._taken("placed", self.cells.num_layouts[self.placed.cell], most, fitting=fitting)
        cells, where = np.unique(nodes.cell, return_inverse=True)
        layouts, owner, place = self.cells.expand(cells)
        starts = np.searchsorted(owner, np.arange(len(cells)))
        width = self.cells.num_layouts[nodes.cell]
        node = np.repeat(np.arange(len(width)), width)
        nth = np.arange(len(node)) - np.repeat(np.cumsum(width) - width, width)
        variant, row = nodes.variant[node], starts[where[node]] + nth
        scores = score_pairs(self.question, layouts, variant, row)
        self.counts.evaluated += len(row)
        self.incumbents.add(layouts, place, variant, row, scores)
        self._sift()

    def _taken(self, name: str, sizes: Rows, most: int, *, fitting: bool) -> Pool:
        """Take the most promising pairs of a pool, up to some size in all; first what fits, if asked."""
        pool: Pool = getattr(self, name)
        value = pool.step_time if self.by_time else pool.peak
        fits = pool.peak <= self.incumbents.wanted.memory_limit
        order = np.lexsort((value, ~fits)) if fitting else np.argsort(value, kind="stable")
        taken = np.cumsum(sizes[order]) <= most
        taken[0] = True
        setattr(self, name, pool.take(np.sort(order[~taken])))
        return pool.take(order[taken])


def _sifted(pool: Pool, found: Incumbents, sizes: Rows) -> tuple[Pool, int, int]:
    """Return what of a pool still matters, and how many layouts do not: over every limit of memory, and beaten."""
    matters, fits = found.matters(pool.step_time, pool.peak), found.may_fit(pool.peak)
    size = sizes[pool.cell]
    return pool.take(matters), int(size[~matters & ~fits].sum()), int(size[~matters & fits].sum())

"""Branch and bound over the tree of layouts: the exact best of a space without evaluating all of it.

A node starts with a bound of its work without experts, wherever ranks lie; in ascending order of it nodes get one with
them, all up to the cutoff where one is known; in ascending order of that, branched by recompute policy (many first
without recompute, which is never slower), a bound of time and memory from the evaluation itself, then, branched by
placement, the same for each; and in ascending order of that the layouts behind them are evaluated. As long as there is
no cutoff, nodes of one operator list whose least memory fits go first, and of each shape its most promising layouts:
few that differ soon tell how good the best are. Where memory is ranked, the first bound is of memory, whatever is
recomputed. What cannot be among the best any more is pruned at each step, so the result is that of evaluating
everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.numeric import Array
from forescale.question import Question
from forescale.search.blocks import KnownBlocks
from forescale.search.bounds import MemoryBounds, WorkBounds
from forescale.search.evaluate import Scores, score_pairs, states_of
from forescale.search.host_memory import AtOnce
from forescale.search.incumbent import SHAPE, SMALLEST, Goal, Incumbent, State
from forescale.search.layouts import Columns, Rows, distinct, in_parts
from forescale.search.least import KnownTraffic, cell_bounds
from forescale.search.node_queue import FIRST_NODES, REFINED_AT_ONCE, NodeQueue
from forescale.search.open_nodes import Counts, OpenNodes
from forescale.search.ranks import relaxed_placement
from forescale.search.tree import Cells, Mask, Tree
from forescale.spec.layout import Layout
from forescale.struct import Struct
from forescale.workers import ALONE, Workers

PLACED_AT_ONCE = 65536
"""Nodes of placements bounded at once."""
MANY_OPENED = 4096
"""Nodes from which on they are bounded without recompute before each of their policies is."""
MANY_PLACED = 4096
"""Nodes from which on it is worth the time to bound their data-parallel traffic in the best order of ranks first."""
FIRST_LAYOUTS, LAYOUTS_AT_ONCE = 4096, 65536
"""Layouts evaluated at once: some of the most promising first, to prune others by, then twice as many each time."""
DIVE_NODES, DIVE_AMONG, DIVE_PLACED, DIVE_LAYOUTS = 768, 16384, 1024, 2048
"""What a dive for a first incumbent looks at: nodes that may fit, of so many most promising ones, then placements and
layouts of them."""
LISTS_AT_ONCE = 2
"""Operator lists whose nodes are settled side by side."""
PREPARED_FROM, SHARED_FROM = 8192, 512
"""Cells, and nodes or layouts, from which on several processes share a step."""
FIRST_SMALLEST = 512
"""All of these where memory is ranked, of which the first bound is close: a few settle it."""
SIMULATED_FIRST, SIMULATED_AGAIN, SIMULATED_AT_ONCE = 128, 1024, 8192
"""The same where schedules are simulated, the first time and later: each shape of a pipeline is built and timed by
itself, and whole small searches end with the first few."""


class Progress(Struct, frozen=True, kw_only=True):
    """How far a search is."""

    num_legal: int
    num_evaluated: int
    num_pruned: int
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


Watch: TypeAlias = Callable[[Progress], bool]
"""Is told how far a search is; False stops it."""


class Solver:
    """One search by branch and bound; `run` does it.

    Attributes
    ----------
    incumbent
        The best layouts so far.
    counts
        What became of the layouts.
    smallest
        The search for the smallest layout, where the first ones did not fit.
    infeasible
        Whether not even that fits, so that the search stopped.
    """

    def __init__(
        self,
        question: Question,
        cells: Cells,
        goal: Goal,
        work: WorkBounds | None = None,
        workers: Workers = ALONE,
        at_once: AtOnce | None = None,
    ) -> None:
        self.cells, self._workers, self._lists, self._most = cells, workers, 1, at_once or AtOnce()
        several = workers if len(cells) >= PREPARED_FROM else ALONE
        parts: list[Callable[[], Any]] = [
            partial(Tree.from_candidates, cells.whole),
            partial(relaxed_placement, cells.whole, question.cluster),
        ]
        self._tree, self._relaxed = several.share(parts)
        self._sizes, nodes = self._tree.num_layouts(cells).reshape(-1), self._tree.nodes
        self.num_legal = int(self._sizes.sum())
        bounds = self._bounds(question, goal, work)
        coarse = bounds.coarse()
        legal, coarse = np.flatnonzero(nodes), coarse.reshape(-1)
        refine = (
            coarse.__getitem__
            if goal.by_time and not question.model.is_moe
            else (lambda subset: self._shared(bounds.fine, subset))
        )
        first = FIRST_NODES if goal.by_time else FIRST_SMALLEST
        known, alike = None, None
        if isinstance(bounds, MemoryBounds):
            known = bounds.closest.reshape(-1)[legal]
        else:
            alike = bounds.list_of
        queue = NodeQueue(legal, coarse[legal], refine, known, first, not goal.by_time, alike)
        self.begin(question, goal, queue)

    def _shared(self, fine: Callable[[Rows, Rows], Array], nodes: Rows) -> Array:
        """Return closer bounds of nodes, of many side by side."""
        rows, cells = np.divmod(nodes, len(self.cells))
        parts = in_parts(
            self.cells.whole.columns, cells, self._parts(len(nodes)), min(REFINED_AT_ONCE, self._most.pairs)
        )
        result = np.empty(len(nodes))
        several = self._workers.share([partial(fine, rows[part], cells[part]) for part in parts])
        for part, values in zip(parts, several, strict=True):
            result[part] = values
        return result

    def _parts(self, size: int) -> int:
        """Return how many parts so many nodes or layouts are shared in."""
        return self._workers.jobs if size >= SHARED_FROM else 1

    def _bounds(self, question: Question, goal: Goal, work: WorkBounds | None) -> WorkBounds | MemoryBounds:
        """Return what bounds nodes first, from the work of their shapes where that is known."""
        if not goal.by_time:
            return self._memory_bounds(question)
        if work is not None:
            return work.on(self.cells.whole, self._relaxed)
        return WorkBounds(question, self.cells.whole, self._tree.branches, self._relaxed)

    def _memory_bounds(self, question: Question) -> MemoryBounds:
        return MemoryBounds(question, self.cells, self._tree, self._relaxed, self._most.shardings)

    def begin(self, question: Question, goal: Goal, queue: NodeQueue) -> None:
        """Begin with no layout settled."""
        self.question, self.goal = question, goal
        self.incumbent, self.counts = Incumbent(goal=goal, variants=self.cells.whole.variants), Counts()
        self.smallest: Solver | None = None
        self.infeasible = False
        self._started = time.perf_counter()
        self._memory = self._memory_bounds(question)
        self._queue, self._unplaced, self._placed = queue, OpenNodes(), OpenNodes()
        self._blocks, self._traffic = KnownBlocks(), KnownTraffic()

    def again(self, question: Question, goal: Goal) -> Solver:
        """Return a search of the same layouts by time where memory counts otherwise: its first bounds hold as well."""
        other = copy(self)
        other.begin(question, goal, self._queue.afresh())
        return other

    def run(self, watch: Watch | None = None, *, lists: int = LISTS_AT_ONCE) -> Progress:
        """Settle every layout, or all until `watch` says no or nothing fits; return how far it came.

        `lists` operator lists are settled side by side.
        """
        while True:
            progress = self.progress()
            goes_on = watch is None or watch(progress)
            if self.done or self.infeasible or not goes_on:
                if not self.goal.timed:
                    self.incumbent.time(self.scored(self.question).step_time)
                return progress
            self._branch(lists)
            self._evaluate()
            self._blocks = KnownBlocks()
            if self.smallest is None and self._finds_nothing:
                self._look_for_any(watch)

    @property
    def done(self) -> bool:
        """Say whether every layout is settled."""
        return not (len(self._queue) or len(self._unplaced) or len(self._placed))

    @property
    def _finds_nothing(self) -> bool:
        """Say whether there is no layout that fits so far, nor one to compare with."""
        incumbent = self.incumbent
        return self.goal.by_time and incumbent.num_feasible == 0 and incumbent.cutoff == np.inf

    def _look_for_any(self, watch: Watch | None) -> None:
        """Look for the smallest layout, or any that fits: where not even that does, the search has its answer."""
        solver, limit = Solver(self.question, self.cells, SMALLEST), self.goal.memory_limit
        solver.run(lambda _: solver.incumbent.least > limit and (watch is None or watch(self.progress())))
        fits = solver.incumbent.least <= limit
        if solver.done or fits:
            self.smallest = solver
            self.infeasible = not (self.done or fits)

    def go_on(self, fastest: Array) -> None:
        """Let a search in which nothing fits look for what relaxed limits of memory allow.

        `fastest` is the shortest step under each that other searches know.
        """
        self.infeasible = False
        self.incumbent.learn(fastest, cutoff=0.0)

    def layout(self, place: int) -> Layout:
        """Return one of the layouts that are kept, in order."""
        incumbent = self.incumbent
        return replace(self.cells.whole, columns=incumbent.columns).strategy(
            int(incumbent.variant[place]), place
        )

    def scored(self, question: Question) -> Scores:
        """Return what the layouts that are kept, in order, score under a question in which memory counts otherwise."""
        incumbent = self.incumbent
        layouts = replace(self.cells.whole, columns=incumbent.columns)
        return score_pairs(question, layouts, incumbent.variant, np.arange(len(incumbent.variant)))

    def progress(self) -> Progress:
        """Return how far it is."""
        best = self.incumbent.least
        left = (self._queue.least, self._unplaced.least(self.goal), self._placed.least(self.goal))
        return Progress(
            num_legal=self.num_legal,
            num_evaluated=self.counts.evaluated,
            num_pruned=self.counts.pruned,
            best=best,
            bound=min(best, *left),
            elapsed_s=time.perf_counter() - self._started,
        )

    def _branch(self, most: int) -> None:
        """Bound the most promising nodes by the evaluation itself; where there is a cutoff, settle them."""
        unsettled = not (self.counts.evaluated or self.counts.pruned)
        if self._dives and unsettled and len(nodes := self._first_that_fit()):
            self._open(nodes)
            return
        settles = self.goal.by_time and self.incumbent.cutoff < np.inf
        if settles and (len(self._unplaced) or len(self._placed)):
            return  # of what was begun before there was a cutoff
        lists, beaten, bounds = self._queue.pop(self.incumbent.widest_cutoff, most)
        over = np.zeros(len(beaten), dtype=bool) if self.goal.by_time else ~self.goal.may_fit(bounds)
        self.counts.prune(self._sizes[beaten], over)
        if settles:
            self._settle(lists)
            return
        for nodes in lists:
            self._open(self._that_may_fit(nodes) if self.goal.by_time else nodes)

    def _settle(self, lists: Sequence[Rows]) -> None:
        """Settle nodes of some operator lists, each by itself: lists learn of each other's layouts afterwards."""
        workers = self._workers if sum(map(len, lists)) >= SHARED_FROM else ALONE
        alone = ALONE if len(lists) > 1 else workers
        several = [partial(copy(self).settled, nodes, len(lists), alone) for nodes in lists]
        for incumbent, counts in workers.share(several):
            self.incumbent.join(incumbent)
            self.counts.join(counts)
        self._prune()

    def settled(self, nodes: Rows, lists: int, workers: Workers) -> tuple[State, Counts]:
        """Settle nothing but some nodes; return the best layouts, with those known before, and the counts.

        Few layouts are evaluated first where several `lists` are settled side by side.
        """
        self._lists, self._workers = lists, workers
        self.incumbent, self.counts = self.incumbent.copy(), Counts()
        self._unplaced, self._placed, self._blocks = OpenNodes(), OpenNodes(), KnownBlocks()
        self._open(self._that_may_fit(nodes))
        self._evaluate()
        return self.incumbent.state(), self.counts

    @property
    def _closed(self) -> Mask:
        """Branches of the first schedule: one in closed form, where there is one."""
        schedules = [branch.first.schedule for branch in self._tree.branches]
        return np.array([schedule == schedules[0] for schedule in schedules])

    @property
    def _dives(self) -> bool:
        """Whether there is no incumbent to prune by yet: few nodes are followed to their layouts."""
        return self.goal.by_time and self.incumbent.cutoff == np.inf

    def _first_that_fit(self) -> Rows:
        """Take out the most promising nodes of one operator list whose least memory is within the limit."""
        if len(self._queue) <= DIVE_NODES:
            return np.zeros(0, dtype=np.int64)
        head, sp = self._queue.head(), self.cells.whole.columns["sp"]
        branch, cell = np.divmod(head, len(self.cells))
        dives = self._closed[branch] & (sp[cell] == sp.max(initial=0))
        first = head[dives & (branch == branch[dives][:1])][:DIVE_AMONG]
        concatenate, start, size = first[:0], 0, 2 * DIVE_NODES
        while start < len(first) and len(concatenate) < DIVE_NODES:
            subset = first[start : start + size]
            least = self._shared(partial(self._memory.fine, blocks=self._blocks), subset)
            concatenate = np.concatenate([concatenate, subset[least <= self.goal.memory_limit]])
            start, size = start + size, 2 * size
        rows: Rows = concatenate[:DIVE_NODES]
        self._queue.take(rows)
        return rows

    def _open(self, nodes: Rows) -> None:
        """Branch nodes by policy and bound each; of many first what each takes where nothing is recomputed."""
        offloads = self.cells.whole.base.offload.activations  # which recompute leaves less of
        if len(nodes) >= MANY_OPENED and self.incumbent.widest_cutoff < np.inf and not offloads:
            nodes = self._that_may_be_fast(nodes)
        if len(nodes) == 0:
            return
        which, cell = np.divmod(nodes, len(self.cells))
        policy, node = np.nonzero(self._tree.by_policy[:, cell] & self._tree.together[which].T)
        variant = np.stack([branch.variants[0] for branch in self._tree.branches])[which[node], policy]
        bounded = self._bounded(variant, cell[node], relaxed=True)
        keeps = self.incumbent.keeps(bounded.step_time, bounded.peak)
        if np.count_nonzero(keeps) >= MANY_PLACED and self.incumbent.widest_cutoff < np.inf:
            kept = bounded.some(keeps)
            closer = self._bounded(kept.variant, kept.cell, relaxed=True, traffic=self._traffic)
            bounded = bounded.some(~keeps).joined(closer)
        self._unplaced = self._unplaced.joined(bounded)
        self._prune()

    def _that_may_be_fast(self, nodes: Rows) -> Rows:
        """Return the nodes whose step without recompute is within the cutoff, and count the layouts of the others."""
        bare = replace(self.cells, whole=self._memory.bare)
        bounds = self._bounded(*np.divmod(nodes, len(self.cells)), relaxed=True, cells=bare)
        keeps = bounds.step_time <= self.incumbent.widest_cutoff
        dropped = nodes[~keeps]
        self.counts.prune(self._sizes[dropped], np.zeros(len(dropped), dtype=bool))
        return nodes[keeps]

    def _that_may_fit(self, nodes: Rows) -> Rows:
        """Return the nodes whose least memory does not exceed what matters, and count the layouts of the others."""
        if len(nodes) == 0:
            return nodes
        least = self._shared(partial(self._memory.fine, blocks=self._blocks), nodes)
        keeps = self.incumbent.keeps(np.zeros(len(nodes)), least)
        dropped = ~keeps
        self.counts.prune(self._sizes[nodes[dropped]], ~self.goal.may_fit(least[dropped]))
        return nodes[keeps]

    def _bounded(
        self,
        variant: Rows,
        cell: Rows,
        *,
        relaxed: bool,
        cells: Cells | None = None,
        traffic: KnownTraffic | None = None,
    ) -> OpenNodes:
        """Return (variant, cell) pairs with their bounds, of all placements where they are relaxed.

        These count data-parallel traffic where what is known of it is given. `cells` may have other variants.
        """
        bounded = partial(
            cell_bounds,
            self.question,
            cells or self.cells,
            placement=self._relaxed if relaxed else None,
            matters=self.incumbent.keeps,
            known=self._blocks,
            traffic=traffic,
            timed=self.goal.timed,
            at_once=self._most.shardings,
        )
        bounds = self._scored(lambda part: bounded(variant[part], cell[part]), self.cells.whole.columns, cell)
        return OpenNodes(variant=variant, cell=cell, step_time=bounds.step_time, peak=bounds.peak)

    def _scored(self, score: Callable[[Rows], Scores], columns: Columns, rows: Rows) -> Scores:
        """Return the scores of pairs, whose rows of some columns are given, a part for each process."""
        count, most = self._parts(len(rows)), self._most.pairs
        if count == 1 and len(rows) <= most:
            return score(np.arange(len(rows)))
        parts = in_parts(columns, rows, count, most)
        scores = Scores(step_time=np.empty(len(rows)), peak=np.empty(len(rows)))
        several = self._workers.share([partial(score, part) for part in parts])
        for part, item in zip(parts, several, strict=True):
            scores.step_time[part], scores.peak[part] = item.step_time, item.peak
        return scores

    def _prune(self) -> None:
        """Drop what cannot matter any more."""
        self._unplaced = self._kept(self._unplaced, placed=False)
        self._placed = self._kept(self._placed, placed=True)

    def _kept(self, nodes: OpenNodes, *, placed: bool) -> OpenNodes:
        """Return the nodes that still matter, and count the layouts of those that do not."""
        keeps = self.incumbent.keeps(nodes.step_time, nodes.peak)
        dropped = nodes.some(~keeps)
        sizes = self.cells.num_layouts[dropped.cell]
        if not placed:
            sizes = sizes * self._tree.orders_of(dropped.cell)
        self.counts.prune(sizes, ~self.goal.may_fit(dropped.peak))
        return nodes.some(keeps)

    def _evaluate(self) -> None:
        """Evaluate what waits, most promising first: some at once, then as long as nothing left is more so."""
        first, (at_once, most) = True, self._at_once
        left = self._queue.least if self.incumbent.cutoff == np.inf or not self.goal.by_time else np.inf
        while len(self._unplaced) or len(self._placed):
            waiting, ready = (nodes.least(self.goal) for nodes in (self._unplaced, self._placed))
            if not first and min(waiting, ready) > left:
                return
            if waiting <= ready:
                self._branch_by_placement(self._placed_first if first else PLACED_AT_ONCE, fitting=first)
            if len(self._placed):
                self._score(at_once, fitting=first)
                first, at_once = False, min(2 * at_once, most)

    @property
    def _at_once(self) -> tuple[int, int]:
        """How many layouts are evaluated first, and at most at once."""
        if self._simulates:
            return SIMULATED_AGAIN if self.counts.evaluated else SIMULATED_FIRST, SIMULATED_AT_ONCE
        return DIVE_LAYOUTS if self._dives else self._first(FIRST_LAYOUTS // self._lists), LAYOUTS_AT_ONCE

    @property
    def _placed_first(self) -> int:
        """How many placements are bounded first."""
        return DIVE_PLACED if self._dives else self._first(PLACED_AT_ONCE)

    def _first(self, many: int) -> int:
        """How many of what is looked at first where that is `many` by time."""
        return many if self.goal.by_time else min(many, FIRST_SMALLEST)

    @property
    def _simulates(self) -> bool:
        """Whether schedules are simulated, of which few are evaluated at first."""
        return any(branch.first.schedule is not None for branch in self._tree.branches)

    def _branch_by_placement(self, most: int, *, fitting: bool) -> None:
        """Bound the placements of the most promising nodes, each by itself."""
        tree, sizes = self._tree, self._tree.orders_of(self._unplaced.cell)
        shapes = self._shapes(self._unplaced)
        nodes, self._unplaced = self._unplaced.split(self.goal, sizes, most, fitting=fitting, shapes=shapes)
        order, node = np.nonzero(tree.by_order[:, nodes.cell])
        every = np.stack([branch.variants for branch in tree.branches])
        nodes = nodes.some(node)
        variant = every[tree.branch_of[nodes.variant], order, tree.policy_of[nodes.variant]]
        several = len(every[0]) > 1
        bounded = self._bounded(variant, nodes.cell, relaxed=False) if several else nodes
        self._placed = self._placed.joined(bounded)
        self._prune()

    def _shapes(self, nodes: OpenNodes) -> Rows | None:
        """Return the shape of each node, while there is no cutoff."""
        if not self._dives:
            return None
        columns = {name: self.cells.whole.columns[name][nodes.cell] for name in SHAPE}
        return distinct(columns, SHAPE).where

    def _score(self, most: int, *, fitting: bool) -> None:
        """Evaluate the layouts behind the most promising placed nodes whose states alone leave room."""
        sizes = self.cells.num_layouts[self._placed.cell]
        shapes = self._shapes(self._placed)
        nodes, self._placed = self._placed.split(self.goal, sizes, most, fitting=fitting, shapes=shapes)
        cells, where = np.unique(nodes.cell, return_inverse=True)
        layouts, owner, ordinal = self.cells.expand(cells)
        starts = np.searchsorted(owner, np.arange(len(cells)))
        width = self.cells.num_layouts[nodes.cell]
        node = np.repeat(np.arange(len(width)), width)
        nth = np.arange(len(node)) - np.repeat(np.cumsum(width) - width, width)
        variant, row = nodes.variant[node], starts[where[node]] + nth
        states = states_of(self.question, layouts, variant, row)
        keeps = self.incumbent.keeps(nodes.step_time[node], np.maximum(states, nodes.peak[node]))
        self.counts.prune(np.ones_like(row)[~keeps], ~self.goal.may_fit(states[~keeps]))
        variant, row = variant[keeps], row[keeps]
        scores = self._scored(
            lambda part: score_pairs(
                self.question,
                layouts,
                variant[part],
                row[part],
                known=self._blocks,
                timed=self.goal.timed,
            ),
            layouts.columns,
            row,
        )
        self.counts.evaluated += len(row)
        self.incumbent.add(layouts, ordinal, variant, row, scores)
        self._prune()

    def state(self) -> State:
        """Return all that is settled as arrays, by part and name."""
        parts: dict[str, State] = {
            "queue": self._queue.state(),
            "unplaced": self._unplaced.state(),
            "placed": self._placed.state(),
            "incumbent": self.incumbent.state(),
            "counts": {name: np.array(count) for name, count in asdict(self.counts).items()},
        }
        return {f"{part}.{name}": value for part, local in parts.items() for name, value in local.items()}

    def restore(self, state: State) -> None:
        """Take back what `state` returned."""
        parts: dict[str, dict[str, NDArray[Any]]] = {}
        for key, value in state.items():
            part, name = key.split(".", 1)
            parts.setdefault(part, {})[name] = value
        self._queue.restore(parts["queue"])
        self._unplaced, self._placed = OpenNodes(**parts["unplaced"]), OpenNodes(**parts["placed"])
        self.incumbent.restore(parts["incumbent"])
        self.counts = Counts(**{name: int(count) for name, count in parts["counts"].items()})

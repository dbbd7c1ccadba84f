"""Nodes of the tree that wait to be branched, in ascending order of a bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forescale.numeric import Array
from forescale.search.incumbent import State
from forescale.search.layouts import Rows
from forescale.search.tree import Mask

FIRST_NODES, MOST_NODES, GROWTH = 512, 65536, 4
"""Nodes branched by policy at once: few at first, whose layouts tell more of the others, then more each time."""
REFINED_AT_ONCE = 65536
"""Nodes whose work is bounded more closely at once."""
SMALLEST_AT_ONCE = 16384
"""The same where memory is ranked."""


class NodeQueue:
    """Nodes in ascending order of a bound; what is next in it gets a closer one first."""

    def __init__(
        self,
        nodes: Rows,
        bounds: Array,
        refine: Callable[[Rows], Array],
        refined: Mask | None = None,
        first: int = FIRST_NODES,
        few: bool = False,
        alike: Callable[[Rows], Rows] | None = None,
    ) -> None:
        """Take nodes with their bounds; `few` of them are bounded more closely at once even where a cutoff is known.

        Nodes whose number by `alike` is equal share their operators: they are taken out together.
        """
        order = np.argsort(bounds, kind="stable")
        self._nodes, self._bounds, self._refine = nodes[order], bounds[order], refine
        self._known = np.zeros(len(nodes), dtype=bool) if refined is None else refined[order]
        self._cursor, self._at_once, self._few, self._alike = 0, first, few, alike
        self._refined, self._refined_bounds = nodes[:0], bounds[:0]

    def afresh(self) -> NodeQueue:
        """Return the queue as it was before anything was taken out, with the closest bounds known."""
        return NodeQueue(self._nodes, self._bounds, self._refine, self._known, alike=self._alike)

    def __len__(self) -> int:
        """Return how many are left."""
        return len(self._nodes) - self._cursor + len(self._refined)

    @property
    def least(self) -> float:
        """Return the least bound of those left; infinite if none is."""
        return min(self._next, float(self._refined_bounds[0]) if len(self._refined) else np.inf)

    @property
    def _next(self) -> float:
        return float(self._bounds[self._cursor]) if self._cursor < len(self._nodes) else np.inf

    def pop(self, cutoff: float, most: int = 1) -> tuple[list[Rows], Rows, Array]:
        """Take out the most promising nodes, and those beyond a cutoff with their bounds: all left may be.

        Where a cutoff is known they are of up to `most` operator lists, by list: each costs as much for a few nodes
        as for many.
        """
        beaten, bounds = self._nodes[:0], self._bounds[:0]
        if len(self._refined) == 0 or self._refined_bounds[0] > self._next:
            beaten, bounds = self._refine_more(cutoff)
        beyond = int(np.searchsorted(self._refined_bounds, cutoff, side="right"))
        beaten = np.concatenate([beaten, self._refined[beyond:]])
        bounds = np.concatenate([bounds, self._refined_bounds[beyond:]])
        left, numbers = self._refined[:beyond], np.zeros(beyond, dtype=np.int64)
        if self._alike is not None and cutoff < np.inf:
            numbers = self._alike(left)
        lists = numbers[np.sort(np.unique(numbers, return_index=True)[1])[:most]].tolist()
        every = [np.flatnonzero(numbers == number) for number in lists]
        at_once = self._at_once
        every = [which[: at_once if at_once * 2 < len(which) else len(which)] for which in every]
        taken = np.concatenate([np.zeros(0, dtype=np.int64), *every])
        self._refined = np.delete(left, taken)
        self._refined_bounds = np.delete(self._refined_bounds[:beyond], taken)
        self._at_once = min(at_once * GROWTH, MOST_NODES)
        return [left[which] for which in every], beaten, bounds

    def head(self) -> Rows:
        """Return the nodes that have their closest bounds, the most promising first."""
        if len(self._refined) == 0:
            self._refine_more(np.inf)
        return self._refined

    def take(self, nodes: Rows) -> None:
        """Take out some of the head."""
        left = ~np.isin(self._refined, nodes)
        self._refined, self._refined_bounds = self._refined[left], self._refined_bounds[left]

    def _refine_more(self, cutoff: float) -> tuple[Rows, Array]:
        """Bound the next nodes more closely; return those left where these are beyond a cutoff already.

        Without a cutoff they are some, else all that may matter: the best of all is a better one than that of some.
        Where few are to be bounded, a limit of memory may be all the cutoff that there is.
        """
        first = self._cursor
        beyond = first + int(np.searchsorted(self._bounds[first:], cutoff, side="right"))
        some_more = first + (SMALLEST_AT_ONCE if self._few else REFINED_AT_ONCE)
        end = beyond if cutoff < np.inf and not self._few else min(some_more, beyond)
        new = first + np.flatnonzero(~self._known[first:end])
        new = new[np.argsort(self._nodes[new])]  # neighbours share what is priced
        for item in np.array_split(new, -(-len(new) // (4 * REFINED_AT_ONCE)) or 1):
            self._bounds[item], self._known[item] = self._refine(self._nodes[item]), True
        self._cursor = end
        refined = np.concatenate([self._refined, self._nodes[first:end]])
        bounds = np.concatenate([self._refined_bounds, self._bounds[first:end]])
        order = np.argsort(bounds, kind="stable")
        self._refined, self._refined_bounds = refined[order], bounds[order]
        if end < beyond:
            return self._nodes[:0], self._bounds[:0]
        self._cursor = len(self._nodes)
        return self._nodes[end:], self._bounds[end:]

    def state(self) -> State:
        """Return how far it is as arrays."""
        at = np.array([self._cursor, self._at_once])
        return {"at": at, "refined": self._refined, "bounds": self._refined_bounds}

    def restore(self, state: State) -> None:
        """Take back what `state` returned."""
        self._cursor, self._at_once = (int(value) for value in state["at"])
        self._refined, self._refined_bounds = np.asarray(state["refined"]), np.asarray(state["bounds"])

"""Nodes with bounds of time and memory whose layouts wait for evaluation, and counts of those that are settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import field
from numpy.typing import NDArray

from forescale.numeric import Array
from forescale.search.incumbent import Goal
from forescale.search.layouts import Rows
from forescale.search.tree import Mask
from forescale.struct import Struct


class OpenNodes(Struct, frozen=True, kw_only=True):
    """Nodes of one policy, or of one policy and placement, with bounds of both; their layouts wait for evaluation."""

    variant: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    cell: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    step_time: Array = field(default_factory=lambda: np.zeros(0))
    peak: Array = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self.cell)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return every field by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def joined(self, other: OpenNodes) -> OpenNodes:
        """Return these and others."""
        pairs = zip(self.state().items(), other.state().values(), strict=True)
        return OpenNodes(**{name: np.concatenate([local, more]) for (name, local), more in pairs})

    def some(self, which: Rows | Mask) -> OpenNodes:
        """Return some of them."""
        return OpenNodes(**{name: values[which] for name, values in self.state().items()})

    def value(self, goal: Goal) -> Array:
        """Return the bounds of the objective."""
        return self.step_time if goal.by_time else self.peak

    def least(self, goal: Goal) -> float:
        """Return the least bound of what waits; infinite if nothing does."""
        return float(self.value(goal).min(initial=np.inf))

    def split(
        self, goal: Goal, sizes: Rows, most: int, *, fitting: bool, shapes: Rows | None = None
    ) -> tuple[OpenNodes, OpenNodes]:
        """Return the most promising, up to `most` layouts in all, and the rest; first what fits, if asked.

        With `shapes`, the shape of each, the best of every shape come before the next of any.
        """
        value, fits = self.value(goal), self.peak <= goal.memory_limit
        order = np.lexsort((value, ~fits)) if fitting else np.argsort(value, kind="stable")
        if shapes is not None:
            order = order[np.lexsort((_nth(shapes[order]), ~fits[order]))]
        taken = np.cumsum(sizes[order]) <= most
        taken[0] = True
        return self.some(order[taken]), self.some(np.sort(order[~taken]))


def _nth(shapes: Rows) -> Rows:
    """Return how many of the same shape come before each."""
    order = np.argsort(shapes, kind="stable")
    alike, nth = shapes[order], np.empty_like(shapes)
    nth[order] = np.arange(len(alike)) - np.searchsorted(alike, alike)
    return nth


@dataclass(slots=True, kw_only=True)
class Counts:
    """Layouts by what became of them."""

    evaluated: int = 0
    over_memory: int = 0
    """Proven to exceed every limit of memory."""
    beaten: int = 0
    """Proven to be no better than the best."""

    @property
    def pruned(self) -> int:
        """Those that were never evaluated."""
        return self.over_memory + self.beaten

    def join(self, other: Counts) -> None:
        """Count further layouts."""
        self.evaluated += other.evaluated
        self.over_memory += other.over_memory
        self.beaten += other.beaten

    def prune(self, sizes: Rows, over_memory: Mask) -> None:
        """Count nodes of so many layouts each that are pruned, those over every limit of memory apart."""
        self.over_memory += int(sizes[over_memory].sum())
        self.beaten += int(sizes[~over_memory].sum())

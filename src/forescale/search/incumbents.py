"""The best layouts found so far, and with them what a layout must be to matter still."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from forescale.numeric import Array
from forescale.search.cells import Mask
from forescale.search.evaluate import Scores
from forescale.search.space import Candidates, Rows, Variant
from forescale.spec import DEFAULT_AXIS_ORDER

Objective: TypeAlias = Literal["step_time", "peak_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a search is after: the best `top` within a limit, and the fastest within each relaxed one."""

    objective: Objective
    top: int
    memory_limit: float
    relaxed: tuple[float, ...] = ()
    """Further limits of memory, ascending, under each of which the shortest step is to be known."""


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

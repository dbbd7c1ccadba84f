"""What a search is after, and the best layouts that it has so far."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.numeric import Array
from forescale.question import Objective
from forescale.search.evaluate import Scores
from forescale.search.layouts import Candidates, Columns, Rows, Variant
from forescale.search.tree import SHARDING, Mask
from forescale.spec import DEFAULT_AXIS_ORDER
from forescale.spec.space import DEGREE_NAMES
from forescale.struct import Struct

State: TypeAlias = Mapping[str, NDArray[Any]]
"""What a search has settled, as named arrays: a checkpoint holds them."""


class Goal(Struct, frozen=True, kw_only=True):
    """What a search is after: the best `top` within a limit, and the fastest within each relaxed one."""

    objective: Objective
    top: int
    memory_limit: float
    relaxed: tuple[float, ...] = ()
    """Further limits of memory, ascending, under each of which the shortest step is to be known."""
    folds: bool = False
    """Whether the best layout of each shape stands for all of that shape."""
    timed: bool = True
    """Whether layouts are timed as they are evaluated; else only those that are the best alike, at the end."""

    @property
    def by_time(self) -> bool:
        """Whether the shortest step is looked for, not the smallest peak."""
        return self.objective == "step_time"

    def may_fit(self, peak: Array) -> Mask:
        """Return which layouts with this bound of memory fit some limit."""
        return np.asarray(peak <= max(self.memory_limit, *self.relaxed, 0.0))

    def best(self, value: Array, shapes: Rows) -> tuple[Rows, Rows]:
        """Return where the best of a ranking stand, and how many layouts each stands for.

        Parameters
        ----------
        value
            (layouts,) objective, ascending.
        shapes
            (layouts, degrees) shape of each. Where they are folded, those up to the value of the last of the best
            are counted: a search evaluates all of these.
        """
        if not self.folds:
            first = np.arange(min(self.top, len(value)))
            return first, np.ones_like(first)
        first = np.sort(np.unique(shapes, axis=0, return_index=True)[1])
        if len(first) >= self.top:
            shapes = shapes[value <= value[first[self.top - 1]]]
        _, first, count = np.unique(shapes, axis=0, return_index=True, return_counts=True)
        order = np.argsort(first)[: self.top]
        return first[order], count[order]


SHAPE = tuple(name for name in DEGREE_NAMES if name not in SHARDING)
"""Degrees that make a layout another one to who reads a ranking: how states are sharded is none of them."""
SMALLEST = Goal(objective="peak_memory", top=1, memory_limit=np.inf, timed=False)


@dataclass(slots=True, kw_only=True)
class Incumbent:
    """The best layouts so far, ranked by the objective, ties by the other one, then by the order of the space.

    Of orders of ranks that make no difference to a layout's time and memory the first stands for all.
    """

    goal: Goal
    variants: tuple[Variant, ...]
    step_time: Array = field(default_factory=lambda: np.zeros(0))
    peak: Array = field(default_factory=lambda: np.zeros(0))
    variant: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    ordinal: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Where in the order of the space each stands."""
    columns: Columns = field(default_factory=dict)
    fastest: Array = field(init=False)
    """Shortest step under each limit of `goal.relaxed`."""
    unplaced: Rows = field(init=False)
    """Of each variant, a number that those which differ in where ranks lie share."""
    num_feasible: int = 0
    cutoff: float = np.inf
    """What the last of the best has, in the objective; infinite until there are as many as wanted."""

    def __post_init__(self) -> None:
        """Start without any."""
        known: dict[Variant, int] = {}
        apart = [replace(variant, axis_order=DEFAULT_AXIS_ORDER, placement=None) for variant in self.variants]
        self.unplaced = np.array([known.setdefault(item, len(known)) for item in apart], dtype=np.int64)
        self.fastest = np.full(len(self.goal.relaxed), np.inf)

    def add(self, layouts: Candidates, ordinal: Rows, variant: Rows, row: Rows, scores: Scores) -> None:
        """Take note of the scores of some (variant, row) pairs of layouts, whose rows have these ordinals."""
        for index, limit in enumerate(self.goal.relaxed):
            within = scores.step_time[scores.peak <= limit]
            self.fastest[index] = min(self.fastest[index], within.min(initial=np.inf))
        fits = scores.peak <= self.goal.memory_limit
        self.num_feasible += int(np.count_nonzero(fits))
        value = scores.step_time if self.goal.by_time else scores.peak
        selected = np.flatnonzero(fits & (value <= self.cutoff))
        if len(selected) == 0:
            return
        variant, row = variant[selected], row[selected]
        self.step_time = np.concatenate([self.step_time, scores.step_time[selected]])
        self.peak = np.concatenate([self.peak, scores.peak[selected]])
        self.variant = np.concatenate([self.variant, variant])
        self.ordinal = np.concatenate([self.ordinal, ordinal[row]])
        added = {name: values[row] for name, values in layouts.columns.items()}
        before = self.columns or {name: values[:0] for name, values in added.items()}
        self.columns = {name: np.concatenate([before[name], added[name]]) for name in added}
        self._rank()

    def copy(self) -> Incumbent:
        """Return the same layouts, none of which counts as found."""
        other = copy(self)
        other.fastest, other.num_feasible = self.fastest.copy(), 0
        return other

    def join(self, state: State) -> None:
        """Take note of what another one, that began as a copy of this one, has found."""
        self.num_feasible += int(state["num_feasible"])
        self.learn(state["fastest"], cutoff=float(state["cutoff"]))
        columns = _columns(state)
        if not columns:
            return
        for name in ("step_time", "peak", "variant", "ordinal"):
            setattr(self, name, np.concatenate([getattr(self, name), state[name]]))
        before = self.columns or {name: column[:0] for name, column in columns.items()}
        self.columns = {name: np.concatenate([before[name], column]) for name, column in columns.items()}
        self._rank()

    def time(self, step_time: Array) -> None:
        """Rank the layouts that are kept with their step times, where they were evaluated without."""
        self.step_time = step_time
        self._rank()

    def _rank(self) -> None:
        """Sort, drop what cannot be among the best, and lower the cutoff."""
        self._keep(np.lexsort((self.ordinal, self.variant, self.other, self.value)))
        self._keep(self._apart())
        best, _ = self.goal.best(self.value, self.shapes)
        if len(best) == self.goal.top:
            self.cutoff = float(self.value[best[-1]])
            self._keep(np.flatnonzero(self.value <= self.cutoff))

    def _keep(self, rows: Rows) -> None:
        self.step_time, self.peak = self.step_time[rows], self.peak[rows]
        self.variant, self.ordinal = self.variant[rows], self.ordinal[rows]
        self.columns = {name: column[rows] for name, column in self.columns.items()}

    def _apart(self) -> Rows:
        """Return the first of those in order that differ in more than where ranks lie."""
        keys = np.stack([self.ordinal, self.unplaced[self.variant], self.step_time, self.peak], axis=1)
        return np.sort(np.unique(keys, axis=0, return_index=True)[1])

    @property
    def shapes(self) -> Rows:
        """(layouts, degrees) shape of each."""
        return np.stack([self.columns.get(name, self.ordinal) for name in SHAPE], axis=1)

    @property
    def other(self) -> Array:
        """What ties of the objective are ranked by."""
        return self.peak if self.goal.by_time else self.step_time

    @property
    def value(self) -> Array:
        """The objective of each."""
        return self.step_time if self.goal.by_time else self.peak

    @property
    def least(self) -> float:
        """The best value so far; infinite without any."""
        return float(self.value[0]) if len(self.value) else np.inf

    def learn(self, fastest: Array, cutoff: float = np.inf) -> None:
        """Prune from now on by what other searches found too."""
        self.fastest = np.minimum(self.fastest, fastest)
        self.cutoff = min(self.cutoff, cutoff)

    def keeps(self, step_time: Array, peak: Array) -> Mask:
        """Return which layouts with these bounds may still be among the best, or the fastest within a limit."""
        goal = self.goal
        if not goal.by_time:
            return np.asarray(peak <= min(self.cutoff, goal.memory_limit))
        result = (peak <= goal.memory_limit) & (step_time <= self.cutoff)
        for limit, fastest in zip(goal.relaxed, self.fastest, strict=True):
            result |= (peak <= limit) & (step_time < fastest)
        return np.asarray(result)

    @property
    def widest_cutoff(self) -> float:
        """Bound of the objective beyond which no layout matters: in seconds, whatever memory it needs."""
        if not self.goal.by_time:
            return min(self.cutoff, self.goal.memory_limit)
        return float(max(self.cutoff, *self.fastest, 0.0))

    def state(self) -> State:
        """Return what was found as arrays."""
        result = {name: np.asarray(getattr(self, name)) for name in _INCUMBENT}
        return {**result, **{f"{COLUMN}{name}": column for name, column in self.columns.items()}}

    def restore(self, state: State) -> None:
        """Take back what `state` returned."""
        for name in _INCUMBENT:
            value = state[name]
            setattr(self, name, value if value.ndim else value.item())
        self.columns = _columns(state)


def _columns(state: State) -> Columns:
    """Return the degrees of the layouts of a state."""
    named = {name: column for name, column in state.items() if name.startswith(COLUMN)}
    return {name.removeprefix(COLUMN): np.asarray(column) for name, column in named.items()}


COLUMN = "column "
_INCUMBENT = ("step_time", "peak", "variant", "ordinal", "fastest", "num_feasible", "cutoff")

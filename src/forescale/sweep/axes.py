"""Which points a sweep has: cases × grids × samples, in one fixed order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np

from forescale.numeric import Array
from forescale.sweep.draft import Factor, Plain, Value
from forescale.sweep.parameters import CASE, Parameter

Setting: TypeAlias = tuple[Parameter, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One parameter with its values on a grid."""

    parameter: Parameter
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """What the axis is called."""
        return self.parameter.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """One parameter between two values; evenly spread, or evenly in its logarithm."""

    parameter: Parameter
    low: float
    high: float
    factors: bool
    """Whether the ends are factors."""
    log: bool
    multiple: int = 1
    """Whole numbers are rounded to a multiple of this."""

    @property
    def name(self) -> str:
        """What the range is called."""
        return self.parameter.name

    def at(self, share: float) -> Value:
        """Return the value at `share` of the way, 0 to 1."""
        if share in (0.0, 1.0):
            value = self.high if share else self.low
        elif self.log:
            value = float(np.exp((1.0 - share) * np.log(self.low) + share * np.log(self.high)))
        else:
            value = (1.0 - share) * self.low + share * self.high
        if self.factors:
            return Factor(by=value)
        if self.parameter.kind == "whole":
            return self.multiple * max(1, round(value / self.multiple))
        return value

    def spread(self, steps: int) -> tuple[Value, ...]:
        """Return `steps` values from end to end, each once."""
        return tuple(dict.fromkeys(self.at(step / (steps - 1)) for step in range(steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A named set of parameters that change together."""

    name: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One question of a sweep."""

    index: int
    settings: tuple[Setting, ...]
    """What is changed against the base, in the order in which it is applied."""
    shown: tuple[Plain, ...]
    """A value per column of what is varied; factors as numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Everything that is varied."""

    cases: tuple[Case, ...] = ()
    grid: tuple[Axis, ...] = ()
    ranges: tuple[Range, ...] = ()
    num_samples: int = 1
    """Samples of the ranges at each point of the grid; the same samples everywhere."""
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what is varied: cases first, then grids, then ranges."""
        named = [CASE] if self.cases else []
        return (*named, *(axis.name for axis in self.grid), *(item.name for item in self.ranges))

    @property
    def num_points(self) -> int:
        """Number of points."""
        sizes = [len(self.cases) or 1, *(len(axis.values) for axis in self.grid), self.num_samples]
        return math.prod(sizes)

    def points(self) -> tuple[Point, ...]:
        """Return all points; samples vary fastest, then the last grid, cases slowest."""
        samples = self._samples()
        choices = [[(axis.parameter, value) for value in axis.values] for axis in self.grid]
        found: list[Point] = []
        for case in self.cases or (None,):
            for chosen in product(*choices):
                for sample in samples:
                    named = () if case is None else (case.name,)
                    shown = (*named, *(plain(value) for _, value in (*chosen, *sample)))
                    settings = (*(case.settings if case else ()), *chosen, *sample)
                    ordered = tuple(sorted(settings, key=lambda item: item[0].phase))
                    found.append(Point(index=len(found), settings=ordered, shown=shown))
        return tuple(found)

    def _samples(self) -> list[tuple[Setting, ...]]:
        if not self.ranges:
            return [()]
        shares = latin_hypercube(self.num_samples, len(self.ranges), seed=self.seed)
        return [
            tuple(
                (item.parameter, item.at(float(share))) for item, share in zip(self.ranges, row, strict=True)
            )
            for row in shares
        ]


def latin_hypercube(num_points: int, num_dimensions: int, *, seed: int) -> Array:
    """Return points in the unit cube (points, dimensions): one in each of `num_points` slices per dimension.

    McKay, Beckman and Conover 1979, "A Comparison of Three Methods for Selecting Values of Input Variables".
    """
    random = np.random.default_rng(seed)
    slices = [random.permutation(num_points) for _ in range(num_dimensions)]
    within = random.random((num_points, num_dimensions))
    return np.asarray((np.stack(slices, axis=1) + within) / num_points, dtype=np.float64)


def plain(value: Value) -> Plain:
    """Return a value as a column holds it: factors as numbers, lists as text."""
    if isinstance(value, Factor):
        return value.by
    return "+".join(value) if isinstance(value, tuple) else value


def varies(values: Sequence[Plain]) -> bool:
    """Whether there is more than one value."""
    return len(set(values)) > 1

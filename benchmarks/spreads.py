"""Intervals of step times by group of runs, from errors of fits that had not seen them; judged by other families."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from forescale.cost.run_calibration import FEW, LEFT_OPEN, WAITING, Unseen, closest
from forescale.numeric import Array
from forescale.struct import Struct
from forescale.validation.fit import quantiles
from forescale.validation.runs import BALANCE

Mask: TypeAlias = NDArray[np.bool_]

OPEN_WEIGHT = 0.35
"""Of rows that leave something open, in the interval of a group with too few fully known ones; a choice."""
FEWEST = 20
"""Runs from which a group has an interval of its own, if they are of two families."""
MUCH_WAITING = 0.2
"""Share of a step from which its run says how far off the time is that devices wait for the host; a choice."""
FEWEST_WAITING = 10
"""Runs from which they say it, if they are of two families; a choice: few published runs wait much."""


class Errors(Struct, frozen=True, kw_only=True):
    """Errors ln(measured / predicted) of runs, and what tells the runs apart."""

    errors: Array
    core: Mask
    families: Array
    groups: tuple[tuple[str, ...], ...]
    """Of each run, the closest first."""
    waits: Array
    """Share of the projected step in which devices wait for the host."""
    few: Mask
    """Runs of a software stack on a generation of which few are known."""

    def members(self, name: str) -> Mask:
        """Return which runs are of a group."""
        return np.array([name in item for item in self.groups])

    @property
    def names(self) -> tuple[str, ...]:
        """All groups."""
        return tuple(sorted({name for item in self.groups for name in item}))


class Widths(Struct, frozen=True, kw_only=True):
    """Half widths of intervals, in logarithms."""

    core: dict[str, float]
    """By group, of runs of which everything is known, which is what a user asks."""
    open: dict[str, float]
    """The same of runs that leave something open."""
    waiting: float
    """Of the seconds that devices wait for the host, which err by themselves."""
    few: float = 1.0
    """Half width where few runs are known of the software on a generation, over that of the group."""

    def of(self, rows: Errors, index: int) -> float:
        """Return the half width of a run's interval."""
        core = self.core if rows.core[index] else self.open
        width = math.hypot(closest(core, rows.groups[index], float), rows.waits[index] * self.waiting)
        return width * (self.few if rows.few[index] else 1.0)


def spreads(rows: Errors) -> dict[str, Unseen]:
    """Return the spread of every group that is large enough, of core rows, and of "all".

    The interval is as wide below as above: to which side the next source lies is not known. A family's runs weigh
    less the more it has, as the next question is of another family. Medians and percentiles of the size of errors
    count every run alike; coverage is by what the other families say.
    """
    covered = np.zeros(len(rows.errors), dtype=bool)
    for family in sorted(set(rows.families)):
        inside = rows.families == family
        others = widths(rows, inside if inside.all() else ~inside)
        for index in np.flatnonzero(inside).tolist():
            covered[index] = abs(rows.errors[index]) <= others.of(rows, index)
    every = np.ones(len(rows.errors), dtype=bool)
    results_found = widths(rows, every)

    def spread(mask: Mask, width: float) -> Unseen:
        return unseen_of(rows.errors[mask], covered[mask], width)

    result = {name: spread(rows.members(name), width) for name, width in results_found.core.items()}
    if not rows.core.all():
        result |= {
            f"{name}{LEFT_OPEN}": spread(rows.members(name) & ~rows.core, width)
            for name, width in results_found.open.items()
            if (rows.members(name) & ~rows.core).any()
        }
    if results_found.waiting:
        result[WAITING] = spread(rows.waits >= MUCH_WAITING, results_found.waiting)
    if results_found.few > 1.0:
        result[FEW] = spread(rows.few, math.log(results_found.few))
    if rows.core.any():
        result["core"] = spread(rows.core, results_found.core["all"])
    return result


def widths(rows: Errors, among: Mask) -> Widths:
    """Return the intervals that some of the runs give.

    What waits for the host is told from the runs that wait much, beyond the interval of those that do not; what it does
    not explain of an error is the group's. The runs of software of which few are known on their generation say, all
    together, how much wider than their groups' their intervals are.
    """
    size, much = np.abs(rows.errors), rows.waits >= MUCH_WAITING
    waiting = 0.0
    if large(rows, much & among, FEWEST_WAITING):
        little = among & ~much
        first = Widths(
            core=_by_group(rows, size, little, kind=rows.core),
            open=_by_group(rows, size, little, kind=~rows.core),
            waiting=0.0,
        )
        selected = np.flatnonzero(much & among)
        known = np.array([first.of(rows, index) for index in selected.tolist()])
        beyond = np.sqrt(np.maximum(size[selected] ** 2 - known**2, 0.0)) / rows.waits[selected]
        waiting = quantiles(beyond, _weights(rows, much & among, rows.core), (0.8,))[0]
    left = np.sqrt(np.maximum(size**2 - (rows.waits * waiting) ** 2, 0.0))
    core = _by_group(rows, left, among, kind=rows.core)
    result = Widths(
        core=core,
        open=_no_narrower(_by_group(rows, left, among, kind=~rows.core), core, rows.groups),
        waiting=waiting,
    )
    sparse = rows.few & among
    if not large(rows, sparse):
        return result
    known = np.array([result.of(rows, index) for index in np.flatnonzero(sparse).tolist()])
    few = quantiles(size[sparse] / known, _weights(rows, sparse, rows.core), (0.8,))[0]
    return replace(result, few=max(1.0, few))


def large(rows: Errors, mask: Mask, fewest: int = FEWEST) -> bool:
    """Return whether runs are enough for an interval of their own."""
    return bool(mask.sum() >= fewest and len(set(rows.families[mask])) > 1)


def _by_group(rows: Errors, size: Array, among: Mask, *, kind: Mask) -> dict[str, float]:
    """Return what 8 of 10 runs of the kind lie within, of each group that is large enough.

    Of fully known runs too few it is that of all runs of the group, those counting most. Few that leave something open
    are those of a wider group: to be known well is what makes most of a group's runs alike. A kind of model that a
    single family ran on a generation has an interval of its own only where that is wider than that of the wider group.
    """
    result, of_one_family = dict[str, float](), dict[str, float]()
    for name in rows.names:
        inside = rows.members(name) & among
        local, whole = inside & kind, name == "all"
        mixed = whole or bool(kind[rows.core].any())
        selected = local if large(rows, local) or (whole and local.any()) or not mixed else inside
        if large(rows, selected) or whole:
            result[name] = quantiles(size[selected], _weights(rows, selected, kind), (0.8,))[0]
        elif name.count("/") > 1 and local.sum() >= FEWEST:
            of_one_family[name] = quantiles(size[local], _weights(rows, local, kind), (0.8,))[0]
    return _no_narrower(result, of_one_family, rows.groups)


def _no_narrower(
    values: dict[str, float], least: dict[str, float], groups: Iterable[tuple[str, ...]]
) -> dict[str, float]:
    """Return half widths, to which groups are added or raised that would get less than in `least`."""
    chains = {chain[0]: chain for chain in set(groups)}
    return values | {
        name: width
        for name, width in least.items()
        if width > closest(values, chains.get(name, (name, "all")), float)
    }


def _weights(rows: Errors, mask: Mask, kind: Mask) -> Array:
    """Return the weight of each chosen run: rows of the kind first, no family by its number of rows alone."""
    families = rows.families[mask]
    names, counts = np.unique(families, return_counts=True)
    sizes = dict(zip(names, counts, strict=True))
    return np.array(
        [
            (1.0 if item else OPEN_WEIGHT) / (BALANCE + sizes[family])
            for family, item in zip(families, kind[mask], strict=True)
        ]
    )


def unseen_of(errors: Array, covered: Array, width: float) -> Unseen:
    """Return how errors lie, and the interval that is stated of them."""
    size = np.abs(errors)
    return Unseen(
        rows=len(errors),
        median_abs=float(np.median(size)),
        bias=float(np.median(errors)),
        p10=-width,
        p90=width,
        p90_abs=float(np.percentile(size, 90)),
        coverage=float(covered.mean()),
    )

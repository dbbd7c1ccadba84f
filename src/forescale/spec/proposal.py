"""What a condition on layouts is: a mask over arrays of them, and a sentence about one that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from forescale.arrays import np
from forescale.numeric import Booleans, all_true
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.struct import Struct

Mask: TypeAlias = Booleans
Values: TypeAlias = Any
"""Degrees of one layout (int) or of many (integer array), and what comparing them gives."""
Degrees: TypeAlias = Any
"""Anything with the degrees of `Layout` as attributes: a Layout, or arrays."""


class Proposal(Struct, frozen=True, kw_only=True):
    """What a constraint looks at: model, cluster and workload, and the degrees (numbers or arrays)."""

    model: Model
    cluster: Cluster
    workload: Workload
    degrees: Degrees


class Constraint(Struct, frozen=True, kw_only=True):
    """One condition: `holds` over arrays, `message` for one layout that breaks it."""

    name: str
    holds: Callable[[Proposal], Any]
    message: Callable[[Proposal], str]
    applies: Callable[[Proposal], bool] = lambda _: True
    choices: tuple[str, ...] = ()
    """Fields of the layout other than degrees that it depends on and that a search chooses, such as cp_kind."""


class ManyLayouts:
    """Layouts as arrays: some fields as columns that broadcast, all others as in one layout."""

    def __init__(self, columns: Mapping[str, Values], layout: Layout) -> None:
        """Take the columns over the fields of `layout`."""
        self.__dict__.update(columns)
        self._layout = layout

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (a field of a layout)
        """Return a field that no column has."""
        return getattr(self._layout, name)


def violated(proposal: Proposal, rules: Sequence[Constraint]) -> list[Constraint]:
    """Return the rules that one layout breaks."""
    return [rule for rule in rules if rule.applies(proposal) and not all_true(rule.holds(proposal))]


def masks_of(proposal: Proposal, rules: Sequence[Constraint]) -> dict[str, Mask]:
    """Return where each rule holds, by its name, in the shape of what it depends on."""
    return {
        rule.name: np.asarray(rule.holds(proposal), dtype=bool) for rule in rules if rule.applies(proposal)
    }


def refused_by(masks: Mapping[str, Mask], size: int) -> dict[str, int]:
    """Return how many of `size` candidates each rule refused."""
    return {
        name: (holds.size - int(np.count_nonzero(holds))) * (size // max(holds.size, 1))
        for name, holds in masks.items()
    }

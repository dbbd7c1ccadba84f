"""The options that a training framework supports, and kernels that it has under some types only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import field

from forescale.spec.proposal import Proposal
from forescale.spec.workload import ComputeType
from forescale.struct import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """The options that a framework supports, as it is documented; dimensions of a space that are not named are free."""

    source: str
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that a search for it tries, by dimension of the space."""
    others: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values it knows too, which a search tries where they are asked for."""
    rules: Mapping[str, str] = field(default_factory=dict)
    """Degrees that it does not let go together: names of `RULES`, and what it says of them."""
    reliefs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """What makes room and is no dimension of a space: values by name (`advise/changes.py`)."""
    compute: tuple[ComputeType, ...] = ()
    """Types that its products can have; none named leaves it open."""
    note: str = ""
    """How its own words stand for ours."""

    def known(self, name: str) -> tuple[Any, ...]:
        """Return all values of a dimension that it knows; none where it is free."""
        return (*self.values.get(name, ()), *self.others.get(name, ()))


class Variant(Struct, frozen=True, kw_only=True):
    """Kernels that a framework has under some types only."""

    when: Mapping[str, tuple[Any, ...]]
    """Values of the fields of `Precision` in which it has them."""
    kernels: Mapping[str, Any]
    """Fields of `Kernels`."""


def exchanges_whole_keys(asked: Proposal) -> Any:  # noqa: ANN401 (a value, or one of each candidate)
    """Return where heads that context-parallel ranks exchange need no repeats, by the constraint of layouts."""
    from forescale.spec import constraints

    return constraints.exchanges_whole_keys(asked)

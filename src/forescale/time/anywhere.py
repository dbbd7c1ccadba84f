"""Communicators at every place where they may lie, and what a message or a buffer needs at the best of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from forescale.arrays import np
from forescale.cost.mesh import Group
from forescale.cost.model import Priced
from forescale.numeric import Integers, Numeric, mapped, taking
from forescale.struct import Struct

Range: TypeAlias = tuple[Numeric, Numeric, Numeric]
"""Low, expected, high."""


class Anywhere(Struct, frozen=True, kw_only=True):
    """Communicators at every place where they may lie, few of which are distinct."""

    group: Group
    """(places, distinct rows)"""
    rows: Integers
    """Which of the distinct rows each candidate has."""

    @property
    def num_places(self) -> int:
        """Places of each candidate."""
        return int(np.shape(self.group.size)[0])

    @property
    def groups(self) -> tuple[Group, ...]:
        """The communicators of all candidates at each place."""
        return tuple(map(self.at, range(self.num_places)))

    def at(self, place: int) -> Group:
        """Return the communicators of all candidates at one place."""
        take = taking(self.rows)
        return mapped(self.group, lambda values: take(np.asarray(values)[place]))

    def least_of(self, of: Callable[[Group], Range]) -> Range:
        """Return the least of each end of a range of all places, which depends on the communicator alone."""
        take = taking(self.rows)
        low, expected, high = (
            take(np.min(item, axis=0)) if isinstance(item, np.ndarray) else item for item in of(self.group)
        )
        return low, expected, high

    def least(self, price: Priced) -> Callable[[Numeric], Numeric]:
        """Return the price of a message where it takes the least, by that at all places.

        Bytes may be (candidates,) or (stages, candidates).
        """
        at_all = price.take(self.rows)

        def least(num_bytes: Numeric) -> Numeric:
            size = np.asarray(num_bytes)
            at_places = at_all(size[:, None, :] if size.ndim > 1 else num_bytes)
            return cast("Numeric", np.min(at_places, axis=-2))

        return least

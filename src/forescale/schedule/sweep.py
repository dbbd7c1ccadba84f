"""One pass over the levels of a compiled schedule, and room to do it in without making arrays each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from forescale.numeric import Array
from forescale.schedule.flat import Ints

if TYPE_CHECKING:
    from forescale.schedule.compiled import CompiledSchedule
    from forescale.schedule.layout import Durations

Waits: TypeAlias = tuple[tuple[Ints, Array | None], ...]
"""Of one level: (cells waited for, their delays or None), each (num_streams,)."""


def sweep(
    rows: Iterable[Array],
    costs: Iterable[Array],
    waits: Iterable[Waits],
    *,
    take: Callable[..., Any],
    before: Array,
    releases: Iterable[Array] | None = None,
) -> None:
    """Fill the rows of the state: `max(row before, arrivals) + durations`, level after level.

    `take` reads cells of the state, `before` is the row before the first.
    """
    buffer, maximum, add = np.empty_like(before), np.maximum, np.add
    released = iter(releases) if releases is not None else None
    for row, cost, arriving in zip(rows, costs, waits, strict=True):
        for cells, late in arriving:
            take(cells, 0, buffer, "clip")
            if late is not None:
                add(buffer, late, buffer)
            maximum(buffer, before, out=row)
            before = row
        if released is not None:
            before = maximum(before, next(released), out=row)
        before = add(before, cost, row)


class Room:
    """Arrays for single timings of one compiled schedule, with a view of every level made once."""

    __slots__ = ("_costs", "_delayed", "_late", "_plain", "_rows", "_spent", "state")

    def __init__(self, compiled: CompiledSchedule) -> None:
        levels, width = compiled.node_class.shape
        self.state = np.zeros(levels * width + 1)
        self._rows = list(self.state[:-1].reshape(levels, width))
        self._spent, self._late = _Gathered(compiled.node_class), _Gathered(compiled.late)
        self._costs = self._spent.rows()
        self._plain: list[Waits] = [tuple((c, None) for c in cells) for cells in compiled.arrivals]
        late = iter(self._late.rows())
        self._delayed: list[Waits] = [tuple((c, next(late)) for c in cells) for cells in compiled.arrivals]

    def fill(self, laid: Durations) -> Array:
        """Return the state for durations of one candidate; it is valid until the next call."""
        self._spent.gather(laid.nodes)
        waits = self._plain
        if laid.delays.any():
            self._late.gather(laid.delays)
            waits = self._delayed
        start = np.zeros_like(self._rows[0]) if self._rows else self.state[:0]
        sweep(self._rows, self._costs, waits, take=self.state.take, before=start)
        return self.state


class _Gathered:
    """Values of a table of classes; equal rows, of which periodic schedules have many, are kept once."""

    __slots__ = ("_classes", "_index", "_values")

    def __init__(self, classes: Ints) -> None:
        seen: dict[bytes, int] = {}
        self._index = [seen.setdefault(row.tobytes(), len(seen)) for row in classes]
        _, first = np.unique(self._index, return_index=True)
        self._classes = classes[first]
        self._values = np.empty(self._classes.shape)

    def rows(self) -> list[Array]:
        """Return a view of each row's values."""
        views = list(self._values)
        return [views[index] for index in self._index]

    def gather(self, table: Array) -> None:
        """Set the values by class."""
        table.take(self._classes, None, self._values, "clip")

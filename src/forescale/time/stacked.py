"""Prices of primitives whose extents are arrays: those that differ in extents alone are priced as one, none twice.

A call of a cost model takes about as long for a few numbers as for thousands. Prices are elementwise, so these are the
same bits as each primitive's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from forescale.arrays import is_numpy, np
from forescale.graph.ops import EXTENTS, Collective, Primitive, flags_of
from forescale.numeric import Numeric

MOST_NUMBERS = 32_768
"""Numbers priced at once: as many as fit in the cache with what is made of them."""
_READ: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*names) for kind, names in EXTENTS.items()
}


class Known:
    """Seconds of primitives by model, flags and extents."""

    def __init__(self) -> None:
        """Know none."""
        self.seconds: dict[tuple[Any, ...], Numeric] = {}
        self._models: dict[int, object] = {}

    def number(self, model: object) -> int:
        """Return a number that no other model has."""
        self._models[id(model)] = model  # which is kept, so that its id stays its own
        return id(model)


def alike(ops: Iterable[Primitive]) -> Mapping[tuple[Any, ...], list[Primitive]]:
    """Return the primitives whose extents are numbers or arrays over candidates, by their flags and candidates."""
    result: dict[tuple[Any, ...], list[Primitive]] = {}
    for op in ops:
        if size := _size(_extents(op)):
            flags = (op.axis, op.kind) if isinstance(op, Collective) else flags_of(op)
            result.setdefault((*flags, size), []).append(op)
    return result


def priced_together(
    flags: tuple[Any, ...],
    ops: Sequence[Primitive],
    price: Callable[[Any], Numeric],
    known: Known,
    model: object,
    places: int = 1,
) -> Iterator[tuple[Primitive, Numeric]]:
    """Yield primitives that are `alike` with their seconds by a model; what is new is added to the `known`.

    Messages are priced at so many `places` each.
    """
    which, seconds = known.number(model), known.seconds
    keys = [(which, *flags, *map(_content, _extents(op))) for op in ops]
    new = {key: op for key, op in zip(keys, ops, strict=True) if key not in seconds}
    size = flags[-1]
    at_once = max(1, MOST_NUMBERS // (size * places))
    every = list(new)
    for start in range(0, len(every), at_once):
        some = every[start : start + at_once]
        priced = price(_stacked([new[key] for key in some], size))
        seconds.update(zip(some, _rows(priced, len(some), size), strict=True))
    yield from ((op, seconds[key]) for key, op in zip(keys, ops, strict=True))


def _extents(op: Primitive) -> tuple[Any, ...]:
    return (op.num_bytes,) if isinstance(op, Collective) else _READ[type(op)](op)


def _size(extents: tuple[Any, ...]) -> int:
    """Return the number of candidates of extents that are numbers and arrays (candidates,); 0 of any others."""
    size = 0
    for extent in extents:
        if isinstance(extent, float):
            continue
        if not is_numpy(extent) or extent.ndim != 1 or size not in (0, len(extent)):
            return 0
        size = len(extent)
    return size


def _content(extent: Any) -> Any:  # noqa: ANN401  (a number, or the bytes of many)
    return extent if isinstance(extent, float) else extent.tobytes()


def _stacked(ops: Sequence[Primitive], size: int) -> Primitive:
    """Return primitives as one: the candidates of all in a row, or of messages (messages, candidates)."""
    first = ops[0]
    if len(ops) == 1:
        return first
    if isinstance(first, Collective):
        return replace(first, num_bytes=np.concatenate([*map(_extents, ops)]))
    stacks: dict[str, Any] = {}
    for name, extents in zip(EXTENTS[type(first)], zip(*map(_extents, ops), strict=True), strict=True):
        if all(isinstance(extent, float) and extent == extents[0] for extent in extents):
            continue
        rows = np.empty((len(ops), size))
        for row, extent in zip(rows, extents, strict=True):
            row[...] = extent
        stacks[name] = rows.reshape(-1)
    return replace(first, **stacks)


def _rows(seconds: Any, count: int, size: int) -> Iterable[Numeric]:  # noqa: ANN401
    """Return the seconds of each of so many primitives."""
    if count == 1 or isinstance(seconds, float):
        return [seconds] * count
    return np.asarray(seconds).reshape(count, size)

"""Timed kernels by shape, and the nearest ones of any operator.

A kernel of another shape is interpolated where two timed ones differ from it in the same single extent, one
below and one above; of several such pairs the closest counts. There is no extrapolation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from forescale.formula import Term, value_of
from forescale.graph.ops import AttentionCore, Compute, Elementwise, Gemm, GroupedGemm
from forescale.numeric import Array, Numeric

Family: TypeAlias = tuple[object, ...]
"""What two kernels must have in common: everything that is no extent."""
Row: TypeAlias = tuple[float, ...]
Line: TypeAlias = tuple[list[float], list[float]]
"""Extents along one axis in ascending order, and their seconds."""
MASK_DIGITS = 2
"""Digits to which two masks must leave the same share of query-key pairs: with or without the diagonal."""


def family_of(op: Compute) -> Family:
    """Return what a timed kernel must share with `op`."""
    match op:
        case Gemm():
            return ("gemm", op.dtype, op.accumulate_bytes > 0.0)
        case GroupedGemm():
            return ("grouped_gemm", op.dtype, op.contract, op.accumulate_bytes > 0.0)
        case AttentionCore():
            return ("attention", op.dtype, op.backward, op.flash, op.causal)
        case Elementwise():
            return ("elementwise", op.family)


def extents_of(op: Compute) -> tuple[tuple[Numeric, ...], tuple[int, ...]]:
    """Return the extents of `op`, and the power of each that its work grows with."""
    match op:
        case Gemm():
            return (op.m, op.n, op.k, op.batch), (1, 1, 1, 1)
        case GroupedGemm():
            return (op.groups, op.m, op.n, op.k), (1, 1, 1, 1)
        case AttentionCore():
            share = op.pairs / (op.q_len * op.kv_len)
            shape = (op.batch * op.heads, op.heads / op.kv_heads, op.q_len, op.kv_len / op.q_len)
            return (*shape, share, op.qk_dim, op.v_dim), (1, 1, 2, 1, 1, 1, 1)
        case Elementwise():
            # Timed traffic is what its device moved: casts with a transposed copy match those with as many bytes.
            return (op.bytes_moved + op.transposed_bytes, op.kernels), (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The neighbours of every candidate; equal ones where its very shape was timed."""

    covered: NDArray[np.bool_]
    exact: NDArray[np.bool_]
    below_s: Array
    above_s: Array
    share: Array
    """Of the way from the work of the kernel below to that of the one above."""


class KernelTable:
    """An index over timed kernels; it does not change once it is made."""

    def __init__(self, timings: Iterable[tuple[Compute, float]]) -> None:
        """Index operators with plain extents and their seconds; of equal shapes the median counts."""
        equal: dict[tuple[Family, Row], list[float]] = defaultdict(list)
        for op, seconds in timings:
            equal[family_of(op), _row(op)].append(seconds)
        self.num_shapes = len(equal)
        points: dict[tuple[Family, int, Row], list[tuple[float, float]]] = defaultdict(list)
        for (family, row), repeats in equal.items():
            for axis, extent in enumerate(row):
                points[family, axis, _others(row, axis)].append((extent, median(repeats)))
        self._families = frozenset(family for family, _ in equal)
        self._lines: Mapping[tuple[Family, int, Row], Line] = {
            key: tuple(map(list, zip(*sorted(along), strict=True)))  # type: ignore[misc]
            for key, along in points.items()
        }

    def find(self, op: Compute) -> Found | None:
        """Return the neighbours of every candidate of `op`; None where none has any."""
        family = family_of(op)
        if family not in self._families:
            return None
        extents, powers = extents_of(op)
        plain = np.broadcast_arrays(*(np.asarray(value_of(extent), dtype=np.float64) for extent in extents))
        rows = np.stack([each.reshape(-1) for each in plain], axis=1)
        if family[0] == "attention":
            rows[:, 4] = np.round(rows[:, 4], MASK_DIGITS)
        distinct, where = np.unique(rows, axis=0, return_inverse=True)
        found = np.array([self._neighbours(family, tuple(row), powers) for row in distinct.tolist()])
        if not found[:, 0].any():
            return None
        state, below, above, share = (
            found[where.reshape(-1), column].reshape(plain[0].shape) for column in range(4)
        )
        return Found(covered=state > 0.0, exact=state > 1.0, below_s=below, above_s=above, share=share)

    def _neighbours(self, family: Family, row: Row, powers: tuple[int, ...]) -> tuple[float, ...]:
        """Return state (2 exact, 1 between, 0 neither), seconds below and above, and the share between."""
        best: tuple[float, ...] = (0.0, 1.0, 1.0, 0.0)
        closest = float("inf")
        for axis, extent in enumerate(row):
            line = self._lines.get((family, axis, _others(row, axis)))
            if line is None:
                continue
            at, seconds = line
            place = bisect_left(at, extent)
            if place < len(at) and at[place] == extent:
                return (2.0, seconds[place], seconds[place], 0.0)
            if 0 < place < len(at) and (width := at[place] / at[place - 1]) < closest:
                low, here, high = (value ** powers[axis] for value in (at[place - 1], extent, at[place]))
                closest = width
                best = (1.0, seconds[place - 1], seconds[place], (here - low) / (high - low))
        return best


def _row(op: Compute) -> Row:
    row = [float(cast("float", extent)) for extent in extents_of(op)[0]]
    if isinstance(op, AttentionCore):
        row[4] = float(np.round(row[4], MASK_DIGITS))
    return tuple(row)


def _others(row: Row, axis: int) -> Row:
    return row[:axis] + row[axis + 1 :]


def is_recorded(op: Compute) -> bool:
    """Say whether any extent of `op` is a recorded term."""
    return any(isinstance(extent, Term) for extent in extents_of(op)[0])

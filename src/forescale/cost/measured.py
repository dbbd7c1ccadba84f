"""Timed kernels and messages as cost models: what was timed is looked up, everything else is another model's."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from forescale.cost.calibration import RunFactors, grouped_share
from forescale.cost.mesh import Group, ranks_per_node
from forescale.cost.model import CollectiveModel, ComputeModel, Priced, Prices, Provenance
from forescale.cost.timings import MeasuredCollective
from forescale.errors import conflicts, listed, other_run
from forescale.formula import Term, as_term, formula, value_of
from forescale.graph.ops import (
    AttentionCore,
    CollectiveKind,
    Compute,
    EagerKernel,
    Elementwise,
    Gemm,
    GroupedGemm,
)
from forescale.numeric import Array, Condition, Numeric
from forescale.spec.cluster import Cluster
from forescale.struct import Struct

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
        case EagerKernel():
            return ("eager", op.operator, op.kind, op.dtype)


def extents_of(op: Compute) -> tuple[tuple[Numeric, ...], tuple[int, ...]]:
    """Return the extents of `op` (elements), and the power with which its work grows with each."""
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
        case EagerKernel():
            return (op.elements, op.bytes_moved, op.kernels), (1, 1, 1)


class Found(Struct, frozen=True, kw_only=True):
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
                points[family, axis, _others(row, axis)].append((extent, float(np.median(repeats))))
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
        rows = np.stack([item.reshape(-1) for item in plain], axis=1)
        if family[0] == "attention":
            rows[:, 4] = np.round(rows[:, 4], MASK_DIGITS)
        distinct, where = np.unique(rows, axis=0, return_inverse=True)
        neighbours = np.array([self._neighbours(family, tuple(row), powers) for row in distinct.tolist()])
        if not neighbours[:, 0].any():
            return None
        state, below, above, share = (
            neighbours[where.reshape(-1), column].reshape(plain[0].shape) for column in range(4)
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


REPEATED = (0.97, 1.03)
"""What 8 of 10 repeats of a timed kernel are expected to lie between, over the time given; a choice."""
INTERPOLATED = (0.9, 1.1)
"""The same for a kernel between two timed ones: tiles and waves make steps that a line misses; a choice."""


@formula(
    unit="s", source="timed kernels: a straight line over the work of the nearest smaller and larger shape"
)
def measured_seconds(*, below_s: Numeric, above_s: Numeric, share: Numeric, sustained: Numeric) -> Numeric:
    """(below + share·(above − below)) / rate that whole runs sustain over kernels timed alone."""
    return (below_s + share * (above_s - below_s)) / sustained


@formula(unit="s", source="definition: shapes that were not timed are left to another model")
def where_timed(*, timed: Condition, measured: Numeric, otherwise: Numeric) -> Numeric:
    """Measured where there are neighbours, else the other model's."""
    return cast("Numeric", np.where(timed, measured, otherwise)[()])


class MeasuredCompute(Struct, frozen=True, kw_only=True):
    """Looks kernels up; what the table does not cover goes to `fallback`, whose provenance says so."""

    table: KernelTable
    fallback: ComputeModel
    run: RunFactors
    """What whole runs lose against kernels timed alone; `fallback` knows it by itself."""
    source: str
    """Files and devices that the table is made of."""

    def seconds(self, op: Compute) -> Numeric:
        """Return the duration of `op` [s]."""
        find = self.table.find(op)
        if find is None:
            return self.fallback.seconds(op)
        share: Numeric = find.share[()]
        if is_recorded(op):
            share = cast("Numeric", _recorded(share, op))
        seconds = measured_seconds(
            below_s=find.below_s[()], above_s=find.above_s[()], share=share, sustained=self._sustained(op)
        )
        if find.covered.all():
            return seconds
        return where_timed(timed=find.covered, measured=seconds, otherwise=self.fallback.seconds(op))

    def num_bytes(self, op: Compute) -> Numeric:
        """Return the bytes that `op` reads from and writes to device memory."""
        return self.fallback.num_bytes(op)

    def provenance(self, op: Compute) -> Provenance:
        """Return that of the least certain candidate of `op`."""
        find = self.table.find(op)
        if find is None or not find.covered.all():
            origin = self.fallback.provenance(op)
            source = f"not measured in {self.source}; {origin.source}"
            return Provenance(kind=origin.kind, source=source, low=origin.low, high=origin.high)
        return self._measured(find)

    def _measured(self, result: Found) -> Provenance:
        exact = bool(result.exact.all())
        low, high = REPEATED if exact else INTERPOLATED
        return Provenance(
            kind="measured" if exact else "interpolated", source=self.source, low=low, high=high
        )

    def _sustained(self, op: Compute) -> Numeric:
        match op:
            case Elementwise():
                return self.run.rate("memory") * self.run.rate(op.family)
            case AttentionCore():
                return self.run.rate("attention" if op.flash else "unfused")
            case GroupedGemm():
                share = grouped_share(share=self.run.rate("grouped"), groups=op.groups)
                return self.run.rate(op.dtype) * share
            case _:
                return self.run.rate(op.dtype)


def _recorded(share: Numeric, op: Compute) -> Term:
    """Return the share as a term that remembers the extents it follows from."""
    inputs = {str(index): as_term(extent) for index, extent in enumerate(extents_of(op)[0])}
    return Term(
        share, name="share of the way", unit="1", text="from the smaller to the larger", inputs=inputs
    )


Curve = tuple[Array, Array]
"""Bytes in ascending order, and seconds."""


@formula(unit="s", source="timed messages: straight lines between the sizes")
def timed_message(*, num_bytes: Numeric, sizes: Array, seconds: Array) -> Numeric:
    """Seconds of the sizes below and above, in proportion."""
    return cast("Numeric", np.interp(num_bytes, sizes, seconds))


class MeasuredMessages(Struct, frozen=True, kw_only=True):
    """Looks messages up by collective, ranks, ranks per node and size; others go to `base`."""

    base: CollectiveModel
    cluster: Cluster
    curves: Mapping[tuple[CollectiveKind, int, int], Curve]
    """By collective, ranks of the group and ranks that share a node."""
    source: str

    def seconds(self, *, kind: CollectiveKind, num_bytes: Numeric, group: Group) -> Numeric:
        """Return the seconds of one collective."""
        return self.within(group)(kind)(num_bytes)

    def within(self, group: Group) -> Prices:
        """Return the prices of `group`."""
        others = self.base.within(group)
        ranks, per_node = value_of(group.num_ranks), value_of(ranks_per_node(group, self.cluster))
        where = {
            key: inside
            for key in self.curves
            if np.any(inside := np.logical_and(ranks == key[1], per_node == key[2]))
        }

        def prices(kind: CollectiveKind) -> Priced:
            timed = tuple((inside, self.curves[key]) for key, inside in where.items() if key[0] == kind)
            return _Timed(otherwise=others(kind), timed=timed) if timed else others(kind)

        return prices

    def covers(self, *, kind: CollectiveKind, group: Group, num_bytes: Numeric | None = None) -> bool:
        """Say whether all messages of these sizes (by default of some size) in these groups are looked up."""
        ranks, per_node = value_of(group.num_ranks), value_of(ranks_per_node(group, self.cluster))
        value: Any = False
        for (timed, count, near), (sizes, _) in self.curves.items():
            size = sizes[0] if num_bytes is None else value_of(num_bytes)
            here = np.logical_and(ranks == count, per_node == near) & (timed == kind)
            value = value | (here & (size >= sizes[0]) & (size <= sizes[-1]))
        return bool(np.all(value))

    @property
    def timed(self) -> str:
        """What was timed, in words."""
        return ", ".join(
            f"{kind} among {ranks} ranks, {near} a node, {sizes[0]:,.0f} to {sizes[-1]:,.0f} bytes"
            for (kind, ranks, near), (sizes, _) in self.curves.items()
        )

    def provenance(self, *, kind: CollectiveKind) -> Provenance:
        """Return that of what is looked up, if `kind` was timed at all; `covers` says of which messages."""
        if all(key[0] != kind for key in self.curves):
            return self.base.provenance(kind=kind)
        low, high = INTERPOLATED
        return Provenance(kind="interpolated", source=self.source, low=low, high=high)


def curves_of(rows: tuple[MeasuredCollective, ...]) -> Mapping[tuple[CollectiveKind, int, int], Curve]:
    """Return the timed messages by collective, ranks and ranks per node; of equal sizes the median."""
    values: dict[tuple[CollectiveKind, int, int], dict[float, list[float]]] = defaultdict(dict)
    for row in rows:
        key = (row.kind, row.num_ranks, row.ranks_per_node)
        values[key].setdefault(row.num_bytes, []).append(row.seconds)
    return {
        key: (np.array(sorted(sizes)), np.array([np.median(sizes[size]) for size in sorted(sizes)]))
        for key, sizes in values.items()
    }


class _Timed(Struct, frozen=True, kw_only=True):
    """Prices timed sizes in timed groups, and all others by `otherwise`."""

    otherwise: Priced
    timed: tuple[tuple[Condition, Curve], ...]

    def take(self, rows: NDArray[np.int64]) -> _Timed:
        """Return the prices of some candidates' groups."""
        timed = tuple((np.take(where, rows, axis=-1), curve) for where, curve in self.timed)
        return _Timed(otherwise=self.otherwise.take(rows), timed=timed)

    def __call__(self, num_bytes: Numeric) -> Numeric:
        """Return the seconds of a message."""
        result, size = self.otherwise(num_bytes), value_of(num_bytes)
        for where, (sizes, seconds) in self.timed:
            inside: Any = where & (size >= sizes[0]) & (size <= sizes[-1])
            if np.any(inside):
                measured = timed_message(num_bytes=num_bytes, sizes=sizes, seconds=seconds)
                result = where_timed(timed=inside, measured=measured, otherwise=result)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Timed kernels and collectives of one device."""

    source: str
    """Where they come from: file, date, software."""
    device: str = ""
    """Catalogue name of the device; empty where nobody said."""
    kernels: tuple[tuple[Compute, float], ...] = ()
    """Operators with plain extents, and their seconds."""
    collectives: tuple[MeasuredCollective, ...] = ()
    notes: tuple[str, ...] = ()
    """What its files do not say, in sentences."""
    table: KernelTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the kernels."""
        object.__setattr__(self, "table", KernelTable(self.kernels))

    @classmethod
    def joined(cls, several: Iterable[Measurements]) -> Measurements:
        """Return the measurements of several files as one.

        Raises
        ------
        SpecError
            If they are of different devices.
        """
        item = tuple(several)
        devices = sorted({one.device for one in item if one.device})
        if len(devices) > 1:
            sources = [one.source for one in item]
            raise conflicts(sources, "", f"of {listed(devices, 'and')}", "give measurements of one device")
        return cls(
            source="; ".join(one.source for one in item),
            device=devices[0] if devices else "",
            kernels=tuple(timing for one in item for timing in one.kernels),
            collectives=tuple(row for one in item for row in one.collectives),
            notes=tuple(note for one in item for note in one.notes),
        )

    def check(self, cluster: Cluster) -> None:
        """Raise if they were not measured on the cluster's device."""
        if self.device and self.device != cluster.device.name:
            raise other_run(self.source, self.device, f"{cluster.name}, which has {cluster.device.name}")

    def compute(self, fallback: ComputeModel, run: RunFactors) -> ComputeModel:
        """Return the measured model of kernels, `fallback` where nothing was timed."""
        if not self.kernels:
            return fallback
        return MeasuredCompute(table=self.table, fallback=fallback, run=run, source=self.source)

    def messages(self, base: CollectiveModel, cluster: Cluster, *, exchanges: bool = True) -> CollectiveModel:
        """Return the measured model of collectives, `base` where nothing was timed.

        Without `exchanges` all-to-alls are left to `base`.
        """
        rows = tuple(row for row in self.collectives if exchanges or row.kind != "all_to_all")
        if not rows:
            return base
        return MeasuredMessages(base=base, cluster=cluster, curves=curves_of(rows), source=self.source)
